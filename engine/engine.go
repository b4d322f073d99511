// Package engine executes a plan: a state machine that is told what happens on
// one host and answers what is to be done. It does no I/O, reads no clock and
// starts no goroutine: package agent does all that around it. Every host runs
// an engine of its own with the same plan, so all start the same transfers of a
// link in the same order, and none asks another.
//
// The simulator executes the same plans by the same rules; the tests hold the
// two to the same order of starts and completions.
package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// Config says what an engine executes.
type Config struct {
	Plan *plan.Plan
	Job  *job.Job // whose tensors the plan moves
	// Ranks of the workers of this host: those that declare buckets ready.
	Ranks []int
	// SeesOps says that workers tell by OpDone when ops end, those of Ops. Then
	// transfers may wait for ops, and the job's own collectives are transfers like
	// others. Without it a plan with such gates is refused, and collectives are
	// skipped: workers make those calls themselves.
	SeesOps bool
	// Workers names the link whose transfers the workers of all hosts run themselves, once
	// they are told to: one is done here when all workers of this host have told so by Moved;
	// "": there is none.
	Workers string
	// Timeout bounds how long a transfer may take, and how long a bucket that one
	// worker has declared may wait for another; 0: no bound.
	Timeout time.Duration
}

// EventKind tells what has happened.
type EventKind uint8

const (
	// Ready: Rank has written Bucket for the generation that ends in Iteration.
	Ready EventKind = iota
	// Boundary: Rank has ended Iteration.
	Boundary
	// OpDone: Op of Iteration has ended on Rank.
	OpDone
	// TransferDone: the transfer that Start named by Link and Instance is done.
	TransferDone
	// Moved: Rank has done its part of the transfer of Bucket and Iteration that workers run.
	Moved
	// Left: Rank has ended its training in order.
	Left
	// PeerLost: Rank, of this host or another, is gone; Err says how.
	PeerLost
	// Flush: what workers have declared is to be reduced now, whatever else its transfers
	// wait for. They declare nothing after that.
	Flush
	// Deadline: nothing but time has passed. Due about once a second.
	Deadline
)

// Event is something that has happened.
type Event struct {
	Kind      EventKind
	Rank      int
	Bucket    int
	Op        job.OpID // of the job, which may have ops that the plan does not run
	Iteration int
	Link      int // position in the plan's programs
	Instance  int
	Err       error
}

// ActionKind tells what is to be done.
type ActionKind uint8

const (
	// Start: run Transfer, or on the link of [Config.Workers] have the workers run it. Link and
	// Instance name it in the event of its end.
	Start ActionKind = iota
	// Complete: Bucket of Generation is reduced, or if it is -1 the job's collective
	// Transfer.Collective of Iteration done; tell the workers.
	Complete
	// Flushed: all that was declared before Flush is reduced.
	Flushed
	// Abort: training cannot go on, and Failure says why. No action follows.
	Abort
)

// Action is something to be done.
type Action struct {
	Kind       ActionKind
	Link       int
	Instance   int // which transfer of the link, counted from the start of the run
	Transfer   *plan.Transfer
	Bucket     int
	Generation int // counted from the start of the run
	Iteration  int // the last of the generation, or that of the collective
	Failure    *Failure
}

// Engine is the state of a run. It is not safe for concurrent use.
type Engine struct {
	Config
	links   []link
	buckets []bucket
	endsGen []int              // by iteration of the period: the generation that it ends; -1: none
	ended   []int              // by local worker: iterations ended
	ops     map[job.OpID][]int // that transfers wait for, by local worker: iterations done
	left    []bool
	drains  bool // after Flush
	flushed bool
	failed  bool
	actions []Action
}

// link is the progress of a program. What is before head and not in flight is
// done.
type link struct {
	program *plan.Program
	idle    bool     // nothing of it is the engine's
	workers bool     // run its transfers
	oldest  int      // generation, relative to the period, of its transfers
	gates   []gates  // by transfer
	head    int      // instance: next to start
	flying  []flight // by instance
	bytes   int64    // in flight
}

type flight struct {
	instance int
	started  time.Duration
	moved    []bool // by local worker, if these run it: whether it has done its part
}

// gates are what a transfer waits for, besides its gradient.
type gates struct {
	transfers []done
	ops       []opDone
	ended     []int // iterations, relative to the period
}

