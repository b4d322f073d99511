package bound

import (
	"math/bits"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// Reordered bounds every synchronous plan that may permute the ops of each
// stretch (see [Stretches]), whatever order it chooses. A and D are then what
// must run between an op and a gradient in any order: the longest path over
// dependencies, or all of these ops on one lane (section 0.4 of the algorithms).
// It equals Synchronous for a job whose order is fixed, and is never above it.
func Reordered(j *job.Job, c *cluster.Cluster) (Bound, error) {
	s, _ := j.Strip(false)
	stretch := Stretches(s)
	if stretch == nil {
		return Synchronous(j, c)
	}
	n, err := reductions(c, j)
	if err != nil {
		return Bound{}, err
	}
	busy := stay(s, 1)
	r, lane := relax(s, stretch)
	g, err := newGraph(r)
	if err != nil {
		return Bound{}, err
	}
	g.lane = lane
	return g.bound(c, paceOf(plan.DefaultLimits), n, busy), nil
}

// Stretches tells which ops of a stripped job may change places: those of one
// lane with the same number. Stretches of a lane follow each other, in ascending
// numbers. nil: every op keeps its place.
//
// A stretch is a run of ops of a lane of one phase and one micro-batch; what an
// activation checkpoint recomputes in the backward pass belongs to that. Ops
// change places only where the job says what they wait for, and where nobody else
// decides their order: in a job that was not recorded (a recorded one knows only
// that its lanes ran their ops so), on a lane that computes and has no op launched
// by another thread. An op that lists no dependency keeps its place: the order of
// its lane implies what it waits for. So does one next to a collective.
func Stretches(j *job.Job) []int32 {
	if j.Recorded != nil {
		return nil
	}
	locked := make([]bool, len(j.Lanes))
	for l := range j.Lanes {
		locked[l] = !j.Computes(job.LaneID(l))
	}
	launched := make([]bool, len(j.Lanes))
	pinned := make([]bool, len(j.Ops))
	for o := range j.Ops {
		pinned[o] = len(j.Ops[o].Deps) == 0
		for _, d := range j.Ops[o].Deps {
			if locked[j.Ops[d].Lane] {
				launched[j.Ops[o].Lane] = true
			}
		}
	}
	for i := range j.Collectives {
		for _, ops := range [][]job.OpID{j.Collectives[i].After, j.Collectives[i].Before} {
			for _, o := range ops {
				pinned[o] = true
			}
		}
	}
	type run struct {
		part
		fixed bool
	}
	last := make([]run, len(j.Lanes))
	turned := make([]map[int32]bool, len(j.Lanes)) // micro-batches whose backward pass has begun
	out := make([]int32, len(j.Ops))
	at := make([]int32, len(j.Lanes)) // stretch of the lane's last op
	for l := range at {
		at[l], turned[l] = -1, map[int32]bool{}
	}
	n, free := int32(0), false
	for o := range j.Ops {
		x := &j.Ops[o]
		now := run{partOf(x, turned[x.Lane]), pinned[o] || locked[x.Lane] || launched[x.Lane]}
		if at[x.Lane] < 0 || now.fixed || now != last[x.Lane] {
			at[x.Lane] = n
			n++
		} else {
			free = true
		}
		last[x.Lane], out[o] = now, at[x.Lane]
	}
	if !free {
		return nil
	}
	return out
}

// part is what the ops of a stretch have in common.
type part struct {
	phase job.Phase
	micro int32
}

func partOf(x *job.Op, turned map[int32]bool) part {
	p := part{x.Phase, x.Micro}
	switch {
	case x.Phase == job.Backward || x.Role == job.CopyIn:
		turned[x.Micro] = true
		p.phase = job.Backward
	case x.Phase == job.Forward && turned[x.Micro]:
		p.phase = job.Backward
	}
	return p
}

// relax is a job whose lanes order only what the stretches do: the ops of a
// stretch, each on a lane of its own, follow an op of no time that begins it, and
// the op that begins the next stretch of their lane follows them. lane tells
// where an op runs.
func relax(j *job.Job, stretch []int32) (relaxed *job.Job, lane []job.LaneID) {
	size := map[int32]int{}
	for _, s := range stretch {
		size[s]++
	}
	r := *j
	r.Lanes = append([]job.Lane(nil), j.Lanes...)
	r.Ops = append([]job.Op(nil), j.Ops...)
	for o := range j.Ops {
		lane = append(lane, j.Ops[o].Lane)
	}
	mark := func(l job.LaneID, phase job.Phase, deps []job.OpID) job.OpID {
		r.Ops = append(r.Ops, job.Op{Lane: l, Phase: phase, Tensor: -1, Deps: deps})
		lane = append(lane, -1)
		return job.OpID(len(r.Ops) - 1)
	}
	type open struct {
		stretch int32
		start   job.OpID
		ops     []job.OpID
	}
	lanes := make([]open, len(j.Lanes))
	for l := range lanes {
		lanes[l] = open{stretch: -1, start: -1}
	}
	for o := range j.Ops {
		l := j.Ops[o].Lane
		x := &lanes[l]
		if x.stretch != stretch[o] {
			deps := x.ops
			*x = open{stretch: stretch[o]}
			x.start = mark(l, j.Ops[o].Phase, deps)
		}
		x.ops = append(x.ops, job.OpID(o))
		y := &r.Ops[o]
		y.Deps = append(append([]job.OpID(nil), y.Deps...), x.start)
		y.Lane = job.LaneID(len(r.Lanes))
		r.Lanes = append(r.Lanes, job.Lane{Kind: j.Lanes[l].Kind})
	}
	for l := range lanes {
		if x := &lanes[l]; x.start >= 0 {
			mark(job.LaneID(l), job.Update, x.ops)
		}
	}
	return &r, lane
}

// widen raises A and D to the time of all ops that one lane must run between x
// and the gradient, and between a reader and x.
func (g *graph) widen(items []item, x job.OpID, from, to []float64) {
	const most = 1 << 28 // ops times tensors: beyond, the longest paths have to do
	if float64(len(g.order))*float64(len(items)) > most {
		return
	}
	before, behind := make([]uint64, len(g.order)), make([]uint64, len(g.order)) // by op: gradients that need it, parameters it needs
	type sums struct{ a, d [64]float64 }
	lanes := make([]sums, 1+slices.Max(g.lane))
	for ; len(items) > 0; items = items[min(64, len(items)):] {
		block := items[:min(64, len(items))]
		clear(before)
		clear(behind)
		clear(lanes)
		for i := range block {
			t := &g.job.Tensors[block[i].k]
			for _, o := range t.Producers {
				before[o] |= 1 << i
			}
			for o := range g.waiting(t) {
				behind[o] |= 1 << i
			}
		}
		for _, o := range slices.Backward(g.order) {
			for _, d := range g.before(o) {
				before[d] |= before[o]
			}
		}
		for _, o := range g.order {
			for _, d := range g.before(o) {
				behind[o] |= behind[d]
			}
			l, t := g.lane[o], g.job.Ops[o].Time
			if l < 0 || t == 0 {
				continue
			}
			if from[o] >= 0 {
				for m := before[o]; m != 0; m &= m - 1 {
					lanes[l].a[bits.TrailingZeros64(m)] += t
				}
			}
			if to[o] >= 0 && o != x {
				for m := behind[o]; m != 0; m &= m - 1 {
					lanes[l].d[bits.TrailingZeros64(m)] += t
				}
			}
		}
		for l := range lanes {
			for i := range block {
				block[i].a = max(block[i].a, lanes[l].a[i])
				if block[i].d >= 0 {
					block[i].d = max(block[i].d, lanes[l].d[i])
				}
			}
		}
	}
}
