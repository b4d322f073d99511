package deft

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"weft/cluster"
	"weft/internal/random"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"

	"pgregory.net/rapid"
)

// wire is a cluster of two workers and a link for each factor, on which an
// all-reduce of S bytes takes factor·(alpha + S) microseconds: two steps of
// alpha/2, and 2·(2-1)/2 times the bytes at 8 bits a microsecond.
func wire(alpha float64, factors ...float64) *cluster.Cluster {
	c := cluster.Uniform(2, 1, cluster.Link{})
	c.Links = nil
	for i, f := range factors {
		c.Links = append(c.Links, cluster.Link{Name: fmt.Sprint("net", i), Latency: f * alpha / 2, Bandwidth: 8e6 / f})
	}
	return c
}

// each makes a bucket of each tensor, in dispatch order.
func each(j *job.Job) []plan.Bucket {
	var out []plan.Bucket
	for k := len(j.Tensors) - 1; k >= 0; k-- {
		out = append(out, plan.WholeTensors(j, job.TensorID(k)))
	}
	return out
}

// build makes the plan of a schedule in which each tensor is a bucket.
func build(t testing.TB, j *job.Job, c *cluster.Cluster, r rule) *plan.Plan {
	t.Helper()
	m, err := newModel(j, c, false)
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.problem(each(j))
	if err != nil {
		t.Fatal(err)
	}
	x := candidate{solution: solve(t, p, r), shape: &shape{model: m, buckets: each(j)}}
	s := search{model: m, limits: plan.AnyLimits}
	out, err := s.legal(&x)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func simulated(t testing.TB, j *job.Job, c *cluster.Cluster, p *plan.Plan) float64 {
	t.Helper()
	r, err := sim.Run(context.Background(), j, c, p, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Time
}

// transfers writes the programs: link, then generation.tensor.
func transfers(p *plan.Plan) string {
	var b strings.Builder
	for _, x := range p.Programs {
		b.WriteString(x.Link + ":")
		for _, t := range x.Transfers {
			fmt.Fprintf(&b, " %d.%d", t.Generation, p.Buckets[t.Bucket].Slices[0].Tensor+1)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestPlans(t *testing.T) {
	rx := job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
	above := job.Chain("above", []float64{1, 1, 1, 1}, []float64{2, 2, 2, 2}, []int64{3, 4, 3, 4})
	for _, x := range []struct {
		name            string
		job             *job.Job
		cluster         *cluster.Cluster
		period, updates int
		delays          []int
		buffers         int
		time            float64
		transfers       string
	}{
		// Section 13.10: K = J = 1, delay 1, T = 27.
		{"rx", rx, wire(2, 1), 1, 1, []int{1}, 2, 27, "net0: -1.3 -1.2 -1.1 0.4\n"},
		// Section 13.10: the period is t = 2..4, with generations {2,3}, applied at the
		// end of 4, and {4}, which is as {1}: applied at the end of 3 + 3.
		{"above", above, wire(0, 1), 3, 2, []int{1, 2}, 2, 12,
			"net0: -1.4 -1.3 -1.2 -1.1 0.4 0.2 0.3 0.1\n"},
		// With a second link of half the speed: K = J = 1, delay 1.
		{"above, two links", above, wire(0, 1, 2), 1, 1, []int{1}, 2, 12,
			"net0: -1.4 -1.3 -1.2\nnet1: -1.1\n"},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := build(t, x.job, x.cluster, unbound)
			if p.Period != x.period || len(p.Generations) != x.updates {
				t.Errorf("K = %d, J = %d, want %d and %d", p.Period, len(p.Generations), x.period, x.updates)
			}
			var delays []int
			for _, u := range p.Updates {
				delays = append(delays, u.Iteration-p.Generations[u.Generation].Last())
			}
			if !slices.Equal(delays, x.delays) || p.Buffers != x.buffers {
				t.Errorf("delays %v, %d buffers, want %v, %d", delays, p.Buffers, x.delays, x.buffers)
			}
			if got := transfers(p); got != x.transfers {
				t.Errorf("got\n%swant\n%s", got, x.transfers)
			}
			if got := simulated(t, x.job, x.cluster, p); got != x.time {
				t.Errorf("an iteration takes %v us, want %v", got, x.time)
			}
		})
	}
}

// plans builds the policy's plan under limits.
func planned(t testing.TB, j *job.Job, c *cluster.Cluster, l plan.Limits) *plan.Plan {
	t.Helper()
	p, err := DeFT.Build(context.Background(), j, c, policy.Options{Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	if r := plan.Check(p, j, l); !r.OK() {
		t.Fatalf("%s", r)
	}
	return p
}

// The policy fuses and splits as it likes: RX is hidden all the same.
func TestPolicyHidesRX(t *testing.T) {
	j := job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
	p := planned(t, j, wire(2, 1), plan.DelayLimits(1))
	if got := simulated(t, j, wire(2, 1), p); got != 27 || p.MaxDelay != 1 || p.UpdateRate != 1 {
		t.Errorf("an iteration takes %v us at delay %d and rate %v, want 27, 1 and 1", got, p.MaxDelay, p.UpdateRate)
	}
}

// A tensor of 40 us, forward 10 us: split into pieces of at most 10 us each with
// its start-up of 1. Tensors of 1 byte are fused until the wire takes 4 us.
func TestPartition(t *testing.T) {
	j := job.Chain("parts", []float64{2, 2, 2, 2, 2}, []float64{4, 4, 4, 4, 4}, []int64{1, 1, 1, 1, 39})
	m, err := newModel(j, wire(1, 1), false)
	if err != nil {
		t.Fatal(err)
	}
	buckets, err := m.buckets(cuts[0])
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range buckets {
		var s []string
		for _, x := range b.Slices {
			s = append(s, fmt.Sprintf("%d[%d:%d]", x.Tensor+1, x.Offset, x.Offset+x.Length))
		}
		got = append(got, strings.Join(s, "+"))
	}
	want := []string{"5[0:8]", "5[8:16]", "5[16:24]", "5[24:32]", "5[32:39]", "4[0:1]+3[0:1]+2[0:1]+1[0:1]"}
	if !slices.Equal(got, want) {
		t.Errorf("buckets %v, want %v", got, want)
	}
}

// A start-up of 12 us, forward 10 us, backward 14: no bucket fits the forward
// pass, and splitting does not help; with a backward pass of 8 none fits either.
// Each begins in a pass and ends in a later one. Buckets of 12 + 1 and 12 + 2 us
// need 27 us an iteration, and the passes hold 24 or 18.
func contains(notes []string, what string) bool {
	return slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, what) })
}

func TestStartUpAboveForward(t *testing.T) {
	for _, back := range []float64{14, 8} {
		j := job.Chain("slow", []float64{5, 5}, []float64{back / 2, back / 2}, []int64{2, 1})
		p := planned(t, j, wire(12, 1), plan.DelayLimits(2))
		if !contains(p.Notes, "start-up") {
			t.Errorf("no note on the start-up: %q", p.Notes)
		}
	}
	// Not fused: 14 + 13 us beside 18.
	j := job.Chain("slow", []float64{5, 5}, []float64{4, 4}, []int64{2, 1})
	p := build(t, j, wire(12, 1), unbound)
	if p.UpdateRate > 18.0/27 || p.UpdateRate < 1.0/3 {
		t.Errorf("update rate %v, want at least 1/3 and at most 18/27", p.UpdateRate)
	}
}

func TestRefusals(t *testing.T) {
	j := job.Chain("chain", []float64{1}, []float64{1}, []int64{4})
	idle := job.Chain("idle", []float64{0}, []float64{0}, []int64{4})
	for _, x := range []struct {
		job    *job.Job
		limits plan.Limits
		want   string
	}{
		{j, plan.Limits{}, "--max-delay 1"},
		{j, plan.DefaultLimits, "--max-delay 1"},
		{j, plan.Limits{MaxDelay: 3}, "--max-staleness 1"},
		{idle, plan.DelayLimits(1), "computation"},
	} {
		_, err := DeFT.Build(context.Background(), x.job, wire(0, 1), policy.Options{Limits: x.limits})
		if !errors.Is(err, policy.ErrUnsuitable) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v, want ErrUnsuitable that names %s", x.limits, err, x.want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := DeFT.Build(ctx, j, wire(0, 1), policy.Options{Limits: plan.DelayLimits(1)}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}

// draw draws a job that computes, and a cluster of one to three links.
func draw(t *rapid.T) (*job.Job, *cluster.Cluster) {
	var j *job.Job
	if rapid.Bool().Draw(t, "chain") {
		j = random.Chain(t, 12)
	} else {
		j = random.Job(t)
	}
	some := &j.Ops[j.Tensors[0].Producers[0]]
	some.Time = max(some.Time, 0.001)
	c := random.Cluster(t)
	for l := range rapid.IntRange(0, 2).Draw(t, "more links") {
		x := c.Links[0]
		x.Name = fmt.Sprint("more", l)
		x.Latency *= float64(rapid.IntRange(1, 4).Draw(t, "latency"))
		x.Bandwidth /= float64(rapid.IntRange(1, 4).Draw(t, "slowness"))
		if rapid.IntRange(0, 3).Draw(t, "medium") == 0 {
			x.Medium, c.Links[0].Medium = "nic", "nic"
		}
		c.Links = append(c.Links, x)
	}
	return j, c
}

func limits(t *rapid.T) plan.Limits {
	l := plan.DelayLimits(rapid.IntRange(1, 4).Draw(t, "delay"))
	if rapid.Bool().Draw(t, "own limits") {
		l.MaxStaleness = rapid.IntRange(1, 8).Draw(t, "staleness")
		l.MinUpdateRate = float64(rapid.IntRange(0, 10).Draw(t, "rate")) / 10
	}
	return l
}

func TestEveryPlanIsLegal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c := draw(t)
		l := limits(t)
		p, err := DeFT.Build(context.Background(), j, c, policy.Options{Copies: rapid.Bool().Draw(t, "copies"), Limits: l})
		if err != nil {
			t.Fatal(err)
		}
		if r := plan.Check(p, j, l); !r.OK() {
			t.Fatalf("%s", r)
		}
		if _, err := sim.Run(context.Background(), j, c, p, sim.Options{Iterations: 2 * p.Period}); err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, g := range p.Generations {
			total += g.Length
		}
		if total != p.Period {
			t.Fatalf("generations of %d iterations in a period of %d", total, p.Period)
		}
		replay(t, j, p)
	})
}

// Section 13.11: the update rate is within its bound, generations are complete
// once, windows hold what they are given, and updates come oldest first.
func TestSolutions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, links := rapid.IntRange(1, 9).Draw(t, "buckets"), rapid.IntRange(1, 3).Draw(t, "links")
		p := problem{
			Forward: float64(rapid.IntRange(0, 50).Draw(t, "forward")), Backward: float64(rapid.IntRange(1, 90).Draw(t, "backward")),
			Capacity: 1 + float64(rapid.IntRange(0, 10).Draw(t, "kappa"))/10, Cost: make([][]float64, links),
		}
		var c, speed float64
		for i := range n {
			p.Ready = append(p.Ready, p.Backward*float64(i+1)/float64(n))
			for l := range links {
				x := float64(rapid.IntRange(1, 60).Draw(t, "cost"))
				if l > 0 {
					x = p.Cost[0][i] * float64(l+1)
				}
				p.Cost[l] = append(p.Cost[l], x)
			}
			c += p.Cost[0][i]
		}
		for l := range links {
			speed += 1 / float64(l+1)
		}
		r := rule{Delay: rapid.IntRange(0, 4).Draw(t, "delay"), Length: rapid.IntRange(1, 4).Draw(t, "length")}
		s := solve(t, p, r)
		// Overruns enlarge windows too.
		if most := (p.Capacity*(p.Forward+p.Backward)*float64(s.Period) + s.Overrun) * speed / c; float64(s.Updates) > min(most, float64(s.Period))+1e-9 {
			t.Fatalf("J = %d in K = %d: the bound is %v", s.Updates, s.Period, most)
		}
		if delay, _ := s.delay(); delay > r.Delay || slices.Min(s.lengths()) < r.Length || s.Period > 3*(restAfter+r.Delay+r.Length) {
			t.Fatalf("%+v: delay %d, generations of %v, K = %d", r, delay, s.lengths(), s.Period)
		}
		if all := s.period(); all[0].Applied+s.Period < all[len(all)-1].Applied {
			t.Fatalf("generations %v of a period of %d are not applied in order", all, s.Period)
		}
		sum := 0
		for _, k := range s.lengths() {
			sum += k
		}
		if sum != s.Period {
			t.Fatalf("lengths %v in a period of %d", s.lengths(), s.Period)
		}
		next := 0
		for g, x := range s.Generations {
			if x.First != next || x.Applied < x.last() || g > 0 && x.Applied < s.Generations[g-1].Applied {
				t.Fatalf("generations %v: wrong from %d on", s.Generations, g)
			}
			next = x.First + x.Length
		}
		seen := map[[2]int]int{}
		busy := map[[3]int]float64{} // link, iteration, backward
		for _, x := range s.Sends {
			g := s.Generations[x.Generation]
			if seen[[2]int{x.Generation, x.Bucket}]++; seen[[2]int{x.Generation, x.Bucket}] > 1 {
				t.Fatalf("generation %d sends bucket %d twice", x.Generation, x.Bucket)
			}
			if x.Iteration < g.last() || x.Iteration > g.Applied || x.Iteration == g.last() && !x.Backward {
				t.Fatalf("%v of %v", x, g)
			}
			at := [3]int{x.Link, x.Iteration, 0}
			if x.Backward {
				at[2] = 1
			}
			busy[at] += p.Cost[x.Link][x.Bucket]
		}
		for g, x := range s.Generations {
			for i := range n {
				if x.Applied < len(s.Cases) && seen[[2]int{g, i}] != 1 {
					t.Fatalf("generation %d is applied without bucket %d", g, i)
				}
			}
		}
		for at, time := range busy {
			if most := p.Capacity * []float64{p.Forward, p.Backward}[at[2]]; !s.Spans && s.Overrun == 0 && time > most+1e-9 {
				t.Fatalf("window %v holds %v of %v us", at, time, most)
			}
		}
	})
}

