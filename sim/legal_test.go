package sim_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"weft/cluster"
	"weft/internal/random"
	"weft/job"
	"weft/plan"
	"weft/sim"

	"pgregory.net/rapid"
)

// draw makes plans of all kinds: several links and generations, halves of
// all-reduces, pushes and pulls, gates, updates at the step and at the read.
type draw struct{ t *rapid.T }

func (d draw) int(from, to int) int { return rapid.IntRange(from, to).Draw(d.t, "n") }

// plan draws a plan that is meant to be legal.
func (d draw) plan(j *job.Job) *plan.Plan {
	p := plan.New(j, "random", "eth0", "eth1")
	p.Copies = d.int(0, 1) == 0
	if d.int(0, 2) == 0 { // generations of several iterations
		p.Generations = nil
		p.Period = 0
		for range d.int(1, 2) {
			n := d.int(1, 4)
			p.Generations = append(p.Generations, plan.Generation{First: p.Period, Length: n})
			p.Period += n
		}
	}
	var tensors []job.TensorID
	for k := range j.Tensors {
		tensors = append(tensors, job.TensorID(len(j.Tensors)-1-k))
	}
	b := plan.WholeTensors(j, tensors...)
	at := d.int(0, len(b.Slices))
	for _, part := range [][]plan.Slice{b.Slices[:at], b.Slices[at:]} {
		if len(part) > 0 {
			p.AddBucket(plan.Bucket{Slices: slices.Clone(part)})
		}
	}
	if x := &p.Buckets[0].Slices[0]; x.Length > 1 && d.int(0, 2) == 0 { // a slice apart
		rest := *x
		x.Length = 1
		rest.Offset, rest.Length = 1, rest.Length-1
		p.AddBucket(plan.Bucket{Slices: []plan.Slice{rest}})
	}
	delay := max(0, d.int(-2, 2))
	p.Updates = nil
	for g, x := range p.Generations {
		for i := range p.Buckets {
			l, gate := d.int(0, 1), plan.Gate{Kind: plan.GradientReady}
			switch d.int(0, 3) {
			case 0:
				p.Add(l, cluster.ReduceScatter, i, gate)
				p.Add(l, cluster.AllGather, i)
			case 1:
				done := plan.Gate{Kind: plan.TransferDone, Link: l, Transfer: p.Add(l, cluster.Push, i, gate)}
				l := d.int(l, 1)
				p.Programs[l].Transfers[p.Add(l, cluster.Pull, i, done)].Generation = g
			default:
				p.Add(l, cluster.AllReduce, i, gate)
			}
			for l := range p.Programs {
				for t := range p.Programs[l].Transfers {
					if x := &p.Programs[l].Transfers[t]; x.Bucket == i && x.Generation == 0 {
						x.Generation = g
					}
				}
			}
		}
		u := plan.Update{Generation: g, Iteration: x.Last() + delay, At: plan.Point(d.int(0, 1))}
		if j.Mode == job.Global {
			u.At = plan.AtStep
		}
		p.Updates = append(p.Updates, u)
		p.MaxDelay, p.MaxStaleness = delay, max(p.MaxStaleness, delay+x.Length-1)
	}
	p.UpdateRate = float64(len(p.Generations)) / float64(p.Period)
	p.Buffers = delay + 1
	if err := p.AddCollectives(j); err != nil {
		d.t.Fatal(err)
	}
	if delay > 0 && d.int(0, 1) == 0 { // in the next period
		for l := range p.Programs {
			for t := range p.Programs[l].Transfers {
				if x := &p.Programs[l].Transfers[t]; x.Bucket >= 0 {
					x.Generation -= len(p.Generations)
				}
			}
		}
	}
	return p
}

