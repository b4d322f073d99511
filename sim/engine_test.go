package sim_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"weft/cluster"
	"weft/engine"
	"weft/internal/random"
	"weft/job"
	"weft/plan"
	"weft/policy"
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
		j, p, legal := d.held()
		if !legal {
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

// held is a plan that may have been mutated, with a gate on the end of an iteration, and
// whether it is legal.
func (d draw) held() (*job.Job, *plan.Plan, bool) {
	j := random.Chain(d.t, 6)
	p := d.plan(j)
	for range d.int(0, 2) {
		d.mutate(j, p)
	}
	d.hold(p)
	d.restate(p)
	return j, p, plan.Check(p, j, plan.Limits{MaxDelay: 100, MaxStaleness: 100}).OK()
}

// served tells whether a plan needs parameter servers, whose work agents do not do.
func served(p *plan.Plan) bool {
	for _, x := range p.Programs {
		if slices.ContainsFunc(x.Transfers, func(t plan.Transfer) bool { return t.Kind == cluster.Push || t.Kind == cluster.Pull }) {
			return true
		}
	}
	return false
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

// So it does for the plan of every policy, of jobs with branches and collectives of
// their own.
func TestEngineAgreesOnPolicies(t *testing.T) {
	starts := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		j, c, o := random.Job(t), random.Cluster(t).WithServers(), options(t)
		c.Links[0].InFlight = 0 // what a cluster imposes is not in the plan
		c.Nodes, c.PerNode = min(c.Nodes, 2), 1
		o.Slice = 1 << 18 // elements: some hundred transfers an iteration
		for _, pol := range policies() {
			p, err := pol.Build(t.Context(), j, c, policy.Options(o))
			if err == nil {
				starts[pol.Name] += agrees(t, j, c, p)
			}
		}
	})
	for _, pol := range policies() {
		if starts[pol.Name] == 0 && pol.Name != "crossover" {
			t.Errorf("%s: nothing was started: the test shows nothing", pol.Name)
		}
	}
	t.Log(starts)
}

// A flush completes what workers have declared of every legal plan, once, and nothing
// else, wherever the run is and whatever its transfers wait for.
func TestEngineFlushes(t *testing.T) {
	waited := 0
	rapid.Check(t, func(t *rapid.T) {
		d := draw{t}
		j, p, legal := d.held()
		if !legal || served(p) {
			return
		}
		e, err := engine.New(engine.Config{Plan: timeless(p), Job: j, Ranks: []int{0}})
		if err != nil {
			return // it waits for ops
		}
		waited += flushes(d, p, e)
	})
	if waited == 0 {
		t.Error("all was reduced before it was flushed: the test shows nothing")
	}
}

// flushes plays some iterations, in which transfers take any time, and a flush. It
// returns how many buckets the flush completed.
func flushes(d draw, p *plan.Plan, e *engine.Engine) (completed int) {
	type reduced struct{ bucket, iteration int }
	owed := map[reduced]bool{} // declared and not complete
	var flying []engine.Action
	flushed := false
	step := func(v engine.Event) {
		for _, a := range e.Step(0, v) {
			switch a.Kind {
			case engine.Start:
				flying = append(flying, a)
			case engine.Complete:
				if !owed[reduced{a.Bucket, a.Iteration}] {
					d.t.Fatalf("bucket %d of iteration %d is complete, and was not declared, or twice", a.Bucket, a.Iteration)
				}
				delete(owed, reduced{a.Bucket, a.Iteration})
			case engine.Flushed:
				flushed = true
			case engine.Abort:
				d.t.Fatal(a.Failure)
			}
		}
	}
	finish := func() {
		k := d.int(0, len(flying)-1)
		a := flying[k]
		flying = slices.Delete(flying, k, k+1)
		step(engine.Event{Kind: engine.TransferDone, Link: a.Link, Instance: a.Instance})
	}
	for i := range d.int(0, 3*p.Period+2) {
		for b := range p.Buckets {
			if !declared(p, b, i%p.Period) {
				continue
			}
			for n := 0; ; finish() {
				n = 0
				for x := range owed {
					if x.bucket == b {
						n++
					}
				}
				if n < p.Buffers {
					break
				}
				if len(flying) == 0 {
					d.t.Fatalf("bucket %d of iteration %d has no buffer", b, i)
				}
			}
			owed[reduced{b, i}] = true
			step(engine.Event{Kind: engine.Ready, Bucket: b, Iteration: i})
		}
		step(engine.Event{Kind: engine.Boundary, Iteration: i})
		for range d.int(0, len(flying)) {
			if len(flying) > 0 {
				finish()
			}
		}
	}
	completed = len(owed)
	step(engine.Event{Kind: engine.Flush})
	for len(flying) > 0 {
		if flushed {
			d.t.Fatal("flushed, and transfers are under way")
		}
		finish()
	}
	if !flushed || len(owed) > 0 {
		d.t.Fatalf("flushed: %v, and of what was declared is left: %v", flushed, owed)
	}
	return completed
}

