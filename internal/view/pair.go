package view

import (
	"fmt"
	"slices"
	"strings"

	"weft/cluster"
	"weft/internal/cli"
	"weft/pair"
)

// Pairs says what jobs gain in pairs, and which to pair. policy planned each.
func Pairs(r *pair.Result, c *cluster.Cluster, policy string) *cli.Report {
	var notes []string
	of := map[string][]string{} // by note of a job: which jobs have it
	jobs := cli.Table{Title: "Each job alone", Key: "jobs", Columns: []cli.Column{
		{Head: "job", Key: "job"}, {Head: "name", Key: "name"},
		{Head: "time\nms", Key: "time_us"}, {Head: "compute\nms", Key: "computation_us"}, {Head: "exposed\nms", Key: "exposed_us"}, {Head: "memory\nMB", Key: "memory_bytes"},
	}}
	for i := range r.Alone {
		a := &r.Alone[i]
		jobs.Rows = append(jobs.Rows, cli.Row{Cells: []any{
			i + 1, a.Job.Name, cli.Time(a.Time), cli.Time(a.Compute()), cli.Time(a.Exposed), cli.Bytes(a.Memory.Total()),
		}})
		for _, n := range a.Job.Notes {
			if of[n] == nil {
				notes = append(notes, n)
			}
			of[n] = append(of[n], fmt.Sprint(i+1))
		}
	}
	for i, n := range notes {
		notes[i] = fmt.Sprintf("job %s: %s", strings.Join(of[n], ", "), n)
	}
	pairs := cli.Table{Title: "In pairs", Key: "pairs", Columns: []cli.Column{
		{Head: "jobs", Key: "pair"}, {Head: "turns", Key: "turns"},
		{Head: "round\nms", Key: "time_us"}, {Head: "in turn\nms", Key: "in_turn_us"}, {Head: "formula\nms", Key: "formula_us"},
		{Head: "saved\n%", Key: "saved"}, {Head: "speed of\nfirst", Key: "first_speed"}, {Head: "second", Key: "second_speed"}, {Head: "memory\nMB", Key: "memory_bytes"},
	}}
	groups := make(together, len(r.Alone)) // by the first job of each
	for i := range groups {
		groups[i] = fmt.Sprint(i + 1)
	}
	for _, p := range r.Pairs {
		name := fmt.Sprintf("%d+%d", p.First+1, p.Second+1)
		if p.TooLarge != nil {
			notes = append(notes, fmt.Sprintf("%s: %v", name, p.TooLarge))
		}
		style := cli.Plain
		if p.Chosen {
			style = cli.Best
			groups[p.First], groups[p.Second] = name, ""
		}
		for i, x := range []pair.Round{p.Even, p.Best} {
			if i > 0 && x == p.Even {
				continue
			}
			pairs.Rows = append(pairs.Rows, cli.Row{Style: style, Cells: []any{
				name, x.Order.String(), cli.Time(x.Period), cli.Time(x.InTurn), cli.Time(x.Formula),
				cli.Percent(1 - 1/x.Speedup()), cli.Ratio(x.Speed[0]), cli.Ratio(x.Speed[1]), cli.Bytes(p.Memory.Total()),
			}})
			style = cli.Plain
		}
	}
	groups = slices.DeleteFunc(groups, func(g string) bool { return g == "" })
	return &cli.Report{
		Facts: []cli.Fact{
			{Label: "cluster", Key: "cluster", Value: workers(c)},
			{Label: "policy", Key: "policy", Value: policy},
			{Label: "run together", Key: "groups", Value: groups},
			{Label: "each once, ms", Key: "time_us", Value: cli.Time(r.Time)},
			{Label: "in turn, ms", Key: "in_turn_us", Value: cli.Time(r.InTurn)},
		},
		Tables: []cli.Table{jobs, pairs},
		Notes:  notes,
	}
}

// together is which jobs run together, each group as "1+3": a list in JSON.
type together []string

func (t together) String() string { return strings.Join(t, ", ") }
