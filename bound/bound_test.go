package bound_test

import (
	"errors"
	"math"
	"testing"

	"weft/bound"
	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/sim"
)

// rx is the running example of section 0.5.
func rx() *job.Job {
	return job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
}

// links are between two workers, where an all-reduce takes two latencies and its
// bytes once, and each half of it half of that: alpha and beta in microseconds.
func links(costs ...[2]float64) *cluster.Cluster {
	c := cluster.Uniform(2, 1, cluster.Link{})
	c.Links = nil
	for i, x := range costs {
		c.Links = append(c.Links, cluster.Link{Name: string(rune('a' + i)), Latency: x[0] / 2, Bandwidth: 8e6 / x[1]})
	}
	return c
}

func TestByHand(t *testing.T) {
	global := rx()
	global.Mode = job.Global
	shared := links([2]float64{2, 1}, [2]float64{2, 1})
	shared.Links[0].Medium, shared.Links[1].Medium = "nic", "nic"
	slowed := links([2]float64{2, 1})
	slowed.Overlap = 0.25
	one := func(f, b float64, bytes int64) *job.Job {
		return job.Chain("one", []float64{f}, []float64{b}, []int64{bytes})
	}
	for _, x := range []struct {
		name    string
		job     *job.Job
		cluster *cluster.Cluster
		limits  plan.Limits
		want    float64
		why     string
	}{
		// F + B + alpha + s_1: an element has no pieces to pipeline.
		{"rx", rx(), links([2]float64{2, 1}), plan.DefaultLimits, 30,
			"no gradient up to t1 is ready earlier, and no layer from t1 on can start before they are reduced"},
		// Of all 13 bytes, from 8 on: the wires of the last all-gather end 1 before
		// the forward pass, so 8 + 13 + 1 + 9 = 31; the first halves, 6.5, are
		// followed by a start-up, half a byte and another: 8 + 6.5 + 1 + 0.5 + 1 + 9.
		{"rx, global", global, links([2]float64{2, 1}), plan.DefaultLimits, 31,
			"no gradient up to t4 is ready earlier, and no update is made before they are reduced"},
		// (4 + 8 + 13 + 1) / 2 = 13 is less than computing, 27.
		{"rx, delay 1", rx(), links([2]float64{2, 1}), plan.DelayLimits(1), 27,
			"lane compute, and what it waits for, computes all the time"},
		// Beside transfers of 13 us, at 4/5 of the speed, 13/5 are lost.
		{"rx, slowed, delay 1", rx(), slowed, plan.Limits{MaxDelay: 1, MaxStaleness: 1, MinUpdateRate: 1}, 29.6,
			"lane compute computes all the time, slower while the links transfer"},
		// 13 bytes at 3 are 39 an update.
		{"rx, slow, delay 1", rx(), links([2]float64{2, 3}), plan.Limits{MaxDelay: 1, MaxStaleness: 1, MinUpdateRate: 1}, 39,
			"the links transfer all the time"},
		// At delay 4 and rate 1/3 transfers of 117 may go on all the time.
		{"rx, slower, delay 4", rx(), links([2]float64{2, 9}), plan.DelayLimits(4), 39,
			"the links transfer all the time at an update rate of at least 0.333"},
		// Generations of three iterations, staleness 2, are read by the next: 130 + 2·27
		// in three. Those of two leave a reach of two: 130 in two. In a reach of three
		// generations of at most two follow each other without a gap: 117 in two.
		{"rx, slower, staleness 2", rx(), links([2]float64{2, 9}), plan.Limits{MaxDelay: 2, MaxStaleness: 2, MinUpdateRate: 0.1}, 58.5,
			"no gradient up to t4 is ready earlier, and at a delay of at most 2 and a staleness of at most 2 no layer from t4 on can start before they are reduced"},
		// All bytes, from 8 on: 8 + 117 + 1 + 4 = 130 in two iterations; with a third
		// that only computes, every third updates: 157/3. Nothing less keeps the staleness.
		{"rx, slower, delay 1", rx(), links([2]float64{2, 9}), plan.DelayLimits(1), 157. / 3,
			"no gradient up to t4 is ready earlier, and at a delay of at most 1 and an update rate of at least 0.333 no layer from t4 on can start before they are reduced"},
		{"rx, any", rx(), links([2]float64{2, 9}), plan.AnyLimits, 27,
			"lane compute, and what it waits for, computes all the time"},
		// A byte, ready after the backward pass: 2 + 4 + alpha 100 + 1 = 107 from an
		// iteration's start to one that reads the update.
		{"start-up", one(2, 4, 1), links([2]float64{100, 1}), plan.DefaultLimits, 107,
			"no gradient up to t1 is ready earlier, and no layer from t1 on can start before they are reduced"},
		{"start-up, delay 1", one(2, 4, 1), links([2]float64{100, 1}), plan.Limits{MaxDelay: 1, MaxStaleness: 1, MinUpdateRate: 1}, 53.5,
			"no gradient up to t1 is ready earlier, and at a delay of at most 1 no layer from t1 on can start before they are reduced"},
		// In two iterations one update, delay 0: 107 and 6.
		{"start-up, rate 1/2", one(2, 4, 1), links([2]float64{100, 1}), plan.Limits{MaxStaleness: 1, MinUpdateRate: 0.5}, 56.5,
			"no gradient up to t1 is ready earlier, and at an update rate of at least 0.5 no layer from t1 on can start before they are reduced"},
		// Delay 1, staleness 2: of three iterations two await an update, 107 and 6.
		{"start-up, delay 1, rate 1/2", one(2, 4, 1), links([2]float64{100, 1}), plan.Limits{MaxDelay: 1, MaxStaleness: 2, MinUpdateRate: 0.5}, 113. / 3,
			"no gradient up to t1 is ready earlier, and at a delay of at most 1 and an update rate of at least 0.5 no layer from t1 on can start before they are reduced"},
		// 40 bytes over a link that ends 1 before the end and one that ends 3 before
		// it, 1 each: t-1 + t-3 = 40. The smallest start-up alone would give 21.
		{"two links", one(2, 4, 40), links([2]float64{2, 1}, [2]float64{6, 1}), plan.DefaultLimits, 2 + 4 + 22,
			"no gradient up to t1 is ready earlier, and no layer from t1 on can start before they are reduced"},
		// The second link's start-up is longer than the first takes: 3 + 1 = 4.
		{"a link too slow", one(2, 4, 3), links([2]float64{2, 1}, [2]float64{20, 1}), plan.DefaultLimits, 2 + 4 + 4,
			"no gradient up to t1 is ready earlier, and no layer from t1 on can start before they are reduced"},
		// Two links on one wire are no faster than one.
		{"a shared medium", one(2, 4, 41), shared, plan.DefaultLimits, 2 + 4 + 42,
			"no gradient up to t1 is ready earlier, and no layer from t1 on can start before they are reduced"},
	} {
		b, err := bound.Within(x.job, x.cluster, x.limits)
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		if math.Abs(b.Time-x.want) > 1e-9 || b.Why != x.why {
			t.Errorf("%s: %v us, %s; want %v, %s", x.name, b.Time, b.Why, x.want, x.why)
		}
	}
}

