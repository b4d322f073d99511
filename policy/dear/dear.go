// Package dear holds DeAR: an all-reduce in two halves, the first hidden under
// the backward pass, the second under the next forward pass.
package dear

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

// DeAR reduce-scatters groups of modules as their gradients become ready, and
// gathers them, group after group, in the next forward pass; a module's
// parameters are updated when it is about to run (section 10). All gathers are
// queued behind the last scatter, where the authors' code asks for one ahead of
// the module that runs: never later, and free of a gate on an op. The group size
// is searched for on a grid, by the time that the profile predicts; the paper
// tunes it by Bayesian optimisation in a running job.
var DeAR = policy.Policy{
	Name:  "dear",
	Title: "DeAR: reduce-scatter in backward, all-gather in the next forward",
	Paper: "DeAR (ICDCS 2023, arXiv 2302.12445)",
	Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		d, err := newModel(j, c, o)
		if err != nil {
			return nil, err
		}
		var best []group
		least := math.Inf(1)
		for _, size := range sizes(o.Group) {
			g, err := d.groups(size)
			if err != nil {
				return nil, err
			}
			if t := d.predict(g); t < least {
				best, least = g, t
			}
		}
		return d.plan(best, o)
	},
}

// sizes is the grid of group sizes, in bytes: each module alone, the published
// range, and smaller ones for smaller models; or the one that is asked for.
func sizes(size int64) []int64 {
	if size > 0 {
		return []int64{size}
	}
	out := []int64{1}
	for s := int64(1 << 18); s <= 256<<20; s *= 2 {
		out = append(out, s)
	}
	return append(out, 25<<20)
}

type model struct {
	job     *job.Job
	cluster *cluster.Cluster
	profile *policy.Profile
	modules []module // in forward order
}

// module is the tensors of one element type that one op reads first.
type module struct {
	reader  job.OpID
	tensors []job.TensorID
	bytes   int64
}

type group struct {
	tensors         []job.TensorID
	bytes           int64
	ready           float64 // from the start of the backward pass
	read            float64 // from the start of the iteration
	scatter, gather float64 // times of its transfers
}

func newModel(j *job.Job, c *cluster.Cluster, o policy.Options) (*model, error) {
	p, err := policy.NewProfile(j, c, o.Copies)
	if err != nil {
		return nil, err
	}
	d := &model{job: j, cluster: c, profile: p}
	for _, k := range p.Use {
		t := &j.Tensors[k]
		if len(t.Readers) == 0 {
			continue // policy.Crossing refuses the job
		}
		n := len(d.modules)
		if n == 0 || d.modules[n-1].reader != t.Readers[0] || j.Tensors[d.modules[n-1].tensors[0]].Grad != t.Grad {
			d.modules = append(d.modules, module{reader: t.Readers[0]})
			n++
		}
		m := &d.modules[n-1]
		m.tensors, m.bytes = append(m.tensors, k), m.bytes+t.GradBytes()
	}
	return d, nil
}

// groups closes a group before the module that would exceed the size; a larger
// module stands alone. Element types are not mixed.
func (d *model) groups(size int64) ([]group, error) {
	var out []group
	for _, m := range d.modules {
		n := len(out)
		if n == 0 || out[n-1].bytes+m.bytes > size || d.job.Tensors[out[n-1].tensors[0]].Grad != d.job.Tensors[m.tensors[0]].Grad {
			out = append(out, group{read: d.profile.Read[m.tensors[0]]})
			n++
		}
		g := &out[n-1]
		g.tensors, g.bytes = append(g.tensors, m.tensors...), g.bytes+m.bytes
		for _, k := range m.tensors {
			g.ready = max(g.ready, d.profile.Ready[k])
		}
	}
	for i := range out {
		scatter, err := d.cluster.Cost(0, cluster.ReduceScatter, out[i].bytes)
		if err != nil {
			return nil, err
		}
		gather, err := d.cluster.Cost(0, cluster.AllGather, out[i].bytes)
		if err != nil {
			return nil, err
		}
		out[i].scatter, out[i].gather = scatter.Total(), gather.Total()
	}
	return out, nil
}

// byReady orders groups by when they can be reduce-scattered.
func byReady(groups []group) []int {
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(groups[a].ready, groups[b].ready), cmp.Compare(b, a))
	})
	return order
}

// predict is the iteration time on the profile, on a serial link.
func (d *model) predict(groups []group) float64 {
	t := 0.0
	for _, i := range byReady(groups) {
		t = max(t, groups[i].ready) + groups[i].scatter
	}
	end := d.profile.Backward
	for i := range groups {
		t += groups[i].gather
		end = max(end, t-groups[i].read)
	}
	return end + d.profile.Forward
}

func (d *model) plan(groups []group, o policy.Options) (*plan.Plan, error) {
	p, err := policy.Crossing("dear", d.job, d.cluster, o)
	if err != nil {
		return nil, err
	}
	scattered := make([]int, len(groups))
	for _, i := range byReady(groups) {
		b := p.AddBucket(plan.WholeTensors(d.job, groups[i].tensors...))
		scattered[i] = p.Add(0, cluster.ReduceScatter, b, plan.Gate{Kind: plan.GradientReady})
	}
	for i := range groups {
		rs := scattered[i]
		p.Add(0, cluster.AllGather, p.Programs[0].Transfers[rs].Bucket, plan.Gate{Kind: plan.TransferDone, Transfer: rs})
	}
	return p, p.AddCollectivesAmong(d.job, len(groups))
}
