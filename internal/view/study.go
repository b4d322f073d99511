package view

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"weft/internal/chart"
	"weft/internal/cli"
	"weft/study"
)

// Studies lists them.
func Studies(all []study.Study) *cli.Report {
	t := cli.Table{Key: "studies", Columns: []cli.Column{
		{Head: "study", Key: "study"}, {Head: "what it compares", Key: "title"}, {Head: "after", Key: "paper"},
	}}
	for i := range all {
		t.Rows = append(t.Rows, cli.Row{Cells: []any{all[i].Name, all[i].Title, all[i].Paper}})
	}
	return &cli.Report{Tables: []cli.Table{t}}
}

// StudyResults is the key of the table of a study's report that has every
// outcome: what its CSV file holds.
const StudyResults = "results"

// Study sets what a paper claims beside what its schedule does here, and why that
// is not the same.
func Study(r *study.Result) *cli.Report {
	s := r.Study
	tables := []cli.Table{claims(r), coverages(r)}
	tables = append(tables, pivot(r, "Time of an iteration, ms", nil, func(row, k int) any {
		return cli.Time(r.Rows[row].Outcomes[k].Time)
	}, func(row int) any { return knownTime(r.Rows[row].Outcomes[max(0, s.Index(s.Subject))].Bound.Time) }))
	if s.Subject != "" {
		tables = append(tables, pivot(r, fmt.Sprintf("Gain of %s over the others, %%", s.Subject), []string{s.Subject}, func(row, k int) any {
			return gain(r.Gain(row, k))
		}, nil))
	}
	if s.Ranked {
		tables = append(tables, pivot(r, "Rank", nil, func(row, k int) any { return r.Rank(row, k) }, nil))
	}
	if t := delays(r); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	if t := spreads(r); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	tables = append(tables, results(r),
		sentences("assumed here", "assumptions", "assumption", s.Assumptions),
		sentences("why ours is not what the paper claims", "differences", "difference", s.Differences))
	return &cli.Report{
		Facts: []cli.Fact{
			{Label: "study", Key: "study", Value: s.Name},
			{Label: "compares", Key: "title", Value: s.Title},
			{Label: "paper", Key: "paper", Value: s.Paper},
			{Label: "link", Key: "url", Value: s.Link},
		},
		Tables: tables,
		Notes:  r.Notes,
	}
}

func sentences(head, key, member string, all []string) cli.Table {
	t := cli.Table{Key: key, Columns: []cli.Column{{Head: head, Key: member}}}
	for _, s := range all {
		t.Rows = append(t.Rows, cli.Row{Cells: []any{s}})
	}
	return t
}

// The two kinds of findings, with their units.
type (
	percent float64 // a fraction
	times   float64
)

func (p percent) String() string { return fmt.Sprintf("%v %%", cli.Percent(p)) }
func (x times) String() string   { return fmt.Sprintf("%vx", cli.Ratio(x)) }

func claims(r *study.Result) cli.Table {
	t := cli.Table{Key: "claims", Columns: []cli.Column{
		{Head: "the paper claims", Key: "claim"}, {Head: "of", Key: "schedule"}, {Head: "ours\nleast", Key: "least"}, {Head: "\nmost", Key: "most"}, {Head: "most at", Key: "at"},
	}}
	for _, f := range r.Findings {
		row := []any{f.Claim.Text, f.Claim.Of, nil, nil, nil}
		if f.Best != nil {
			row[2], row[3], row[4] = percent(f.Least), percent(f.Most), f.Best.Model+", "+f.Best.Setting
			if f.Claim.Measure == study.Steadier {
				row[2], row[3] = times(f.Least), times(f.Most)
			}
		}
		t.Rows = append(t.Rows, cli.Row{Cells: row})
	}
	return t
}

// gain is a fraction, or nothing.
func gain(x float64) any {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return cli.Percent(x)
}

func knownTime(us float64) any {
	if us == 0 {
		return nil
	}
	return cli.Time(us)
}

