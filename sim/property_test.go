package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"

	"weft/bound"
	"weft/cluster"
	"weft/internal/random"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/policy/fusion"
	"weft/sim"
	"weft/timeline"

	"pgregory.net/rapid"
)

// slack is what rounding every duration and cost to a nanosecond may add up to
// in an iteration, in microseconds.
func slack(j *job.Job) float64 { return 0.002 * float64(len(j.Ops)+4*len(j.Tensors)+1) }

// policies are all that a property is asked of. The search over them only repeats
// their plans, at many times the cost.
func policies() []policy.Policy { return all.Searched() }

// simulate returns nil where the policy does not suit the job.
func simulate(t *rapid.T, j *job.Job, c *cluster.Cluster, p policy.Policy, o policy.Options, so sim.Options) *sim.Result {
	pl, err := p.Build(context.Background(), j, c, o)
	if errors.Is(err, policy.ErrUnsuitable) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(context.Background(), j, c, pl, so)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func options(t *rapid.T) policy.Options {
	return policy.Options{
		FirstBucket: rapid.Int64Range(1, 1<<22).Draw(t, "first bucket"),
		Bucket:      rapid.Int64Range(1, 1<<25).Draw(t, "bucket"),
		Fusion:      rapid.Int64Range(1, 1<<26).Draw(t, "fusion"),
		Cycle:       float64(rapid.IntRange(1, 5000).Draw(t, "cycle")),
		InFlight:    rapid.IntRange(1, 3).Draw(t, "in flight"),
		Copies:      rapid.Bool().Draw(t, "keep copies"),
		Limits:      rapid.SampledFrom([]plan.Limits{plan.DefaultLimits, plan.DelayLimits(1), plan.DelayLimits(2)}).Draw(t, "limits"),
	}
}

func TestEveryPlanIsLegal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c := random.Job(t), random.Cluster(t).WithServers()
		if err := j.Validate(); err != nil {
			t.Fatal(err)
		}
		o := options(t)
		for _, pol := range policies() {
			p, err := pol.Build(context.Background(), j, c, o)
			if errors.Is(err, policy.ErrUnsuitable) {
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", pol.Name, err)
			}
			if r := plan.Check(p, j, o.Limits); !r.OK() {
				t.Fatalf("%s: %+v", pol.Name, r)
			}
		}
	})
}

func TestLowerBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c, o := random.Job(t), random.Cluster(t).WithServers(), options(t)
		c.Nodes, c.PerNode = min(c.Nodes, 4), min(c.PerNode, 2) // each different worker is simulated by itself
		random.Unequal(t, c)
		for _, pol := range policies() {
			p, err := pol.Build(context.Background(), j, c, o)
			if err == nil {
				holds(t, j, c, p, o.Limits)
			}
		}
	})
}

// Spreading a plan over several links keeps it legal and above the bound.
func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c, o := random.Job(t), random.Cluster(t).WithServers(), options(t)
		for l := range rapid.IntRange(1, 2).Draw(t, "more links") {
			more := random.Cluster(t).Links[0]
			more.Name = fmt.Sprint("more", l)
			c.Links = append(c.Links, more)
		}
		pol := rapid.SampledFrom(policies()).Draw(t, "policy")
		p, err := pol.Build(context.Background(), j, c, o)
		if err != nil {
			return
		}
		spread, err := policy.Spread(j, c, p)
		if err != nil {
			t.Fatal(err)
		}
		if spread == nil {
			return
		}
		if r := plan.Check(spread, j, o.Limits); !r.OK() {
			t.Fatalf("%s: %+v", pol.Name, r)
		}
		holds(t, j, c, spread, o.Limits)
	})
}

// holds fails if p runs faster than the bound of its class.
func holds(t *rapid.T, j *job.Job, c *cluster.Cluster, p *plan.Plan, l plan.Limits) {
	b, err := bound.Of(bound.ClassOf(p), j, c, l)
	if err != nil {
		t.Fatal(err)
	}
	// The bound holds from one occurrence of an op to the next, so a run of n
	// iterations holds it n - 1 times; a period, what belongs to it.
	n := max(20, 5*p.Period)
	r, err := sim.Run(context.Background(), j, c, p, sim.Options{Iterations: n})
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, x := range r.Iterations {
		total += x
	}
	if least := float64(n-p.Period-p.MaxDelay) * b.Time; total < least-float64(n)*slack(j) {
		t.Fatalf("%s takes %v us for %d iterations, below the bound of %v each (%s)", p.Policy, total, n, b.Time, b.Why)
	}
}

func TestFasterLinkIsNeverSlowerForWFBP(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c, o := random.Job(t), random.Cluster(t).WithServers(), options(t)
		before := simulate(t, j, c, fusion.WFBP, o, sim.Options{})
		c.Links[0].Bandwidth *= 2
		if after := simulate(t, j, c, fusion.WFBP, o, sim.Options{}); after.Time > before.Time+slack(j) {
			t.Fatalf("twice the bandwidth: %v us, before %v", after.Time, before.Time)
		}
	})
}

