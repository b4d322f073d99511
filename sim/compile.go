package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/timeline"
)

// program is a job and a plan in executable form: flat arrays over ops and
// transfers. Times are whole nanoseconds in float64, so that sums are exact and
// equal times are equal.
type program struct {
	name     string
	period   int
	recorded bool // op times include the slowdown by overlapped transfers

	lanes []lane
	ops   []op
	times [][]float64 // by iteration of the period, then op

	succ  [][]int32 // by op: ops of the same iteration that depend on it
	next  [][]int32 // by op: ops of the following iteration that depend on it
	grads [][]int32 // by op: tensors whose gradient waits for it

	producers []int32 // by tensor: ops that its gradient waits for

	links []link

	// What an event of iteration i releases, by i mod period.
	onGradient []map[int32][]ref // by tensor
	onOp       []map[int32][]ref // by op
	onEnd      [][]ref
	onBackward [][]timer
	waits      [][]waiting
}

// waiting is an op and the transfers that it waits for.
type waiting struct {
	op   int32
	refs []ref
}

type lane struct {
	name     string
	kind     timeline.LaneKind
	computes bool // does the job's computation: waits for communication, and is slowed by it
	ops      []int32
}

type op struct {
	name  string
	lane  int32
	phase job.Phase
	deps  int32 // same iteration
	prev  int32 // previous iteration
}

type link struct {
	name      string
	window    plan.Window
	medium    string
	bandwidth float64
	transfers []transfer
}

type transfer struct {
	name        string
	bucket      int32
	bytes       int64
	alpha, wire float64
	sides       cluster.Sides
	onDone      []ref // transfers that it releases
	// Iterations of its generation, relative to its period. It does not exist
	// where they are not all in the run.
	first, last int
}

// ref names the transfer at position index of a link, in the period that lies
// shift periods after the one that the referring iteration or transfer is in.
type ref struct {
	link, index int32
	shift       int
}

type timer struct {
	ref
	after float64
}

// periods is how many periods of the programs a run takes: those of its
// iterations, and as many more as transfers of its last generations lie behind.
func (p *program) periods(iterations int) int {
	behind := 0
	for _, l := range p.links {
		for _, t := range l.transfers {
			behind = max(behind, -floorDiv(t.first, p.period))
		}
	}
	return (iterations+p.period-1)/p.period + behind
}

// placed counts the ops of an iteration.
func (p *program) placed() int {
	n := 0
	for _, l := range p.lanes {
		n += len(l.ops)
	}
	return n
}

// spans is about how many spans an iteration of one worker has: its ops, and
// each transfer queued and sent.
func (p *program) spans() int {
	n := p.placed()
	for _, l := range p.links {
		n += 2 * len(l.transfers) / p.period
	}
	return n
}

func (p *program) transferCount() int {
	n := 0
	for _, l := range p.links {
		n += len(l.transfers)
	}
	return n
}

// pace is the time of an iteration that the busiest link takes, nanoseconds: on
// one side of its ports, or with start-ups where one transfer follows the other.
func (p *program) pace() float64 {
	busiest := 0.0
	for _, l := range p.links {
		var wires [2]float64
		serial := 0.0
		for _, t := range l.transfers {
			for side := range wires {
				if t.sides>>side&1 != 0 {
					wires[side] += t.wire
				}
			}
			serial += t.alpha + t.wire
		}
		if l.window.Transfers != 1 {
			serial = 0
		}
		busiest = max(busiest, wires[0], wires[1], serial)
	}
	return busiest / float64(p.period)
}

const nsPerUs = 1000

func ns(us float64) float64 { return math.Round(us * nsPerUs) }

// up rounds costs of transfers up, so that slicing never gains by rounding; what
// is a whole number but for floating point stays it.
func up(us float64) float64 { return math.Ceil(us*nsPerUs - 1e-6) }

