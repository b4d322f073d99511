// Package view lays results out as reports: which facts, tables and columns,
// under which names. docs/cli.md explains them.
package view

import (
	"fmt"
	"slices"
	"strings"

	"weft/bound"
	"weft/cluster"
	"weft/compare"
	"weft/internal/cli"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"
	"weft/timeline"
)

// Comparison ranks the policies, block by block, each with its bounds below it,
// and ranks them again for each slowdown.
func Comparison(x *compare.Comparison, j *job.Job, c *cluster.Cluster) *cli.Report {
	r := &cli.Report{Facts: subject(j, c), Notes: x.Notes}
	for i := range x.Blocks {
		b := &x.Blocks[i]
		for _, f := range b.Floors {
			names := floors[f.Class]
			r.Facts = append(r.Facts, cli.Fact{Label: names.label, Key: names.key + "_reason", Value: f.Why})
		}
		key, title := "schedules", ""
		if s := b.Cluster.Servers; b.Floors[0].Class == bound.ByServers {
			key, title = "servers", fmt.Sprintf("With %s, %s", count(s.Count, "parameter server"), map[bool]string{true: "beside the workers", false: "on hosts of their own"}[s.Colocated])
		}
		r.Tables = append(r.Tables, schedules(b, key, title))
	}
	for i := range x.Blocks {
		r.Tables = append(r.Tables, slowdowns(&x.Blocks[i]))
	}
	return r
}

// floors names the bound of each class of plans, in text and JSON.
var floors = map[bound.Class]struct{ label, key string }{
	bound.InOrder:   {"bound", "bound"},
	bound.AnyOrder:  {"bound, reordered", "bound_reordered"},
	bound.InLimits:  {"bound, delayed", "bound_delayed"},
	bound.ByServers: {"bound, servers", "bound_servers"},
}

func schedules(b *compare.Block, key, title string) cli.Table {
	t := cli.Table{Key: key, Title: title, Columns: []cli.Column{
		{Head: "policy", Key: "policy"},
		{Head: "time\nms", Key: "time_us"},
		{Head: "vs\n" + compare.Baseline, Key: "speedup"},
		{Head: "exposed\nms", Key: "exposed_us"},
		{Head: "hidden\nms", Key: "hidden_us"},
		{Head: "cov-\nerage", Key: "coverage"},
		{Head: "E", Key: "efficiency"},
		{Head: "trans-\nfers", Key: "transfers"},
		{Head: "largest\nMB", Key: "largest_bucket_bytes"},
		{Head: "gap\n%", Key: "gap"},
	}}
	for i, r := range b.Rows {
		cells := make([]any, len(t.Columns))
		cells[0] = r.Policy.Name
		if r.Refusal != nil {
			t.Rows = append(t.Rows, cli.Row{Style: cli.Faint, Cells: cells})
			continue
		}
		style := cli.Plain
		if i == 0 {
			style = cli.Best
		}
		t.Rows = append(t.Rows, cli.Row{Style: style, Cells: []any{
			r.Policy.Name, cli.Time(r.Time), known(cli.Ratio(r.Speedup)), cli.Time(r.Mean.Exposed), cli.Time(r.Mean.Hidden()),
			cli.Ratio(r.Mean.Coverage()), cli.Ratio(r.Mean.Efficiency()), cli.Count(r.Transfers), cli.Bytes(r.Largest), cli.Percent(r.Gap),
		}})
	}
	for _, f := range b.Floors {
		cells := make([]any, len(t.Columns))
		cells[0], cells[1] = floors[f.Class].label, cli.Time(f.Time)
		t.Rows = append(t.Rows, cli.Row{Key: floors[f.Class].key, Style: cli.Faint, Cells: cells})
	}
	return t
}