// timeless is p without gates on simulated time, which an engine counts as open.
func timeless(p *plan.Plan) *plan.Plan {
	out := *p
	out.Programs = slices.Clone(p.Programs)
	for l := range out.Programs {
		x := &out.Programs[l]
		x.Transfers = slices.Clone(x.Transfers)
		for i := range x.Transfers {
			x.Transfers[i].Gates = slices.DeleteFunc(slices.Clone(x.Transfers[i].Gates), func(g plan.Gate) bool { return g.Kind == plan.NotBefore })
		}
	}
	return &out
}

// agrees simulates p and tells an engine, in order of time, which gradients are
// ready, which iterations end and, of what it has started, which transfers are
// done. It counts the transfers started, up to a few iterations before the end of
// the run: with that the gates open that the rest of a run waits for.
func agrees(t *rapid.T, j *job.Job, c *cluster.Cluster, p *plan.Plan) (starts int) {
	const ranks = 2
	p = timeless(p)
	e, err := engine.New(engine.Config{Plan: p, Job: j, Ranks: []int{0, 1}, SeesOps: true})
	if err != nil {
		t.Fatal(err)
	}
	n := 10 + 3*p.Period + 2*p.MaxDelay
	r, err := sim.Run(t.Context(), numbered(j), c, p, sim.Options{Iterations: n, Timeline: true, Ranks: 1})
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
	ends := make([]map[job.OpID]float64, n) // by iteration
	for i := range ends {
		ends[i] = map[job.OpID]float64{}
	}
	for _, s := range r.Timeline.Spans {
		switch s.Kind {
		case timeline.Transfer:
			transfers[transfer{r.Timeline.Lanes[s.Lane].Name, s.Name, int(s.Iteration)}] = times{s.Start, s.End}
		case timeline.Compute:
			if o, err := strconv.Atoi(s.Name); err == nil {
				ends[s.Iteration][job.OpID(o)] = s.End
			}
		}
	}
	stripped, origin := j.Strip(p.Copies)
	ready := stripped.ReadyOps()

	type event struct {
		at float64
		engine.Event
	}
	var events []event
	for i := range n { // the outer loop: where nothing takes time, an iteration is still due to the one before, on all ranks
		for rank := range ranks {
			for b := range p.Buckets {
				if !declared(p, b, i) {
					continue
				}
				at := 0.0
				for _, k := range p.Buckets[b].Tensors() {
					for _, o := range ready[k] {
						at = max(at, ends[i][origin[o]])
					}
				}
				events = append(events, event{at, engine.Event{Kind: engine.Ready, Rank: rank, Bucket: b, Iteration: i}})
			}
			for _, o := range e.Ops() {
				events = append(events, event{ends[i][o], engine.Event{Kind: engine.OpDone, Rank: rank, Op: o, Iteration: i}})
			}
			events = append(events, event{r.Timeline.Iterations[i+1], engine.Event{Kind: engine.Boundary, Rank: rank, Iteration: i}})
		}
	}
	byTime := func(a, b event) int { return cmp.Compare(a.at, b.at) }
	slices.SortStableFunc(events, byTime)

	var dones []event // of what flies; before the others of their time, which may be due to them
	until := r.Timeline.Iterations[n-5-p.Period-p.MaxDelay]
	for {
		from := &events
		if len(dones) > 0 && (len(events) == 0 || dones[0].at <= events[0].at) {
			from = &dones
		}
		if len(*from) == 0 || (*from)[0].at >= until {
			break
		}
		v := (*from)[0]
		*from = (*from)[1:]
		for _, a := range e.Step(time.Duration(v.at*1000), v.Event) {
			switch a.Kind {
			case engine.Abort:
				t.Fatalf("at %v us, %+v: %v", v.at, v.Event, a.Failure)
			case engine.Start:
				starts++
				key := transfer{p.Programs[a.Link].Link, fmt.Sprintf("%s bucket %d", a.Transfer.Kind, a.Bucket), a.Iteration}
				if a.Bucket < 0 {
					key.name = j.Collectives[a.Transfer.Collective].Name
				}
				x, ok := transfers[key]
				if !ok || x.start != v.at {
					t.Fatalf("%+v starts at %v us in the engine, in the simulator (%v) at %v", key, v.at, ok, x.start)
				}
				delete(transfers, key)
				done := event{x.end, engine.Event{Kind: engine.TransferDone, Link: a.Link, Instance: a.Instance}}
				at, _ := slices.BinarySearchFunc(dones, done, byTime)
				dones = slices.Insert(dones, at, done)
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

// numbered is j with its ops' numbers as their names. A plan that refers to ops
// does so by number, too.
func numbered(j *job.Job) *job.Job {
	out := *j
	out.Ops = slices.Clone(j.Ops)
	for o := range out.Ops {
		out.Ops[o].Name = strconv.Itoa(o)
	}
	return &out
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
