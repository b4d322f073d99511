package view

import (
	"weft/cluster"
	"weft/internal/cli"
	"weft/job"
	"weft/profile"
)

// Profile is what was measured of a training. The cluster may be nil.
func Profile(j *job.Job, c *cluster.Cluster, m *profile.Measured, reports []profile.Report) *cli.Report {
	r := Job(j)
	var iteration, waited, compute float64
	n := 0
	for _, x := range reports {
		iteration, waited, compute = max(iteration, x.Iteration), max(waited, x.Waited), max(compute, x.Compute)
		n = max(n, x.Kept)
	}
	r.Facts = append(r.Facts,
		cli.Fact{Label: "iterations measured", Key: "iterations", Value: n},
		cli.Fact{Label: "iteration, ms", Key: "iteration_us", Value: cli.Time(iteration)},
		cli.Fact{Label: "computation alone, ms", Key: "compute_us", Value: cli.Time(compute)},
		cli.Fact{Label: "waiting for communication, ms", Key: "waited_us", Value: cli.Time(waited)},
	)
	if c != nil {
		r.Facts = append(r.Facts,
			cli.Fact{Label: "cluster", Key: "cluster", Value: workers(c)},
			cli.Fact{Label: "largest error of the link, %", Key: "link_error", Value: cli.Percent(m.Worst)},
			cli.Fact{Label: "slowdown of computation by transfers", Key: "overlap", Value: c.Overlap},
		)
	}
	r.Notes = append(r.Notes, m.Notes...)
	return r
}
