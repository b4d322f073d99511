package view

import (
	"fmt"

	"weft/cluster"
	"weft/internal/cli"
	"weft/job"
	"weft/plan"
	"weft/replay"
	"weft/timeline"
)

// Replay is what was measured of a plan in real time, and beside it what the
// simulator predicts.
func Replay(r *replay.Result, j *job.Job, c *cluster.Cluster, p *plan.Plan) *cli.Report {
	predicted := r.Predicted
	where := cli.Table{Title: "An iteration in steady state", Columns: []cli.Column{
		{Head: "mean of workers", Key: "workers"},
		{Head: "time\nms", Key: "time_us"}, {Head: "compute\nms", Key: "computation_us"}, {Head: "exposed\nms", Key: "exposed_us"},
		{Head: "idle\nms", Key: "idle_us"}, {Head: "comm.\nms", Key: "communication_us"}, {Head: "hidden\nms", Key: "hidden_us"},
		{Head: "cov-\nerage", Key: "coverage"}, {Head: "E", Key: "efficiency"},
	}}
	add := func(key, who string, b timeline.Breakdown) {
		where.Rows = append(where.Rows, cli.Row{Key: key, Cells: []any{
			who, cli.Time(b.Iteration), cli.Time(b.Computation), cli.Time(b.Exposed), cli.Time(b.Idle),
			cli.Time(b.Communication), cli.Time(b.Hidden()), cli.Ratio(b.Coverage()), cli.Ratio(b.Efficiency()),
		}})
	}
	add("measured", "measured", r.Mean)
	add("predicted", "predicted", predicted.Mean)

	iterations := cli.Table{Title: "Iterations", Key: "iterations", Columns: []cli.Column{
		{Head: "iteration", Key: "iteration"}, {Head: "measured\nms", Key: "time_us"}, {Head: "predicted\nms", Key: "predicted_us"}, {Head: "error\n%", Key: "error"},
	}}
	for i, t := range r.Iterations {
		iterations.Rows = append(iterations.Rows, cli.Row{Cells: []any{
			i, cli.Time(t), cli.Time(predicted.Iterations[i]), deviation(t, predicted.Iterations[i]),
		}})
	}
	return &cli.Report{
		Facts: append(subject(j, c),
			cli.Fact{Label: "policy", Key: "policy", Value: p.Policy},
			cli.Fact{Label: "steady from iteration", Key: "steady", Value: r.Steady},
			cli.Fact{Label: "time, ms", Key: "time_us", Value: cli.Time(r.Mean.Iteration)},
			cli.Fact{Label: "predicted, ms", Key: "predicted_us", Value: cli.Time(predicted.Time)},
			cli.Fact{Label: "error, %", Key: "error", Value: deviation(r.Mean.Iteration, predicted.Time)},
			cli.Fact{Label: "sums checked", Key: "sums", Value: sums(r.Elements)},
			cli.Fact{Label: "told late", Key: "late", Value: lateness(r.Late)},
			cli.Fact{Label: "processors busy, %", Key: "processors", Value: cli.Percent(r.CPU)}),
		Tables: []cli.Table{where, iterations, replayed(r)},
		Notes:  r.Notes,
	}
}

// replayed is each transfer, as measured and as predicted.
func replayed(r *replay.Result) cli.Table {
	t := cli.Table{Title: "Transfers of an iteration", Key: "transfers", Columns: []cli.Column{
		{Head: "link", Key: "link"}, {Head: "transfer", Key: "transfer"}, {Head: "MB", Key: "bytes"},
		{Head: "start\nms", Key: "start_us"}, {Head: "pred.\nms", Key: "predicted_start_us"},
		{Head: "time\nms", Key: "time_us"}, {Head: "pred.\nms", Key: "predicted_time_us"}, {Head: "MB/s", Key: "bytes_per_us"},
	}}
	type name struct {
		lane int32
		name string
	}
	predicted := map[name]timeline.TransferMetrics{}
	for _, x := range r.Predicted.Timeline.Metrics(r.Steady, len(r.Iterations)).Transfers {
		predicted[name{x.Lane, x.Name}] = x
	}
	for _, x := range r.Timeline.Metrics(r.Steady, len(r.Iterations)).Transfers {
		y := predicted[name{x.Lane, x.Name}]
		t.Rows = append(t.Rows, cli.Row{Cells: []any{
			r.Timeline.Lanes[x.Lane].Name, x.Name, cli.Bytes(x.Bytes), cli.Time(x.Ready + x.Queued), cli.Time(y.Ready + y.Queued),
			cli.Time(x.Time), cli.Time(y.Time), known(cli.Rate(x.Bandwidth() / 8e6)),
		}})
	}
	return t
}

// deviation is a time over another, less 1; nothing if that is 0.
func deviation(measured, predicted float64) any {
	if predicted == 0 {
		return nil
	}
	return cli.Percent(measured/predicted - 1)
}

type (
	sums int64
	late struct {
		Median  float64 `json:"median_us"`
		Percent float64 `json:"p99_us"`
		Most    float64 `json:"max_us"`
	}
)

func (s sums) String() string { return fmt.Sprintf("%d elements, all right", int64(s)) }

// lateness sums up ascending times.
func lateness(all []float64) late {
	n := len(all)
	if n == 0 {
		return late{}
	}
	return late{all[n/2], all[n*99/100], all[n-1]}
}

func (l late) String() string {
	return fmt.Sprintf("median %.0f us, 99 %% within %.0f us, at most %.0f us", l.Median, l.Percent, l.Most)
}