// slowdowns ranks a block's policies by their time at each of the measured
// slowdowns of computation by communication.
func slowdowns(b *compare.Block) cli.Table {
	t := cli.Table{
		Key: "slowdowns", Title: "If communication slows the computation beside it",
		Columns: []cli.Column{{Head: "policy", Key: "policy"}},
	}
	if b.Floors[0].Class == bound.ByServers {
		t.Key, t.Title = "servers_slowdowns", t.Title+", with parameter servers"
	}
	var rows []*compare.Row
	for i := range b.Rows {
		if b.Rows[i].Refusal == nil {
			rows = append(rows, &b.Rows[i])
			t.Rows = append(t.Rows, cli.Row{Cells: []any{b.Rows[i].Policy.Name}})
		}
	}
	for k, x := range compare.Slowdowns {
		percent := fmt.Sprintf("%.0f", 100*x)
		t.Columns = append(t.Columns,
			cli.Column{Head: "by " + percent + " %\nms", Key: "time_" + percent + "_us"},
			cli.Column{Head: "rank", Key: "rank_" + percent})
		for i, r := range rows {
			rank := 1
			for _, other := range rows {
				if sim.Faster(other.Slowed[k], r.Slowed[k]) {
					rank++
				}
			}
			t.Rows[i].Cells = append(t.Rows[i].Cells, cli.Time(r.Slowed[k]), rank)
		}
	}
	return t
}

// known is v, or nothing when it is zero.
func known[T ~float64 | ~int64 | int](v T) any {
	if v == 0 {
		return nil
	}
	return v
}

// subject is what a report is about.
func subject(j *job.Job, c *cluster.Cluster) []cli.Fact {
	return []cli.Fact{
		{Label: "job", Key: "job", Value: j.Name},
		{Label: "gradients", Key: "gradients", Value: gradients{len(j.Tensors), j.Bytes()}},
		{Label: "cluster", Key: "cluster", Value: workers(c)},
	}
}

// Facts of several numbers: a sentence in text, an object in JSON.
type (
	gradients struct {
		Tensors int   `json:"tensors"`
		Bytes   int64 `json:"bytes"`
	}
	machines struct {
		Workers int    `json:"workers"`
		PerNode int    `json:"per_node"`
		Links   []link `json:"links"`
	}
	// link states what its formula takes. Where it was measured, its curve counts.
	link struct {
		Name      string  `json:"link"`
		Measured  bool    `json:"measured"`
		Bandwidth float64 `json:"bits_per_s"`
		Latency   float64 `json:"latency_us"`
		Algorithm string  `json:"algorithm"`
	}
)

func workers(c *cluster.Cluster) machines {
	m := machines{c.World(), c.PerNode, make([]link, len(c.Links))}
	for i, l := range c.Links {
		m.Links[i] = link{l.Name, len(l.Curve) > 0, l.Bandwidth, l.Latency, l.Algorithm.String()}
	}
	return m
}

func (g gradients) String() string {
	return fmt.Sprintf("%s, %v MB", count(g.Tensors, "tensor"), cli.Bytes(g.Bytes))
}

func (m machines) String() string {
	links := make([]string, len(m.Links))
	for i, l := range m.Links {
		links[i] = l.String()
	}
	return fmt.Sprintf("%s, %d a node; %s", count(m.Workers, "worker"), m.PerNode, strings.Join(links, "; "))
}

