package view

import (
	"weft/internal/cli"
	"weft/timeline"
)

// Timelines is where the time of iterations went, a row a timeline; and of one alone, its transfers.
func Timelines(ts []*timeline.Timeline) *cli.Report {
	t := cli.Table{Title: "An iteration, mean of all and of the ranks", Key: "timelines", Columns: append([]cli.Column{
		{Head: "timeline", Key: "timeline"}, {Head: "ranks", Key: "ranks"}, {Head: "iter-\nations", Key: "iterations"},
	}, breakdownColumns...)}
	var all timeline.Metrics
	for _, x := range ts {
		all = x.Metrics(0, len(x.Iterations))
		t.Rows = append(t.Rows, cli.Row{Cells: append([]any{x.Name, x.World(), all.To}, breakdownCells(all.Mean)...)})
	}
	tables := []cli.Table{t}
	if len(ts) == 1 {
		tables = append(tables, transfers(ts[0], all.Transfers))
	}
	return &cli.Report{Tables: tables}
}

var breakdownColumns = []cli.Column{
	{Head: "time\nms", Key: "time_us"}, {Head: "compute\nms", Key: "computation_us"}, {Head: "exposed\nms", Key: "exposed_us"},
	{Head: "idle\nms", Key: "idle_us"}, {Head: "comm.\nms", Key: "communication_us"}, {Head: "hidden\nms", Key: "hidden_us"},
	{Head: "cov-\nerage", Key: "coverage"},
}

func breakdownCells(b timeline.Breakdown) []any {
	return []any{
		cli.Time(b.Iteration), cli.Time(b.Computation), cli.Time(b.Exposed), cli.Time(b.Idle),
		cli.Time(b.Communication), cli.Time(b.Hidden()), cli.Ratio(b.Coverage()),
	}
}

// transfers shows those of an iteration.
func transfers(of *timeline.Timeline, rows []timeline.TransferMetrics) cli.Table {
	t := cli.Table{Title: "Transfers of an iteration", Key: "transfers", Columns: []cli.Column{
		{Head: "link", Key: "link"}, {Head: "transfer", Key: "transfer"}, {Head: "MB", Key: "bytes"},
		{Head: "ready\nms", Key: "ready_us"}, {Head: "queued\nms", Key: "queued_us"}, {Head: "time\nms", Key: "time_us"}, {Head: "MB/s", Key: "bytes_per_us"},
	}}
	for _, x := range rows {
		t.Rows = append(t.Rows, cli.Row{Cells: []any{
			of.Lanes[x.Lane].Name, x.Name, cli.Bytes(x.Bytes),
			cli.Time(x.Ready), cli.Time(x.Queued), cli.Time(x.Time), known(cli.Rate(x.Bandwidth() / 8e6)),
		}})
	}
	return t
}