// Reduce-scatters and all-gathers of many slices hide each other's start-ups,
// but for the last: less than alpha + beta·bytes, which bounds all-reduces.
func TestPipelinedHalves(t *testing.T) {
	j := job.Chain("one", []float64{0}, []float64{1}, []int64{40}) // 10 elements
	c := links([2]float64{20, 1})
	p := plan.New(j, "halves", "a")
	p.Programs[0].Window = plan.Window{}
	for i := range 2 {
		p.Add(0, cluster.ReduceScatter, p.AddBucket(plan.Bucket{Slices: []plan.Slice{{Offset: int64(5 * i), Length: 5}}}), plan.Gate{})
	}
	for i := range 2 {
		p.Add(0, cluster.AllGather, i, plan.Gate{Kind: plan.TransferDone, Transfer: i})
	}
	if err := plan.Check(p, j, plan.DefaultLimits).Err(); err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(t.Context(), j, c, p, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := bound.Synchronous(j, c)
	if err != nil {
		t.Fatal(err)
	}
	// Wires 0-10, 10-20, 20-30, 30-40, the last complete at 50.
	if want := 51.0; r.Time != want || b.Time != want {
		t.Errorf("the plan takes %v us, the bound is %v; want %v", r.Time, b.Time, want)
	}
}

// A link that has no price for what reduces changes nothing; links that together
// have none for a whole reduction are an error that says what is missing.
func TestUnpriced(t *testing.T) {
	measured := func(k cluster.Kind) cluster.Link {
		return cluster.Link{Name: k.String(), Curve: []cluster.Point{{Kind: k, Bytes: 1000, Time: 3000}}}
	}
	c := links([2]float64{2, 1})
	c.Links = append(c.Links, measured(cluster.Push))
	if b, err := bound.Synchronous(rx(), c); err != nil || b.Time != 30 {
		t.Errorf("%v us, %v; want 30, as without the second link", b.Time, err)
	}
	for _, first := range []cluster.Kind{cluster.Push, cluster.ReduceScatter, cluster.AllGather} {
		c.Links[0] = measured(first)
		if b, err := bound.Synchronous(rx(), c); err == nil {
			t.Errorf("%v alone: %v us", first, b.Time)
		} else if _, ok := errors.AsType[*cluster.UnpricedError](err); !ok {
			t.Errorf("%v alone: %v", first, err)
		}
	}
	// Halves on different links, at 3 us a byte: t4 is ready at 8, 13 bytes scatter
	// in 39, one is gathered behind them in 3, and t4's layer takes 4.
	c.Links[0], c.Links[1] = measured(cluster.ReduceScatter), measured(cluster.AllGather)
	if b, err := bound.Synchronous(rx(), c); err != nil || b.Time != 54 {
		t.Errorf("halves on different links: %v us, %v; want 54", b.Time, err)
	}
}

// A host op that launches a reader does not wait for the update that the reader
// waits for.
func TestHostReadersRunAhead(t *testing.T) {
	j := job.Chain("one", []float64{2}, []float64{4}, []int64{4})
	j.Lanes = append(j.Lanes, job.Lane{Name: "host", Kind: job.Host})
	launch := job.OpID(len(j.Ops))
	j.Ops = append(j.Ops, job.Op{Name: "launch", Lane: 1, Phase: job.Forward, Tensor: -1, Time: 50})
	j.Ops[0].Deps = append(j.Ops[0].Deps, launch)
	j.Tensors[0].Readers = append(j.Tensors[0].Readers, launch)
	if err := j.Validate(); err != nil {
		t.Fatal(err)
	}
	b, err := bound.Synchronous(j, links([2]float64{60, 1}))
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 + 4 + 60 + 4.0; b.Time != want { // not 50 more
		t.Errorf("%v us, want %v", b.Time, want)
	}
}
