package profile

import (
	"math"
	"strings"
	"testing"

	"weft/cluster"
)

// on is what hosts see of 8 iterations, the first and every second one quiet, on a
// cluster: two buckets, of which the first is ready after a half of a backward pass of
// 1000 us alone. In quiet iterations both go at its end, one after the other.
func on(t *testing.T, c *cluster.Cluster, overlapped float64) []Host {
	t.Helper()
	hosts := make([]Host, c.Nodes)
	cost := func(bytes int64) float64 {
		x, err := c.Cost(0, cluster.AllReduce, bytes)
		if err != nil {
			t.Fatal(err)
		}
		return x.Total()
	}
	const first, second = 10_000, 40_000 // bytes
	for h := range hosts {
		host := &hosts[h]
		for range c.PerNode {
			host.Reports = append(host.Reports, Report{Iterations: 8, Kept: 8, Phases: map[string]float64{"backward": 1000}, Overlapped: overlapped})
		}
		for i := range 8 {
			at, end := 1e4*float64(i)+500, 1e4*float64(i)+overlapped
			if i%2 == 0 {
				at, end = 1e4*float64(i)+1000, 1e4*float64(i)+1000
			}
			host.Passes = append(host.Passes, Pass{First: at, Last: end})
			late := 5 * float64(len(hosts)-1-h) // the last host does not wait for others
			done := at + cost(first)
			host.Transfers = append(host.Transfers, Transfer{Iteration: i, Bytes: first, Start: at - late, End: done})
			next := max(done, end) + 1 // they do not touch
			host.Transfers = append(host.Transfers, Transfer{Iteration: i, Bytes: second, Start: next, End: next + cost(second)})
		}
	}
	return hosts
}

// What hosts see of a cluster gives it back.
func TestCluster(t *testing.T) {
	for _, x := range []struct{ nodes, per int }{{2, 1}, {4, 1}, {2, 3}, {1, 2}} {
		want := cluster.Uniform(x.nodes, x.per, cluster.Link{Name: "net", Latency: 20, Bandwidth: 1e9})
		got, m, err := Cluster(on(t, want, 1000), nil)
		if err != nil {
			t.Fatal(err)
		}
		l := got.Links[0]
		if got.Nodes != x.nodes || got.PerNode != x.per || math.Abs(l.Latency-20) > 0.01 || math.Abs(l.Bandwidth/1e9-1) > 1e-3 || got.Overlap != 0 {
			t.Errorf("%d hosts of %d: %+v", x.nodes, x.per, got)
		}
		if len(m.Points) != 2 || len(m.Notes) > 0 || math.Abs(m.Errors[0]) > 1e-3 || math.Abs(m.Errors[1]) > 1e-3 {
			t.Errorf("%d hosts of %d: %+v", x.nodes, x.per, m)
		}
	}
}

// What torch.distributed takes is a link of its own, on the medium of the other if they
// take as long together as one after the other. Two workers: of 1 MB, 2 steps of 50 us and
// 8 us a KB of wire at 1 Gbit/s.
func TestC10D(t *testing.T) {
	for together, medium := range map[float64]string{1100: "", 1900: "net"} {
		hosts := on(t, cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 20, Bandwidth: 1e9}), 1000)
		hosts[0].Reports[0].C10D = &C10D{Points: []Sized{{1e5, 900}, {1e6, 8100}, {4e6, 32100}}, Alone: 1000, Together: together, Shared: 2000}
		got, m, err := Cluster(hosts, nil)
		if err != nil || len(got.Links) != 2 || len(m.Notes) != 1 {
			t.Fatal(got, m, err)
		}
		if l := got.Links[1]; l.Name != "c10d" || math.Abs(l.Latency-50) > 0.01 || math.Abs(l.Bandwidth/1e9-1) > 1e-3 || l.InFlight != 1 || l.Medium != medium || got.Links[0].Medium != medium {
			t.Errorf("together %v us: %+v", together, got.Links)
		}
	}
	for _, bad := range []C10D{{}, {Points: []Sized{{10, 1}, {10, 2}}}, {Points: []Sized{{10, math.NaN()}}}, {Points: []Sized{{10, 1}}, Shared: -1}} {
		hosts := on(t, cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 20, Bandwidth: 1e9}), 1000)
		hosts[0].Reports[0].C10D = &bad
		if _, _, err := Cluster(hosts, nil); err == nil || !strings.HasPrefix(err.Error(), "link c10d: its ") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// The transfer of 10 KB takes 2 steps of 20 us and 80 us of wire, 120 us, all beside the
