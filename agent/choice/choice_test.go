package choice

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft/agent"
	"weft/agent/protocol"
	"weft/cluster"
	"weft/job"
	"weft/pilot"
	"weft/plan"
	"weft/policy"
	"weft/policy/dear"
	"weft/policy/deft"
	"weft/policy/fusion"
	"weft/profile"
)

// layers is a job of three layers on a slow link: plain buckets in one bucket wait for
// all of it, and DeAR hides half of that behind the forward pass.
func layers() *job.Job {
	j := job.Chain("layers", []float64{1000, 1000, 1000}, []float64{2000, 2000, 2000}, []int64{100_000, 100_000, 100_000})
	j.Lanes[0].Kind = job.Host
	return j
}

// reviewed is what hosts know of plain buckets of it, on two hosts that a link of so
// many bits a second joins.
func reviewed(t *testing.T, bandwidth float64, times []float64) agent.Reviewed {
	t.Helper()
	j := layers()
	c := cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 50, Bandwidth: bandwidth})
	p, err := fusion.DDP.Build(context.Background(), j, c, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var r profile.Report
	r.Iterations, r.Kept, r.Iteration, r.Times = 4, 4, 9000, times
	for _, o := range j.Ops {
		r.Ops = append(r.Ops, profile.Op{Name: o.Name, Phase: o.Phase.String(), Time: o.Time})
	}
	for k, x := range j.Tensors {
		r.Ops[x.Readers[0]].Reads = []job.TensorID{job.TensorID(k)}
		r.Ops[x.Producers[0]].Gives = []job.TensorID{job.TensorID(k)}
	}
	h := profile.Host{Reports: []profile.Report{r}}
	for i := range 4 {
		at := 1e5 * float64(i+1)
		h.Passes = append(h.Passes, profile.Pass{First: at, Last: at})
		for _, bytes := range []int64{100_000, 300_000} {
			cost, err := c.Cost(0, cluster.AllReduce, bytes)
			if err != nil {
				t.Fatal(err)
			}
			h.Transfers = append(h.Transfers, profile.Transfer{Iteration: i, Bytes: bytes, Start: at, End: at + cost.Total()})
			at += cost.Total() + 1
		}
	}
	other := h
	other.Reports = slices.Clone(h.Reports)
	says := protocol.Hello{World: 2, Mode: "per-tensor", Boundaries: true}
	for _, x := range j.Tensors {
		says.Tensors = append(says.Tensors, protocol.Tensor{Name: x.Name, Elements: x.Elements, DType: x.Grad.String()})
	}
	return agent.Reviewed{Hello: says, Tensors: j.Tensors, Plan: p, Hosts: []profile.Host{h, other}}
}

// A training whose plan takes planned, and plain buckets plain microseconds: what ran, an
// item a review, and what the user was told.
func play(t *testing.T, p policy.Policy, bandwidth, planned, plain float64, reviews int) (ran []string, told string) {
	t.Helper()
	return playDelayed(t, p, plan.DefaultLimits, func(*agent.Reviewed) {}, bandwidth, planned, plain, reviews)
}

func playDelayed(t *testing.T, p policy.Policy, limits plan.Limits, change func(*agent.Reviewed), bandwidth, planned, plain float64, reviews int) (ran []string, told string) {
	t.Helper()
	c := &Choice{Policy: p, Options: policy.Options{Limits: limits}, Among: []policy.Policy{fusion.DDP, deft.DeFT}, Pilot: pilot.Config{Warm: 2, Profile: 4, Settle: 1, Window: 3, Turns: 2, Rest: 10, Drift: 0.15}}
	r := c.Review()
	runs, at, last := "plain", r.After, 0
	for i := range reviews {
		n := at - last // iterations since the hello, or the last review
		time := map[string]float64{"plain": plain, "plan": planned}[runs]
		known := reviewed(t, bandwidth, slices.Repeat([]float64{time}, n))
		known.First = i == 0
		change(&known)
		d, err := r.Take(known)
		if err != nil {
			t.Fatal(err)
		}
		ran = append(ran, fmt.Sprintf("%s %d", runs, n))
		last = at
		if d.Change {
			runs, last = "plain", 0
			if d.Schedule != nil {
				runs = "plan"
			}
		}
		if at = d.Review; at <= last {
			t.Fatalf("review %d iterations after the hello, and the last was after %d", at, last)
		}
	}
	ended := []agent.Ran{{Plain: true, Iterations: 2, Time: plain, Exposed: 1000}}
	return ran, strings.Join(append(c.Found(nil), c.Undecided(ended)...), "\n")
}