// gradient is that of a tensor's element in an iteration which reads weight w.
func gradient(w float64, iteration, tensor, element int) float64 {
	return w/8 + math.Sin(float64(iteration*31+tensor*7+element))
}

const rate = 1.0 / 16

// replay executes the plan on one process, transfer by transfer, and compares
// the weights that each iteration reads with those of an oracle which knows only
// the iterations of each generation and when it is applied. Of each slice it
// follows the first element.
func replay(t *rapid.T, j *job.Job, p *plan.Plan) {
	type element struct{ tensor, at int }
	var all []element
	inside := make([][]int, len(p.Buckets)) // by bucket: elements
	for b := range p.Buckets {
		for _, s := range p.Buckets[b].Slices {
			inside[b] = append(inside[b], len(all))
			all = append(all, element{int(s.Tensor), int(s.Offset)})
		}
	}
	J, iterations := len(p.Generations), 2*p.Period+3
	window := func(g int) (first, length int) {
		x := p.Generations[g%J]
		return g/J*p.Period + x.First, x.Length
	}
	due := make([][]int, iterations) // by iteration: generations
	for n := range iterations {
		for _, u := range p.Updates {
			if at := n*p.Period + u.Iteration; at < iterations {
				due[at] = append(due[at], n*J+u.Generation)
			}
		}
	}
	// By link and generation: one past its last transfer, from the start of the run.
	through := make([]map[int]int, len(p.Programs))
	for l := range p.Programs {
		through[l] = map[int]int{}
		x := p.Programs[l].Transfers
		late := 0 // periods that a transfer may come behind its generation
		for _, y := range x {
			late = max(late, -floor(y.Generation, J))
		}
		for at := range len(x) * (iterations/p.Period + 2 + late) {
			if y := x[at%len(x)]; y.Bucket >= 0 {
				through[l][at/len(x)*J+y.Generation] = at + 1
			}
		}
	}
	fresh := func(m map[int][]float64, g int) []float64 {
		if m[g] == nil {
			m[g] = make([]float64, len(all))
		}
		return m[g]
	}
	oracle, weight := make([]float64, len(all)), make([]float64, len(all))
	var read [][]float64           // by iteration
	sums := map[int][]float64{}    // by generation: its gradient buffer
	reduced := map[int][]float64{} // by generation: what has travelled
	sent := make([]int, len(p.Programs))
	now := 0 // generation of iteration i
	for i := range iterations {
		if !slices.Equal(oracle, weight) {
			t.Fatalf("iteration %d reads %v, the oracle %v", i, weight, oracle)
		}
		read = append(read, slices.Clone(oracle))
		for first, length := window(now); first+length <= i; first, length = window(now) {
			now++
		}
		for k, e := range all {
			fresh(sums, now)[k] += gradient(weight[k], i, e.tensor, e.at)
		}
		for _, g := range due[i] {
			for l := range p.Programs {
				x := p.Programs[l].Transfers
				for ; sent[l] < through[l][g]; sent[l]++ {
					y := x[sent[l]%len(x)]
					h := sent[l]/len(x)*J + y.Generation
					if y.Bucket < 0 || h < 0 {
						continue
					}
					if first, length := window(h); first+length-1 > i {
						t.Fatalf("iteration %d waits for generation %d, which ends in %d", i, h, first+length-1)
					}
					for _, k := range inside[y.Bucket] {
						fresh(reduced, h)[k] += sums[h][k]
					}
				}
			}
			first, length := window(g)
			for k, e := range all {
				weight[k] -= rate * fresh(reduced, g)[k] / float64(length)
				sum := 0.0
				for at := first; at < first+length; at++ {
					sum += gradient(read[at][k], at, e.tensor, e.at)
				}
				oracle[k] -= rate * sum / float64(length)
			}
		}
	}
}

