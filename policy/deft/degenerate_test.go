package deft

import (
	"slices"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// Jobs on which a search without bounds would not end.
func TestDegenerate(t *testing.T) {
	chain := func(n int, fwd, bwd float64, bytes int64) *job.Job {
		return job.Chain("chain", slices.Repeat([]float64{fwd}, n), slices.Repeat([]float64{bwd}, n), slices.Repeat([]int64{bytes}, n))
	}
	alone := wire(5, 1)
	alone.Nodes = 1
	for name, x := range map[string]struct {
		job     *job.Job
		cluster *cluster.Cluster
	}{
		"10,000 tensors":   {chain(10_000, 1, 2, 4), wire(1, 1, 2)},
		"one worker":       {chain(100, 1, 2, 4000), alone},
		"start-up alone":   {chain(100, 0.001, 0.002, 1), wire(1e6, 1, 2)},
		"no forward pass":  {chain(100, 0, 0.002, 4000), wire(100, 1, 2, 3)},
		"no backward pass": {chain(100, 0.002, 0, 4000), wire(100, 1, 2, 3)},
		"a nanosecond":     {chain(1, 0.001, 0, 1<<40), wire(1e6, 1)},
		"free links":       {chain(100, 1, 2, 1), wire(0, 1e-9, 1e-9)},
		"one huge tensor":  {chain(1, 1, 2, 1<<50), wire(1, 1, 1, 1, 1, 1)},
		"an hour":          {chain(100, 1e9, 2e9, 1<<40), wire(1, 1, 1.1, 1.2, 1.3)},
	} {
		t.Run(name, func(t *testing.T) {
			planned(t, x.job, x.cluster, plan.DelayLimits(1))
			if len(x.job.Tensors) < 10_000 {
				planned(t, x.job, x.cluster, plan.AnyLimits)
			}
		})
	}
}