func TestKeeps(t *testing.T) {
	ran, told := play(t, dear.DeAR, 1e9, 8000, 9000, 6)
	if want := []string{"plain 6", "plan 4", "plain 4", "plain 3", "plan 4", "plan 10"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
	if !strings.Contains(told, "policy dear, delay 0\npredicted: ") || !strings.Contains(told, "the plan is kept: 8.0 ms an iteration, plain buckets 9.0 ms") {
		t.Errorf("told %q", told)
	}
}

// What ends before there is a verdict says so, and how far it came.
func TestUndecided(t *testing.T) {
	for reviews, want := range []string{
		"plain buckets: the training ended before iteration 6, after which a plan is made\nmeasured: plain buckets 9.0 ms an iteration, 1.0 ms of it exposed",
		"undecided: the training ended before the plan and plain buckets had taken all their turns",
	} {
		_, told := play(t, dear.DeAR, 1e9, 8000, 9000, reviews)
		if !strings.HasSuffix(told, want) || reviews == 1 && !strings.Contains(told, "policy dear, delay 0\npredicted: ") {
			t.Errorf("after %d reviews: %q, want %q", reviews, told, want)
		}
	}
	for _, ran := range [][]agent.Ran{nil, {{Plain: true, Iterations: 1000}}} { // nothing is trained
		if got := new(Choice).Undecided(ran); got != nil {
			t.Errorf("%+v: %q", ran, got)
		}
	}
}

func TestDrops(t *testing.T) {
	ran, told := play(t, dear.DeAR, 1e9, 10000, 9000, 6)
	if want := []string{"plain 6", "plan 4", "plain 4", "plain 3", "plan 4", "plain 10"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
	if !strings.Contains(told, "the plan is dropped: 10.0 ms an iteration, plain buckets 9.0 ms") {
		t.Errorf("told %q", told)
	}
}

// The best plan is not tried if the simulator finds it no faster; nor is one that there is
// not.
func TestNoPlan(t *testing.T) {
	for _, x := range []struct {
		policy policy.Policy
		want   string
	}{
		{policy.Policy{}, "plain buckets: no plan is faster as simulated"},
		{fusion.Recorded, "plain buckets: recorded: "},
	} {
		ran, told := play(t, x.policy, 1e9, 8000, 9000, 3)
		if want := []string{"plain 6", "plain 10", "plain 20"}; !slices.Equal(ran, want) {
			t.Errorf("%s: ran %q, want %q", x.policy.Name, ran, want)
		}
		if !strings.HasPrefix(told, x.want) {
			t.Errorf("%s: told %q, want %q", x.policy.Name, told, x.want)
		}
	}
}

// Plans that delay updates are tried if the user allows it, and the training bears it.
func TestDelays(t *testing.T) {
	ran, told := playDelayed(t, policy.Policy{}, plan.DelayLimits(1), func(*agent.Reviewed) {}, 1e8, 8000, 9000, 6)
	if want := []string{"plain 6", "plan 4", "plain 4", "plain 3", "plan 4", "plan 10"}; !slices.Equal(ran, want) || !strings.Contains(told, "policy auto, delay 1\nthe best of ") {
		t.Errorf("ran %q, told %q", ran, told)
	}
	for want, change := range map[string]func(*agent.Reviewed){
		"no updates are delayed, whatever --max-delay allows: the optimizer updates all": func(r *agent.Reviewed) { r.Hello.Mode, r.Hello.Boundaries = "global", false },
		"no updates are delayed, whatever --max-delay allows: gradients are read":        func(r *agent.Reviewed) { r.Hosts[1].Reports[0].Global = true },
	} {
		ran, told := playDelayed(t, deft.DeFT, plan.DelayLimits(1), change, 1e8, 8000, 9000, 3)
		if !slices.Equal(ran, []string{"plain 6", "plain 10", "plain 20"}) || strings.Count(told, want) != 1 {
			t.Errorf("ran %q, told %q", ran, told)
		}
	}
}

// Rails that were measured are planned for, by a policy that is spread and by the best of
// all; torch.distributed, whose order of additions is another, is not.
func TestRails(t *testing.T) {
	for _, p := range []policy.Policy{dear.DeAR, {}} {
		r := reviewed(t, 1e8, []float64{9000})
		r.Links = []cluster.Link{{Name: "net", Latency: 50, Bandwidth: 1e8}, {Name: "rail1", Latency: 50, Bandwidth: 5e7}}
		r.Hosts[0].Reports[0].C10D = &profile.C10D{Points: []profile.Sized{{Bytes: 1e5, Time: 100}, {Bytes: 1e6, Time: 1000}}, Alone: 1000, Together: 1000, Shared: 2000}
		c := &Choice{Policy: p, Options: policy.Options{Spread: p.Build != nil}, Among: []policy.Policy{fusion.DDP, dear.DeAR}}
		m, err := c.make(&r)
		if err != nil {
			t.Fatal(err)
		}
		var used []string
		for _, x := range m.Plan.Programs {
			if len(x.Transfers) > 0 {
				used = append(used, x.Link)
			}
		}
		if want := []string{"net", "rail1"}; !slices.Equal(used, want) || len(m.Costs) != 2 {
			t.Errorf("policy %q uses links %q, of %v, want %q", p.Name, used, m.Costs, want)
		}
	}
}

// A plan with fewer updates is taken if the loss hardly falls, or nobody knows how it does:
// where a step takes half of it off, the preserver vetoes all but an update an iteration.
func TestPreserver(t *testing.T) {
	const bandwidth = 5e7
	for _, x := range []struct {
		drift float64 // of a loss of 1; 0: not known
		rare  bool    // fewer updates than iterations
		want  string
	}{
		{0, true, "what delay costs in convergence is not judged: some rank's loss is not known"},
		{1e-4, true, "convergence: the loss expected after 1 updates in "},
		{0.2, false, "would be faster ("},
	} {
		r := reviewed(t, bandwidth, []float64{9000})
		for _, h := range r.Hosts {
			if x.drift > 0 {
				h.Reports[0].Descent = &profile.Descent{Losses: []float64{1}, Drifts: []float64{x.drift}}
			}
		}
		c := &Choice{Options: policy.Options{Limits: plan.DelayLimits(1)}, Among: []policy.Policy{fusion.DDP, dear.DeAR, deft.DeFT}}
		m, err := c.make(&r)
		if err != nil {
			t.Fatal(err)
		}
		told := strings.Join(c.found, "\n")
		if rare := m.Plan.UpdateRate < 1; rare != x.rare || !strings.Contains(told, x.want) || strings.Contains(told, "vetoes") == x.rare {
			t.Errorf("drift %v: update rate %v, told %q", x.drift, m.Plan.UpdateRate, told)
		}
	}
}
