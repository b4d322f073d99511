package replay

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"weft/agent/protocol"
	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
)

func small() (*job.Job, *cluster.Cluster) {
	j := job.Chain("small", []float64{2000, 3000, 1000}, []float64{4000, 5000, 2000}, []int64{400_000, 1_000_000, 40_000})
	c := cluster.Uniform(3, 1, cluster.Link{Name: "net", Latency: 50, Bandwidth: 2e9})
	return j, c
}

// Plans of all sorts are executed, with right sums: behind the barrier and across it, of
// parts of tensors, of halves, with delay and two links. How long that takes depends on
// the machine; never less than computation.
func TestPolicies(t *testing.T) {
	j, c := small()
	second := c.Links[0]
	second.Name, second.Bandwidth = "second", 1e9
	c.Links = append(c.Links, second)
	for _, name := range []string{"ddp", "wfbp", "p3", "bytescheduler", "us-byte", "dear", "deft"} {
		pol, err := all.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		o := policy.Options{InFlight: 1, Slice: 100_000}
		if pol.Class == policy.Delayed {
			o.Limits = plan.DelayLimits(1)
		}
		p, err := pol.Build(t.Context(), j, c, o)
		if err != nil {
			t.Fatal(name, err)
		}
		r, err := Run(t.Context(), j, c, p, Options{Iterations: 6})
		if err != nil {
			t.Fatal(name, err)
		}
		total := 0.0
		for _, x := range r.Iterations {
			total += x
		}
		if len(r.Iterations) != 6 || r.Elements == 0 || total < 6*17000-1 {
			t.Errorf("%s: %v, %d elements", name, r.Iterations, r.Elements)
		}
		t.Logf("%-14s %8.0f us, predicted %8.0f; exposed %8.0f, predicted %8.0f; late %.0f us; cpu %.2f",
			name, r.Mean.Iteration, r.Predicted.Time, r.Mean.Exposed, r.Predicted.Mean.Exposed, r.Late[len(r.Late)/2], r.CPU)
	}
}

// A replay ends within a second of being told to.
func TestCancel(t *testing.T) {
	j, c := small()
	p := plan.New(j, "test", "net")
	p.AllReduce(0, plan.WholeTensors(j, 0, 1, 2))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	var at time.Time
	_, err := Run(ctx, j, c, p, Options{Iterations: 1000, Progress: func(done, _ int) {
		if done == 2 {
			at = time.Now()
			cancel(why)
		}
	}})
	if !errors.Is(err, why) || time.Since(at) > time.Second {
		t.Errorf("%v, after %v", err, time.Since(at))
	}
}

func TestRefused(t *testing.T) {
	for want, change := range map[string]func(j *job.Job, c *cluster.Cluster, p *plan.Plan){
		"agents have rings, not tree":            func(_ *job.Job, c *cluster.Cluster, _ *plan.Plan) { c.Links[0].Algorithm = cluster.Tree },
		"at most 64 workers, the cluster has 65": func(_ *job.Job, c *cluster.Cluster, _ *plan.Plan) { c.Nodes = 65 },
		"take fewer workers (-n)":                func(j *job.Job, _ *cluster.Cluster, p *plan.Plan) { p.Buffers = 1 << 15 },
		"(push of bucket 0): agents reduce among": func(j *job.Job, c *cluster.Cluster, p *plan.Plan) {
			c.Servers = &cluster.Servers{Count: 1, Colocated: true}
			p.Programs[0].Transfers[0].Kind = cluster.Push
			p.Add(0, cluster.Pull, 0, plan.Gate{Kind: plan.TransferDone})
		},
	} {
		j, c := small()
		p := plan.New(j, "test", "net")
		p.AllReduce(0, plan.WholeTensors(j, 0, 1, 2))
		change(j, c, p)
		if _, err := Run(t.Context(), j, c, p, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// A wrong sum is found, by its element.
func TestContent(t *testing.T) {
	for _, d := range []job.DType{job.Float32, job.Float64, job.Float16, job.BFloat16, job.Int32, job.Int64} {
		c := newContent([]job.DType{d}, 3)
		n := int64(markEvery + 5)
		memory := make([]byte, n*d.Bytes())
		for e := range n {
			of := always
			if e == 0 || e == markEvery || e == n-1 {
				of = 7
			}
			copy(memory[e*d.Bytes():], c.sum(0, e, of))
		}
		r := protocol.Region{Bytes: int64(len(memory))}
		if err := c.verify(memory, r, 0, 7); err != nil {
			t.Error(d, err)
		}
		if err := c.marked(memory, r, 0, 7); err != nil {
			t.Error(d, err)
		}
		memory[100*d.Bytes()] ^= 1
		if err := c.verify(memory, r, 0, 7); err == nil || !strings.Contains(err.Error(), "element 100 of bucket 0 of iteration 7") {
			t.Error(d, err)
		}
		if c.marked(memory, r, 0, 8) == nil {
			t.Error(d, "the sums of iteration 7 pass for those of iteration 8")
		}
	}
}
