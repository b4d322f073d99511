// Package policy is what every published schedule becomes here: a function from
// a job and a cluster to a plan. Each family of policies has a package of its
// own below this one; package all names them all.
package policy

import (
	"cmp"
	"context"
	"errors"
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
	Class Class
	Build Builder
}

// Builder makes a plan. One that searches stops when ctx ends.
type Builder func(ctx context.Context, j *job.Job, c *cluster.Cluster, o Options) (*plan.Plan, error)

// Plan is the plan that Build makes, over all links of the cluster where o says so and
// the policy itself uses one.
func (p Policy) Plan(ctx context.Context, j *job.Job, c *cluster.Cluster, o Options) (*plan.Plan, error) {
	made, err := p.Build(ctx, j, c, o)
	if err != nil || !o.Spread {
		return made, err
	}
	spread, err := Spread(j, c, made)
	if err != nil {
		return nil, err
	}
	return cmp.Or(spread, made), nil
}

// Class tells which plans a policy builds, and so which lower bound they have
// and what they may be ranked with.
type Class uint8

const (
	Synchronous Class = iota // reduces among workers, delay 0
	Delayed                  // reduces among workers, within Options.Limits
	Servers                  // pushes to and pulls from parameter servers
)

// Options of all policies; each reads its own. Zero means the published default.
type Options struct {
	FirstBucket, Bucket int64       // ddp: bucket limits, bytes
	Fusion              int64       // horovod: fusion threshold, bytes
	Cycle               float64     // horovod: cycle time, microseconds
	InFlight            int         // policies behind a barrier: transfers in flight on a link; default 1
	Slice               int64       // p3: elements of a slice
	Partition           int64       // bytescheduler: elements of a partition; 0 with Credit 0: tuned
	Credit              int64       // bytescheduler: credit, bytes
	Group               int64       // dear: bytes of a group; 0: tuned
	Unit                int64       // us-byte: elements of a unit; 0: tuned
	Without             []string    // caramel: parts to leave out, of order, crossing, batching, depth, slices
	Limits              plan.Limits // what the user allows; the zero value is plan.DefaultLimits
	Spread              bool        // cut each bucket into a part a link: see [Spread] and [Policy.Plan]
	Copies              bool        // keep the recorded library's copies into and out of buckets
	// Progress, if set, is told how far auto's search is. Calls do not overlap.
	Progress func(done, total int)
}

// Equal is within what share of the least time plans count as equally fast; among
// those a search prefers the one that changes training least (plan rule 5).
const Equal = 0.01

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	o.FirstBucket = cmp.Or(o.FirstBucket, 1<<20)
	o.Bucket = cmp.Or(o.Bucket, 25<<20)
	o.Fusion = cmp.Or(o.Fusion, 128<<20)
	o.Cycle = cmp.Or(o.Cycle, 1000)
	o.InFlight = cmp.Or(o.InFlight, 1)
	o.Slice = cmp.Or(o.Slice, 40_000)
	if o.Limits == (plan.Limits{}) {
		o.Limits = plan.DefaultLimits
	}
	return o
}

