// Package bound gives lower bounds on the iteration time that no schedule of a
// class can beat, whatever it fuses, slices, pipelines or splits over links.
// docs/bounds.md has the proofs.
package bound

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// Bound is a lower bound on the time of an iteration, microseconds.
type Bound struct {
	Time float64
	// Compute is the part that holds without any network: the busiest lane, or
	// the longest way round from one iteration to the next over several lanes.
	Compute float64
	// Why names what attains the bound.
	Why string
}

// Synchronous bounds every synchronous plan: it is Within for
// plan.DefaultLimits, Δ_any of section 0.4 of the algorithms, on longest paths.
func Synchronous(j *job.Job, c *cluster.Cluster) (Bound, error) {
	return Within(j, c, plan.DefaultLimits)
}

// Within bounds every plan within limits that keeps the recorded compute order
// and reduces by all-reduce, or by reduce-scatter and all-gather, over any of
// the cluster's links. It is the largest of three times: computation alone, the
// bytes that the links must move at the least update rate, and both around a
// cycle.
//
// The cycle: take a set S of tensors and an op X. No transfer of a generation
// starts before the earliest gradient of S is ready in its last iteration, A
// after the start of X at least; those of S take tau(S) together; and from the
// completion of the last of them to the next X at least D passes, the shortest
// of the longest paths from a reader of a tensor in S to X. With a delay of at
// most d that X is at most d+1 iterations later, so these take no less than
// D + A + tau(S). X is tried as the first backward op of each lane.
func Within(j *job.Job, c *cluster.Cluster, l plan.Limits) (Bound, error) {
	n, err := reductions(c, j)
	if err != nil {
		return Bound{}, err
	}
	return every(j, c, paceOf(l), n)
}

// every bounds the plans of a pace and a traffic.
func every(j *job.Job, c *cluster.Cluster, p pace, n traffic) (Bound, error) {
	s, _ := j.Strip(false)
	busy := stay(s, p.rate)
	g, err := newGraph(s)
	if err != nil {
		return Bound{}, err
	}
	return g.bound(c, p, n, busy), nil
}

// bound is the largest of the three times, of lanes that are busy for so long.
func (g *graph) bound(c *cluster.Cluster, p pace, n traffic, busy []float64) Bound {
	s := g.job
	factor := 0.0
	for r := range c.World() {
		scale, jitter := c.WorkerFactor(r)
		factor = max(factor, scale*(1-jitter))
	}
	var b Bound
	for l := range busy {
		if t := factor * max(busy[l], g.round(g.first[l])); t > b.Compute {
			b = Bound{t, t, fmt.Sprintf("lane %s, and what it waits for, computes all the time", s.Lanes[l].Name)}
		}
	}
	wire := p.rate * n.wire * float64(s.Bytes())
	if wire > b.Time {
		b.Time, b.Why = wire, "the links transfer all the time"+p.rateLimit()
	}
	for l := range busy { // at rate 1/(1+Overlap) while the links transfer
		if t := factor*busy[l] + wire*c.Overlap/(1+c.Overlap); s.Computes(job.LaneID(l)) && t > b.Time {
			b.Time = t
			b.Why = fmt.Sprintf("lane %s computes all the time, slower while the links transfer%s", s.Lanes[l].Name, p.rateLimit())
		}
	}
	for l := range busy {
		x := g.pivot(l)
		if x < 0 {
			continue
		}
		items, round := g.windows(x), factor*g.round(x)
		for _, more := range p.more() {
			w := g.worst(items, factor, n, more)
			t := p.around(w.time, n.wire*w.bytes, round)
			const rounding = 1e-12
			if t <= b.Time*(1+rounding) {
				continue
			}
			waits := "no layer from " + s.Tensors[w.last].Name + " on can start"
			if s.Mode == job.Global {
				waits = "no update is made"
			}
			b.Time = t
			b.Why = fmt.Sprintf("no gradient up to %s is ready earlier, and%s %s before they are reduced", s.Tensors[w.first].Name, p.limits(), waits)
		}
	}
	return b
}

// stay takes update ops out of the job's times, because a plan may move them: to
// the lane of a reader, in front of it. It returns the time an iteration that
// each lane is busy in any plan: with the updates, at the given rate, of tensors
// that it alone reads.
func stay(j *job.Job, rate float64) []float64 {
	moves := make([]bool, len(j.Ops))
	updates := make([]bool, len(j.Ops))
	for k := range j.Tensors {
		t := &j.Tensors[k]
		for _, o := range t.Updaters {
			updates[o] = true
			if slices.ContainsFunc(t.Readers, func(r job.OpID) bool { return j.Ops[r].Lane != j.Ops[o].Lane }) {
				moves[o] = true
			}
		}
	}
	busy := make([]float64, len(j.Lanes))
	for o := range j.Ops {
		x := &j.Ops[o]
		switch {
		case !updates[o]:
			busy[x.Lane] += x.Time
		case !moves[o]:
			busy[x.Lane] += rate * x.Time
		}
		if updates[o] {
			x.Time = 0
		}
	}
	return busy
}

// graph is a job with its lane order as edges, in topological order.
type graph struct {
	job         *job.Job
	device      bool // it has one
	order       []job.OpID
	prev        []job.OpID // by op: the op before it on its lane; -1
	first, last []job.OpID // by lane; -1 for a lane without ops
	// lane is set when the job's lanes say only a part of what runs on each: by
	// op, where it runs; -1: nowhere.
	lane []job.LaneID
}

