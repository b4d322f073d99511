package sim_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"weft/cluster"
	"weft/engine"
	"weft/internal/random"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/sim"
	"weft/timeline"

	"pgregory.net/rapid"
)

// The engine starts and completes the transfers of every legal plan when the
// simulator does, told the same ends of ops and transfers.
func TestEngineAgrees(t *testing.T) {
	plans, starts := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		d := draw{t}
		j := random.Chain(t, 6)
		p := d.plan(j)
		for range d.int(0, 2) {
			d.mutate(j, p)
		}
		d.hold(p)
		d.restate(p)
		if !plan.Check(p, j, plan.Limits{MaxDelay: 100, MaxStaleness: 100}).OK() || engineCannot(p) {
			return
		}
		plans++
		c := cluster.Uniform(2, 1, cluster.Link{Name: "eth0", Latency: float64(d.int(0, 3)), Bandwidth: 8e6 * float64(d.int(1, 9000))})
		c.Links = append(c.Links, cluster.Link{Name: "eth1", Latency: float64(d.int(0, 3)), Bandwidth: 8e6 * float64(d.int(1, 9000))})
		c.Servers = &cluster.Servers{Count: 1, Colocated: true}
		starts += agrees(t, j, c, p)
	})
	t.Logf("%d plans, %d transfers", plans, starts)
	if starts == 0 {
		t.Error("nothing was started: the test shows nothing")
	}
}

// hold gives a transfer a gate on the end of an iteration, about when it is due.
func (d draw) hold(p *plan.Plan) {
	x := &p.Programs[d.int(0, len(p.Programs)-1)]
	if len(x.Transfers) == 0 {
		return
	}
	t := &x.Transfers[d.int(0, len(x.Transfers)-1)]
	t.Gates = append(slices.Clone(t.Gates), plan.Gate{Kind: plan.Boundary, Iteration: p.LastIteration(t.Generation) + d.int(-1, 1)})
}

// So it does for the plan of every policy.
func TestEngineAgreesOnPolicies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c, o := random.Chain(t, 6), random.Cluster(t).WithServers(), options(t)
		c.Links[0].InFlight = 0 // what a cluster imposes is not in the plan
		pol := rapid.SampledFrom(all.Policies()).Draw(t, "policy")
		if pol.Name == "auto" {
			return
		}
		p, err := pol.Build(t.Context(), j, c, policy.Options(o))
		if err == nil && !engineCannot(p) {
			agrees(t, j, c, p)
		}
	})
}

// engineCannot tells of gates on what only the simulator sees.
func engineCannot(p *plan.Plan) bool {
	return slices.ContainsFunc(p.Programs, func(x plan.Program) bool {
		return slices.ContainsFunc(x.Transfers, func(t plan.Transfer) bool {
			return slices.ContainsFunc(t.Gates, func(g plan.Gate) bool { return g.Kind == plan.OpDone || g.Kind == plan.NotBefore })
		})
	})
}

// agrees simulates p and tells an engine, in order of time, which gradients are
// ready, which iterations end and, of what it has started, which transfers are
// done. It counts the transfers started, up to a few iterations before the end of
// the run: with that the gates open that the rest of a run waits for.
func agrees(t *rapid.T, j *job.Job, c *cluster.Cluster, p *plan.Plan) (starts int) {
	const ranks = 2
	n := 20 + 3*p.Period + 2*p.MaxDelay
	r, err := sim.Run(t.Context(), j, c, p, sim.Options{Iterations: n, Timeline: true, Ranks: 1})
	if err != nil {
		t.Fatal(err)
	}
	type transfer struct {
		link string
		name string
		last int // iteration of its generation
	}
	type times struct{ start, end float64 }
	transfers := map[transfer]times{}
	produced := make([][]float64, n) // by iteration, then tensor
	for i := range produced {
		produced[i] = make([]float64, len(j.Tensors))
	}
	for _, s := range r.Timeline.Spans {
		switch s.Kind {
		case timeline.Transfer:
			transfers[transfer{r.Timeline.Lanes[s.Lane].Name, s.Name, int(s.Iteration)}] = times{s.Start, s.End}
		case timeline.Compute:
			var k int
			if _, err := fmt.Sscanf(s.Name, "b%d", &k); err == nil {
				produced[s.Iteration][k-1] = s.End
			}
		}
	}

	type event struct {
		at float64
		engine.Event
	}
	var events []event
	for rank := range ranks {
		for i := range n {
			for b := range p.Buckets {
				if !declared(p, b, i) {
					continue
				}
				at := 0.0
				for _, k := range p.Buckets[b].Tensors() {
					at = max(at, produced[i][k])
				}
				events = append(events, event{at, engine.Event{Kind: engine.Ready, Rank: rank, Bucket: b, Iteration: i}})
			}
			events = append(events, event{r.Timeline.Iterations[i+1], engine.Event{Kind: engine.Boundary, Rank: rank, Iteration: i}})
		}
	}
	byTime := func(a, b event) int { return cmp.Compare(a.at, b.at) }
	slices.SortStableFunc(events, byTime)

	e, err := engine.New(engine.Config{Plan: p, Job: j, Ranks: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	until := r.Timeline.Iterations[n-5-p.Period-p.MaxDelay]
	for len(events) > 0 && events[0].at < until {
		v := events[0]
		events = events[1:]
		for _, a := range e.Step(time.Duration(v.at*1000), v.Event) {
			switch a.Kind {
			case engine.Abort:
				t.Fatalf("at %v us, %+v: %v", v.at, v.Event, a.Failure)
			case engine.Start:
				starts++
				key := transfer{p.Programs[a.Link].Link, fmt.Sprintf("%s bucket %d", a.Transfer.Kind, a.Bucket), a.Iteration}
				x, ok := transfers[key]
				if !ok || x.start != v.at {
					t.Fatalf("%+v starts at %v us in the engine, in the simulator (%v) at %v", key, v.at, ok, x.start)
				}
				delete(transfers, key)
				done := event{x.end, engine.Event{Kind: engine.TransferDone, Link: a.Link, Instance: a.Instance}}
				// In front of the others of its time, which may be due to it.
				at, _ := slices.BinarySearchFunc(events, done, byTime)
				events = slices.Insert(events, at, done)
			case engine.Complete:
				if v.Kind != engine.TransferDone {
					t.Fatalf("%+v completes bucket %d", v.Event, a.Bucket)
				}
			}
		}
	}
	for key, x := range transfers {
		if x.start < until {
			t.Fatalf("%+v starts at %v us in the simulator, not in the engine", key, x.start)
		}
	}
	return starts
}

// declared tells whether workers declare bucket b at the end of an iteration.
func declared(p *plan.Plan, b, iteration int) bool {
	for _, x := range p.Programs {
		for _, t := range x.Transfers {
			if t.Bucket != b || !slices.ContainsFunc(t.Gates, func(g plan.Gate) bool { return g.Kind == plan.GradientReady }) {
				continue
			}
			if (p.LastIteration(t.Generation)-iteration)%p.Period == 0 {
				return true
			}
		}
	}
	return false
}
