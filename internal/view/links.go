package view

import (
	"weft/cluster"
	"weft/internal/cli"
	"weft/links"
)

// tellError is the error of rings from which on a note says what to do about it.
const tellError = 0.1

// Links is what was measured between hosts, and the latency and bandwidth that explain it.
func Links(c *cluster.Cluster, m *links.Measured, f *links.Fit) *cli.Report {
	t := cli.Table{Title: "Messages, and collectives in a ring", Key: "times", Columns: []cli.Column{
		{Head: "what", Key: "kind"}, {Head: "bytes", Key: "bytes"}, {Head: "time\nus", Key: "time_us"},
		{Head: "fitted\nus", Key: "fitted_us"}, {Head: "error\n%", Key: "error"}, {Head: "MB/s", Key: "bytes_per_us"},
	}}
	add := func(what string, p cluster.Point, deviation float64) {
		t.Rows = append(t.Rows, cli.Row{Cells: []any{
			what, int(p.Bytes), cli.Micros(p.Time), cli.Micros(p.Time * (1 + deviation)), cli.Percent(deviation), cli.Rate(float64(p.Bytes) / p.Time),
		}})
	}
	for i, p := range m.Messages {
		add("message", p, f.Messages[i])
	}
	for i, p := range m.Rings {
		add(p.Kind.String(), p, f.Rings[i])
	}
	var notes []string
	if links.Worst(f.Rings) > tellError && len(c.Links[0].Curve) == 0 {
		notes = append(notes, "collectives do not take what latency and bandwidth say: with --table the file has their measured times, which then count")
	}
	l := c.Links[0]
	l.Curve = nil
	return &cli.Report{
		Facts: []cli.Fact{
			{Label: "hosts", Key: "hosts", Value: c.Nodes},
			{Label: "workers a host", Key: "per_node", Value: c.PerNode},
			{Label: "link", Key: "link", Value: workers(&cluster.Cluster{Links: []cluster.Link{l}}).Links[0]},
			{Label: "largest error, messages, %", Key: "messages_error", Value: cli.Percent(links.Worst(f.Messages))},
			{Label: "largest error, rings, %", Key: "rings_error", Value: cli.Percent(links.Worst(f.Rings))},
		},
		Tables: []cli.Table{t},
		Notes:  notes,
	}
}