// mutate changes one thing; it may or may not matter.
func (d draw) mutate(j *job.Job, p *plan.Plan) {
	l := d.int(0, len(p.Programs)-1)
	x := &p.Programs[l]
	if len(x.Transfers) == 0 {
		return
	}
	i := d.int(0, len(x.Transfers)-1)
	t := &x.Transfers[i]
	u := &p.Updates[d.int(0, len(p.Updates)-1)]
	switch d.int(0, 17) {
	case 0:
		x.Transfers = slices.Delete(x.Transfers, i, i+1)
	case 1:
		x.Transfers = append(x.Transfers, *t)
	case 2:
		k := d.int(0, len(x.Transfers)-1)
		x.Transfers[i], x.Transfers[k] = x.Transfers[k], x.Transfers[i]
	case 3:
		t.Generation--
	case 4:
		t.Gates = nil
	case 5:
		t.Gates = append(slices.Clone(t.Gates), plan.Gate{Kind: plan.Boundary, Iteration: d.int(-2, 2)})
	case 6:
		p.Ops = j.OpsFingerprint()
		t.Gates = append(slices.Clone(t.Gates), plan.Gate{Kind: plan.OpDone, Op: job.OpID(d.int(0, len(j.Ops)-1)), Iteration: d.int(-2, 2)})
	case 7:
		m := d.int(0, len(p.Programs)-1)
		if n := len(p.Programs[m].Transfers); n > 0 {
			t.Gates = append(slices.Clone(t.Gates), plan.Gate{Kind: plan.TransferDone, Link: m, Transfer: d.int(0, n-1)})
		}
	case 8:
		u.Iteration += d.int(-2, 2)
	case 9:
		u.At = 1 - u.At
	case 10:
		u.Tensors = []job.TensorID{0}
	case 11:
		p.Buffers = max(1, p.Buffers-1)
	case 12:
		s := &p.Buckets[d.int(0, len(p.Buckets)-1)].Slices[0]
		s.Length = max(1, s.Length+int64(d.int(-1, 1)))
	case 13:
		x.Window.Transfers = d.int(0, 2)
	case 14:
		t.Kind = cluster.Kind(d.int(0, 5))
	case 15:
		t.Iteration += d.int(-1, 1)
	case 16:
		t.Gates = append(slices.Clone(t.Gates), plan.Gate{Kind: plan.NotBefore, Time: float64(d.int(0, 9))})
	case 17:
		x.Window.Bytes = int64(d.int(0, 9))
	}
}

// Every plan that the checker passes runs to its end, alike workers once or all
// with the same outcome, and never below the bound for what it states.
func TestLegalPlansRun(t *testing.T) {
	legal := 0
	rapid.Check(t, func(t *rapid.T) {
		d := draw{t}
		j := random.Job(t)
		p := d.plan(j)
		for range d.int(0, 3) {
			d.mutate(j, p)
		}
		d.restate(p)
		if !plan.Check(p, j, plan.Limits{MaxDelay: 100, MaxStaleness: 100}).OK() {
			return
		}
		legal++
		c := cluster.Uniform(d.int(1, 4), 1, cluster.Link{Name: "eth0", Latency: float64(d.int(0, 3)), Bandwidth: 8e6 * float64(d.int(1, 9))})
		c.Links = append(c.Links, cluster.Link{Name: "eth1", Latency: float64(d.int(0, 3)), Bandwidth: 8e6 * float64(d.int(1, 9))})
		if d.int(0, 1) == 0 {
			c.Links[0].Medium, c.Links[1].Medium = "nic", "nic"
		}
		c.Servers = &cluster.Servers{Count: 1, Colocated: rapid.Bool().Draw(t, "colocated")}
		c.Overlap = float64(d.int(0, 2)) / 5

		const n = 20
		once, err := sim.Run(context.Background(), j, c, p, sim.Options{Iterations: n, Timeline: true})
		if err != nil {
			t.Fatal(err)
		}
		every, err := sim.Run(context.Background(), j, c, p, sim.Options{Iterations: n, Timeline: true, Everyone: true})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(once.Iterations, every.Iterations) || !reflect.DeepEqual(once.Timeline.Expand().Spans, every.Timeline.Expand().Spans) {
			t.Fatalf("iterations %v once, %v all", once.Iterations, every.Iterations)
		}
		if !pushes(p) {
			holds(t, j, c, p, plan.Limits{MaxDelay: p.MaxDelay, MaxStaleness: p.MaxStaleness, MinUpdateRate: p.UpdateRate})
		}
	})
	t.Logf("%d legal plans", legal)
	if legal == 0 {
		t.Error("no plan was legal: the test shows nothing")
	}
}

// restate makes the plan state what it is, with buffers to spare.
func (draw) restate(p *plan.Plan) {
	p.MaxDelay, p.MaxStaleness, p.Buffers = 0, 0, p.Buffers+3
	for _, u := range p.Updates {
		delay := u.Iteration - p.Generations[u.Generation].Last()
		p.MaxDelay = max(p.MaxDelay, delay)
		p.MaxStaleness = max(p.MaxStaleness, delay+p.Generations[u.Generation].Length-1)
	}
}

func pushes(p *plan.Plan) bool {
	return slices.ContainsFunc(p.Programs, func(x plan.Program) bool {
		return slices.ContainsFunc(x.Transfers, func(t plan.Transfer) bool { return t.Kind == cluster.Push })
	})
}
