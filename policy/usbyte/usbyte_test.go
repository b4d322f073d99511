package usbyte

import (
	"math/rand/v2"
	"testing"

	"weft/cluster"
	"weft/internal/random"
	"weft/job"
	"weft/policy"

	"pgregory.net/rapid"
)

// The search never ends above its start, every unit is sent once, blocks do not
// overlap, and none starts before its gradient is ready.
func TestSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := random.Chain(t, 8)
		c := cluster.Uniform(4, 1, cluster.Link{Name: "net", Latency: float64(rapid.IntRange(0, 50).Draw(t, "latency")), Bandwidth: 1e9})
		p, err := policy.NewProfile(j, c, false)
		if err != nil {
			t.Fatal(err)
		}
		alpha, beta, err := c.AlphaBeta(0, cluster.AllReduce)
		if err != nil {
			t.Fatal(err)
		}
		m := newModel(j, p, 1<<rapid.IntRange(4, 20).Draw(t, "unit"), alpha, beta)
		rank := make([]int, len(m.layers))
		for i := range rank {
			rank[i] = i
		}
		start := m.schedule(rank)
		best := m.search()
		if best > start {
			t.Fatalf("search ends at %v, it started at %v", best, start)
		}
		sent := make([]int, len(m.layers))
		free := 0.0
		for _, b := range m.blocks {
			if b.start < free || b.start < m.layers[b.layer].ready {
				t.Fatalf("block %+v starts before %v or its gradient", b, free)
			}
			free = b.end
			sent[b.layer] += b.units
		}
		for i := range sent {
			if sent[i] != m.layers[i].units {
				t.Fatalf("layer %d: %d units sent of %d", i, sent[i], m.layers[i].units)
			}
		}
	})
}

// The running example with a unit of one byte (section 9): 37 where the search
// starts, 35 where it ends.
func TestSearchImproves(t *testing.T) {
	j := job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
	p, err := policy.NewProfile(j, cluster.Uniform(1, 1, cluster.Link{Name: "net", Bandwidth: 1e9}), false)
	if err != nil {
		t.Fatal(err)
	}
	m := newModel(j, p, 1, 2, 1)
	if got := m.schedule([]int{0, 1, 2, 3}); got != 37 {
		t.Errorf("starts at %v, want 37", got)
	}
	if got := m.search(); got != 35 {
		t.Errorf("ends at %v, want 35", got)
	}
}

// As many tensors as the policy takes, of up to a million elements, over a link that is
// about as busy as the device.
func BenchmarkBuild(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 0))
	fwd, bwd, bytes := make([]float64, maxTensors), make([]float64, maxTensors), make([]int64, maxTensors)
	for i := range bytes {
		fwd[i], bwd[i], bytes[i] = 100+400*r.Float64(), 200+800*r.Float64(), 4*(1+r.Int64N(1<<20))
	}
	j := job.Chain("layers", fwd, bwd, bytes)
	c := cluster.Uniform(16, 1, cluster.Link{Name: "net", Latency: 25, Bandwidth: 40e9})
	for b.Loop() {
		if _, err := USByte.Build(b.Context(), j, c, policy.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
