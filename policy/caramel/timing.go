package caramel

import (
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/policy"
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
	updates, bare := updateTimes(j)
	p, err := policy.NewProfile(bare, c, true) // nothing is left but the copies that the plan keeps
	if err != nil {
		return nil, err
	}
	t := &timing{ready: p.Ready, due: make([]float64, len(p.Use)), use: p.Use, end: p.End}
	before := 0.0
	for _, k := range t.use {
		t.due[k] = t.end
		if crossing {
			t.due[k] += min(p.Read[k], p.Forward+p.End) + before
		}
		before += updates[k] * p.Scale
	}
	t.compute = p.Forward + p.End + before
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