// settings lists those of a study's cases, in their order.
func settings(s *study.Study) (out []string) {
	for i := range s.Cases {
		if n := s.Cases[i].Setting; !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// models lists those of a study's cases, in their order.
func models(s *study.Study) (out []string) {
	for i := range s.Cases {
		if n := s.Cases[i].Model; !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// pivot is a table for people, with a row a model and schedule and a column a
// setting; results has the same for programs.
func pivot(r *study.Result, title string, without []string, value func(row, schedule int) any, last func(row int) any) cli.Table {
	s := r.Study
	t := cli.Table{Title: title, Columns: []cli.Column{{Head: "model"}, {Head: "schedule"}}}
	columns := settings(s)
	for _, c := range columns {
		t.Columns = append(t.Columns, cli.Column{Head: strings.ReplaceAll(c, ", ", "\n")})
	}
	for _, m := range models(s) {
		label := m // of the first row
		add := func(name string, style cli.Style, of func(row int) any) {
			cells := make([]any, 2+len(columns))
			cells[0], cells[1], label = label, name, ""
			for i := range s.Cases {
				if c := &s.Cases[i]; c.Model == m {
					cells[2+slices.Index(columns, c.Setting)] = of(i)
				}
			}
			t.Rows = append(t.Rows, cli.Row{Style: style, Cells: cells})
		}
		for k := range s.Schedules {
			name := s.Schedules[k].Name
			if slices.Contains(without, name) {
				continue
			}
			style := cli.Plain
			if name == s.Subject {
				style = cli.Best
			}
			add(name, style, func(row int) any {
				if r.Rows[row].Outcomes[k].Refusal != "" {
					return nil
				}
				return value(row, k)
			})
		}
		if last != nil {
			add("bound", cli.Faint, last)
		}
	}
	return t
}

// coverages says how much there is to hide.
func coverages(r *study.Result) cli.Table {
	columns := settings(r.Study)
	t := cli.Table{Title: "Coverage rate: wire time of all gradients over computation", Columns: []cli.Column{{Head: "model"}}}
	for _, c := range columns {
		t.Columns = append(t.Columns, cli.Column{Head: strings.ReplaceAll(c, ", ", "\n")})
	}
	for _, m := range models(r.Study) {
		cells := make([]any, 1+len(columns))
		cells[0] = m
		for i := range r.Rows {
			if c := r.Rows[i].Case; c.Model == m {
				cells[1+slices.Index(columns, c.Setting)] = cli.Ratio(r.Rows[i].Coverage)
			}
		}
		t.Rows = append(t.Rows, cli.Row{Cells: cells})
	}
	return t
}

// each visits the outcomes that there are.
func each(r *study.Result, visit func(c *study.Case, s *study.Schedule, o *study.Outcome)) {
	for i := range r.Rows {
		for k := range r.Rows[i].Outcomes {
			if o := &r.Rows[i].Outcomes[k]; o.Refusal == "" {
				visit(r.Rows[i].Case, &r.Study.Schedules[k], o)
			}
		}
	}
}

// delays lists the schedules that apply gradients late.
func delays(r *study.Result) cli.Table {
	t := cli.Table{Title: "Delayed updates", Columns: []cli.Column{
		{Head: "model"}, {Head: r.Study.Setting}, {Head: "schedule"}, {Head: "update\nrate"}, {Head: "delay"}, {Head: "stale-\nness"}, {Head: "loss\nratio"},
	}}
	each(r, func(c *study.Case, s *study.Schedule, o *study.Outcome) {
		if o.Delay > 0 {
			t.Rows = append(t.Rows, cli.Row{Cells: []any{c.Model, c.Setting, s.Name, cli.Ratio(o.Rate), o.Delay, o.Staleness, nil}})
		}
	})
	return t
}

// spreads lists the schedules that do not always take the same time.
func spreads(r *study.Result) cli.Table {
	t := cli.Table{Title: "Spread of iteration times", Columns: []cli.Column{
		{Head: "model"}, {Head: r.Study.Setting}, {Head: "schedule"}, {Head: "least\nms"}, {Head: "mean\nms"}, {Head: "most\nms"},
	}}
	each(r, func(c *study.Case, s *study.Schedule, o *study.Outcome) {
		if o.Most > o.Least {
			t.Rows = append(t.Rows, cli.Row{Cells: []any{c.Model, c.Setting, s.Name, cli.Time(o.Least), cli.Time(o.Time), cli.Time(o.Most)}})
		}
	})
	return t
}

// results has every outcome, for programs.
func results(r *study.Result) cli.Table {
	s := r.Study
	t := cli.Table{Key: StudyResults, Data: true, Columns: []cli.Column{
		{Key: "model"}, {Key: "setting"}, {Key: "workers"}, {Key: "bits_per_s"}, {Key: "wire_coverage"}, {Key: "schedule"},
		{Key: "time_us"}, {Key: "least_us"}, {Key: "most_us"}, {Key: "gain"}, {Key: "rank"},
		{Key: "computation_us"}, {Key: "communication_us"}, {Key: "exposed_us"}, {Key: "efficiency"},
		{Key: "transfers"}, {Key: "update_rate"}, {Key: "max_delay"}, {Key: "max_staleness"}, {Key: "bound_us"}, {Key: "gap"},
	}}
	for i := range r.Rows {
		row := &r.Rows[i]
		for k := range row.Outcomes {
			cells := make([]any, len(t.Columns))
			copy(cells, []any{row.Case.Model, row.Case.Setting, row.Cluster.World(), row.Cluster.Links[0].Bandwidth, cli.Ratio(row.Coverage), s.Schedules[k].Name})
			if o := &row.Outcomes[k]; o.Refusal == "" {
				var over, gap any
				if s.Subject != "" {
					over = gain(r.Gain(i, k))
				}
				if o.Bound.Time > 0 {
					gap = cli.Percent(o.Gap)
				}
				copy(cells[6:], []any{
					cli.Time(o.Time), cli.Time(o.Least), cli.Time(o.Most), over, r.Rank(i, k),
					cli.Time(o.Mean.Computation), cli.Time(o.Mean.Communication), cli.Time(o.Mean.Exposed), cli.Ratio(o.Mean.Efficiency()),
					cli.Count(o.Transfers), cli.Ratio(o.Rate), o.Delay, o.Staleness, knownTime(o.Bound.Time), gap,
				})
			}
			t.Rows = append(t.Rows, cli.Row{Cells: cells})
		}
	}
	return t
}

// StudyChart draws what the study plots.
func StudyChart(w io.Writer, r *study.Result) error {
	s := r.Study
	gains := s.Plot.Kind == study.GainBars || s.Plot.Kind == study.GainLines
	value := func(row, k int) float64 {
		switch o := &r.Rows[row].Outcomes[k]; {
		case o.Refusal != "":
			return math.NaN()
		case gains:
			return 100 * r.Gain(row, k)
		default:
			return o.Time / 1000
		}
	}
	axis := chart.Axis{Label: "time of an iteration, ms"}
	if gains {
		axis.Label = fmt.Sprintf("gain of %s, %%", s.Subject)
	}
	title := s.Title
	if s.Plot.Model != "" {
		title += ": " + s.Plot.Model
	}
	shown := func(i int) bool { return s.Plot.Model == "" || s.Cases[i].Model == s.Plot.Model }
	name := func(k int) string {
		if gains {
			return "over " + s.Schedules[k].Name
		}
		return s.Schedules[k].Name
	}
	lines := chart.LineChart{Title: title, X: chart.Axis{Label: s.Setting, Log: s.Plot.Log}, Y: axis}
	bars := chart.BarChart{Title: title, Value: axis}
	for i := range s.Cases {
		if shown(i) {
			bars.Groups = append(bars.Groups, strings.Trim(s.Cases[i].Model+", "+s.Cases[i].Setting, ", "))
		}
	}
	for k := range s.Schedules {
		if gains && s.Schedules[k].Name == s.Subject {
			continue
		}
		x := chart.Series{Name: name(k)}
		for i := range s.Cases {
			if shown(i) {
				x.X, x.Values = append(x.X, s.Cases[i].X), append(x.Values, value(i, k))
			}
		}
		lines.Lines, bars.Series = append(lines.Lines, x), append(bars.Series, x)
	}
	if s.Plot.Kind == study.GainBars || s.Plot.Kind == study.TimeBars {
		return chart.Bars(w, bars)
	}
	return chart.Lines(w, lines)
}