// backward pass. That is 40 us longer for it: in the 120 us computation did 80 us of
// work, at a rate of 2/3, so the slowdown is 1/2.
func TestSlowdown(t *testing.T) {
	c := cluster.Uniform(2, 1, cluster.Link{Latency: 20, Bandwidth: 1e9})
	got, m, err := Cluster(on(t, c, 1040), nil)
	if err != nil || got.Overlap != 0.5 || len(m.Notes) > 0 {
		t.Errorf("slowdown %v, notes %q (%v), want 0.5", got.Overlap, m.Notes, err)
	}
	if got, m, err = Cluster(on(t, c, 1100), nil); err != nil || got.Overlap != maxOverlap || len(m.Notes) != 1 {
		t.Errorf("beyond all: %v, notes %q (%v)", got.Overlap, m.Notes, err)
	}
	if got, m, err = Cluster(on(t, c, 900), nil); err != nil || got.Overlap != 0 || len(m.Notes) > 0 {
		t.Errorf("faster beside transfers: %v, notes %q (%v)", got.Overlap, m.Notes, err)
	}
	fast := cluster.Uniform(2, 1, cluster.Link{Latency: 1, Bandwidth: 10e9})
	if got, m, err = Cluster(on(t, fast, 1040), nil); err != nil || got.Overlap != 0 || len(m.Notes) != 1 {
		t.Errorf("10 us of transfers tell something: %v, notes %q (%v)", got.Overlap, m.Notes, err)
	}
}

func TestClusterRefused(t *testing.T) {
	for _, x := range []struct {
		name, want string
		change     func([]Host) []Host
	}{
		{"one worker", "one worker does not communicate", func(h []Host) []Host { return h[:1] }},
		{"nobody", "one worker does not communicate", func(h []Host) []Host { return nil }},
		{"uneven", "hosts have 1 and 0 workers", func(h []Host) []Host { h[1].Reports = nil; return h }},
		{"ends before it starts", "transfer 0", func(h []Host) []Host { h[1].Transfers[0].End = 0; return h }},
		{"no such iteration", "transfer 3", func(h []Host) []Host { h[0].Transfers[3].Iteration = 8; return h }},
		{"no bytes", "transfer 3", func(h []Host) []Host { h[0].Transfers[3].Bytes = 0; return h }},
		{"NaN", "transfer 3", func(h []Host) []Host { h[0].Transfers[3].Start = math.NaN(); return h }},
		{"pass", "pass 1", func(h []Host) []Host { h[1].Passes[1].First = 1e12; return h }},
		{"no transfers", "nothing was measured", func(h []Host) []Host { h[0].Transfers, h[1].Transfers = nil, nil; return h }},
		{"fewer passes", "2 and 8 iterations", func(h []Host) []Host { h[0].Transfers, h[0].Passes = nil, h[0].Passes[:2]; return h }},
	} {
		hosts := x.change(on(t, cluster.Uniform(2, 1, cluster.Link{Latency: 20, Bandwidth: 1e9}), 1000))
		if _, _, err := Cluster(hosts, nil); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
	}
}

// The first rail at 800 Mbit/s and 60 us in the training, and at 1 Gbit/s and 20 us idle: what
// the other does idle, 500 Mbit/s and 30 us, is 400 Mbit/s and 70 us in the training.
func TestFurtherRails(t *testing.T) {
	hosts := on(t, cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 60, Bandwidth: 8e8}), 1000)
	got, _, err := Cluster(hosts, []cluster.Link{
		{Name: "net", Latency: 20, Bandwidth: 1e9, Medium: "net"}, {Name: "rail1", Latency: 30, Bandwidth: 5e8, Medium: "net"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for l, want := range []cluster.Link{{Name: "net", Latency: 60, Bandwidth: 8e8}, {Name: "rail1", Latency: 70, Bandwidth: 4e8}} {
		x := got.Links[l]
		if x.Name != want.Name || math.Abs(x.Latency-want.Latency) > 0.1 || math.Abs(x.Bandwidth/want.Bandwidth-1) > 1e-3 || x.Medium != "net" {
			t.Errorf("%+v, want %+v on net", x, want)
		}
	}
	// An idle rail that was disturbed, half as fast as in the training, does not make the other one faster.
	got, _, err = Cluster(hosts, []cluster.Link{{Name: "net", Latency: 20, Bandwidth: 4e8}, {Name: "rail1", Latency: 30, Bandwidth: 5e8}})
	if err != nil || got.Links[1].Bandwidth != 5e8 {
		t.Error(got, err)
	}
	alone, _, err := Cluster(hosts, nil)
	if err != nil || len(alone.Links) != 1 {
		t.Error(alone, err)
	}
}

// A training whose times leave nothing for a latency, on a rail where messages have one: a plan
// for no latency cuts gradients into thousands of transfers.
func TestLatency(t *testing.T) {
	hosts := on(t, cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 0, Bandwidth: 8e8}), 1000)
	idle := cluster.Link{Name: "net", Latency: 20, Bandwidth: 1e9}
	got, _, err := Cluster(hosts, []cluster.Link{idle})
	if err != nil || len(got.Links) != 1 || got.Links[0].Latency != 20 || math.Abs(got.Links[0].Bandwidth/8e8-1) > 1e-3 {
		t.Errorf("%+v (%v), want 800 Mbit/s and 20 us", got, err)
	}
}