// done is a gate on the transfer at position index of a link, in the period that
// lies shift periods before.
type done struct{ link, index, shift int }

// opDone is a gate on an op; the iteration is relative to the period.
type opDone struct {
	op        job.OpID
	iteration int
}

type bucket struct {
	bytes    int64
	uses     []bool        // by generation of the period: whether workers declare it
	declared []int         // by local worker: the last generation declared; -1: none
	pending  []int         // by local worker: generations declared and not complete
	since    time.Duration // when the worker that is behind was last not, or less so
}

// New starts an engine at iteration 0. It refuses a plan that is for other
// tensors, or that waits for what it will not be told. Gates on simulated time
// count as open, as do those on ops of the recorded library, which do not run.
func New(c Config) (*Engine, error) {
	p := c.Plan
	if fp := c.Job.TensorsFingerprint(); p.Tensors != fp {
		return nil, fmt.Errorf("the plan is for other tensors (fingerprint %s) than the workers have (%s)", p.Tensors, fp)
	}
	if len(c.Ranks) == 0 {
		return nil, fmt.Errorf("an engine needs a worker")
	}
	e := &Engine{Config: c, ended: make([]int, len(c.Ranks)), ops: map[job.OpID][]int{}, left: make([]bool, len(c.Ranks))}
	if c.SeesOps && p.Ops != "" && p.Ops != c.Job.OpsFingerprint() {
		return nil, fmt.Errorf("the plan is for other ops (fingerprint %s) than job %q has (%s)", p.Ops, c.Job.Name, c.Job.OpsFingerprint())
	}
	var runs *running
	if c.SeesOps {
		runs = newRunning(c.Job, p.Copies)
	}
	e.endsGen = slices.Repeat([]int{-1}, p.Period)
	for g, x := range p.Generations {
		e.endsGen[x.Last()] = g
	}
	for b := range p.Buckets {
		e.buckets = append(e.buckets, bucket{
			bytes: p.Buckets[b].Bytes(c.Job), uses: make([]bool, len(p.Generations)),
			declared: slices.Repeat([]int{-1}, len(c.Ranks)), pending: make([]int, len(c.Ranks)),
		})
	}
	for l := range p.Programs {
		x := link{program: &p.Programs[l], workers: c.Workers != "" && p.Programs[l].Link == c.Workers}
		x.idle = !slices.ContainsFunc(x.program.Transfers, func(t plan.Transfer) bool { return t.Bucket >= 0 || c.SeesOps })
		for i := range x.program.Transfers {
			t := &x.program.Transfers[i]
			g, err := e.gates(t, runs)
			if err != nil {
				return nil, fmt.Errorf("link %s, transfer %d (%s): %w", x.program.Link, i, e.name(t), err)
			}
			x.gates = append(x.gates, g)
			if t.Bucket >= 0 {
				x.oldest = min(x.oldest, t.Generation)
			}
		}
		e.links = append(e.links, x)
	}
	return e, nil
}

// running tells which of a job's ops run under a plan, and after which its own
// collectives start.
type running struct {
	ops   map[job.OpID]bool
	after [][]job.OpID // by collective
}

func newRunning(j *job.Job, copies bool) *running {
	stripped, origin := j.Strip(copies)
	r := &running{ops: make(map[job.OpID]bool, len(origin))}
	for _, o := range origin {
		r.ops[o] = true
	}
	for _, x := range stripped.Collectives {
		var after []job.OpID
		for _, o := range x.After {
			after = append(after, origin[o])
		}
		r.after = append(r.after, after)
	}
	return r
}

// gates notes what a transfer waits for; runs is nil where ops are not told.
func (e *Engine) gates(t *plan.Transfer, runs *running) (out gates, err error) {
	if t.Bucket < 0 && runs == nil {
		return out, nil
	}
	op := func(o job.OpID, iteration int) {
		if runs.ops[o] {
			out.ops = append(out.ops, opDone{o, iteration})
			e.ops[o] = make([]int, len(e.Ranks))
		}
	}
	if t.Bucket < 0 {
		for _, o := range runs.after[t.Collective] {
			op(o, t.Iteration)
		}
	}
	n := len(e.Plan.Generations)
	for _, g := range t.Gates {
		switch g.Kind {
		case plan.GradientReady:
			e.buckets[t.Bucket].uses[((t.Generation%n)+n)%n] = true
		case plan.TransferDone:
			other := &e.Plan.Programs[g.Link].Transfers[g.Transfer]
			out.transfers = append(out.transfers, done{g.Link, g.Transfer, (other.Generation - t.Generation) / n})
		case plan.Boundary:
			out.ended = append(out.ended, g.Iteration)
		case plan.NotBefore:
		case plan.OpDone:
			if runs == nil {
				return out, fmt.Errorf("it waits for op %d, and nobody tells when ops end", g.Op)
			}
			op(g.Op, g.Iteration)
		default:
			return out, fmt.Errorf("it waits for what there is not (gate %d)", g.Kind)
		}
	}
	return out, nil
}