func (l link) String() string {
	if l.Measured {
		return l.Name + " as measured"
	}
	bandwidth := fmt.Sprintf("%g Mbit/s", l.Bandwidth/1e6)
	if l.Bandwidth >= 1e9 {
		bandwidth = fmt.Sprintf("%g Gbit/s", l.Bandwidth/1e9)
	}
	return fmt.Sprintf("%s: %s, %g us, %s", l.Name, bandwidth, l.Latency, l.Algorithm)
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Job says what a job holds.
func Job(j *job.Job) *cli.Report {
	facts := []cli.Fact{
		{Label: "job", Key: "job", Value: j.Name},
		{Label: "workers recorded", Key: "workers", Value: known(j.World)},
		{Label: "update mode", Key: "update_mode", Value: j.Mode.String()},
		{Label: "ops", Key: "ops", Value: len(j.Ops)},
		{Label: "lanes", Key: "lanes", Value: len(j.Lanes)},
		{Label: "tensors", Key: "tensors", Value: len(j.Tensors)},
		{Label: "gradients, MB", Key: "gradient_bytes", Value: cli.Bytes(j.Bytes())},
	}
	if r := j.Recorded; r != nil {
		facts = append(facts,
			cli.Fact{Label: "recorded library", Key: "library", Value: word(r.Library)},
			cli.Fact{Label: "its backend", Key: "backend", Value: word(r.Backend)},
			cli.Fact{Label: "recorded buckets", Key: "buckets", Value: len(r.Buckets)})
	}
	return &cli.Report{Facts: facts, Notes: j.Notes}
}

// Plan says what a plan holds.
func Plan(p *plan.Plan, j *job.Job) *cli.Report {
	t := cli.Table{Key: "links", Columns: []cli.Column{
		{Head: "link", Key: "link"}, {Head: "transfers", Key: "transfers"}, {Head: "MB", Key: "bytes"}, {Head: "in flight", Key: "in_flight"},
	}}
	for i := range p.Programs {
		prog := &p.Programs[i]
		var n int64
		for k := range prog.Transfers {
			if b := prog.Transfers[k].Bucket; b >= 0 {
				n += p.Buckets[b].Bytes(j)
			}
		}
		t.Rows = append(t.Rows, cli.Row{Cells: []any{prog.Link, len(prog.Transfers), cli.Bytes(n), known(prog.Window.Transfers)}})
	}
	return &cli.Report{
		Facts: []cli.Fact{
			{Label: "policy", Key: "policy", Value: p.Policy},
			{Label: "digest", Key: "digest", Value: p.Digest()},
			{Label: "period, iterations", Key: "period", Value: p.Period},
			{Label: "buckets", Key: "buckets", Value: len(p.Buckets)},
			{Label: "largest delay", Key: "max_delay", Value: p.MaxDelay},
			{Label: "largest staleness", Key: "max_staleness", Value: p.MaxStaleness},
			{Label: "update rate", Key: "update_rate", Value: cli.Ratio(p.UpdateRate)},
		},
		Tables: []cli.Table{t},
		Notes:  p.Notes,
	}
}

// Check is a verdict a rule.
func Check(r plan.Report) *cli.Report {
	t := cli.Table{Key: "rules", Columns: []cli.Column{
		{Head: "rule", Key: "rule"}, {Head: "title", Key: "title"}, {Head: "ok", Key: "ok"},
		{Head: "detail", Key: "detail"}, {Head: "witness", Key: "witness"},
	}}
	for _, x := range r.Rules {
		t.Rows = append(t.Rows, cli.Row{Cells: []any{x.Rule, x.Title, x.OK, x.Detail, x.Witness}})
	}
	return &cli.Report{
		Facts:  []cli.Fact{{Label: "ok", Key: "ok", Value: r.OK()}},
		Tables: []cli.Table{t},
		Notes:  r.Notes,
	}
}

// Same is whether ranks that hold two plans could run together.
func Same(difference error) *cli.Report {
	r := &cli.Report{Facts: []cli.Fact{{Label: "same plan", Key: "ok", Value: difference == nil}}}
	if difference != nil {
		r.Facts = append(r.Facts, cli.Fact{Label: "difference", Key: "witness", Value: difference.Error()})
	}
	return r
}

// Policies lists them.
func Policies(all []policy.Policy) *cli.Report {
	t := cli.Table{Key: "policies", Columns: []cli.Column{
		{Head: "policy", Key: "policy"}, {Head: "what it does", Key: "title"}, {Head: "from", Key: "paper"},
	}}
	for _, p := range all {
		t.Rows = append(t.Rows, cli.Row{Cells: []any{p.Name, p.Title, p.Paper}})
	}
	return &cli.Report{Tables: []cli.Table{t}}
}

// Simulation is where the time of a simulated iteration goes, and each transfer.
func Simulation(r *sim.Result, j *job.Job, c *cluster.Cluster) *cli.Report {
	m := r.Timeline.Metrics(r.Steady, len(r.Iterations))
	where := cli.Table{Title: "An iteration in steady state", Columns: slices.Concat(
		[]cli.Column{{Head: "workers", Key: "workers"}, {Head: "rank", Key: "rank"}}, breakdownColumns,
		[]cli.Column{{Head: "E", Key: "efficiency"}, {Head: "S", Key: "speedup"}})}
	add := func(who string, rank any, b timeline.Breakdown) {
		where.Rows = append(where.Rows, cli.Row{Key: who, Cells: slices.Concat([]any{who, rank}, breakdownCells(b), []any{cli.Ratio(b.Efficiency()), cli.Ratio(b.Speedup())})})
	}
	add("mean", nil, r.Mean)
	add("worst", natural(r.WorstRank), r.Worst)

	return &cli.Report{
		Facts: append(subject(j, c),
			cli.Fact{Label: "iterations", Key: "iterations", Value: len(r.Iterations)},
			cli.Fact{Label: "time, ms", Key: "time_us", Value: cli.Time(r.Time)}),
		Tables: []cli.Table{where, transfers(r.Timeline, m.Transfers)},
		Notes:  j.Notes,
	}
}
