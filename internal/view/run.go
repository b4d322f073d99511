package view

import (
	"weft/agent"
	"weft/internal/cli"
	"weft/sim"
)

// Run shows what a training has executed, the last plan last, beside what was predicted of each; nil: nothing was. Found
// is what else there is to tell.
func Run(ran []agent.Ran, predicted func(*agent.Ran) *sim.Result, found []string) *cli.Report {
	t := cli.Table{Title: "Plans", Key: "plans", Columns: []cli.Column{
		{Head: "plan", Key: "plan"}, {Head: "policy", Key: "policy"}, {Head: "delay", Key: "delay"}, {Head: "iterations", Key: "iterations"},
		{Head: "time\nms", Key: "time_us"}, {Head: "exposed\nms", Key: "exposed_us"},
		{Head: "predicted\nms", Key: "predicted_us"}, {Head: "exposed\nms", Key: "predicted_exposed_us"},
	}}
	for i := range ran {
		r := &ran[i]
		cells := []any{r.Plan.Digest(), r.Plan.Policy, r.Plan.MaxDelay, r.Iterations, cli.Time(r.Time), cli.Time(r.Exposed), nil, nil}
		if p := predicted(r); p != nil {
			cells[6], cells[7] = cli.Time(p.Time), cli.Time(p.Mean.Exposed)
		}
		t.Rows = append(t.Rows, cli.Row{Cells: cells})
	}
	return &cli.Report{Tables: []cli.Table{t}, Notes: found}
}
