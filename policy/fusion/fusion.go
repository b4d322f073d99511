// Package fusion holds the policies that all-reduce gradients in the order in
// which they become ready, fused or not, behind a barrier at the optimizer
// step: the recorded buckets, WFBP, PyTorch DDP's buckets, Horovod's tensor
// fusion, MG-WFBP and ASC-WFBP.
package fusion

import (
	"cmp"
	"context"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// WFBP all-reduces each tensor alone when its gradient is ready, first in first
// out (wait-free backpropagation; section 1 of the algorithms).
var WFBP = policy.Policy{
	Name:  "wfbp",
	Title: "each gradient alone, as it becomes ready",
	Paper: "Poseidon (USENIX ATC 2017); recurrence as in MG-WFBP (INFOCOM 2019)",
	Build: build("wfbp", func(j *job.Job, _ *cluster.Cluster, p *policy.Profile, _ policy.Options) ([]policy.Send, error) {
		groups := make([][]job.TensorID, len(p.Order))
		for i, k := range p.Order {
			groups[i] = []job.TensorID{k}
		}
		return policy.Sends(groups), nil
	}),
}

// DDP fuses as PyTorch's reducer does: one open bucket per element type; a
// bucket closes once it has reached its limit, which is smaller for the first
// (section 2).
var DDP = policy.Policy{
	Name:  "ddp",
	Title: "PyTorch DDP: buckets of 1 MiB, then 25 MiB",
	Paper: "PyTorch Distributed (VLDB 2020)",
	Build: build("ddp", func(j *job.Job, _ *cluster.Cluster, p *policy.Profile, o policy.Options) ([]policy.Send, error) {
		return policy.Sends(ddpBuckets(j, p.Order, o.FirstBucket, o.Bucket)), nil
	}),
}

// ddpBuckets assigns tensors, in the order in which their gradients become
// ready, to buckets ordered by their first tensor.
func ddpBuckets(j *job.Job, order []job.TensorID, first, rest int64) [][]job.TensorID {
	type open struct {
		tensors []job.TensorID
		start   int // position of the first tensor
		bytes   int64
	}
	var closed []open
	current := map[job.DType]*open{}
	limit := map[job.DType]int64{}
	for at, k := range order {
		t := &j.Tensors[k]
		b := current[t.Grad]
		if b == nil {
			b = &open{start: at}
			current[t.Grad] = b
		}
		b.tensors, b.bytes = append(b.tensors, k), b.bytes+t.GradBytes()
		if b.bytes >= cmp.Or(limit[t.Grad], first) {
			closed = append(closed, *b)
			delete(current, t.Grad)
			limit[t.Grad] = rest
		}
	}
	for _, b := range current {
		closed = append(closed, *b)
	}
	slices.SortFunc(closed, func(a, b open) int { return cmp.Compare(a.start, b.start) })
	out := make([][]job.TensorID, len(closed))
	for i := range closed {
		out[i] = closed[i].tensors
	}
	return out
}

// Horovod collects what has become ready in each cycle of its background
// thread and fuses it up to a threshold, looking past what does not fit
// (section 3). The order is the one it would take on the profile; negotiation
// between ranks costs nothing here.
var Horovod = policy.Policy{
	Name:  "horovod",
	Title: "Horovod: what is ready each 1 ms cycle, fused up to 128 MiB",
	Paper: "Horovod (arXiv 1802.05799); fusion as in its controller",
	Build: build("horovod", func(j *job.Job, _ *cluster.Cluster, p *policy.Profile, o policy.Options) ([]policy.Send, error) {
		var sends []policy.Send
		for at := 0; at < len(p.Order); {
			tick := o.Cycle * max(1, math.Ceil(p.Ready[p.Order[at]]/o.Cycle))
			from := at
			for at < len(p.Order) && p.Ready[p.Order[at]] <= tick {
				at++
			}
			for _, s := range policy.Sends(fuse(j, p.Order[from:at], o.Fusion)) {
				s.NotBefore = tick
				sends = append(sends, s)
			}
		}
		return sends, nil
	}),
}

// fuse is Horovod's FuseResponses: groups of one element type up to the
// threshold; an unlike or too large tensor is looked past as long as the bytes
// skipped and fused stay within it.
func fuse(j *job.Job, queue []job.TensorID, threshold int64) [][]job.TensorID {
	var groups [][]job.TensorID
	for queue = slices.Clone(queue); len(queue) > 0; {
		head := &j.Tensors[queue[0]]
		group, kept := []job.TensorID{queue[0]}, []job.TensorID(nil)
		fused, skipped := head.GradBytes(), int64(0)
		at := 1
		for ; at < len(queue); at++ {
			t := &j.Tensors[queue[at]]
			if t.Grad == head.Grad && fused+t.GradBytes() <= threshold {
				group, fused = append(group, queue[at]), fused+t.GradBytes()
			} else if skipped += t.GradBytes(); fused+skipped <= threshold {
				kept = append(kept, queue[at])
			} else {
				break
			}
		}
		queue = append(kept, queue[at:]...)
		groups = append(groups, group)
	}
	return groups
}

// grouping tells what is all-reduced together, and in which order.
type grouping func(*job.Job, *cluster.Cluster, *policy.Profile, policy.Options) ([]policy.Send, error)

// build makes a policy of a grouping.
func build(name string, group grouping) policy.Builder {
	return func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		o = o.WithDefaults()
		p, err := policy.NewProfile(j, c, o.Copies)
		if err != nil {
			return nil, err
		}
		s, err := group(j, c, p, o)
		if err != nil {
			return nil, err
		}
		return policy.Barrier(name, j, c, s, o)
	}
}
