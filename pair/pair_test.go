package pair

import (
	"errors"
	"slices"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/fusion"
	"weft/sim"
)

// rx is the running example: X = 27 of computation, and under WFBP Y = 11
// exposed, on a link whose all-reduce of S bytes takes 2 + S.
func rx() *job.Job {
	return job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
}

// onLink is two workers on a link where an all-reduce takes alpha + beta·S us:
// a ring of two has two steps, and each byte passes once.
func onLink(alpha, beta float64) *cluster.Cluster {
	return cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: alpha / 2, Bandwidth: 8e6 / beta})
}

func run(t testing.TB, c *cluster.Cluster, p policy.Policy, jobs ...*job.Job) *Result {
	t.Helper()
	r, err := Run(t.Context(), jobs, c, Options{Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Two running examples (section 14): 54 against 76. Each one's transfers end 11
// after its turn, in the other's turn of 27, and meet nobody.
func TestTwoRunningExamples(t *testing.T) {
	r := run(t, onLink(2, 1), fusion.WFBP, rx(), rx())
	if a := r.Alone[0]; a.Compute() != 27 || a.Exposed != 11 {
		t.Errorf("alone: X = %v, Y = %v, want 27 and 11", a.Compute(), a.Exposed)
	}
	p := r.Pairs[0]
	if want := (Round{Order{1, 1}, 54, 54, 76, [2]float64{38. / 54, 38. / 54}}); p.Even != want || p.Best != want {
		t.Errorf("even %+v, best %+v, want %+v for both", p.Even, p.Best, want)
	}
	if !p.Chosen || r.Time != 54 || r.InTurn != 76 {
		t.Errorf("chosen %v, %v against %v; want true, 54 against 76", p.Chosen, r.Time, r.InTurn)
	}
}

// A long job B (X = 20, Y = 20: one tensor of 18 bytes and a start-up of 2) and
// a short one A (X = 2, Y = 3: one byte). In turn a round of 1:1 takes 45,
// together max(22, 5, 40) = 40. While B communicates, A computes and
// communicates several times; n turns of A take 5n - 3, so 8 of them in a round
// take max(5·8 - 3 + 20 = 57, 40, 40) = 57 against 8·5 + 40 = 80: 1.404. Five
// take max(42, 25, 40) = 42 against 65: 1.548; four 40 against 60: 1.5; six 47
// against 70: 1.489. On separate links.
func TestSeveralTurns(t *testing.T) {
	a := job.Chain("a", []float64{1}, []float64{1}, []int64{1})
	b := job.Chain("b", []float64{10}, []float64{10}, []int64{18})
	r := run(t, onLink(2, 1), fusion.WFBP, a, b)
	for _, want := range []struct {
		order          Order
		period, inTurn float64
	}{{Order{1, 1}, 40, 45}, {Order{4, 1}, 40, 60}, {Order{5, 1}, 42, 65}, {Order{6, 1}, 47, 70}, {Order{8, 1}, 57, 80}} {
		simulated, _ := together2(t, r.Alone, want.order, false)
		got := newRound(&r.Alone[0], &r.Alone[1], want.order, simulated)
		if got.Formula != want.period || got.Period != want.period || got.InTurn != want.inTurn {
			t.Errorf("%v: %+v, want %v against %v", want.order, got, want.period, want.inTurn)
		}
	}
	// On a shared link A's five bytes lie in B's way: see TestSharedLink.
	if p := r.Pairs[0]; p.Best.Order.Second != 1 || p.Best.Order.First < 2 || p.Best.Speedup() <= p.Even.Speedup() {
		t.Errorf("best %+v, even %+v: several turns of the short job are better", p.Best, p.Even)
	}
}

// together2 simulates two jobs in an order, on one link or on a link each.
func together2(t testing.TB, alone []Alone, o Order, shared bool) (period float64, r *sim.Result) {
	t.Helper()
	x, err := Join(onLink(2, 1), []Member{alone[0].Member, alone[1].Member}, o.turns())
	if err != nil {
		t.Fatal(err)
	}
	for l := range x.Cluster.Links {
		if !shared {
			x.Cluster.Links[l].Medium = ""
		}
	}
	r, err = sim.RunLegal(t.Context(), x.Job, x.Cluster, x.Plan, plan.DefaultLimits, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Time, r
}

// The second job's gradients, of a byte each, cost nothing on this link. Beside
// a job that exposes 17 it saves 17, and two of those save 34: it is left apart.
// The first sends 7, 3, 2 bytes for 9 each from 8 on, until 35: Y = 17.
func TestLeftApart(t *testing.T) {
	busy := job.Chain("busy", []float64{5, 5}, []float64{5, 5}, []int64{1, 1})
	c := onLink(2, 1)
	c.Links[0] = cluster.Link{Name: "net", Curve: []cluster.Point{
		{Kind: cluster.AllReduce, Bytes: 1, Time: 0}, {Kind: cluster.AllReduce, Bytes: 2, Time: 9}, {Kind: cluster.AllReduce, Bytes: 7, Time: 9},
	}}
	r := run(t, c, fusion.WFBP, rx(), busy, rx())
	for i, want := range []float64{17, 0, 17} {
		if got := r.Alone[i].Exposed; got != want {
			t.Fatalf("job %d exposes %v, want %v", i+1, got, want)
		}
	}
	for _, p := range r.Pairs {
		if want := p.First == 0 && p.Second == 2; p.Chosen != want {
			t.Errorf("%d and %d: chosen %v (%+v)", p.First, p.Second, p.Chosen, p.Even)
		}
	}
}

// Both jobs of a pair are resident: each running example has weights and a
// gradient buffer of 13 bytes, 26 in all, and a pair 52. Two fit into 52 bytes
// and not into 51, and none into 25.
func TestMemory(t *testing.T) {
	for _, x := range []struct {
		most   int64
		chosen bool
	}{{52, true}, {51, false}} {
		r, err := Run(t.Context(), []*job.Job{rx(), rx()}, onLink(2, 1), Options{Policy: fusion.WFBP, Settings: policy.Options{Limits: plan.Limits{MinUpdateRate: 1, MaxMemory: x.most}}})
		if err != nil {
			t.Fatal(err)
		}
		if p := r.Pairs[0]; p.Memory.Total() != 52 || p.Chosen != x.chosen || (p.TooLarge == nil) != x.chosen {
			t.Errorf("%d bytes: %d needed, chosen %v (%v), want 52, %v", x.most, p.Memory.Total(), p.Chosen, p.TooLarge, x.chosen)
		}
	}
	_, err := Run(t.Context(), []*job.Job{rx(), rx()}, onLink(2, 1), Options{Policy: fusion.WFBP, Settings: policy.Options{Limits: plan.Limits{MinUpdateRate: 1, MaxMemory: 25}}})
	if _, ok := errors.AsType[*plan.MemoryError](err); !ok {
		t.Errorf("25 bytes: %v", err)
	}
}

// Exposed times of 10 and 15 beside computation of 1 and 2 fill a serial link:
// 25, more than 1 + 2, 1 + 10 and 2 + 15. Three turns of the first expose 30.
func TestFormulaOnSharedLink(t *testing.T) {
	a, b := &Alone{Time: 11, Exposed: 10}, &Alone{Time: 17, Exposed: 15}
	if got := Period(a, b, Order{1, 1}); got != 25 {
		t.Errorf("1:1: %v, want 25", got)
	}
	if got := Period(a, b, Order{3, 1}); got != 45 {
		t.Errorf("3:1: %v, want 45", got)
	}
}

// The end of an iteration that a plan waits for is the end of the member's own
// turn: one transfer of all 13 bytes behind it takes 15, in the other's turn of
// 27. An op that has moved to the next turn is waited for there.
func TestGates(t *testing.T) {
	j := rx()
	p := plan.New(j, "late", "net")
	p.Add(0, cluster.AllReduce, p.AddBucket(plan.WholeTensors(j, 0, 1, 2, 3)), plan.Gate{Kind: plan.GradientReady}, plan.Gate{Kind: plan.Boundary})
	p.Updates[0].At = plan.AtRead
	m := Member{j, p}
	c := onLink(2, 1)
	for _, x := range []struct {
		members []Member
		want    float64
	}{{[]Member{m}, 42}, {[]Member{m, m}, 54}} {
		joint, err := Join(c, x.members, []int{0, 1}[:len(x.members)])
		if err != nil {
			t.Fatal(err)
		}
		r, err := sim.RunLegal(t.Context(), joint.Job, joint.Cluster, joint.Plan, plan.DefaultLimits, sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Time != x.want {
			t.Errorf("%d members: %v, want %v", len(x.members), r.Time, x.want)
		}
	}

	step := plan.New(j, "behind", "net")
	update := job.OpID(len(j.Ops) - 1)
	step.Add(0, cluster.AllReduce, step.AddBucket(plan.WholeTensors(j, 0, 1, 2, 3)),
		plan.Gate{Kind: plan.GradientReady}, plan.Gate{Kind: plan.OpDone, Op: update, Iteration: -1})
	step.Ops = j.OpsFingerprint()
	joint, err := Join(c, []Member{{j, step}}, []int{0})
	if err != nil {
		t.Fatal(err)
	}
	g := joint.Plan.Programs[0].Transfers[0].Gates[1]
	if name := joint.Job.Ops[g.Op].Name; name != j.Ops[update].Name || g.Iteration != 0 {
		t.Errorf("waits for %s of iteration %d, want %s of 0", name, g.Iteration, j.Ops[update].Name)
	}
}

func TestRefusals(t *testing.T) {
	ctx, c := t.Context(), onLink(2, 1)
	host := rx()
	host.Lanes[0].Kind = job.Host
	delayed := plan.New(rx(), "delayed", "net")
	delayed.MaxDelay, delayed.MaxStaleness, delayed.Updates[0].Iteration = 1, 1, 1
	between := rx()
	between.Collectives = []job.Collective{{Name: "norm", Kind: "all-reduce", Bytes: 4, After: []job.OpID{7}, Before: []job.OpID{8}}}
	for _, x := range []struct {
		name       string
		jobs       []*job.Job
		policy     policy.Policy
		unsuitable bool
	}{
		{"one job", []*job.Job{rx()}, fusion.WFBP, false},
		{"too many", slices.Repeat([]*job.Job{rx()}, MaxJobs+1), fusion.WFBP, false},
		{"no device in common", []*job.Job{rx(), host}, fusion.WFBP, true},
		{"sends by the clock", []*job.Job{rx(), rx()}, fusion.Horovod, true},
		{"a collective before the update", []*job.Job{rx(), between}, fusion.WFBP, true},
	} {
		_, err := Run(ctx, x.jobs, c, Options{Policy: x.policy})
		if err == nil || errors.Is(err, policy.ErrUnsuitable) != x.unsuitable {
			t.Errorf("%s: error %v", x.name, err)
		}
	}
	if _, err := Join(c, []Member{{rx(), delayed}}, []int{0}); !errors.Is(err, policy.ErrUnsuitable) {
		t.Errorf("delayed updates: error %v", err)
	}
}