// compile checks that job, cluster and plan fit together and lays them out.
func compile(j *job.Job, c *cluster.Cluster, p *plan.Plan) (*program, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if p == nil {
		return compileReplay(j)
	}
	if fp := j.TensorsFingerprint(); p.Tensors != fp {
		return nil, fmt.Errorf("the plan is for other tensors (fingerprint %s) than job %q has (%s)", p.Tensors, j.Name, fp)
	}
	if len(p.Programs) > len(c.Links) {
		return nil, fmt.Errorf("the plan has programs for %d links, the cluster has %d", len(p.Programs), len(c.Links))
	}
	for l := range p.Programs {
		if name := c.Links[l].Name; p.Programs[l].Link != name {
			return nil, fmt.Errorf("program %d of the plan is for link %s, link %d of the cluster is %s", l, p.Programs[l].Link, l, name)
		}
	}
	s, old := j.Strip(p.Copies)
	if size := float64(p.Period) * float64(len(s.Ops)); size > maxTable {
		return nil, fmt.Errorf("a period of %d iterations of %d ops is too long to simulate", p.Period, len(s.Ops))
	}
	b := newBuilder(s, p.Period, fmt.Sprintf("%s under %s", j.Name, p.Policy))
	renumber := make([]int32, len(j.Ops))
	for i := range renumber {
		renumber[i] = -1
	}
	for i, o := range old {
		renumber[o] = int32(i)
	}
	b.order(p.Order, renumber)
	if err := b.links(p, c, renumber); err != nil {
		return nil, err
	}
	b.collectives(p)
	if err := b.updates(p); err != nil {
		return nil, err
	}
	return b.finish(), nil
}

// compileReplay keeps all ops. Each collective without gradients has a lane of
// its own: the job says what it waits for, not which thread carried it.
func compileReplay(j *job.Job) (*program, error) {
	b := newBuilder(j, 1, fmt.Sprintf("%s as recorded", j.Name))
	b.recorded = true
	for i := range j.Collectives {
		x := &j.Collectives[i]
		l := b.lane(fmt.Sprintf("collective %d", i), timeline.Link)
		o := b.append(op{name: x.Name, lane: l, phase: job.Runtime}, ns(x.Time))
		for _, d := range x.After {
			b.edge(d, o)
		}
		for _, d := range x.Before {
			b.edge(o, d)
		}
	}
	return b.finish(), nil
}

type builder struct {
	program
	job   *job.Job
	waits []map[int32][]ref // by iteration of the period, then op
}

func newBuilder(j *job.Job, period int, name string) *builder {
	b := &builder{job: j}
	b.name, b.period = name, period
	b.times = make([][]float64, period)
	b.onGradient = make([]map[int32][]ref, period)
	b.onOp = make([]map[int32][]ref, period)
	b.waits = make([]map[int32][]ref, period)
	b.onEnd = make([][]ref, period)
	b.onBackward = make([][]timer, period)
	for i := range period {
		b.times[i] = make([]float64, 0, len(j.Ops))
		b.onGradient[i] = map[int32][]ref{}
		b.onOp[i] = map[int32][]ref{}
		b.waits[i] = map[int32][]ref{}
	}
	for i, l := range j.Lanes {
		kind := map[job.LaneKind]timeline.LaneKind{job.Host: timeline.Host, job.Device: timeline.Device, job.Comm: timeline.Link}[l.Kind]
		b.lane(l.Name, kind)
		b.lanes[i].computes = j.Computes(job.LaneID(i))
	}
	b.succ = make([][]int32, 0, len(j.Ops))
	for i := range j.Ops {
		o := &j.Ops[i]
		b.append(op{name: o.Name, lane: o.Lane, phase: o.Phase}, ns(o.Time))
	}
	for i := range j.Ops {
		for _, d := range j.Ops[i].Deps {
			b.edge(d, int32(i))
		}
	}
	b.producers = make([]int32, len(j.Tensors))
	for k, ops := range j.ReadyOps() {
		for _, o := range ops {
			b.grads[o] = append(b.grads[o], int32(k))
		}
		b.producers[k] = int32(len(ops))
	}
	return b
}

func (b *builder) lane(name string, kind timeline.LaneKind) int32 {
	b.lanes = append(b.lanes, lane{name: name, kind: kind})
	return int32(len(b.lanes) - 1)
}

// append adds an op to the end of its lane, with the same time in every iteration.
func (b *builder) append(o op, t float64) int32 {
	id := b.detached(o, t)
	b.lanes[o.lane].ops = append(b.lanes[o.lane].ops, id)
	return id
}