// Where a policy's own model is exact (one lane, equal workers, a serial link, no
// slowdown), it is never above what it set out to improve: the plain policy, or
// itself with the parameters that it is published with.
func TestNeverAboveBaseline(t *testing.T) {
	baselines := []struct {
		policy, baseline string
		o                policy.Options // of the baseline
	}{
		{"mg-wfbp", "wfbp", policy.Options{}},
		{"mg-wfbp-exact", "mg-wfbp", policy.Options{}},
		{"asc-wfbp", "wfbp", policy.Options{}},
		{"caramel", "wfbp", policy.Options{}},
		{"dear", "dear", policy.Options{Group: 25 << 20}},
		{"bytescheduler", "bytescheduler", policy.Options{Partition: 1 << 20, Credit: 16 << 20}},
		{"us-byte", "us-byte", policy.Options{Unit: 1 << 20}},
	}
	rapid.Check(t, func(t *rapid.T) {
		j, c := random.Chain(t, 12), random.Cluster(t)
		c.Links[0].InFlight = 1
		for _, x := range baselines {
			var times []float64
			for _, run := range []struct {
				name string
				o    policy.Options
			}{{x.policy, policy.Options{}}, {x.baseline, x.o}} {
				p, err := all.Lookup(run.name)
				if err != nil {
					t.Fatal(err)
				}
				times = append(times, simulate(t, j, c, p, run.o, sim.Options{}).Time)
			}
			if times[0] > times[1]+slack(j) {
				t.Fatalf("%s takes %g us, %s %+v %g", x.policy, times[0], x.baseline, x.o, times[1])
			}
		}
	})
}

func TestAlikeWorkersOnceOrAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c, o := random.Job(t), random.Cluster(t).WithServers(), options(t)
		c.Overlap = float64(rapid.IntRange(0, 40).Draw(t, "overlap %")) / 100
		for r := range c.World() {
			if r%3 == 1 {
				c.Workers = append(c.Workers, cluster.Worker{Rank: r, Scale: 1.5})
			}
		}
		pol := rapid.SampledFrom(policies()).Draw(t, "policy")
		once := simulate(t, j, c, pol, o, sim.Options{Timeline: true, Iterations: 4})
		if once == nil {
			return
		}
		every := simulate(t, j, c, pol, o, sim.Options{Timeline: true, Iterations: 4, Everyone: true})
		if !reflect.DeepEqual(once.Iterations, every.Iterations) {
			t.Fatalf("iterations %v once, %v all", once.Iterations, every.Iterations)
		}
		a, b := once.Timeline.Expand(), every.Timeline.Expand()
		if !reflect.DeepEqual(a.Ranks, b.Ranks) || !reflect.DeepEqual(a.Spans, b.Spans) {
			for i := range a.Spans {
				if i >= len(b.Spans) || a.Spans[i] != b.Spans[i] {
					t.Fatalf("span %d: %+v once, %+v all", i, a.Spans[i], b.Spans[i])
				}
			}
			t.Fatalf("timelines differ: %d and %d spans", len(a.Spans), len(b.Spans))
		}
	})
}

// The meters find what the spans say, whether or not there are any.
func TestMetersAgreeWithTimeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c, o := random.Job(t), random.Cluster(t).WithServers(), options(t)
		random.Unequal(t, c)
		pol := rapid.SampledFrom(policies()).Draw(t, "policy")
		so := sim.Options{Timeline: true, Iterations: rapid.IntRange(1, 7).Draw(t, "iterations")}
		r := simulate(t, j, c, pol, o, so)
		if r == nil {
			return
		}
		m := r.Timeline.Metrics(r.Steady, len(r.Iterations))
		pairs := [][2]timeline.Breakdown{{r.Mean, m.Mean}}
		if r.WorstRank == m.WorstRank { // of equals, rounding may choose another
			pairs = append(pairs, [2]timeline.Breakdown{r.Worst, m.Worst})
		}
		for _, x := range pairs {
			for i, d := range [][2]float64{
				{x[0].Iteration, x[1].Iteration}, {x[0].Computation, x[1].Computation}, {x[0].Communication, x[1].Communication},
				{x[0].Exposed, x[1].Exposed}, {x[0].Idle, x[1].Idle},
			} {
				if math.Abs(d[0]-d[1]) > slack(j) { // the timeline rounds to nanoseconds
					t.Fatalf("metric %d: %v by the meters, %v from the spans\n%+v\n%+v", i, d[0], d[1], x[0], x[1])
				}
			}
		}
		if bare := simulate(t, j, c, pol, o, sim.Options{Iterations: so.Iterations}); bare.Mean != r.Mean || bare.Worst != r.Worst || bare.WorstRank != r.WorstRank {
			t.Fatalf("with spans %+v, without %+v", r.Mean, bare.Mean)
		}
	})
}

