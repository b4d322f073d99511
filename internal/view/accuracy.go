package view

import (
	"fmt"
	"io"
	"math"

	"weft/internal/chart"
	"weft/internal/cli"
	"weft/live"
)

// Accuracy is how good models are that were trained by different schedules, and after how long.
func Accuracy(all []live.Learned) *cli.Report {
	t := cli.Table{Key: LiveResults, Columns: []cli.Column{
		{Head: "model", Key: "model"}, {Head: "schedule", Key: "schedule"},
		{Head: "step\nms", Key: "time_us"}, {Head: "speed-\nup", Key: "speedup"},
		{Head: "seeds", Key: "seeds"}, {Head: "same\nbits", Key: "same_weights"},
		{Head: "score", Key: "score"}, {Head: "deviation\nof seeds", Key: "deviation"}, {Head: "as good", Key: "as_good"},
		{Head: "target\nafter s", Key: "target_s"},
	}}
	var notes []string
	for i := range all {
		l := &all[i]
		first := &l.Rows[0]
		for k := range l.Rows {
			r := &l.Rows[k]
			score, deviation := r.Score()
			good := "no"
			if l.Reached(r) {
				good = "yes"
			}
			t.Rows = append(t.Rows, cli.Row{Cells: []any{
				l.Goal.Model, r.Schedule.Name, cli.Time(r.Time * 1e6), cli.Ratio(first.Time / r.Time), len(r.Tests), r.Same(first),
				three(score), cellOf(deviation, func(v float64) any { return three(v) }), good,
				cellOf(l.TimeTo(r), func(v float64) any { return cli.Ratio(v) }),
			}})
		}
		notes = append(notes, fmt.Sprintf("%s: lines of %.0f Mbit/s, at coverage %g of %.0f ms alone; score is %s, and as good as that of %s is %s or %s",
			l.Goal.Model, l.Rate/1e6, l.Coverage, l.Alone*1e3, l.Goal.Score, first.Schedule.Name, three(l.Target()), better(l.Goal.Higher)))
	}
	return &cli.Report{Tables: []cli.Table{t}, Notes: notes}
}

// three is a score, in text with three decimals.
type three float64

func (v three) String() string { return fmt.Sprintf("%.3f", float64(v)) }

func better(higher bool) string {
	if higher {
		return "more"
	}
	return "less"
}

// AccuracyChart draws the time to the target, by that of the first schedule.
func AccuracyChart(w io.Writer, all []live.Learned) error {
	b := chart.BarChart{Title: "Training to the same score in the lab", Value: chart.Axis{Label: "time to the target, by that of the first schedule"}}
	for i := range all {
		l := &all[i]
		b.Groups = append(b.Groups, l.Goal.Model)
		if i == 0 {
			b.Series = make([]chart.Series, len(l.Rows))
		}
		first := l.TimeTo(&l.Rows[0])
		for k := range l.Rows {
			value := math.NaN()
			if first > 0 {
				value = l.TimeTo(&l.Rows[k]) / first
			}
			b.Series[k].Name = l.Rows[k].Schedule.Name
			b.Series[k].Values = append(b.Series[k].Values, value)
		}
	}
	return chart.Bars(w, b)
}
