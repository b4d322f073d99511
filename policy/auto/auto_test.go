package auto_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/policy/auto"
	"weft/sim"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// example is the running example RX: on one link of alpha 2 and beta 1 the best
// of the policies takes 32, and the bound is 30.
func example() (*job.Job, *cluster.Cluster) {
	j := job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
	return j, cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 1, Bandwidth: 8e6})
}

// sends is a policy that sends tensors one by one, in the given order, with so
// many in flight and delayed by so many iterations.
func sends(name string, inFlight, delay int, tensors ...job.TensorID) policy.Policy {
	return policy.Policy{Name: name, Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		if o.Limits.MaxDelay < delay {
			return nil, policy.ErrUnsuitable
		}
		p := plan.New(j, name, c.Links[0].Name)
		p.Programs[0].Window.Transfers = inFlight
		for _, k := range tensors {
			p.AllReduce(0, plan.WholeTensors(j, k))
		}
		p.Updates[0].Iteration, p.MaxDelay, p.MaxStaleness, p.Buffers = delay, delay, delay, 1+delay
		return p, nil
	}}
}

func TestChoice(t *testing.T) {
	j, c := example()
	slow := sends("slow", 1, 0, 3, 2, 1, 0)       // WFBP: 38
	fast := sends("fast", 2, 0, 3, 2, 1, 0)       // two in flight: 32
	delayed := sends("delayed", 1, 1, 3, 2, 1, 0) // all hidden: 27
	later := sends("later", 1, 2, 3, 2, 1, 0)     // as fast, but staler
	for _, x := range []struct {
		name   string
		others []policy.Policy
		limits plan.Limits
		want   float64
		delay  int
	}{
		{"the fastest", []policy.Policy{slow, fast}, plan.DefaultLimits, 32, 0},
		{"no delay without leave", []policy.Policy{slow, delayed}, plan.DefaultLimits, 38, 0},
		{"delay with leave", []policy.Policy{slow, fast, delayed}, plan.DelayLimits(1), 27, 1},
		{"of equals the least stale", []policy.Policy{later, delayed}, plan.DelayLimits(2), 27, 1},
	} {
		p, err := auto.New(x.others).Build(t.Context(), j, c, policy.Options{Limits: x.limits})
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		r, err := sim.Run(t.Context(), j, c, p, sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Time != x.want || p.MaxDelay != x.delay || p.Policy != "auto" {
			t.Errorf("%s: %g us with delay %d, want %g and %d", x.name, r.Time, p.MaxDelay, x.want, x.delay)
		}
	}
}

// With a limit of one gradient buffer the delayed plan does not fit; with less
// than that nothing does, and the error says what would: RX has 13 bytes of
// weights and 13 of gradients.
func TestMemory(t *testing.T) {
	j, c := example()
	search := auto.New([]policy.Policy{sends("fast", 2, 0, 3, 2, 1, 0), sends("delayed", 1, 1, 3, 2, 1, 0)})
	need := plan.MemoryOf(must(sends("fast", 2, 0, 3, 2, 1, 0).Build(t.Context(), j, c, policy.Options{})), j).Total()
	limits := plan.DelayLimits(1)
	limits.MaxMemory = need
	if p := must(search.Build(t.Context(), j, c, policy.Options{Limits: limits})); p.MaxDelay != 0 {
		t.Errorf("a plan with two buffers in the memory for one")
	}
	limits.MaxMemory = need - 1
	_, err := search.Build(t.Context(), j, c, policy.Options{Limits: limits})
	if m, ok := errors.AsType[*plan.MemoryError](err); !ok || m.Need.Total() != need {
		t.Errorf("got %v, want that %d bytes are needed", err, need)
	}
}

func TestNoPolicy(t *testing.T) {
	j, c := example()
	_, err := auto.New([]policy.Policy{sends("delayed", 1, 1, 0)}).Build(t.Context(), j, c, policy.Options{})
	if err == nil || !strings.Contains(err.Error(), "no policy has a plan") {
		t.Errorf("got %v", err)
	}
}

func TestCancelled(t *testing.T) {
	j, c := example()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := auto.New(all.Policies()).Build(ctx, j, c, policy.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// No other row of a comparison beats it by more than the 1 % that it gives up
// for fresher updates and less memory; with a second link it uses both.
func TestNeverBeaten(t *testing.T) {
	j := layers(40)
	for k := range j.Tensors {
		j.Tensors[k].Elements *= 500 // communication takes longer than computation
	}
	c := cluster.Uniform(16, 1, cluster.Link{Name: "a", Latency: 25, Bandwidth: 1e9})
	c.Links = append(c.Links, cluster.Link{Name: "b", Latency: 25, Bandwidth: 0.5e9})
	chosen, _ := all.Lookup("auto")
	var o policy.Options
	p := must(chosen.Build(t.Context(), j, c, o))
	if slices.ContainsFunc(p.Programs, func(x plan.Program) bool { return len(x.Transfers) == 0 }) {
		t.Errorf("a link carries nothing")
	}
	if !strings.Contains(p.Notes[0], " over 2 links: ") {
		t.Errorf("told %q", p.Notes[0])
	}
	best, err := sim.Run(t.Context(), j, c, p, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range all.Policies() {
		if other.Class == policy.Servers {
			continue
		}
		p, err := other.Build(t.Context(), j, c, o)
		if err != nil {
			continue
		}
		r, err := sim.Run(t.Context(), j, c, p, sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if best.Time > 1.01*r.Time {
			t.Errorf("auto takes %g us, %s %g", best.Time, other.Name, r.Time)
		}
	}
}

func must(p *plan.Plan, err error) *plan.Plan {
	if err != nil {
		panic(err)
	}
	return p
}

func layers(n int) *job.Job {
	fwd, bwd, bytes := make([]float64, n), make([]float64, n), make([]int64, n)
	for i := range n {
		fwd[i], bwd[i], bytes[i] = float64(50+i%7*30), float64(100+i%5*60), int64(4*(64+i*i*3))
	}
	return job.Chain("layers", fwd, bwd, bytes)
}

// The aim is 5 s for 300 tensors.
func BenchmarkBuild(b *testing.B) {
	j := layers(300)
	c := cluster.Uniform(16, 1, cluster.Link{Name: "a", Latency: 25, Bandwidth: 10e9})
	c.Links = append(c.Links, cluster.Link{Name: "b", Latency: 25, Bandwidth: 5e9})
	search, _ := all.Lookup("auto")
	for b.Loop() {
		if _, err := search.Build(b.Context(), j, c, policy.Options{Limits: plan.DelayLimits(2)}); err != nil {
			b.Fatal(err)
		}
	}
}