func newGraph(j *job.Job) (*graph, error) {
	none := slices.Repeat([]job.OpID{-1}, len(j.Lanes))
	g := &graph{job: j, device: j.HasDevice(), prev: make([]job.OpID, len(j.Ops)), first: none, last: slices.Clone(none)}
	left := make([]int32, len(j.Ops))
	after := make([][]job.OpID, len(j.Ops))
	for o := range j.Ops {
		p := &j.Ops[o]
		g.prev[o] = g.last[p.Lane]
		g.last[p.Lane] = job.OpID(o)
		if g.prev[o] < 0 {
			g.first[p.Lane] = job.OpID(o)
		}
		for _, d := range g.before(job.OpID(o)) {
			after[d] = append(after[d], job.OpID(o))
			left[o]++
		}
	}
	for o := range left {
		if left[o] == 0 {
			g.order = append(g.order, job.OpID(o))
		}
	}
	for i := 0; i < len(g.order); i++ {
		for _, d := range after[g.order[i]] {
			if left[d]--; left[d] == 0 {
				g.order = append(g.order, d)
			}
		}
	}
	if len(g.order) < len(j.Ops) {
		return nil, fmt.Errorf("job %q: its ops wait for each other in a circle", j.Name)
	}
	return g, nil
}

// before lists what op o waits for, its own lane included.
func (g *graph) before(o job.OpID) []job.OpID {
	deps := g.job.Ops[o].Deps
	if p := g.prev[o]; p >= 0 {
		return append(slices.Clip(deps), p)
	}
	return deps
}

// round is the longest path from an op to the same op of the next iteration:
// within the iteration to the end of some lane, which then goes on with its own
// first op. Along the op's lane it is the lane's busy time.
func (g *graph) round(x job.OpID) float64 {
	if x < 0 {
		return 0
	}
	from, to := g.paths(x)
	longest := 0.0
	for l, last := range g.last {
		if last >= 0 {
			longest = max(longest, from[last]+to[g.first[l]])
		}
	}
	return longest
}

// pivot is the first backward op of a lane, or -1.
func (g *graph) pivot(lane int) job.OpID {
	for o := range g.job.Ops {
		if p := &g.job.Ops[o]; int(p.Lane) == lane && p.Phase == job.Backward {
			return job.OpID(o)
		}
	}
	return -1
}

// item is a tensor's A and D around a pivot.
type item struct {
	k    job.TensorID
	a, d float64
}

// windows lists the tensors that have an A and a D around x, by falling D.
func (g *graph) windows(x job.OpID) []item {
	from, to := g.paths(x)
	var items []item
	for k := range g.job.Tensors {
		t := &g.job.Tensors[k]
		i := item{job.TensorID(k), math.Inf(-1), math.Inf(-1)}
		for _, o := range t.Producers {
			i.a = max(i.a, from[o])
		}
		for o := range g.waiting(t) {
			i.d = max(i.d, to[o])
		}
		if i.a >= 0 && t.Elements > 0 {
			items = append(items, i)
		}
	}
	if g.lane != nil {
		g.widen(items, x, from, to)
	}
	if g.job.Mode == job.Global { // no update precedes the last reduction
		latest := math.Inf(-1)
		for _, i := range items {
			latest = max(latest, i.d)
		}
		for i := range items {
			items[i].d = latest
		}
	}
	items = slices.DeleteFunc(items, func(i item) bool { return i.d < 0 })
	slices.SortFunc(items, func(p, q item) int {
		return cmp.Or(cmp.Compare(q.d, p.d), cmp.Compare(p.k, q.k))
	})
	return items
}

// waiting yields the readers of a tensor that wait for its update. In a job with
// a device the host runs ahead: an op there that launches a reader does not.
func (g *graph) waiting(t *job.Tensor) iter.Seq[job.OpID] {
	return func(yield func(job.OpID) bool) {
		for _, o := range t.Readers {
			if g.device && g.job.Lanes[g.job.Ops[o].Lane].Kind != job.Device {
				continue
			}
			if !yield(o) {
				return
			}
		}
	}
}

// set is a set S of tensors around an op: first attains A and last D.
type set struct {
	time        float64 // D + A + tau(S)
	bytes       float64
	first, last job.TensorID
}

// worst finds the set S that maximises D + A + tau(S), plus the wire time of its
// bytes in more generations, among those of the form {A_k >= a, D_k >= d}; no
// other can be worse.
func (g *graph) worst(items []item, factor float64, n traffic, more float64) (worst set) {
	most := 0.0
	for _, a := range items {
		bytes := 0.0
		for _, i := range items {
			if i.a < a.a {
				continue
			}
			bytes += float64(g.job.Tensors[i.k].GradBytes())
			t := factor*(i.d+a.a) + n.time(bytes)
			if m := t + more*n.wire*bytes; m > most {
				most, worst = m, set{t, bytes, a.k, i.k}
			}
		}
	}
	return worst
}

// paths gives, by op, the longest path from the start of x to the end of the
// op, and from the start of the op to the start of x; -Inf where there is none.
func (g *graph) paths(x job.OpID) (from, to []float64) {
	none := math.Inf(-1)
	from, to = make([]float64, len(g.order)), make([]float64, len(g.order))
	for o := range from {
		from[o], to[o] = none, none
	}
	from[x], to[x] = g.job.Ops[x].Time, 0
	for _, o := range g.order {
		for _, d := range g.before(o) {
			from[o] = max(from[o], from[d]+g.job.Ops[o].Time)
		}
	}
	for _, o := range slices.Backward(g.order) {
		for _, d := range g.before(o) {
			to[d] = max(to[d], to[o]+g.job.Ops[d].Time)
		}
	}
	return from, to
}
