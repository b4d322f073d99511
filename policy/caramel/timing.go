package caramel

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
)

// timing is what a compute order leaves to the network, on the slowest worker, in
// an iteration that never waits. Microseconds from the start of the backward pass.
type timing struct {
	ready []float64      // by tensor: when its gradient may travel
	due   []float64      // by tensor: when its update may begin at the latest
	use   []job.TensorID // by due; at equal times the lower tensor first
	// end is that of the iteration's computation but its updates, compute all of
	// an iteration.
	end, compute float64
}

// measure executes a stripped job without a plan. Updates take place at the first
// read if crossing, else all at the end.
func measure(j *job.Job, c *cluster.Cluster, crossing bool) (*timing, error) {
	n := len(j.Tensors)
	if n == 0 {
		return nil, fmt.Errorf("job %q has no tensors: there is nothing to communicate", j.Name)
	}
	updates, bare := updateTimes(j)
	start, end, err := bare.Schedule()
	if err != nil {
		return nil, err
	}
	scale := c.Slowest()
	origin, last := math.Inf(1), 0.0
	for o := range j.Ops {
		if j.Ops[o].Phase == job.Backward {
			origin = min(origin, start[o])
		}
		if j.Computes(j.Ops[o].Lane) {
			last = max(last, end[o])
		}
	}
	if math.IsInf(origin, 1) {
		return nil, fmt.Errorf("job %q has no backward op", j.Name)
	}
	t := &timing{ready: make([]float64, n), due: make([]float64, n), use: make([]job.TensorID, n), end: (last - origin) * scale}
	for k, ops := range j.ReadyOps() {
		for _, o := range ops {
			t.ready[k] = max(t.ready[k], (end[o]-origin)*scale)
		}
		t.use[k] = job.TensorID(k)
		first := last
		for _, o := range j.Tensors[k].Readers {
			first = min(first, start[o])
		}
		t.due[k] = t.end + first*scale
	}
	slices.SortStableFunc(t.use, func(a, b job.TensorID) int { return cmp.Compare(t.due[a], t.due[b]) })
	before := 0.0
	for _, k := range t.use {
		t.due[k] += before
		if !crossing {
			t.due[k] = t.end
		}
		before += updates[k] * scale
	}
	t.compute = last*scale + before
	return t, nil
}

// updateTimes shares the time of the update ops among tensors, by elements, and
// gives the job without it.
func updateTimes(j *job.Job) (byTensor []float64, bare *job.Job) {
	covered := make([]int64, len(j.Ops))
	for k := range j.Tensors {
		for _, o := range j.Tensors[k].Updaters {
			covered[o] += j.Tensors[k].Elements
		}
	}
	x := *j
	x.Ops = slices.Clone(j.Ops)
	byTensor = make([]float64, len(j.Tensors))
	for k := range j.Tensors {
		for _, o := range j.Tensors[k].Updaters {
			byTensor[k] += j.Ops[o].Time * float64(j.Tensors[k].Elements) / float64(covered[o])
			x.Ops[o].Time = 0
		}
	}
	return byTensor, &x
}

// permute is the job with the ops of its lanes in another order.
func permute(j *job.Job, order [][]job.OpID) *job.Job {
	x := *j
	x.Ops = make([]job.Op, len(j.Ops))
	now := make([]job.OpID, len(j.Ops))
	at := make([]int, len(j.Lanes))
	for i := range j.Ops {
		o := job.OpID(i)
		if l := j.Ops[i].Lane; order[l] != nil {
			o = order[l][at[l]]
			at[l]++
		}
		x.Ops[i], now[o] = j.Ops[o], job.OpID(i)
	}
	renumber := func(ids []job.OpID) []job.OpID {
		out := make([]job.OpID, len(ids))
		for i, o := range ids {
			out[i] = now[o]
		}
		slices.Sort(out)
		return out
	}
	for i := range x.Ops {
		x.Ops[i].Deps = renumber(x.Ops[i].Deps)
	}
	x.Tensors = slices.Clone(j.Tensors)
	for k := range x.Tensors {
		t := &x.Tensors[k]
		t.Readers, t.Producers, t.Updaters = renumber(t.Readers), renumber(t.Producers), renumber(t.Updaters)
	}
	x.Collectives = slices.Clone(j.Collectives)
	for i := range x.Collectives {
		y := &x.Collectives[i]
		y.After, y.Before = renumber(y.After), renumber(y.Before)
	}
	x.Barrier = renumber(j.Barrier)
	return &x
}