// detached adds an op that its lane's list does not hold yet.
func (b *builder) detached(o op, t float64) int32 {
	id := int32(len(b.ops))
	b.ops = append(b.ops, o)
	b.succ, b.next, b.grads = append(b.succ, nil), append(b.next, nil), append(b.grads, nil)
	for i := range b.times {
		b.times[i] = append(b.times[i], t)
	}
	return id
}

func (b *builder) edge(from, to int32) {
	b.succ[from] = append(b.succ[from], to)
	b.ops[to].deps++
}

// order replaces the recorded order of lanes by the plan's.
func (b *builder) order(order [][]job.OpID, renumber []int32) {
	for _, ids := range order {
		var ops []int32
		for _, id := range ids {
			if n := renumber[id]; n >= 0 {
				ops = append(ops, n)
			}
		}
		if len(ops) > 0 {
			b.lanes[b.ops[ops[0]].lane].ops = ops
		}
	}
}

// at splits an iteration, relative to a period, into the period it falls in and
// its place there.
func (b *builder) at(iteration int) (period, place int) {
	place = iteration % b.period
	if place < 0 {
		place += b.period
	}
	return (iteration - place) / b.period, place
}

// links lays out the programs and what releases their transfers.
func (b *builder) links(p *plan.Plan, c *cluster.Cluster, renumber []int32) error {
	for l := range p.Programs {
		pp, cl := &p.Programs[l], &c.Links[l]
		b.program.links = append(b.program.links, link{
			name: pp.Link, window: pp.Window.Within(cl.InFlight), medium: cl.Medium, bandwidth: cl.Bandwidth,
			transfers: make([]transfer, len(pp.Transfers)),
		})
	}
	for l := range p.Programs {
		for i := range p.Programs[l].Transfers {
			if err := b.transfer(p, c, l, i, renumber); err != nil {
				return fmt.Errorf("link %s, transfer %d: %w", p.Programs[l].Link, i, err)
			}
		}
	}
	return nil
}

func (b *builder) transfer(p *plan.Plan, c *cluster.Cluster, l, i int, renumber []int32) error {
	x := &p.Programs[l].Transfers[i]
	t := &b.program.links[l].transfers[i]
	t.bucket = int32(x.Bucket)
	last := x.Iteration
	if x.Bucket >= 0 {
		bucket := &p.Buckets[x.Bucket]
		t.bytes = bucket.Bytes(b.job)
		t.name = fmt.Sprintf("%s bucket %d", x.Kind, x.Bucket)
		n := floorDiv(x.Generation, len(p.Generations))
		g := p.Generations[x.Generation-n*len(p.Generations)]
		t.first, last = n*b.period+g.First, n*b.period+g.Last()
	} else {
		cl := &b.job.Collectives[x.Collective]
		t.bytes, t.name, t.first = cl.Bytes, cl.Name, x.Iteration
		for _, o := range cl.After {
			b.release(b.onOp, o, x.Iteration, l, i)
		}
	}
	t.last = last
	cost, err := c.Cost(l, x.Kind, t.bytes)
	if err != nil {
		return err
	}
	t.alpha, t.wire, t.sides = up(cost.Alpha), up(cost.Wire), c.Sides(x.Kind)
	for _, g := range x.Gates {
		switch g.Kind {
		case plan.GradientReady:
			for _, k := range p.Buckets[x.Bucket].Tensors() {
				b.release(b.onGradient, k, last, l, i)
			}
		case plan.OpDone:
			if o := renumber[g.Op]; o >= 0 {
				b.release(b.onOp, o, g.Iteration, l, i)
			}
		case plan.Boundary:
			n, place := b.at(g.Iteration)
			b.onEnd[place] = append(b.onEnd[place], ref{int32(l), int32(i), -n})
		case plan.NotBefore:
			n, place := b.at(last)
			b.onBackward[place] = append(b.onBackward[place], timer{ref{int32(l), int32(i), -n}, ns(g.Time)})
		case plan.TransferDone:
			from := &b.program.links[g.Link].transfers[g.Transfer]
			other := p.Programs[g.Link].Transfers[g.Transfer].Generation
			// Both instances carry the same absolute generation.
			shift := (other - x.Generation) / len(p.Generations)
			from.onDone = append(from.onDone, ref{int32(l), int32(i), shift})
		default:
			return fmt.Errorf("unknown gate %d", g.Kind)
		}
	}
	return nil
}