// Ops lists the ops whose ends are to be told, ascending.
func (e *Engine) Ops() []job.OpID { return slices.Sorted(maps.Keys(e.ops)) }

// Generations lists those of the period for which workers declare a bucket, ascending.
func (e *Engine) Generations(bucket int) (out []int) {
	for g, uses := range e.buckets[bucket].uses {
		if uses {
			out = append(out, g)
		}
	}
	return out
}

// Step takes an event that happened at now, a time since any origin that never
// goes back, and returns what is to be done, in this order. The result is valid
// until the next call. After Abort, Step returns nothing.
func (e *Engine) Step(now time.Duration, v Event) []Action {
	e.actions = e.actions[:0]
	if e.failed {
		return nil
	}
	if f := e.take(now, v); f != nil {
		e.failed = true
		return append(e.actions[:0], Action{Kind: Abort, Failure: f})
	}
	for l := range e.links {
		if !e.links[l].idle {
			e.dispatch(now, l)
		}
	}
	if e.drains && !e.flushed && !slices.ContainsFunc(e.links, func(x link) bool { return len(x.flying) > 0 || !e.drained(&x) }) {
		e.flushed = true
		e.actions = append(e.actions, Action{Kind: Flushed, Bucket: -1})
	}
	return e.actions
}

func (e *Engine) take(now time.Duration, v Event) *Failure {
	w := slices.Index(e.Ranks, v.Rank)
	switch v.Kind {
	case PeerLost:
		return e.lost(now, v.Rank, w, v.Err)
	case TransferDone:
		return e.finish(v.Link, v.Instance)
	case Deadline:
		return e.Late(now, e.Timeout)
	case Flush:
		return e.drain()
	}
	if w < 0 {
		return &Failure{Rank: v.Rank, Bucket: -1, Err: fmt.Errorf("rank %d is not of this host", v.Rank)}
	}
	switch v.Kind {
	case Ready:
		return e.ready(now, w, v.Bucket, v.Iteration)
	case Moved:
		return e.moved(v, w)
	case Boundary:
		return e.ends(v, e.ended, w, "")
	case OpDone:
		x, ok := e.ops[v.Op]
		if !ok {
			return &Failure{Rank: v.Rank, Bucket: -1, Iteration: v.Iteration, Err: fmt.Errorf("rank %d ended op %d, for which no transfer waits", v.Rank, v.Op)}
		}
		return e.ends(v, x, w, fmt.Sprintf("op %d of ", v.Op))
	case Left:
		e.left[w] = true
		if f := e.unmoved(now, w, fmt.Errorf("rank %d has ended its training", v.Rank)); f != nil {
			return f
		}
		for b := range e.buckets {
			if f := e.abandoned(b); f != nil {
				return f
			}
		}
	}
	return nil
}

// ends notes that worker w has ended an iteration, or what of it.
func (e *Engine) ends(v Event, ended []int, w int, what string) *Failure {
	if v.Iteration != ended[w] {
		return &Failure{Rank: v.Rank, Bucket: -1, Iteration: v.Iteration, Err: fmt.Errorf("rank %d ended %siteration %d; iteration %d is next", v.Rank, what, v.Iteration, ended[w])}
	}
	ended[w]++
	return nil
}

