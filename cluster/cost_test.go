package cluster

import "testing"

// Sixteen workers, 10 Gbit/s, 25 us a step: alpha = 30·25 us, and
// beta = 2·15/16 · 8/10^10 s a byte = 1.5 ns a byte.
func TestRingByHand(t *testing.T) {
	c := Uniform(16, 1, Link{Name: "net", Latency: 25, Bandwidth: 10e9})
	got, err := c.Cost(0, AllReduce, 1_000_000)
	if want := (Cost{Alpha: 750, Wire: 1500}); err != nil || got != want {
		t.Fatalf("%v, %v; want %v", got, err, want)
	}
}
