package deft

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/fusion"

	"pgregory.net/rapid"
)

// layers draws a chain whose gradients take the given share of its computation on
// a link of 1 byte a microsecond; the backward pass takes twice the forward pass.
func layers(seed uint64, n int, coverage float64) (j *job.Job, compute float64) {
	r := rand.New(rand.NewPCG(seed, 7))
	fwd, bwd, share := make([]float64, n), make([]float64, n), make([]float64, n)
	sum := 0.0
	for i := range n {
		fwd[i] = 500 + float64(r.IntN(1000))
		bwd[i] = 2 * fwd[i]
		share[i] = 0.1 + r.Float64()
		compute, sum = compute+3*fwd[i], sum+share[i]
	}
	bytes := make([]int64, n)
	for i := range n {
		bytes[i] = 4 * int64(share[i]/sum*coverage*compute/4)
	}
	return job.Chain("layers", fwd, bwd, bytes), compute
}

// A job computes in F + B at best. DeFT comes within 2 % of that on one link and
// on two, below a coverage rate of 1 and above it.
func TestHides(t *testing.T) {
	for _, factors := range [][]float64{{1}, {1, 2}} {
		for _, coverage := range []float64{0.8, 1.5, 2.5} {
			j, compute := layers(1, 40, coverage)
			c := wire(20, factors...)
			p := planned(t, j, c, plan.DelayLimits(3))
			if got := simulated(t, j, c, p); got > 1.02*compute {
				t.Errorf("%d links, coverage %v: an iteration takes %v us, computation %v", len(factors), coverage, got, compute)
			}
		}
	}
}

// Section 13.11: below a coverage rate of 1, on one link, an update an iteration,
// with a delay of 1, in F + B.
func TestHidesWithAnUpdateEachIteration(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		coverage := float64(rapid.IntRange(1, 95).Draw(r, "coverage %")) / 100
		j, compute := layers(rapid.Uint64().Draw(r, "seed"), rapid.IntRange(3, 30).Draw(r, "layers"), coverage)
		c := wire(0, 1)
		p := planned(t, j, c, plan.DelayLimits(rapid.IntRange(1, 3).Draw(r, "delay")))
		if got := simulated(t, j, c, p); p.UpdateRate != 1 || p.MaxDelay > 1 || got > 1.01*compute {
			r.Fatalf("update rate %v, delay %d, %v us; computation %v", p.UpdateRate, p.MaxDelay, got, compute)
		}
	})
}

// With a delay of 1 at most, what cannot be hidden is exposed once in as many
// iterations as the limits allow, not in each. Of 2·(F + B) a generation can send
// 2 B + F before it is due, less what its last gradients wait for; the rest, at
// most F + b_N..., is waited for once in 3 iterations, so T < (3 + 1)/3·(F + B).
// Packing all of it into the windows would take 2·(F + B).
func TestDelayOneAtCoverageTwo(t *testing.T) {
	j, compute := layers(3, 40, 2)
	p := planned(t, j, wire(0, 1), plan.DelayLimits(1))
	if got := simulated(t, j, wire(0, 1), p); got > 4./3*compute || p.MaxDelay != 1 || p.UpdateRate < 1./3 {
		t.Errorf("%v us at rate %v and delay %d; computation %v", got, p.UpdateRate, p.MaxDelay, compute)
	}
}

// Plan rule 5: the least time; within 1 % the highest rate, then the lowest
// staleness, then the fewest buffers.
func TestBest(t *testing.T) {
	one := func(time float64, updates, period, staleness int) candidate {
		g := generation{First: 0, Length: 1, Applied: staleness}
		s := &solution{Updates: updates, Period: period, Generations: []generation{g, g, g}}
		return candidate{solution: s, time: time}
	}
	for _, x := range []struct {
		all  []candidate
		want int
	}{
		{[]candidate{one(102, 1, 1, 1), one(100, 1, 3, 5)}, 1},
		{[]candidate{one(100, 1, 3, 1), one(100.9, 1, 2, 5)}, 1},
		{[]candidate{one(100, 1, 2, 3), one(100.5, 1, 2, 2), one(100.9, 1, 2, 2)}, 1},
	} {
		if got := best(x.all); got != x.want {
			t.Errorf("best of %v: %d, want %d", x.all, got, x.want)
		}
	}
}

