// Package policy is what every published schedule becomes here: a function from
// a job and a cluster to a plan. Each family of policies has a package of its
// own below this one; package all names them all.
package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// Policy builds plans.
type Policy struct {
	Name  string // as in --policy
	Title string // one line: what it does
	Paper string // where it comes from
	Build func(j *job.Job, c *cluster.Cluster, o Options) (*plan.Plan, error)
}

// Options of all policies; each reads its own. Zero means the published default.
type Options struct {
	FirstBucket, Bucket int64   // ddp: bucket limits, bytes
	Fusion              int64   // horovod: fusion threshold, bytes
	Cycle               float64 // horovod: cycle time, microseconds
	InFlight            int     // transfers in flight on a link; default 1
	Copies              bool    // keep the recorded library's copies into and out of buckets
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	o.FirstBucket = cmp.Or(o.FirstBucket, 1<<20)
	o.Bucket = cmp.Or(o.Bucket, 25<<20)
	o.Fusion = cmp.Or(o.Fusion, 128<<20)
	o.Cycle = cmp.Or(o.Cycle, 1000)
	o.InFlight = cmp.Or(o.InFlight, 1)
	return o
}

// Profile is what policies know of a job: when its gradients become ready on
// the slowest worker in an iteration that never waits for the network.
// Microseconds from the start of the backward pass.
type Profile struct {
	Ready []float64      // by tensor
	Order []job.TensorID // by readiness; at equal times the higher tensor first, as a backward pass meets them
}

// NewProfile measures j on c.
func NewProfile(j *job.Job, c *cluster.Cluster, copies bool) (*Profile, error) {
	if len(j.Tensors) == 0 {
		return nil, fmt.Errorf("job %q has no tensors: there is nothing to communicate", j.Name)
	}
	s, _ := j.Strip(copies)
	start, end, err := s.Schedule()
	if err != nil {
		return nil, err
	}
	scale := 0.0
	for r := range c.World() {
		f, _ := c.WorkerFactor(r)
		scale = max(scale, f)
	}
	origin := math.Inf(1)
	for o := range s.Ops {
		if s.Ops[o].Phase == job.Backward {
			origin = min(origin, start[o])
		}
	}
	if math.IsInf(origin, 1) {
		return nil, fmt.Errorf("job %q has no backward op", j.Name)
	}
	latest := func(ops []job.OpID) float64 {
		var at float64
		for _, o := range ops {
			at = max(at, end[o])
		}
		return (at - origin) * scale
	}
	p := &Profile{Ready: make([]float64, len(s.Tensors)), Order: make([]job.TensorID, len(s.Tensors))}
	for k, ops := range s.ReadyOps() {
		p.Ready[k], p.Order[k] = latest(ops), job.TensorID(k)
	}
	slices.SortStableFunc(p.Order, func(a, b job.TensorID) int {
		return cmp.Or(cmp.Compare(p.Ready[a], p.Ready[b]), cmp.Compare(b, a))
	})
	return p, nil
}

// Send is a bucket to be all-reduced, in dispatch order.
type Send struct {
	Tensors   []job.TensorID
	NotBefore float64 // microseconds after the start of the backward pass; 0: no such gate
}

// Barrier builds the plan that all-reduces whole tensors in the given order on
// the first link and applies all updates at the optimizer step, behind a barrier.
func Barrier(name string, j *job.Job, c *cluster.Cluster, sends []Send, o Options) (*plan.Plan, error) {
	links := make([]string, len(c.Links))
	for l := range c.Links {
		links[l] = c.Links[l].Name
	}
	if len(links) == 0 {
		return nil, fmt.Errorf("%s: the cluster has no link", name)
	}
	p := plan.New(j, name, links...)
	p.Copies = o.Copies
	p.Programs[0].Window.Transfers = o.InFlight
	for _, s := range sends {
		at := p.AllReduce(0, plan.WholeTensors(j, s.Tensors...))
		if s.NotBefore > 0 {
			t := &p.Programs[0].Transfers[at]
			t.Gates = append(t.Gates, plan.Gate{Kind: plan.NotBefore, Time: s.NotBefore})
		}
	}
	return p, p.AddCollectives(j)
}

// Sends makes a Send of each group of tensors.
func Sends(groups [][]job.TensorID) []Send {
	out := make([]Send, len(groups))
	for i, g := range groups {
		out[i].Tensors = g
	}
	return out
}
