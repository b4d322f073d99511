package links

import (
	"bytes"
	"math"
	"testing"

	"weft/cluster"
	"weft/collective"
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
	c, err := m.Cluster(collective.Layout{1, 1, 1}, "lo", f, true)
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
	if _, err := m.Cluster(collective.Layout{1, 2}, "lo", f, false); err == nil {
		t.Error("hosts with different numbers of workers pass")
	}
}
