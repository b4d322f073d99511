package view

import (
	"weft/cluster"
	"weft/internal/cli"
	"weft/links"
)

// tellError is the error of rings from which on a note says what to do about it.
const tellError = 0.1

// Links is what was measured between hosts, on each rail and on every two at once, and the
// latency and bandwidth that explain it.
func Links(c *cluster.Cluster, rails []links.Rail, pairs []links.Pair) *cli.Report {
	t := cli.Table{Title: "Messages, and collectives in a ring", Key: "times", Columns: []cli.Column{
		{Head: "what", Key: "kind"}, {Head: "bytes", Key: "bytes"}, {Head: "time\nus", Key: "time_us"},
		{Head: "fitted\nus", Key: "fitted_us"}, {Head: "error\n%", Key: "error"}, {Head: "MB/s", Key: "bytes_per_us"},
	}}
	facts := []cli.Fact{
		{Label: "hosts", Key: "hosts", Value: c.Nodes},
		{Label: "workers a host", Key: "per_node", Value: c.PerNode},
	}
	several := len(rails) > 1
	if several {
		t.Columns = append([]cli.Column{{Head: "link", Key: "link"}}, t.Columns...)
	}
	bent := false
	for i, r := range rails {
		add := func(what string, p cluster.Point, deviation float64) {
			cells := []any{what, int(p.Bytes), cli.Micros(p.Time), cli.Micros(p.Time * (1 + deviation)), cli.Percent(deviation), cli.Rate(float64(p.Bytes) / p.Time)}
			if several {
				cells = append([]any{r.Name}, cells...)
			}
			t.Rows = append(t.Rows, cli.Row{Cells: cells})
		}
		for k, p := range r.Times.Messages {
			add("message", p, r.Fit.Messages[k])
		}
		for k, p := range r.Times.Rings {
			add(p.Kind.String(), p, r.Fit.Rings[k])
		}
		l := c.Links[i]
		bent = bent || links.Worst(r.Fit.Rings) > tellError && len(l.Curve) == 0
		l.Curve = nil
		label, key := "", ""
		if i > 0 {
			label, key = r.Name+": ", r.Name+"_"
		}
		facts = append(facts,
			cli.Fact{Label: label + "link", Key: key + "link", Value: workers(&cluster.Cluster{Links: []cluster.Link{l}}).Links[0]},
			cli.Fact{Label: label + "largest error, messages, %", Key: key + "messages_error", Value: cli.Percent(links.Worst(r.Fit.Messages))},
			cli.Fact{Label: label + "largest error, rings, %", Key: key + "rings_error", Value: cli.Percent(links.Worst(r.Fit.Rings))},
		)
	}
	var notes []string
	if bent {
		notes = append(notes, "collectives do not take what latency and bandwidth say: with --table the file has their measured times, which then count")
	}
	tables := []cli.Table{t}
	if several {
		tables = append(tables, atOnce(rails, pairs))
	}
	return &cli.Report{Facts: facts, Tables: tables, Notes: notes}
}

// atOnce is how long two rails take at once.
func atOnce(rails []links.Rail, pairs []links.Pair) cli.Table {
	t := cli.Table{Title: "Two links at once, with all-reduces of about the same time on each", Key: "pairs", Columns: []cli.Column{
		{Head: "link", Key: "first"}, {Head: "and", Key: "second"}, {Head: "alone\nus", Key: "alone_us"}, {Head: "at once\nus", Key: "together_us"},
		{Head: "if they shared\na medium, us", Key: "shared_us"}, {Head: "taken to", Key: "medium"},
	}}
	for _, p := range pairs {
		what := "be apart"
		if p.SharesMedium() {
			what = "share one"
		}
		t.Rows = append(t.Rows, cli.Row{Cells: []any{
			rails[p.Rails[0]].Name, rails[p.Rails[1]].Name, cli.Micros(p.Alone), cli.Micros(p.Together), cli.Micros(p.Shared), what,
		}})
	}
	return t
}
