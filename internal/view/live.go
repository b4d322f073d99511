package view

import (
	"fmt"
	"io"
	"math"
	"strings"

	"weft/internal/chart"
	"weft/internal/cli"
	"weft/internal/median"
	"weft/live"
)

// LiveResults is the key of the table that has every result: what its CSV file holds.
const LiveResults = "results"

// Live is what was measured of real trainings, beside what was predicted.
func Live(cases []live.Case) *cli.Report {
	t := cli.Table{Key: LiveResults, Columns: []cli.Column{
		{Head: "model", Key: "model"}, {Head: "cov-\nerage", Key: "coverage"}, {Head: "rate\nMbit/s", Key: "bits_per_us"},
		{Head: "alone\nms", Key: "alone_us"}, {Head: "schedule", Key: "schedule"}, {Head: "time\nms", Key: "time_us"},
		{Head: "by the\nfirst", Key: "relative"}, {Head: "speed-\nup", Key: "speedup"}, {Head: "predic-\nted ms", Key: "predicted_us"}, {Head: "error\n%", Key: "error"},
		{Head: "gap\n%", Key: "gap"},
	}}
	less := cli.Table{Key: "differences", Columns: []cli.Column{
		{Head: "model", Key: "model"}, {Head: "coverage", Key: "coverage"}, {Head: "schedule", Key: "schedule"}, {Head: "less", Key: "first"},
		{Head: "ms", Key: "difference_us"}, {Head: "± (95 %)", Key: "difference_95_us"},
	}}
	var notes, timelines []string
	for i := range cases {
		x := &cases[i]
		for k := range x.Rows {
			r := &x.Rows[k]
			if r.Timeline != "" {
				timelines = append(timelines, r.Timeline)
			}
			if r.Measured != "" {
				timelines = append(timelines, r.Measured)
			}
			if r.Refused != "" {
				notes = append(notes, fmt.Sprintf("%s, %s: %s", x.Model, r.Schedule.Name, r.Refused))
			}
			relative := r.Against(&x.Rows[0])
			t.Rows = append(t.Rows, cli.Row{Cells: []any{
				x.Model, x.Coverage, math.Round(x.Rate / 1e6), cli.Time(x.Alone * 1e6), r.Schedule.Name,
				cellOf(r.Time(), func(v float64) any { return cli.Time(v * 1e6) }),
				cellOf(relative, func(v float64) any { return cli.Ratio(v) }),
				cellOf(1/relative, func(v float64) any { return cli.Ratio(v) }),
				cellOf(r.Predicted, func(v float64) any { return cli.Time(v * 1e6) }),
				cellOf(r.Error(), func(v float64) any { return cli.Percent(v) }),
				cellOf(r.Gap(), func(v float64) any { return cli.Percent(v) }),
			}})
			if mean, half := r.Less(&x.Rows[0]); !math.IsNaN(mean) {
				less.Rows = append(less.Rows, cli.Row{Cells: []any{
					x.Model, x.Coverage, r.Schedule.Name, x.Rows[0].Schedule.Name, cli.Time(mean * 1e6), cli.Time(half * 1e6),
				}})
			}
		}
		if one, all := x.Fastest(); one != nil && all != nil {
			notes = append(notes, fmt.Sprintf("%s at coverage %g: %s over all rails takes %.1f ms, %s on one %.1f ms: %.2f times as fast",
				x.Model, x.Coverage, all.Schedule.Name, all.Time()*1e3, one.Schedule.Name, one.Time()*1e3, 1/all.Against(one)))
		}
	}
	tables := []cli.Table{t}
	if len(less.Rows) > 0 {
		tables = append(tables, less)
	}
	if errors := live.Errors(cases); len(errors) > 0 {
		tables = append(tables, cli.Table{Key: "errors", Columns: []cli.Column{
			{Head: "predictions", Key: "predictions"}, {Head: "error, median, %", Key: "median_error"}, {Head: "error, worst, %", Key: "worst_error"},
		}, Rows: []cli.Row{{Cells: []any{len(errors), cli.Percent(median.Of(errors)), cli.Percent(errors[len(errors)-1])}}}})
	}
	if len(timelines) > 0 {
		notes = append(notes, "timelines, Chrome traces which Perfetto opens, as simulated of the profiles, and as measured in the last turn: "+strings.Join(timelines, " "))
	}
	return &cli.Report{Tables: tables, Notes: notes}
}

// cellOf is a cell of a value, or nothing where it is NaN.
func cellOf(v float64, cell func(float64) any) any {
	if math.IsNaN(v) {
		return nil
	}
	return cell(v)
}

// LiveChart draws the iteration times, a group of bars a case.
func LiveChart(w io.Writer, cases []live.Case) error {
	b := chart.BarChart{Title: "Trainings in the lab", Value: chart.Axis{Label: "time of an iteration, ms"}}
	if len(cases) == 0 {
		return chart.Bars(w, b)
	}
	b.Series = make([]chart.Series, len(cases[0].Rows))
	for _, x := range cases {
		b.Groups = append(b.Groups, fmt.Sprintf("%s, coverage %g", x.Model, x.Coverage))
		for k := range x.Rows {
			s := &b.Series[k]
			s.Name = x.Rows[k].Schedule.Name
			s.Values = append(s.Values, x.Rows[k].Time()*1e3)
		}
	}
	return chart.Bars(w, b)
}