// Profile is what policies know of a job: when its gradients become ready and
// its parameters are read, on the slowest worker, in an iteration that never
// waits for the network. Microseconds.
type Profile struct {
	Ready []float64      // by tensor, from the start of the backward pass
	Order []job.TensorID // by readiness; at equal times the higher tensor first, as a backward pass meets them
	Read  []float64      // by tensor, from the start of the iteration; +Inf: the job does not say who reads it
	Use   []job.TensorID // by first read; at equal times the lower tensor first
	// Forward is from the start of the iteration to that of the backward pass,
	// Backward from there to the last gradient, End from there to the end of all
	// computation.
	Forward, Backward, End float64
	Scale                  float64 // by what op times are multiplied on the slowest worker
	// Collectives are when the job's own are issued, from the start of the
	// backward pass: negative in forward.
	Collectives []float64
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
	scale := c.Slowest()
	origin, last := math.Inf(1), 0.0
	for o := range s.Ops {
		if s.Ops[o].Phase == job.Backward {
			origin = min(origin, start[o])
		}
		if s.Computes(s.Ops[o].Lane) {
			last = max(last, end[o])
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
	n := len(s.Tensors)
	p := &Profile{
		Ready: make([]float64, n), Order: make([]job.TensorID, n),
		Read: make([]float64, n), Use: make([]job.TensorID, n),
		Forward: origin * scale, End: (last - origin) * scale, Scale: scale,
	}
	for k, ops := range s.ReadyOps() {
		p.Ready[k], p.Order[k] = latest(ops), job.TensorID(k)
		p.Backward = max(p.Backward, p.Ready[k])
		p.Read[k], p.Use[k] = math.Inf(1), job.TensorID(k)
		for _, o := range s.Tensors[k].Readers {
			p.Read[k] = min(p.Read[k], start[o]*scale)
		}
	}
	for i := range s.Collectives {
		p.Collectives = append(p.Collectives, latest(s.Collectives[i].After))
	}
	slices.SortStableFunc(p.Order, func(a, b job.TensorID) int {
		return cmp.Or(cmp.Compare(p.Ready[a], p.Ready[b]), cmp.Compare(b, a))
	})
	slices.SortStableFunc(p.Use, func(a, b job.TensorID) int {
		return cmp.Or(cmp.Compare(p.Read[a], p.Read[b]), cmp.Compare(a, b))
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
	p, err := Start(name, j, c, o)
	if err != nil {
		return nil, err
	}
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

// Start starts a plan that applies all updates at the optimizer step, behind a
// barrier. Its programs, one for each of the cluster's links, are empty.
func Start(name string, j *job.Job, c *cluster.Cluster, o Options) (*plan.Plan, error) {
	links := make([]string, len(c.Links))
	for l := range c.Links {
		links[l] = c.Links[l].Name
	}
	if len(links) == 0 {
		return nil, fmt.Errorf("%s: the cluster has no link", name)
	}
	p := plan.New(j, name, links...)
	p.Copies = o.Copies
	return p, nil
}

// ErrUnsuitable is wrapped by a policy's error when the job is not of the kind
// that it can plan for.
var ErrUnsuitable = errors.New("the policy does not suit the job")

// CanCross is nil if each of j's parameters can be updated when the next
// iteration first reads it, and else says why not: updates that wait for all
// gradients cannot (plan rule 8), nor those of parameters that nobody is known to
// read.
func CanCross(j *job.Job) error {
	if j.Mode == job.Global {
		return errors.New("the job's updates wait for all gradients (update mode global)")
	}
	for k := range j.Tensors {
		if t := &j.Tensors[k]; len(t.Readers) == 0 {
			return fmt.Errorf("the job does not say which op reads tensor %s", t.Name)
		}
	}
	return nil
}

// Crossing starts a plan that crosses the barrier: each tensor is updated when
// the next iteration first reads it. Its programs are empty. It refuses a job that
// cannot be planned so: see [CanCross].
func Crossing(name string, j *job.Job, c *cluster.Cluster, o Options) (*plan.Plan, error) {
	if err := CanCross(j); err != nil {
		return nil, fmt.Errorf("%w: %s crosses the barrier at the optimizer step, and %w", ErrUnsuitable, name, err)
	}
	p, err := Start(name, j, c, o)
	if err != nil {
		return nil, err
	}
	p.Updates[0].At = plan.AtRead
	return p, nil
}

// NeedServers refuses a cluster without parameter servers.
func NeedServers(name string, c *cluster.Cluster) error {
	if c.Servers == nil {
		return fmt.Errorf("%w: %s pushes to parameter servers, and the cluster has none; --servers %d puts one on each node", ErrUnsuitable, name, c.Nodes)
	}
	return nil
}

// Sends makes a Send of each group of tensors.
func Sends(groups [][]job.TensorID) []Send {
	out := make([]Send, len(groups))
	for i, g := range groups {
		out[i].Tensors = g
	}
	return out
}

// Cut is an order of tensors in groups, which end at the given positions.
func Cut(order []job.TensorID, ends []int) [][]job.TensorID {
	groups := make([][]job.TensorID, len(ends))
	from := 0
	for i, to := range ends {
		groups[i] = order[from:to]
		from = to
	}
	return groups
}