// ready notes that worker w has written bucket b for the generation that ends in
// an iteration.
func (e *Engine) ready(now time.Duration, w, b, iteration int) *Failure {
	wrong := func(format string, args ...any) *Failure {
		return &Failure{Rank: e.Ranks[w], Bucket: -1, Iteration: iteration, Phase: Gradient,
			Err: fmt.Errorf("rank %d declared bucket %d of iteration %d: "+format, append([]any{e.Ranks[w], b, iteration}, args...)...)}
	}
	if b < 0 || b >= len(e.buckets) {
		return wrong("the plan has %d buckets", len(e.buckets))
	}
	if e.drains {
		return wrong("it has asked for a flush, after which there is a hello")
	}
	x := &e.buckets[b]
	next := x.declared[w] + 1
	for range x.uses {
		if x.uses[next%len(x.uses)] {
			break
		}
		next++
	}
	if !x.uses[next%len(x.uses)] {
		return wrong("no transfer waits for it")
	}
	if due := e.Plan.LastIteration(next); iteration != due {
		return wrong("its next is of iteration %d", due)
	}
	if x.pending[w] == e.Plan.Buffers {
		return wrong("it is in flight still, and the plan has %d buffers", e.Plan.Buffers)
	}
	least, most := slices.Min(x.declared), slices.Max(x.declared)
	x.declared[w] = next
	x.pending[w]++
	if least == most || slices.Min(x.declared) > least {
		x.since = now
	}
	return e.abandoned(b)
}

// moved notes that worker w has done its part of a transfer that workers run.
func (e *Engine) moved(v Event, w int) *Failure {
	for l := range e.links {
		for _, f := range e.links[l].flying {
			if f.moved == nil || e.links[l].transfer(f.instance).Bucket != v.Bucket || e.iteration(l, f.instance) != v.Iteration || f.moved[w] {
				continue
			}
			f.moved[w] = true
			if slices.Contains(f.moved, false) {
				return nil
			}
			return e.finish(l, f.instance)
		}
	}
	return &Failure{Rank: v.Rank, Bucket: -1, Iteration: v.Iteration, Err: fmt.Errorf("rank %d moved bucket %d of iteration %d, which it was not told to", v.Rank, v.Bucket, v.Iteration)}
}

// drain begins a flush. All workers must have declared the same.
func (e *Engine) drain() *Failure {
	if e.SeesOps {
		return &Failure{Rank: -1, Bucket: -1, Err: errors.New("played jobs are not flushed")}
	}
	for b := range e.buckets {
		x := &e.buckets[b]
		least, most := slices.Min(x.declared), slices.Max(x.declared)
		if least < most {
			behind, ahead := e.Ranks[slices.Index(x.declared, least)], e.Ranks[slices.Index(x.declared, most)]
			return e.about(behind, b, most, Gradient, 0, fmt.Errorf("all ranks ask for a flush, rank %d after another iteration than rank %d: flush after the same", behind, ahead))
		}
	}
	e.drains = true
	return nil
}

// drained reports whether a flush leaves nothing to start on a link.
func (e *Engine) drained(x *link) bool {
	if !e.drains || x.idle {
		return e.drains
	}
	oldest := x.period(x.head)*len(e.Plan.Generations) + x.oldest
	return !slices.ContainsFunc(e.buckets, func(b bucket) bool { return b.declared[0] >= oldest })
}

// Declared is how many generations the worker at a place of Ranks has declared with
// all their buckets.
func (e *Engine) Declared(worker int) int {
	last := -1
	for b := range e.buckets {
		if d := e.buckets[b].declared[worker]; b == 0 || d < last {
			last = d
		}
	}
	return last + 1
}

// finish notes that a transfer is done.
func (e *Engine) finish(l, instance int) *Failure {
	if l < 0 || l >= len(e.links) {
		return &Failure{Rank: -1, Bucket: -1, Err: fmt.Errorf("a transfer of link %d is done; the plan has %d links", l, len(e.links))}
	}
	x := &e.links[l]
	at, ok := x.find(instance)
	if !ok {
		return &Failure{Rank: -1, Bucket: -1, Err: fmt.Errorf("transfer %d of link %s is done; it is not in flight", instance, x.program.Link)}
	}
	x.flying = slices.Delete(x.flying, at, at+1)
	t := x.transfer(instance)
	x.bytes -= e.bytes(t)
	if t.Bucket >= 0 && frees[t.Kind] {
		for w := range e.buckets[t.Bucket].pending {
			e.buckets[t.Bucket].pending[w]--
		}
	}
	if t.Completes() || t.Bucket < 0 {
		e.act(Complete, l, instance)
	}
	return nil
}

// frees tells after which transfers workers may write their bucket again. What
// is pulled need not be cut into buckets as it was pushed.
var frees = map[cluster.Kind]bool{cluster.AllReduce: true, cluster.AllGather: true, cluster.Push: true}

