// Package priority holds the policies that cut gradients into slices and send
// the most urgent slice first: P3 and ByteScheduler. Urgent is what the next
// forward pass reads first; both cross the barrier. The order that their queues
// would take on the profile is compiled into the plan.
package priority

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"weft/cluster"
	"weft/internal/heap"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// P3 cuts gradients into slices of 40,000 elements; whenever the wire is free it
// sends the most urgent slice that is ready (section 6; published for parameter
// servers, here over all-reduce).
var P3 = policy.Policy{
	Name:  "p3",
	Title: "P3: slices of 40,000 elements, the most urgent first",
	Paper: "Priority-based Parameter Propagation (MLSys 2019, arXiv 1905.03960)",
	Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		s, err := newSchedule(j, c, o, o.WithDefaults().Slice, cluster.AllReduce)
		if err != nil {
			return nil, err
		}
		return s.plan("p3", o, s.order(plan.Window{}, true), plan.Window{})
	},
}

// ByteScheduler cuts gradients into partitions and sends the most urgent one
// that is ready as long as it has credit (section 7.1). Partition size and
// credit are searched for on a grid, exactly, by the time that the profile
// predicts; the paper tunes them by Bayesian optimisation in a running job.
var ByteScheduler = policy.Policy{
	Name:  "bytescheduler",
	Title: "ByteScheduler: partitions, the most urgent first, within a credit",
	Paper: "A Generic Communication Scheduler (SOSP 2019)",
	Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		if o.Partition > 0 && o.Credit > 0 {
			s, err := newSchedule(j, c, o, o.Partition, cluster.AllReduce)
			if err != nil {
				return nil, err
			}
			return s.plan("bytescheduler", o, s.order(plan.Window{Bytes: o.Credit}, false), plan.Window{Bytes: o.Credit})
		}
		x, err := gridSearch(j, c, o)
		if err != nil {
			return nil, err
		}
		return x.plan("bytescheduler", o)
	},
}

// The grid of ByteScheduler's search, in elements and bytes: its published
// ranges for all-reduce, and smaller ones for smaller models.
var (
	partitions = []int64{1 << 17, 1 << 18, 1 << 19, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 32 << 20}
	credits    = []int64{1, 1 << 19, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20}
)

// tuning is a choice of partition, in elements, and credit, in bytes.
type tuning struct {
	partition, credit int64
	schedule          *schedule
	time              float64 // of an iteration, as the profile predicts
}

// at tries a credit on a schedule of partitions.
func (s *schedule) at(partition, limit int64) tuning {
	s.order(plan.Window{Bytes: limit}, false)
	return tuning{partition, limit, s, s.finish()}
}

func (x *tuning) plan(name string, o policy.Options) (*plan.Plan, error) {
	w := plan.Window{Bytes: x.credit}
	return x.schedule.plan(name, o, x.schedule.order(w, false), w)
}

// gridSearch is the best of the grid; the first of several.
func gridSearch(j *job.Job, c *cluster.Cluster, o policy.Options) (best tuning, err error) {
	for _, partition := range partitions {
		s, err := newSchedule(j, c, o, partition, cluster.AllReduce)
		if err != nil {
			return tuning{}, err
		}
		for _, limit := range credits {
			if x := s.at(partition, limit); best.schedule == nil || x.time < best.time {
				best = x
			}
		}
	}
	return best, nil
}

// maxSlices bounds the transfers of an iteration: the 6.7 billion elements of a
// large language model make 170,000 of P3's slices.
const maxSlices = 1 << 20

// schedule simulates a priority queue in front of one link, on the profile.
type schedule struct {
	job     *job.Job
	cluster *cluster.Cluster
	profile *policy.Profile
	slices  []slice   // the most urgent first
	byReady []int     // positions in slices
	done    []float64 // by position, for the last order
}

// slice is a part of a gradient.
type slice struct {
	plan.Slice
	rank        int // of its tensor in the order of first reads: 0 is most urgent
	bytes       int64
	ready       float64
	alpha, wire float64
}