// release makes an event of the given iteration (relative to the transfer's
// period) one of the gates of transfer i on link l.
func (b *builder) release(on []map[int32][]ref, event int32, iteration, l, i int) {
	n, place := b.at(iteration)
	on[place][event] = append(on[place][event], ref{int32(l), int32(i), -n})
}

// collectives makes the ops behind a collective of the job wait for it.
func (b *builder) collectives(p *plan.Plan) {
	for l := range p.Programs {
		for i, x := range p.Programs[l].Transfers {
			if x.Bucket >= 0 {
				continue
			}
			n, place := b.at(x.Iteration)
			for _, o := range b.job.Collectives[x.Collective].Before {
				b.waits[place][o] = append(b.waits[place][o], ref{int32(l), int32(i), -n})
			}
		}
	}
}

// updates places the update ops. An AtStep update runs where the job's update
// ops stand, behind the barrier; in iterations that apply nothing these ops
// take no time. An AtRead update becomes an op in front of the tensor's first reader.
func (b *builder) updates(p *plan.Plan) error {
	share := b.updateShares()
	for place := range b.period {
		for o := range b.job.Ops {
			if b.job.Ops[o].Phase == job.Update && share.covered[o] > 0 {
				b.times[place][o] = 0
			}
		}
	}
	carriers := b.carriers(p)
	lanes := make([][]job.OpID, len(b.job.Lanes))
	for l := range lanes {
		lanes[l] = b.lanes[l].ops
	}
	barrier, next := b.job.BarrierOps(lanes)
	readers := map[job.TensorID]int32{}
	var turns []int32
	for _, u := range p.Updates {
		tensors := u.Tensors
		if tensors == nil {
			tensors = allTensors(len(b.job.Tensors))
		}
		switch u.At {
		case plan.AtStep:
			n, place := b.at(u.Iteration)
			for _, k := range tensors {
				for _, o := range b.job.Tensors[k].Updaters {
					b.times[place][o] += ns(b.job.Ops[o].Time * share.of(b.job, k, o))
				}
			}
			for _, o := range b.copiesOut(tensors) {
				b.waits[place][o] = append(b.waits[place][o], b.carried(p, carriers, u.Generation, []job.TensorID{b.job.Ops[o].Tensor}, -n)...)
			}
			if next {
				n, place = b.at(u.Iteration + 1)
			}
			refs := b.carried(p, carriers, u.Generation, allTensors(len(b.job.Tensors)), -n)
			for _, o := range barrier {
				b.waits[place][o] = append(b.waits[place][o], refs...)
			}
		case plan.AtRead:
			n, place := b.at(u.Iteration + 1)
			for _, k := range tensors {
				if len(b.job.Tensors[k].Readers) == 0 {
					return fmt.Errorf("the plan updates tensor %s when it is read, and the job does not say which op reads it: update it at the step", b.job.Tensors[k].Name)
				}
				o, ok := readers[k]
				if !ok {
					if turns == nil {
						turns = b.turns()
					}
					o = b.readUpdate(k, turns)
					readers[k] = o
				}
				for _, v := range b.job.Tensors[k].Updaters {
					b.times[place][o] += ns(b.job.Ops[v].Time * share.of(b.job, k, v))
				}
				b.waits[place][o] = append(b.waits[place][o], b.carried(p, carriers, u.Generation, []job.TensorID{k}, -n)...)
			}
		}
	}
	return nil
}

// copiesOut lists the ops that copy these tensors' reduced gradients out of
// buckets, where the plan keeps them. A host that launches such a copy does not
// wait for the transfer; the device does.
func (b *builder) copiesOut(tensors []job.TensorID) []int32 {
	want := make([]bool, len(b.job.Tensors))
	for _, k := range tensors {
		want[k] = true
	}
	var ops []int32
	for o := range b.job.Ops {
		if x := &b.job.Ops[o]; x.Role == job.CopyOut && b.job.Computes(x.Lane) && want[x.Tensor] {
			ops = append(ops, int32(o))
		}
	}
	return ops
}

// shares splits an update op among the tensors it updates, by elements.
type shares struct{ covered []int64 } // by op: elements of the tensors it updates