// Jitter is a hash: a run repeats itself, and its seed matters.
func TestDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c, o := random.Job(t), random.Cluster(t).WithServers(), options(t)
		random.Unequal(t, c)
		pol := rapid.SampledFrom(policies()).Draw(t, "policy")
		a := simulate(t, j, c, pol, o, sim.Options{Timeline: true, Iterations: 3})
		b := simulate(t, j, c, pol, o, sim.Options{Timeline: true, Iterations: 3})
		if !reflect.DeepEqual(a, b) {
			t.Fatal("two runs differ")
		}
	})
}

// A thousand different workers, 100 layers, 10 iterations: under 2 s is the aim.
func BenchmarkThousandWorkers(b *testing.B) {
	j := layers(100)
	c := cluster.Uniform(1000, 1, cluster.Link{Name: "net", Latency: 25, Bandwidth: 1e10})
	for r := range c.World() {
		c.Workers = append(c.Workers, cluster.Worker{Rank: r, Scale: 1 + float64(r)/5000, Jitter: 0.05})
	}
	p, err := fusion.DDP.Build(context.Background(), j, c, policy.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sim.Run(context.Background(), j, c, p, sim.Options{Iterations: 10}); err != nil {
			b.Fatal(err)
		}
	}
}

// Four policies on 300 tensors and 16 workers, planned, checked and simulated.
func BenchmarkFourPolicies(b *testing.B) {
	j := layers(300)
	c := cluster.Uniform(16, 1, cluster.Link{Name: "net", Latency: 25, Bandwidth: 1e10})
	for b.Loop() {
		if _, err := bound.Synchronous(j, c); err != nil {
			b.Fatal(err)
		}
		for _, pol := range []policy.Policy{fusion.WFBP, fusion.DDP, fusion.Horovod, fusion.MGWFBP} {
			p, err := pol.Build(context.Background(), j, c, policy.Options{})
			if err != nil {
				b.Fatal(err)
			}
			if r := plan.Check(p, j, plan.DefaultLimits); !r.OK() {
				b.Fatal(fmt.Sprint(r))
			}
			if _, err := sim.Run(context.Background(), j, c, p, sim.Options{}); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func layers(n int) *job.Job {
	fwd, bwd, bytes := make([]float64, n), make([]float64, n), make([]int64, n)
	for i := range n {
		fwd[i], bwd[i], bytes[i] = 100, 200, int64(4*(1000+(i*7919)%100000))
	}
	return job.Chain("layers", fwd, bwd, bytes)
}

// A transfer of the period before, with a time gate, has a place in the last
// period that the run has no transfer for.
func TestTimeGateOfAnEarlierPeriod(t *testing.T) {
	j := job.Chain("chain", []float64{1}, []float64{1}, []int64{4})
	c := cluster.Uniform(2, 1, cluster.Link{Name: "net", Bandwidth: 1e9})
	p := plan.New(j, "test", "net")
	p.AllReduce(0, plan.WholeTensors(j, 0))
	x := &p.Programs[0].Transfers[0]
	x.Generation = -1
	x.Gates = append(x.Gates, plan.Gate{Kind: plan.NotBefore, Time: 3})
	p.Updates[0].Iteration, p.MaxDelay, p.MaxStaleness, p.Buffers = 1, 1, 1, 2
	if r := plan.Check(p, j, plan.DelayLimits(1)); !r.OK() {
		t.Fatal(r)
	}
	if _, err := sim.Run(context.Background(), j, c, p, sim.Options{}); err != nil {
		t.Fatal(err)
	}
}

// Communication of 20 a generation beside computation of 19: generation t is ready
// at 19t + 19 and reduced at 20t + 39. With a delay of two it is read at 19t + 57,
// so that nothing waits until t = 19. In the long run an iteration takes 20.
func TestBacklog(t *testing.T) {
	j := job.Chain("chain", []float64{9}, []float64{10}, []int64{18})
	c := cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 1, Bandwidth: 8e6})
	p := plan.New(j, "test", "net")
	p.AllReduce(0, plan.WholeTensors(j, 0))
	p.Updates[0].Iteration, p.MaxDelay, p.MaxStaleness, p.Buffers = 2, 2, 2, 3
	for iterations, want := range map[int]float64{12: 19, 0: 20} {
		r, err := sim.Run(t.Context(), j, c, p, sim.Options{Iterations: iterations})
		if err != nil {
			t.Fatal(err)
		}
		if r.Time != want {
			t.Errorf("%d iterations: %g us each, want %g", iterations, r.Time, want)
		}
	}
}