// With delay and accumulation off a plan is synchronous, and takes as long as
// sending the same buckets in order of readiness: DeFT is WFBP then.
func TestSynchronous(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		j, _ := layers(rapid.Uint64().Draw(r, "seed"), rapid.IntRange(1, 6).Draw(r, "layers"), float64(rapid.IntRange(1, 30).Draw(r, "coverage"))/10)
		c := wire(float64(rapid.IntRange(0, 500).Draw(r, "alpha")), 1)
		p := build(t, j, c, rule{})
		if !p.Synchronous() {
			r.Fatalf("delay %d, %d updates in %d", p.MaxDelay, len(p.Generations), p.Period)
		}
		if x := plan.Check(p, j, plan.DefaultLimits); !x.OK() {
			r.Fatalf("%s", x)
		}
		wfbp, err := fusion.WFBP.Build(context.Background(), j, c, policy.Options{})
		if err != nil {
			r.Fatal(err)
		}
		if got, want := simulated(t, j, c, p), simulated(t, j, c, wfbp); got > want+0.01 {
			r.Fatalf("%v us, WFBP %v", got, want)
		}
		replay(r, j, p)
	})
}

// RX, with 1 us of the job's own in each forward pass: 5 + 3 are what fills the 8
// that are left, so 2 waits for the backward pass (0-4); 4 follows as before (8-17).
//
// With 10 us in each backward pass no pass has the 9 that 4 takes, so it spans two.
// At first 3 goes (10-15), 4 begins behind it (15-24) and takes 6 of the next forward
// pass, where with the job's own 1 neither 2 (4) nor 1 (3) fits. In the backward pass
// they do (10-14-17), and the next 4 begins behind them (17-26). That leaves nothing
// of the forward pass, and of the backward pass 8: 3 and 1.
func TestCollectivesTakeRoom(t *testing.T) {
	p := problem{Forward: 9, Backward: 18, Ready: []float64{8, 10, 14, 18}, Cost: [][]float64{{9, 5, 4, 3}}, Taken: [][2]float64{{1, 0}}}
	for _, x := range []struct {
		taken float64
		want  string
	}{
		{0, "0 A: | 0.4\n1 B: 0.3 0.1 | 0.2 1.4; apply 0\n"},
		{10, "0 A: | 0.3 0.4\n1 B: | 0.2 0.1 1.4; apply 0\n2 C: | 1.3 1.1\n"},
	} {
		p.Taken[0][backward] = x.taken
		if got := solve(t, p, unbound).log(4, 3); got != x.want {
			t.Errorf("%v us in backward: got\n%swant\n%s", x.taken, got, x.want)
		}
	}
}

// A collective of the job, in forward, reaches the solver as time taken there.
func TestModelSeesCollectives(t *testing.T) {
	j := job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
	j.Collectives = []job.Collective{
		{Name: "buffers", Kind: "broadcast", Bytes: 3, After: []job.OpID{0}, Before: []job.OpID{2}},
		{Name: "norm", Kind: "all-reduce", Bytes: 4, After: []job.OpID{4}, Before: []job.OpID{7}},
	}
	m, err := newModel(j, wire(2, 1, 2), false)
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.problem(each(j))
	if err != nil {
		t.Fatal(err)
	}
	// A ring of two: a broadcast is 1 step of 1 us and 3 bytes, an all-reduce 2 + 4.
	if want := [2]float64{1 + 3, 2 + 4}; len(p.Taken) != 2 || p.Taken[0] != want || p.Taken[1] != ([2]float64{}) {
		t.Errorf("taken %v, want %v on the first link", p.Taken, want)
	}
	planned(t, j, wire(2, 1, 2), plan.DelayLimits(1))
}

// What a plan needs of memory is the caller's to refuse.
func TestMemory(t *testing.T) {
	j, _ := layers(3, 5, 1)
	l := plan.DelayLimits(1)
	l.MaxMemory = 1
	p, err := DeFT.Build(context.Background(), j, wire(0, 1), policy.Options{Limits: l})
	if err != nil || p.Buffers != 2 {
		t.Errorf("%v, %v; want a plan of 2 buffers", p, err)
	}
}

// Without work left passes are filled in the order of dispatch, and the plan is
// legal all the same.
func TestWorkBound(t *testing.T) {
	j, _ := layers(5, 30, 1.5)
	m, err := newModel(j, wire(20, 1, 2), false)
	if err != nil {
		t.Fatal(err)
	}
	s := search{model: m, limits: plan.DelayLimits(2), work: &work{}}
	p, err := s.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if r := plan.Check(p, j, s.limits); !r.OK() {
		t.Fatalf("%s", r)
	}
	if got := fmt.Sprint(p.Notes); s.work.left >= 0 || !contains(p.Notes, "bound of work") {
		t.Errorf("notes %s", got)
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, x := range []struct{ layers, delay int }{{50, 1}, {50, 3}, {200, 1}, {200, 3}} {
		b.Run(fmt.Sprintf("layers=%d/delay=%d", x.layers, x.delay), func(b *testing.B) {
			b.ReportAllocs()
			seed := uint64(0)
			for b.Loop() {
				seed++
				j, _ := layers(seed, x.layers, []float64{0.9, 1.4, 2.3}[seed%3])
				planned(b, j, wire(20, 1, 1.7), plan.DelayLimits(x.delay))
			}
		})
	}
}
