package deft

import (
	"math/rand/v2"
	"testing"

	"weft/job"
	"weft/plan"
)

// A job computes in F + B at best. DeFT comes within 2 % of that on one link and
// on two, below a coverage rate of 1 and above it.
func TestHides(t *testing.T) {
	for _, factors := range [][]float64{{1}, {1, 2}} {
		for _, coverage := range []float64{0.8, 1.5, 2.5} {
			r := rand.New(rand.NewPCG(7, 7))
			const layers = 40
			fwd, bwd, bytes := make([]float64, layers), make([]float64, layers), make([]int64, layers)
			total := 0.0
			for i := range layers {
				fwd[i] = 500 + 1000*r.Float64()
				bwd[i] = 2 * fwd[i]
				bytes[i] = 4 * (1 + r.Int64N(1000))
				total += 3 * fwd[i]
			}
			var size int64
			for _, n := range bytes {
				size += n
			}
			for i := range bytes {
				bytes[i] = 4 * int64(float64(bytes[i])*coverage*total/float64(size)/4)
			}
			j, c := job.Chain("chain", fwd, bwd, bytes), wire(20, factors...)
			p := planned(t, j, c, plan.DelayLimits(3))
			if got := simulated(t, j, c, p); got > 1.02*total {
				t.Errorf("%d links, coverage %v: an iteration takes %v us, computation %v", len(factors), coverage, got, total)
			}
		}
	}
}
