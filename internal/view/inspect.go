package view

import (
	"slices"

	"weft/internal/cli"
	"weft/internal/median"
	"weft/trace/kineto"
)

// Inspection is where the recorded steps of one rank spent their time.
func Inspection(x *kineto.Inspection) *cli.Report {
	r := &cli.Report{
		Facts: []cli.Fact{
			{Label: "trace", Key: "trace", Value: x.Name},
			{Label: "backend", Key: "backend", Value: word(x.Backend)},
			{Label: "rank", Key: "rank", Value: natural(x.Rank)},
			{Label: "workers", Key: "workers", Value: known(x.World)},
		},
		Notes: x.Notes,
	}
	if h := x.HTA; h != nil {
		share := cli.Share(0)
		if h.Communication > 0 {
			share = cli.Share(h.Overlapped / h.Communication)
		}
		r.Tables = append(r.Tables, cli.Table{
			Title: "Kernels over the whole trace, as Holistic Trace Analysis counts them", Key: "hta",
			Columns: []cli.Column{
				{Head: "communication\nus", Key: "communication_us"}, {Head: "overlapped\nus", Key: "overlapped_us"},
				{Head: "overlapped\n%", Key: "overlapped"}, {Head: "not overlapped\nus", Key: "exposed_us"},
			},
			Rows: []cli.Row{{Cells: []any{cli.Micros(h.Communication), cli.Micros(h.Overlapped), share, cli.Micros(h.Exposed)}}},
		})
	}
	steps := cli.Table{Title: "Where the time of each step goes", Key: "steps", Columns: append([]cli.Column{{Head: "step", Key: "step"}}, stepColumns...)}
	for i := range x.Steps {
		steps.Rows = append(steps.Rows, cli.Row{Cells: append([]any{x.Steps[i].Step}, stepCells(&x.Steps[i])...)})
	}
	steps.Rows = append(steps.Rows, cli.Row{Key: "median", Style: cli.Best, Cells: append([]any{"median"}, stepCells(&x.Median)...)})
	r.Tables = append(r.Tables, steps)

	if len(x.Buckets) > 0 {
		buckets := cli.Table{Title: "Buckets, in the order of their collectives", Key: "buckets", Columns: []cli.Column{
			{Head: "bucket", Key: "bucket"}, {Head: "tensors", Key: "tensors"}, {Head: "MB", Key: "bytes"},
			{Head: "time\nms", Key: "time_us"}, {Head: "MB/s", Key: "bytes_per_us"}, {Head: "exposed\nms", Key: "exposed_us"},
		}}
		for i, b := range x.Buckets {
			buckets.Rows = append(buckets.Rows, cli.Row{Cells: []any{
				i, known(b.Tensors), known(cli.Bytes(b.Bytes)), cli.Time(b.Time), known(cli.Rate(b.AlgBW)), cli.Time(b.Exposed),
			}})
		}
		r.Tables = append(r.Tables, buckets)
	}
	return r
}

var stepColumns = []cli.Column{
	{Head: "time\nms", Key: "time_us"}, {Head: "compute\nms", Key: "computation_us"}, {Head: "copies\nms", Key: "copies_us"},
	{Head: "exposed\nms", Key: "exposed_us"}, {Head: "host-\nbound\nms", Key: "host_bound_us"}, {Head: "idle\nms", Key: "idle_us"},
	{Head: "comm.\nms", Key: "communication_us"}, {Head: "hidden\nms", Key: "hidden_us"},
}

func stepCells(s *kineto.StepTime) []any {
	return []any{
		cli.Time(s.Time), cli.Time(s.Computation), cli.Time(s.Copies), cli.Time(s.Exposed),
		cli.Time(s.HostBound), cli.Time(s.Idle), cli.Time(s.Communication), cli.Time(s.Hidden),
	}
}

// Ranks sets the traces of several ranks of one run side by side, and their
// collectives one over the other. The notes of the single inspections are about
// what one rank cannot tell.
func Ranks(xs []*kineto.Inspection, m *kineto.Matched) *cli.Report {
	r := &cli.Report{}
	which := []cli.Column{{Head: "trace", Key: "trace"}, {Head: "rank", Key: "rank"}}
	files := cli.Table{Key: "traces", Columns: append(which, cli.Column{Head: "file", Key: "file"})}
	medians := cli.Table{Title: "Where the time of a step goes, medians", Key: "medians", Columns: append(which, stepColumns...)}
	for i, x := range xs {
		trace := []any{i + 1, natural(x.Rank)}
		files.Rows = append(files.Rows, cli.Row{Cells: append(trace, x.Name)})
		medians.Rows = append(medians.Rows, cli.Row{Cells: append(trace, stepCells(&x.Median)...)})
	}
	skew := cli.Table{Title: "Who waits for whom", Key: "skew", Columns: append(which,
		cli.Column{Head: "late by\nms", Key: "late_us"}, cli.Column{Head: "last at\ncollectives", Key: "last"},
		cli.Column{Head: "waits, a step\nms", Key: "wait_us"}, cli.Column{Head: "clock offset\nms", Key: "offset_us"},
	)}
	for i, x := range m.Ranks {
		skew.Rows = append(skew.Rows, cli.Row{Cells: []any{
			i + 1, natural(x.Rank), cli.Time(x.Late), x.Last, cli.Time(x.Wait), cli.Time(x.Offset),
		}})
	}
	r.Tables = []cli.Table{files, medians, skew, collectives(m)}
	if slices.ContainsFunc(m.Collectives, func(c kineto.MatchedCollective) bool { return c.Bytes == 0 }) {
		r.Notes = append(r.Notes, "no sizes of collectives in these traces: their bytes and bandwidth are unknown")
	}
	return r
}

// collectives folds the steps: a row for each position within a step, with
// medians over the steps.
func collectives(m *kineto.Matched) cli.Table {
	t := cli.Table{Title: "Collectives of a step, transfer apart from waiting for peers, medians", Key: "collectives", Columns: []cli.Column{
		{Head: "collective", Key: "collective"}, {Head: "MB", Key: "bytes"}, {Head: "transfer\nms", Key: "transfer_us"},
		{Head: "MB/s", Key: "bytes_per_us"}, {Head: "longest wait\nms", Key: "wait_us"},
	}}
	type position struct {
		name           string
		bytes          int64
		transfer, wait []float64
	}
	var positions []position
	seen := map[int]int{} // step -> its collectives so far
	for _, c := range m.Collectives {
		k := seen[c.Step]
		seen[c.Step]++
		if k == len(positions) {
			positions = append(positions, position{name: c.Name, bytes: c.Bytes})
		}
		p := &positions[k]
		p.transfer = append(p.transfer, c.Transfer)
		p.wait = append(p.wait, slices.Max(c.Wait))
	}
	for _, p := range positions {
		time := median.Of(p.transfer)
		var rate cli.Rate
		if time > 0 {
			rate = cli.Rate(float64(p.bytes) / time)
		}
		t.Rows = append(t.Rows, cli.Row{Cells: []any{p.name, known(cli.Bytes(p.bytes)), cli.Time(time), known(rate), cli.Time(median.Of(p.wait))}})
	}
	return t
}

// natural is n, or nothing when it is negative.
func natural(n int) any {
	if n < 0 {
		return nil
	}
	return n
}

func word(s string) any {
	if s == "" {
		return nil
	}
	return s
}