// newSchedule cuts the gradients; a slice costs what a transfer of the given kind
// does.
func newSchedule(j *job.Job, c *cluster.Cluster, o policy.Options, elements int64, kind cluster.Kind) (*schedule, error) {
	p, err := policy.NewProfile(j, c, o.Copies)
	if err != nil {
		return nil, err
	}
	count := int64(0)
	for k := range j.Tensors {
		count += (j.Tensors[k].Elements + elements - 1) / elements
	}
	most := int64(maxSlices)
	if kind == cluster.Push { // and a pull each
		most /= 2
	}
	if count > most {
		return nil, fmt.Errorf("slices of %d elements make %d of this job's gradients, more than %d: choose larger ones", elements, count, most)
	}
	s := &schedule{job: j, cluster: c, profile: p}
	for rank, k := range p.Use {
		t := &j.Tensors[k]
		for at := int64(0); at < t.Elements; at += elements {
			x := slice{Slice: plan.Slice{Tensor: k, Offset: at, Length: min(elements, t.Elements-at)}, rank: rank, ready: p.Ready[k]}
			x.bytes = x.Length * t.Grad.Bytes()
			cost, err := c.Cost(0, kind, x.bytes)
			if err != nil {
				return nil, err
			}
			x.alpha, x.wire = cost.Alpha, cost.Wire
			s.byReady = append(s.byReady, len(s.slices))
			s.slices = append(s.slices, x)
		}
	}
	slices.SortStableFunc(s.byReady, func(a, b int) int { return cmp.Compare(s.slices[a].ready, s.slices[b].ready) })
	s.done = make([]float64, len(s.slices))
	return s, nil
}

// order is the order in which the queue lets the slices go: each as soon as the
// window does, and if whenFree not before the wire is free (preemption at slice
// granularity). A window of bytes is a credit: what is incomplete may exceed it by
// one slice. It also finds when each is done.
func (s *schedule) order(w plan.Window, whenFree bool) []int {
	flights := policy.NewFlights(w, &s.cluster.Links[0])
	var out []int
	ready := heap.New(cmp.Less[int]) // slices
	now, wireFree := 0.0, 0.0
	next := func() {
		if whenFree {
			now = max(now, wireFree)
		}
		now = flights.Next(now)
	}
	for at := 0; at < len(s.byReady) || ready.Len() > 0; {
		next()
		if ready.Len() == 0 && at < len(s.byReady) {
			now = max(now, s.slices[s.byReady[at]].ready)
			next()
		}
		for at < len(s.byReady) && s.slices[s.byReady[at]].ready <= now {
			ready.Push(s.byReady[at])
			at++
		}
		i := ready.Pop()
		x := &s.slices[i]
		wireFree = max(wireFree, now) + x.wire
		s.done[i] = wireFree + x.alpha
		flights.Send(x.bytes, s.done[i])
		out = append(out, i)
	}
	return out
}

// finish is the iteration time that the profile predicts for the last order:
// every first read waits for its tensor, and the rest of the forward pass follows.
func (s *schedule) finish() float64 {
	t := s.profile.Forward + s.profile.Backward
	for i := range s.slices {
		t = max(t, s.done[i]+s.profile.Forward-s.profile.Read[s.slices[i].Tensor])
	}
	return t
}

// plan sends the slices in the given order, each as a bucket of its own.
func (s *schedule) plan(name string, o policy.Options, order []int, w plan.Window) (*plan.Plan, error) {
	p, err := policy.Crossing(name, s.job, s.cluster, o)
	if err != nil {
		return nil, err
	}
	p.Programs[0].Window = w
	early := 0
	for _, i := range order {
		p.AllReduce(0, plan.Bucket{Slices: []plan.Slice{s.slices[i].Slice}})
		if x := &s.slices[i]; s.done[i]-x.alpha-x.wire < s.profile.Backward {
			early++
		}
	}
	p.Notes = append(p.Notes, "the order is the one that its queue takes on the profile")
	return p, p.AddCollectivesAmong(s.job, early)
}
