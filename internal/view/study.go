package view

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"weft/bound"
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
	}, true))
	if s.Subject != "" {
		tables = append(tables, pivot(r, fmt.Sprintf("Gain of %s over the others, %%", s.Subject), []string{s.Subject}, func(row, k int) any {
			return gain(r.Gain(row, k))
		}, false))
	}
	if s.Ranked {
		tables = append(tables, pivot(r, "Rank", nil, func(row, k int) any { return r.Rank(row, k) }, false))
	}
	if t := delays(r); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	if fixed := steady(r); len(fixed) < len(s.Schedules) {
		tables = append(tables, pivot(r, "Spread of iteration times, % of their mean", fixed, func(row, k int) any {
			return cli.Percent(r.Rows[row].Outcomes[k].Spread())
		}, false))
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

func claims(r *study.Result) cli.Table {
	t := cli.Table{Key: "claims", Columns: []cli.Column{
		{Head: "the paper claims", Key: "claim"}, {Head: "of", Key: "schedule"}, {Head: "ours\nleast\n%", Key: "least"}, {Head: "\nmost\n%", Key: "most"}, {Head: "most at", Key: "at"},
	}}
	for _, f := range r.Findings {
		row := []any{f.Claim.Text, f.Claim.Of, nil, nil, nil}
		if f.Best != nil {
			row[2], row[3], row[4] = cli.Percent(f.Least), cli.Percent(f.Most), f.Best.String()
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
// setting, with the bounds of those classes of plans that there are; results has
// the same for programs.
func pivot(r *study.Result, title string, without []string, value func(row, schedule int) any, bounds bool) cli.Table {
	s := r.Study
	t := cli.Table{Title: title + ", by " + s.Setting, Columns: []cli.Column{{Head: "model"}, {Head: "schedule"}}}
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
		if !bounds {
			continue
		}
		for class := range bound.ByServers + 1 {
			found := false
			add(floors[class].label, cli.Faint, func(row int) any {
				for k := range r.Rows[row].Outcomes {
					if o := &r.Rows[row].Outcomes[k]; o.Bound.Time > 0 && o.Class == class {
						found = true
						return cli.Time(o.Bound.Time)
					}
				}
				return nil
			})
			if !found {
				t.Rows = t.Rows[:len(t.Rows)-1]
			}
		}
	}
	return t
}

// coverages says how much there is to hide.
func coverages(r *study.Result) cli.Table {
	columns := settings(r.Study)
	t := cli.Table{Title: "Coverage rate (wire time over computation), by " + r.Study.Setting, Columns: []cli.Column{{Head: "model"}}}
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

// steady lists the schedules that always take the same time.
func steady(r *study.Result) []string {
	varies := map[string]bool{}
	each(r, func(_ *study.Case, s *study.Schedule, o *study.Outcome) {
		varies[s.Name] = varies[s.Name] || o.Spread() > 0
	})
	var out []string
	for i := range r.Study.Schedules {
		if n := r.Study.Schedules[i].Name; !varies[n] {
			out = append(out, n)
		}
	}
	return out
}

// delays lists the schedules that apply gradients late.
func delays(r *study.Result) cli.Table {
	t := cli.Table{Title: "Delayed updates", Columns: []cli.Column{
		{Head: "model"}, {Head: r.Study.Setting}, {Head: "schedule"}, {Head: "update\nrate"}, {Head: "delay"}, {Head: "stale-\nness"}, {Head: "loss\nratio"},
	}}
	each(r, func(c *study.Case, s *study.Schedule, o *study.Outcome) {
		if o.Generations != nil {
			t.Rows = append(t.Rows, cli.Row{Cells: []any{c.Model, c.Setting, s.Name, cli.Ratio(o.Rate), o.Delay, o.Staleness, known(loss(o.Loss))}})
		}
	})
	return t
}

// loss is a ratio of losses, which differ in the third digit.
type loss float64

func (l loss) String() string { return fmt.Sprintf("%.4f", float64(l)) }

// results has every outcome, for programs.
func results(r *study.Result) cli.Table {
	s := r.Study
	t := cli.Table{Key: StudyResults, Data: true, Columns: []cli.Column{
		{Key: "model"}, {Key: "setting"}, {Key: "workers"}, {Key: "bits_per_s"}, {Key: "wire_coverage"}, {Key: "schedule"},
		{Key: "time_us"}, {Key: "least_us"}, {Key: "most_us"}, {Key: "gain"}, {Key: "rank"},
		{Key: "computation_us"}, {Key: "communication_us"}, {Key: "exposed_us"}, {Key: "efficiency"},
		{Key: "transfers"}, {Key: "update_rate"}, {Key: "max_delay"}, {Key: "max_staleness"}, {Key: "loss_ratio"}, {Key: "bound_us"}, {Key: "gap"},
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
				copy(cells[6:], []any{cli.Time(o.Time), cli.Time(o.Least), cli.Time(o.Most), over, r.Rank(i, k)})
				if m := o.Mean; m.Iteration > 0 {
					copy(cells[11:], []any{cli.Time(m.Computation), cli.Time(m.Communication), cli.Time(m.Exposed), cli.Ratio(m.Efficiency()), cli.Count(o.Transfers)})
				}
				copy(cells[16:], []any{cli.Ratio(o.Rate), o.Delay, o.Staleness, known(loss(o.Loss)), known(cli.Time(o.Bound.Time)), gap})
			}
			t.Rows = append(t.Rows, cli.Row{Cells: cells})
		}
	}
	return t
}

// StudyChart draws what the study plots.
func StudyChart(w io.Writer, r *study.Result) error {
	p := newPlot(r)
	if k := r.Study.Plot.Kind; k == study.GainBars || k == study.TimeBars {
		return chart.Bars(w, p.bars())
	}
	return chart.Lines(w, p.lines())
}

// plot is the part of a result that its study plots.
type plot struct {
	*study.Result
	gains     bool // in place of times
	title     string
	notes     []string
	axis      chart.Axis // of values
	models    []string
	schedules []int
}

func newPlot(r *study.Result) *plot {
	s := r.Study
	p := &plot{
		Result: r, gains: s.Plot.Kind == study.GainBars || s.Plot.Kind == study.GainLines,
		title: s.Name + ": " + s.Title, notes: []string{s.Paper},
		axis: chart.Axis{Label: "time of an iteration, ms"},
	}
	if p.gains {
		p.axis.Label = fmt.Sprintf("gain of %s, %%", s.Subject)
		if p.alone() {
			p.axis.Label = fmt.Sprintf("gain of %s over %s, %%", s.Subject, s.Plot.Schedules[0])
		}
	}
	hidden := func(shown []string, name string) bool { return len(shown) > 0 && !slices.Contains(shown, name) }
	p.models = slices.DeleteFunc(models(s), func(m string) bool { return hidden(s.Plot.Models, m) })
	for k := range s.Schedules {
		if name := s.Schedules[k].Name; !hidden(s.Plot.Schedules, name) && !(p.gains && name == s.Subject) {
			p.schedules = append(p.schedules, k)
		}
	}
	return p
}

// alone reports whether one schedule is plotted, which then needs no name.
func (p *plot) alone() bool { return len(p.Study.Plot.Schedules) == 1 }

func (p *plot) name(schedule int) string {
	name := p.Study.Schedules[schedule].Name
	if p.gains {
		return "over " + name
	}
	return name
}

// value is what is plotted of an outcome; NaN: there is none.
func (p *plot) value(row, schedule int) float64 {
	switch o := &p.Rows[row].Outcomes[schedule]; {
	case o.Refusal != "":
		return math.NaN()
	case p.gains:
		return math.Round(1000*p.Gain(row, schedule)) / 10 // as the table has it
	default:
		return o.Time / 1000
	}
}

// bars has a group a case.
func (p *plot) bars() chart.BarChart {
	b := chart.BarChart{Title: p.title, Notes: p.notes, Value: p.axis}
	for _, k := range p.schedules {
		b.Series = append(b.Series, chart.Series{Name: p.name(k)})
	}
	for i := range p.Study.Cases {
		c := &p.Study.Cases[i]
		if !slices.Contains(p.models, c.Model) {
			continue
		}
		b.Groups = append(b.Groups, c.String())
		for at, k := range p.schedules {
			b.Series[at].Values = append(b.Series[at].Values, p.value(i, k))
		}
	}
	return b
}

// lines has a line a model and schedule, over the setting.
func (p *plot) lines() chart.LineChart {
	s := p.Study
	l := chart.LineChart{Title: p.title, Notes: p.notes, X: chart.Axis{Label: s.Setting, Log: s.Plot.Log}, Y: p.axis}
	for _, k := range p.schedules {
		for _, m := range p.models {
			one := chart.Series{Name: m + " " + p.name(k)}
			switch {
			case len(s.Plot.Models) == 1:
				one.Name = p.name(k)
			case p.alone():
				one.Name = m
			}
			for i := range s.Cases {
				if s.Cases[i].Model == m {
					one.X, one.Values = append(one.X, s.Cases[i].X), append(one.Values, p.value(i, k))
				}
			}
			l.Lines = append(l.Lines, one)
		}
	}
	return l
}