func (b *builder) updateShares() shares {
	s := shares{make([]int64, len(b.job.Ops))}
	for k := range b.job.Tensors {
		for _, o := range b.job.Tensors[k].Updaters {
			s.covered[o] += b.job.Tensors[k].Elements
		}
	}
	return s
}

func (s shares) of(j *job.Job, k job.TensorID, o job.OpID) float64 {
	return float64(j.Tensors[k].Elements) / float64(s.covered[o])
}

// readUpdate inserts an op in front of the first reader of tensor k. It follows
// all reads of the iteration before, and precedes all of its own. The first
// reader is that of an execution order, turns: then what the readers on other
// lanes now wait for precedes them in it, and no circle arises.
func (b *builder) readUpdate(k job.TensorID, turns []int32) int32 {
	t := &b.job.Tensors[k]
	first := slices.MinFunc(t.Readers, func(x, y job.OpID) int { return cmp.Compare(turns[x], turns[y]) })
	l := b.ops[first].lane
	id := b.detached(op{name: "update " + t.Name, lane: l, phase: job.Update}, 0)
	ops := b.lanes[l].ops
	b.lanes[l].ops = slices.Insert(slices.Clone(ops), slices.Index(ops, first), id)
	for _, r := range t.Readers {
		if b.ops[r].lane != l {
			b.edge(id, r)
			b.next[r] = append(b.next[r], id)
			b.ops[id].prev++
		}
	}
	return id
}

// turns numbers the job's ops in an order in which they can run one by one.
func (b *builder) turns() []int32 {
	n := len(b.job.Ops)
	turn, left := make([]int32, n), make([]int32, n)
	after := make([]int32, n) // the next on its lane, or -1
	for _, l := range b.lanes {
		for i, o := range l.ops {
			left[o], after[o] = b.ops[o].deps, -1
			if i > 0 {
				left[o]++
				after[l.ops[i-1]] = o
			}
		}
	}
	var ready []int32
	for o := range n {
		if left[o] == 0 {
			ready = append(ready, int32(o))
		}
	}
	for i := 0; i < len(ready); i++ {
		o := ready[i]
		turn[o] = int32(i)
		next := b.succ[o]
		if after[o] >= 0 {
			next = append(slices.Clip(next), after[o])
		}
		for _, d := range next {
			if left[d]--; left[d] == 0 {
				ready = append(ready, d)
			}
		}
	}
	return turn
}

// carriers lists, by bucket, the transfers that complete it.
func (b *builder) carriers(p *plan.Plan) [][]ref {
	out := make([][]ref, len(p.Buckets))
	for l := range p.Programs {
		for i, x := range p.Programs[l].Transfers {
			if x.Completes() {
				out[x.Bucket] = append(out[x.Bucket], ref{int32(l), int32(i), 0})
			}
		}
	}
	return out
}

// carried lists the transfers that complete the given tensors' gradients of a
// generation of the period that lies shift periods away.
func (b *builder) carried(p *plan.Plan, carriers [][]ref, generation int, tensors []job.TensorID, shift int) []ref {
	want := make([]bool, len(b.job.Tensors))
	for _, k := range tensors {
		want[k] = true
	}
	var out []ref
	for i := range p.Buckets {
		if !carries(&p.Buckets[i], want) {
			continue
		}
		for _, r := range carriers[i] {
			d := generation - p.Programs[r.link].Transfers[r.index].Generation
			if d%len(p.Generations) == 0 {
				r.shift = shift + d/len(p.Generations)
				out = append(out, r)
			}
		}
	}
	return out
}

func carries(b *plan.Bucket, want []bool) bool {
	for _, s := range b.Slices {
		if want[s.Tensor] {
			return true
		}
	}
	return false
}

// finish fixes the order of what waits, so that a run never depends on a map's.
func (b *builder) finish() *program {
	b.program.waits = make([][]waiting, b.period)
	for place, waits := range b.waits {
		for _, o := range slices.Sorted(maps.Keys(waits)) {
			b.program.waits[place] = append(b.program.waits[place], waiting{o, waits[o]})
		}
	}
	return &b.program
}

func allTensors(n int) []job.TensorID {
	out := make([]job.TensorID, n)
	for i := range out {
		out[i] = job.TensorID(i)
	}
	return out
}

func floorDiv(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