// The preserver turns down a schedule, and larger windows bring the ratio to 1.
func TestFeedback(t *testing.T) {
	j := job.Chain("above", []float64{1, 1, 1, 1}, []float64{2, 2, 2, 2}, []int64{3, 4, 3, 4})
	for _, x := range []struct {
		tolerance float64
		limits    plan.Limits
		lowest    float64
	}{
		{0.2, plan.DelayLimits(2), 1.0 / 3},
		{0.01, plan.DelayLimits(2), 0.67}, // R = 1.1206 for generations of 1 and 2
		{1e-12, plan.DelayLimits(2), 1},
		{0.2, plan.Limits{MaxDelay: 2, MaxStaleness: 4, MinUpdateRate: 0.7}, 0.7},
	} {
		s := &Statistics{Loss: 0.1, Rate: 0.05, Drift: 0.4, Spread: 4, Samples: 16}
		p, err := New(Options{Statistics: s, Tolerance: x.tolerance}).Build(context.Background(), j, wire(0, 1), policy.Options{Limits: x.limits})
		if err != nil {
			t.Fatal(err)
		}
		var lengths []int
		for _, g := range p.Generations {
			lengths = append(lengths, g.Length)
		}
		// An update an iteration would take 14 us; windows of a few more percent do with
		// less at any lower rate.
		if got := simulated(t, j, wire(0, 1), p); got >= 14 && x.lowest < 1 {
			t.Errorf("%+v: an iteration takes %v us at update rate %v", x, got, p.UpdateRate)
		}
		if r := s.Ratio(lengths); math.Abs(r-1) > x.tolerance || p.UpdateRate < x.lowest {
			t.Errorf("%+v: update rate %v, expected loss %v times that of synchronous training", x, p.UpdateRate, r)
		}
	}
}
