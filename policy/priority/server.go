package priority

import (
	"cmp"
	"context"
	"slices"

	"weft/cluster"
	"weft/internal/heap"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// P3Servers is P3 as published: the servers merge a slice as it is pushed and
// reply at once, so that its pull follows its own push; both queues, that of the
// workers and that of the servers, send the most urgent slice first (section 6).
// Where pushes and pulls share the wire they share one queue.
var P3Servers = policy.Policy{
	Name:  "p3-ps",
	Title: "P3 with parameter servers: slices, the most urgent first, pulled as soon as merged",
	Paper: P3.Paper,
	Class: policy.Servers,
	Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		if err := policy.NeedServers("p3-ps", c); err != nil {
			return nil, err
		}
		p, err := policy.Crossing("p3-ps", j, c, o)
		if err != nil {
			return nil, err
		}
		s, err := newSchedule(j, c, o, o.WithDefaults().Slice, cluster.Push)
		if err != nil {
			return nil, err
		}
		sends, err := s.exchange()
		if err != nil {
			return nil, err
		}
		p.Programs[0].Window = plan.Window{}
		pushed := make([]int, len(s.slices)) // position of the slice's push
		early := 0
		for _, x := range sends {
			if x.start < s.profile.Backward {
				early++
			}
			if x.pull {
				push := pushed[x.slice]
				p.Add(0, cluster.Pull, p.Programs[0].Transfers[push].Bucket, plan.Gate{Kind: plan.TransferDone, Transfer: push})
			} else {
				b := p.AddBucket(plan.Bucket{Slices: []plan.Slice{s.slices[x.slice].Slice}})
				pushed[x.slice] = p.Add(0, cluster.Push, b, plan.Gate{Kind: plan.GradientReady})
			}
		}
		p.Notes = append(p.Notes, "the order is the one that its queues take on the profile")
		return p, p.AddCollectivesAmong(j, early)
	},
}

// send is the push or the pull of a slice.
type send struct {
	slice int
	pull  bool
	// It is queued from ready on and goes on the wire at start. Microseconds from
	// the start of the backward pass.
	ready, start float64
}

// exchange is the order in which slices are pushed and pulled: whenever a wire is
// free it takes the most urgent slice that is ready for it. It also finds when
// each slice is back.
func (s *schedule) exchange() ([]send, error) {
	pulls := make([]cluster.Cost, len(s.slices))
	for i := range s.slices {
		var err error
		if pulls[i], err = s.cluster.Cost(0, cluster.Pull, s.slices[i].bytes); err != nil {
			return nil, err
		}
	}
	pullWire := 1
	if s.cluster.Sides(cluster.Push)&s.cluster.Sides(cluster.Pull) != 0 {
		pullWire = 0
	}
	// Of one layer pushes go ahead of pulls: these can only follow them.
	urgent := func(a, b send) bool {
		if x, y := s.slices[a.slice].rank, s.slices[b.slice].rank; x != y {
			return x < y
		}
		if a.pull != b.pull {
			return b.pull
		}
		return a.slice < b.slice
	}
	coming := heap.New(func(a, b send) bool {
		return cmp.Or(cmp.Compare(a.ready, b.ready), cmp.Compare(a.slice, b.slice)) < 0
	})
	for i := range s.slices {
		coming.Push(send{slice: i, ready: s.slices[i].ready})
	}
	queues := [2]*heap.Heap[send]{heap.New(urgent), heap.New(urgent)}
	var free [2]float64 // when each wire is
	var out []send
	for now := 0.0; len(out) < 2*len(s.slices); {
		wire := -1 // the next to take a slice
		for w := range queues {
			if queues[w].Len() > 0 && (wire < 0 || free[w] < free[wire]) {
				wire = w
			}
		}
		if coming.Len() > 0 && (wire < 0 || coming.First().ready <= max(now, free[wire])) {
			x := coming.Pop()
			now = max(now, x.ready)
			if x.pull {
				queues[pullWire].Push(x)
			} else {
				queues[0].Push(x)
			}
			continue
		}
		x := queues[wire].Pop()
		x.start = max(now, free[wire])
		cost := cluster.Cost{Alpha: s.slices[x.slice].alpha, Wire: s.slices[x.slice].wire}
		if x.pull {
			cost = pulls[x.slice]
		}
		free[wire] = x.start + cost.Wire
		s.done[x.slice] = free[wire] + cost.Alpha
		if !x.pull {
			coming.Push(send{slice: x.slice, pull: true, ready: s.done[x.slice]})
		}
		out = append(out, x)
	}
	slices.SortStableFunc(out, func(a, b send) int { return cmp.Compare(a.start, b.start) })
	return out, nil
}
