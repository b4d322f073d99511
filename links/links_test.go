package links

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"weft/cluster"
	"weft/collective"
	"weft/transport"
)

// 50 us and 125 bytes a us (1 Gbit/s): a message of 125000 bytes takes 1050 us. At 4
// hosts an all-reduce takes 6 latencies and 1.5 times its bytes: 300 + 1500.
func TestFitByHand(t *testing.T) {
	m := &Measured{
		Messages: []cluster.Point{{Bytes: 1250, Time: 60}, {Bytes: 12_500, Time: 150}, {Bytes: 25_000, Time: 250}, {Bytes: 62_500, Time: 550}, {Bytes: 125_000, Time: 1050}},
		Rings:    []cluster.Point{{Kind: cluster.AllReduce, Bytes: 125_000, Time: 3600}},
	}
	f, err := m.Fit(4)
	if err != nil {
		t.Fatal(err)
	}
	if f.Link.Latency != 50 || f.Link.Bandwidth != 1e9 || Worst(f.Messages) > 1e-9 || math.Abs(f.Rings[0]+0.5) > 1e-9 {
		t.Errorf("%+v", f)
	}
	m.Messages[1].Time /= 2 // one that behaves otherwise: 150 us over 75 is an error of 1
	if f, err = m.Fit(4); err != nil || f.Link.Latency != 50 || f.Link.Bandwidth != 1e9 || math.Abs(f.Messages[1]-1) > 1e-9 {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestFitDegenerate(t *testing.T) {
	one := &Measured{Messages: []cluster.Point{{Bytes: 1000, Time: 10}}}
	if f, err := one.Fit(2); err != nil || Worst(f.Messages) > 1e-9 {
		t.Error(f, err)
	}
	for _, m := range []*Measured{
		{}, {Messages: []cluster.Point{{Bytes: 1000}}}, {Messages: []cluster.Point{{Time: 1000}}},
		{Messages: one.Messages, Rings: []cluster.Point{{Kind: cluster.Push, Bytes: 1, Time: 1}}},
	} {
		if f, err := m.Fit(2); err == nil {
			t.Errorf("%v: %+v", m, f)
		}
	}
	// Larger ones take less time: there is an answer.
	falling := &Measured{Messages: []cluster.Point{{Bytes: 1, Time: 1000}, {Bytes: 2, Time: 1}}}
	if f, err := falling.Fit(2); err != nil || !(f.Link.Bandwidth > 0) {
		t.Error(f, err)
	}
}

func TestRising(t *testing.T) {
	in := []cluster.Point{{Bytes: 1, Time: 5}, {Bytes: 2, Time: 3}, {Bytes: 3, Time: 4}, {Kind: cluster.Broadcast, Bytes: 1, Time: 1}}
	out := rising(in)
	for i, want := range []float64{3, 3, 4, 1} {
		if out[i].Time != want {
			t.Errorf("point %d: %v, want %v", i, out[i].Time, want)
		}
	}
	if in[0].Time != 5 {
		t.Error("the measured times have changed")
	}
}

// Three hosts over loopback: all kinds and sizes, and a file that reads back.
func TestLoopback(t *testing.T) {
	sizes := Sizes
	Sizes = []int64{4 << 10, 64 << 10, 1 << 20}
	defer func() { Sizes = sizes }()
	es, err := Loopback(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(es)
	var m *Measured
	Together(3, func(rank int) {
		out, err := Measure(t.Context(), es[rank], nil)
		if err != nil {
			t.Error(err)
		}
		if rank == 0 {
			m = out
		} else if out != nil {
			t.Error("host", rank, "has", out)
		}
	})
	if m == nil || len(m.Messages) != 3 || len(m.Rings) != 12 {
		t.Fatal(m)
	}
	f, err := m.Fit(3)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Cluster(collective.Layout{1, 1, 1}, []Rail{{"lo", m, f}}, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := cluster.Write(&b, c); err != nil {
		t.Fatal(err)
	}
	back, err := cluster.Read(&b, "cluster.yaml")
	if err != nil || back.World() != 3 || len(back.Links[0].Curve) != 12 {
		t.Error(back, err)
	}
	if _, err := Cluster(collective.Layout{1, 2}, []Rail{{"lo", m, f}}, nil, false); err == nil {
		t.Error("hosts with different numbers of workers pass")
	}
}

// Two rails of 10 and 5 bytes a us that move 1000 and 500 bytes take 100 us each. On one
// medium of 10 bytes a us both take 150: from 125 on they share one.
func TestSharesMedium(t *testing.T) {
	for together, want := range map[float64]bool{100: false, 124: false, 126: true, 150: true} {
		p := Pair{Alone: 100, Together: together, Shared: 150}
		if p.SharesMedium() != want {
			t.Errorf("%v: %v", together, !want)
		}
	}
	if p := (Pair{Alone: 100, Together: 300, Shared: 105}); p.SharesMedium() {
		t.Error("of two of which one is slow, noise tells")
	}
}

// Of five rails 0 and 2 share a medium, 1 and 3 another, and the last finds 2 and 3 on one.
func TestMedia(t *testing.T) {
	var rails []Rail
	for i := range 5 {
		rails = append(rails, Rail{Name: transport.RailName(i), Times: &Measured{}, Fit: &Fit{Link: cluster.Link{Bandwidth: 1e9}}})
	}
	shares := func(pairs ...[2]int) []Pair {
		var out []Pair
		for _, p := range pairs {
			out = append(out, Pair{p, 1, 2, 2})
		}
		return append(out, Pair{[2]int{0, 1}, 1, 1, 2})
	}
	for _, x := range []struct {
		pairs []Pair
		want  string
	}{
		{nil, ",,,,"},
		{shares([2]int{0, 2}, [2]int{1, 3}), "net,rail1,net,rail1,"},
		{shares([2]int{0, 2}, [2]int{1, 3}, [2]int{2, 4}, [2]int{3, 4}), "rail1,rail1,rail1,rail1,rail1"},
	} {
		c, err := Cluster(collective.Layout{1, 1}, rails, x.pairs, false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range c.Links {
			got = append(got, l.Medium)
		}
		if s := strings.Join(got, ","); s != x.want {
			t.Errorf("media %s, want %s", s, x.want)
		}
	}
}

// Three rails: all hosts measure every two, host 0 knows.
func TestPairs(t *testing.T) {
	const hosts = 2
	rails := make([][]transport.Endpoint, hosts)
	for range 3 {
		m := transport.NewMemory(hosts, transport.MemoryOptions{})
		for h := range hosts {
			rails[h] = append(rails[h], m.Endpoint(h))
		}
	}
	measured := &Measured{Rings: []cluster.Point{{Kind: cluster.AllReduce, Bytes: 4096, Time: 1e5}, {Kind: cluster.AllReduce, Bytes: 16384, Time: 2e5}}}
	var out []Pair
	Together(hosts, func(h int) {
		var m []*Measured
		if h == 0 {
			m = []*Measured{measured, measured, measured}
		}
		got, err := MeasurePairs(t.Context(), rails[h], m)
		if err != nil {
			t.Error(err)
		}
		if h == 0 {
			out = got
		} else if got != nil {
			t.Error("host", h, "has", got)
		}
	})
	if len(out) != 3 {
		t.Fatal(out)
	}
	for i, want := range [][2]int{{0, 1}, {0, 2}, {1, 2}} {
		if p := out[i]; p.Rails != want || !(p.Alone > 0 && p.Together > 0 && p.Shared > 0) {
			t.Errorf("%+v", p)
		}
	}
}

// Three rails: host 0 has a link of each, by its name; the others nothing.
func TestQuick(t *testing.T) {
	const hosts = 2
	rails := make([][]transport.Endpoint, hosts)
	for range 3 {
		m := transport.NewMemory(hosts, transport.MemoryOptions{})
		for h := range hosts {
			rails[h] = append(rails[h], m.Endpoint(h))
		}
	}
	Together(hosts, func(h int) {
		got, err := Quick(t.Context(), rails[h])
		if err != nil {
			t.Error(err)
		}
		var names []string
		for _, l := range got {
			if !(l.Bandwidth > 0) {
				t.Errorf("%+v", l)
			}
			names = append(names, l.Name)
		}
		if s, want := strings.Join(names, " "), []string{"net rail1 rail2", ""}[h]; s != want {
			t.Errorf("host %d: %q, want %q", h, s, want)
		}
	})
}
