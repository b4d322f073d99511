package view

import (
	"weft/internal/cli"
	"weft/job"
	"weft/plan"
	"weft/zoo"
)

// Zoo lists models and devices.
func Zoo(models []zoo.Model, devices []zoo.Device) *cli.Report {
	m := cli.Table{Title: "Models", Key: "models", Columns: []cli.Column{
		{Head: "model", Key: "model"}, {Head: "network", Key: "title"},
		{Head: "batch", Key: "batch"}, {Head: "tokens", Key: "sequence"},
		{Head: "tensors", Key: "tensors"}, {Head: "parameters", Key: "parameters"},
		{Head: "optimizer", Key: "optimizer"},
	}}
	for _, x := range models {
		m.Rows = append(m.Rows, cli.Row{Cells: []any{
			x.Name, x.Title, x.Batch, known(x.Sequence), x.Tensors, x.Parameters, x.Optimizer.String(),
		}})
	}
	d := cli.Table{Title: "Devices, and what they reach of their peaks; the first precision is the default", Key: "devices", Columns: []cli.Column{
		{Head: "device", Key: "device"}, {Head: "what it is", Key: "title"},
		{Head: "memory\nMB", Key: "memory_bytes"}, {Head: "memory\nMB/s", Key: "memory_bytes_per_us"},
		{Head: "preci-\nsion", Key: "precision"}, {Head: "TFLOP/s", Key: "peak_tflops"}, {Head: "of it\n%", Key: "efficiency"},
	}}
	for _, x := range devices {
		for _, r := range x.Rates {
			d.Rows = append(d.Rows, cli.Row{Cells: []any{
				x.Name, x.Title, cli.Bytes(x.Memory), cli.Rate(x.Bandwidth / 1e6),
				r.Precision.String(), cli.Count(r.Peak / 1e12), cli.Percent(r.Efficiency),
			}})
		}
	}
	return &cli.Report{Tables: []cli.Table{m, d}, Notes: []string{
		"networks of images are as torchvision defines them, those of language as Hugging Face's transformers; inception-v3 trains with its auxiliary classifier, bert with the heads of pre-training",
	}}
}

// ZooTimes is what one iteration of models takes on a device.
func ZooTimes(models []zoo.Model, jobs []*job.Job) *cli.Report {
	t := cli.Table{Title: "An iteration on one worker, without communication", Key: "iterations", Columns: []cli.Column{
		{Head: "model", Key: "model"}, {Head: "batch", Key: "batch"},
		{Head: "forward\nms", Key: "forward_us"}, {Head: "backward\nms", Key: "backward_us"}, {Head: "update\nms", Key: "update_us"},
		{Head: "time\nms", Key: "time_us"}, {Head: "samples\n/s", Key: "samples_per_s"},
		{Head: "gradients\nMB", Key: "gradient_bytes"}, {Head: "memory\nMB", Key: "memory_bytes"},
	}}
	for i, m := range models {
		j := jobs[i]
		var phases [3]float64 // forward, backward, update
		for o := range j.Ops {
			phases[j.Ops[o].Phase] += j.Ops[o].Time
		}
		total := phases[job.Forward] + phases[job.Backward] + phases[job.Update]
		t.Rows = append(t.Rows, cli.Row{Cells: []any{
			m.Name, m.Batch,
			cli.Time(phases[job.Forward]), cli.Time(phases[job.Backward]), cli.Time(phases[job.Update]),
			cli.Time(total), cli.Count(float64(m.Batch) * 1e6 / total),
			cli.Bytes(j.Bytes()), cli.Bytes(plan.MemoryOf(plan.New(j, ""), j).Total()),
		}})
	}
	return &cli.Report{Tables: []cli.Table{t}, Notes: jobs[0].Notes}
}
