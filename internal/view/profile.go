package view

import (
	"weft/cluster"
	"weft/internal/cli"
	"weft/job"
	"weft/profile"
)

// Profiled is what was measured of a training.
type Profiled struct {
	Reports []profile.Report
	Job     *job.Job
	// Cluster is what it ran on, and Transfers what that was derived from; nil: nothing is
	// known.
	Cluster   *cluster.Cluster
	Transfers *profile.Measured
	Predicted float64 // time of an iteration of the plan that ran, by the simulator; 0: not known
	Notes     []string
}

// Profile shows it.
func Profile(x *Profiled) *cli.Report {
	r := Job(x.Job)
	var iteration, waited, compute float64
	n := 0
	for _, p := range x.Reports {
		iteration, waited, compute = max(iteration, p.Iteration), max(waited, p.Waited), max(compute, p.Compute)
		n = max(n, p.Kept)
	}
	r.Facts = append(r.Facts,
		cli.Fact{Label: "iterations measured", Key: "iterations", Value: n},
		cli.Fact{Label: "computation alone, ms", Key: "compute_us", Value: cli.Time(compute)},
		cli.Fact{Label: "iteration, ms", Key: "iteration_us", Value: cli.Time(iteration)},
		cli.Fact{Label: "of it, waiting for others, ms", Key: "waited_us", Value: cli.Time(waited)},
	)
	if c := x.Cluster; c != nil {
		r.Facts = append(r.Facts,
			cli.Fact{Label: "iteration as simulated, ms", Key: "simulated_us", Value: cli.Time(x.Predicted)},
			cli.Fact{Label: "cluster", Key: "cluster", Value: workers(c)},
			cli.Fact{Label: "slowdown by transfers, %", Key: "overlap", Value: cli.Percent(c.Overlap)},
		)
		t := cli.Table{Title: "Transfers", Key: "transfers", Columns: []cli.Column{
			{Head: "bytes", Key: "bytes"}, {Head: "time\nus", Key: "time_us"}, {Head: "fitted\nus", Key: "fitted_us"}, {Head: "error\n%", Key: "error"},
		}}
		for i, p := range x.Transfers.Points {
			e := x.Transfers.Errors[i]
			t.Rows = append(t.Rows, cli.Row{Cells: []any{int(p.Bytes), cli.Micros(p.Time), cli.Micros(p.Time * (1 + e)), cli.Percent(e)}})
		}
		r.Tables = append(r.Tables, t)
		r.Notes = append(r.Notes, x.Transfers.Notes...)
	}
	r.Notes = append(r.Notes, x.Notes...)
	return r
}
