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
	"fmt"
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
	// TransferDone: the transfer that Start named by Link and Instance is done.
	TransferDone
	// Left: Rank has ended its training in order.
	Left
	// PeerLost: Rank, of this host or another, is gone; Err says how.
	PeerLost
	// Deadline: nothing but time has passed. Due about once a second.
	Deadline
)

// Event is something that has happened.
type Event struct {
	Kind      EventKind
	Rank      int
	Bucket    int
	Iteration int
	Link      int // position in the plan's programs
	Instance  int
	Err       error
}

// ActionKind tells what is to be done.
type ActionKind uint8

const (
	// Start: run Transfer. Link and Instance name it in the event of its end.
	Start ActionKind = iota
	// Complete: Bucket of Generation is reduced; tell the workers.
	Complete
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
	Iteration  int // the last of the generation
	Failure    *Failure
}

// Engine is the state of a run. It is not safe for concurrent use.
type Engine struct {
	Config
	links   []link
	buckets []bucket
	endsGen []int // by iteration of the period: the generation that it ends; -1: none
	ended   []int // by local worker: iterations ended
	left    []bool
	failed  bool
	actions []Action
}

// link is the progress of a program. What is before head and not in flight is
// done.
type link struct {
	program *plan.Program
	idle    bool     // nothing of it is the engine's
	gates   [][]done // by transfer: the transfers that it waits for
	head    int      // instance: next to start
	flying  []flight // by instance
	bytes   int64    // in flight
}

type flight struct {
	instance int
	started  time.Duration
}

// done is a gate on the transfer at position index of a link, in the period that
// lies shift periods before.
type done struct{ link, index, shift int }

type bucket struct {
	bytes    int64
	uses     []bool        // by generation of the period: whether workers declare it
	declared []int         // by local worker: the last generation declared; -1: none
	pending  []int         // by local worker: generations declared and not complete
	since    time.Duration // when the worker that is behind was last not, or less so
}

// New starts an engine at iteration 0. It refuses a plan that is for other
// tensors, or that waits for what an engine cannot see: ops of the computation.
// Gates on simulated time count as open; the job's own collectives, which the
// workers call themselves, as done.
func New(c Config) (*Engine, error) {
	p := c.Plan
	if fp := c.Job.TensorsFingerprint(); p.Tensors != fp {
		return nil, fmt.Errorf("the plan is for other tensors (fingerprint %s) than the workers have (%s)", p.Tensors, fp)
	}
	if len(c.Ranks) == 0 {
		return nil, fmt.Errorf("an engine needs a worker")
	}
	e := &Engine{Config: c, ended: make([]int, len(c.Ranks)), left: make([]bool, len(c.Ranks))}
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
		x := link{program: &p.Programs[l]}
		x.idle = !slices.ContainsFunc(x.program.Transfers, func(t plan.Transfer) bool { return t.Bucket >= 0 })
		for i := range x.program.Transfers {
			gates, err := e.gates(&x.program.Transfers[i])
			if err != nil {
				return nil, fmt.Errorf("link %s, transfer %d: %w", x.program.Link, i, err)
			}
			x.gates = append(x.gates, gates)
		}
		e.links = append(e.links, x)
	}
	return e, nil
}

// gates notes what a transfer waits for.
func (e *Engine) gates(t *plan.Transfer) (out []done, err error) {
	if t.Bucket < 0 {
		return nil, nil
	}
	n := len(e.Plan.Generations)
	for _, g := range t.Gates {
		switch g.Kind {
		case plan.GradientReady:
			e.buckets[t.Bucket].uses[((t.Generation%n)+n)%n] = true
		case plan.TransferDone:
			other := &e.Plan.Programs[g.Link].Transfers[g.Transfer]
			out = append(out, done{g.Link, g.Transfer, (other.Generation - t.Generation) / n})
		case plan.Boundary, plan.NotBefore:
		default:
			return nil, fmt.Errorf("it waits for an op (%s), which only the simulator sees", g.Kind)
		}
	}
	return out, nil
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
		return e.overdue(now)
	}
	if w < 0 {
		return &Failure{Rank: v.Rank, Bucket: -1, Err: fmt.Errorf("rank %d is not of this host", v.Rank)}
	}
	switch v.Kind {
	case Ready:
		return e.ready(now, w, v.Bucket, v.Iteration)
	case Boundary:
		if v.Iteration != e.ended[w] {
			return &Failure{Rank: v.Rank, Bucket: -1, Iteration: v.Iteration, Err: fmt.Errorf("rank %d ended iteration %d; iteration %d is next", v.Rank, v.Iteration, e.ended[w])}
		}
		e.ended[w]++
	case Left:
		e.left[w] = true
		for b := range e.buckets {
			if f := e.abandoned(b); f != nil {
				return f
			}
		}
	}
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
	b := &e.buckets[t.Bucket]
	x.bytes -= b.bytes
	if frees[t.Kind] {
		for w := range b.pending {
			b.pending[w]--
		}
	}
	if t.Completes() {
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
	for ; ; x.head++ {
		if e.absent(l, x.head) {
			continue
		}
		w := x.program.Window
		if w.Transfers > 0 && len(x.flying) >= w.Transfers || w.Bytes > 0 && x.bytes >= w.Bytes || !e.open(l) {
			return
		}
		x.flying = append(x.flying, flight{x.head, now})
		x.bytes += e.buckets[x.transfer(x.head).Bucket].bytes
		e.act(Start, l, x.head)
	}
}

// open reports whether all gates of the next transfer of a link are.
func (e *Engine) open(l int) bool {
	x := &e.links[l]
	t, n := x.transfer(x.head), x.period(x.head)
	for _, g := range t.Gates {
		switch g.Kind {
		case plan.GradientReady:
			if slices.Min(e.buckets[t.Bucket].declared) < e.generation(l, x.head) {
				return false
			}
		case plan.Boundary:
			if slices.Min(e.ended) <= n*e.Plan.Period+g.Iteration {
				return false
			}
		}
	}
	return !slices.ContainsFunc(x.gates[x.head%len(x.gates)], func(d done) bool { return !e.done(d, n) })
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

// absent tells of a transfer that there is none: it is of a generation before the
// run, or one of the job's own collectives.
func (e *Engine) absent(l, instance int) bool {
	return e.links[l].transfer(instance).Bucket < 0 || e.generation(l, instance) < 0
}

// generation is that of a transfer, counted from the start of the run.
func (e *Engine) generation(l, instance int) int {
	x := &e.links[l]
	return x.period(instance)*len(e.Plan.Generations) + x.transfer(instance).Generation
}

func (e *Engine) act(kind ActionKind, l, instance int) {
	t, g := e.links[l].transfer(instance), e.generation(l, instance)
	e.actions = append(e.actions, Action{
		Kind: kind, Link: l, Instance: instance, Transfer: t, Bucket: t.Bucket,
		Generation: g, Iteration: e.Plan.LastIteration(g),
	})
}

func (x *link) period(instance int) int { return instance / len(x.gates) }

func (x *link) transfer(instance int) *plan.Transfer {
	return &x.program.Transfers[instance%len(x.gates)]
}

// find is where in flying an instance is.
func (x *link) find(instance int) (int, bool) {
	return slices.BinarySearchFunc(x.flying, instance, func(f flight, i int) int { return f.instance - i })
}