// dispatch starts what program order, gates and window of a link allow.
func (e *Engine) dispatch(now time.Duration, l int) {
	x := &e.links[l]
	for ; !e.drained(x); x.head++ {
		if e.absent(l, x.head) {
			continue
		}
		w := x.program.Window
		if w.Transfers > 0 && len(x.flying) >= w.Transfers || w.Bytes > 0 && x.bytes >= w.Bytes || !e.open(l) {
			return
		}
		f := flight{instance: x.head, started: now}
		if x.workers {
			f.moved = make([]bool, len(e.Ranks))
		}
		x.flying = append(x.flying, f)
		x.bytes += e.bytes(x.transfer(x.head))
		e.act(Start, l, x.head)
	}
}

// open reports whether all gates of the next transfer of a link are.
func (e *Engine) open(l int) bool {
	x := &e.links[l]
	t, n := x.transfer(x.head), x.period(x.head)
	for _, g := range t.Gates {
		if g.Kind == plan.GradientReady && slices.Min(e.buckets[t.Bucket].declared) < e.generation(l, x.head) {
			return false
		}
	}
	g := &x.gates[x.head%len(x.gates)]
	first := n * e.Plan.Period
	for _, i := range g.ended {
		if !e.drains && slices.Min(e.ended) <= first+i {
			return false
		}
	}
	for _, o := range g.ops {
		if slices.Min(e.ops[o.op]) <= first+o.iteration {
			return false
		}
	}
	for _, d := range g.transfers {
		if !e.done(d, n) {
			return false
		}
	}
	return true
}

// done reports whether the gate of a transfer of period n is open.
func (e *Engine) done(d done, n int) bool {
	x := &e.links[d.link]
	instance := (n-d.shift)*len(x.gates) + d.index
	if instance < 0 || e.absent(d.link, instance) {
		return true
	}
	_, flying := x.find(instance)
	return instance < x.head && !flying
}

// absent tells of a transfer that there is none: it is of a time before the run, or
// after a flush, or one of the job's own collectives, which the workers call.
func (e *Engine) absent(l, instance int) bool {
	if e.links[l].transfer(instance).Bucket < 0 {
		return !e.SeesOps || e.iteration(l, instance) < 0
	}
	g := e.generation(l, instance)
	return g < 0 || e.drains && g > e.buckets[e.links[l].transfer(instance).Bucket].declared[0]
}

// generation is that of a transfer, counted from the start of the run.
func (e *Engine) generation(l, instance int) int {
	x := &e.links[l]
	return x.period(instance)*len(e.Plan.Generations) + x.transfer(instance).Generation
}

// iteration is the last of a transfer's generation, or that of a collective.
func (e *Engine) iteration(l, instance int) int {
	x := &e.links[l]
	if t := x.transfer(instance); t.Bucket < 0 {
		return x.period(instance)*e.Plan.Period + t.Iteration
	}
	return e.Plan.LastIteration(e.generation(l, instance))
}

func (e *Engine) bytes(t *plan.Transfer) int64 {
	if t.Bucket < 0 {
		return e.Job.Collectives[t.Collective].Bytes
	}
	return e.buckets[t.Bucket].bytes
}

// name is what messages call a transfer.
func (e *Engine) name(t *plan.Transfer) string {
	if t.Bucket < 0 {
		return fmt.Sprintf("%s of the job's own collective %d", t.Kind, t.Collective)
	}
	return fmt.Sprintf("%s of bucket %d", t.Kind, t.Bucket)
}

func (e *Engine) act(kind ActionKind, l, instance int) {
	t := e.links[l].transfer(instance)
	a := Action{Kind: kind, Link: l, Instance: instance, Transfer: t, Bucket: t.Bucket, Iteration: e.iteration(l, instance)}
	if t.Bucket >= 0 {
		a.Generation = e.generation(l, instance)
	}
	e.actions = append(e.actions, a)
}

func (x *link) period(instance int) int { return instance / len(x.gates) }

func (x *link) transfer(instance int) *plan.Transfer {
	return &x.program.Transfers[instance%len(x.gates)]
}

// find is where in flying an instance is.
func (x *link) find(instance int) (int, bool) {
	return slices.BinarySearchFunc(x.flying, instance, func(f flight, i int) int { return f.instance - i })
}
