package bound_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"weft/bound"
	"weft/cluster"
	"weft/internal/permutation"
	"weft/internal/random"
	"weft/job"
	"weft/plan"
	"weft/sim"

	"pgregory.net/rapid"
)

// graph builds a job on one device lane: forward ops f1..fn in a chain, each
// reading a tensor, then backward ops with the given deps among themselves, then
// an update op for each tensor.
type backward struct {
	time   float64
	deps   []int // positions among the backward ops
	tensor int   // whose gradient it makes; -1: none
}

func graph(fwd []float64, bytes []int64, ops []backward) *job.Job {
	j := &job.Job{Name: "graph", Lanes: []job.Lane{{Name: "compute", Kind: job.Device}}}
	n := job.OpID(len(fwd))
	for i, t := range fwd {
		o := job.Op{Name: fmt.Sprint("f", i+1), Phase: job.Forward, Time: t, Tensor: -1}
		if i > 0 {
			o.Deps = []job.OpID{job.OpID(i - 1)}
		}
		j.Ops = append(j.Ops, o)
		j.Tensors = append(j.Tensors, job.Tensor{Name: fmt.Sprint("t", i+1), Elements: bytes[i], Param: job.Uint8, Grad: job.Uint8, Readers: []job.OpID{job.OpID(i)}})
	}
	for i, b := range ops {
		o := job.Op{Name: fmt.Sprint("b", i+1), Phase: job.Backward, Time: b.time, Tensor: -1, Deps: []job.OpID{n - 1}}
		for _, d := range b.deps {
			o.Deps = append(o.Deps, n+job.OpID(d))
		}
		if b.tensor >= 0 {
			t := &j.Tensors[b.tensor]
			t.Producers = append(t.Producers, job.OpID(len(j.Ops)))
		}
		j.Ops = append(j.Ops, o)
	}
	for k := range j.Tensors {
		t := &j.Tensors[k]
		t.Updaters = []job.OpID{job.OpID(len(j.Ops))}
		j.Ops = append(j.Ops, job.Op{Name: fmt.Sprint("u", k+1), Phase: job.Update, Tensor: -1, Deps: t.Producers})
	}
	return j
}

// serial is a cluster whose all-reduce of S bytes takes alpha + beta·S.
func serial(alpha, beta float64) *cluster.Cluster {
	return cluster.Uniform(2, 1, cluster.Link{Name: "net", Bandwidth: 8e6 / beta, Curve: []cluster.Point{
		{Kind: cluster.AllReduce, Bytes: 1, Time: alpha + beta}, {Kind: cluster.AllReduce, Bytes: 2, Time: alpha + 2*beta},
		{Kind: cluster.ReduceScatter, Bytes: 1, Time: (alpha + beta) / 2}, {Kind: cluster.ReduceScatter, Bytes: 2, Time: alpha/2 + beta},
		{Kind: cluster.AllGather, Bytes: 1, Time: (alpha + beta) / 2}, {Kind: cluster.AllGather, Bytes: 2, Time: alpha/2 + beta},
	}})
}

// The weight gradient of the last layer may be deferred past the input gradient
// that the first layer waits for: Ig2, Wg2, Wg1 of time 1, Wg1 after Ig2, c =
// (3, 1), f = (1, 1). As recorded, Wg2 Ig2 Wg1, gradient 1 is ready last: F + B +
// c_1 = 2 + 3 + 3 = 8. In any order only Ig2 and Wg1 must precede it: 2 + 2 + 3 = 7,
// and the order Ig2 Wg1 Wg2 attains that.
func TestDeferredWeightGradient(t *testing.T) {
	j := graph([]float64{1, 1}, []int64{3, 1}, []backward{{1, nil, 1}, {1, nil, -1}, {1, []int{1}, 0}})
	c := serial(0, 1)
	recorded, err := bound.Synchronous(j, c)
	if err != nil {
		t.Fatal(err)
	}
	free, err := bound.Reordered(j, c)
	if err != nil {
		t.Fatal(err)
	}
	if recorded.Time != 8 || free.Time != 7 {
		t.Errorf("bounds %v as recorded, %v in any order; want 8, 7", recorded.Time, free.Time)
	}
	if best := fastest(t, j, c); best != 7 {
		t.Errorf("the best of all orders takes %v, want 7", best)
	}
}

// Two branches without order between them, and a join: the recorded chain of
// sums does not follow dependencies, the set of what must precede does. b3 (of
// time 1) needs b1 (5) and b2 (3), which need nothing of each other: A = 9.
func TestSumsOfBranches(t *testing.T) {
	j := graph([]float64{1}, []int64{2}, []backward{{5, nil, -1}, {3, nil, -1}, {1, []int{0, 1}, 0}, {7, nil, -1}})
	b, err := bound.Reordered(j, serial(0, 10))
	if err != nil || b.Time != 1+9+20 {
		t.Errorf("%v, %v, want 30", b, err)
	}
}

// fastest simulates every order of every stretch with every order of whole
// transfers, updates at the first read.
func fastest(t interface{ Fatal(...any) }, j *job.Job, c *cluster.Cluster) float64 {
	best := math.Inf(1)
	tensors := make([]job.TensorID, len(j.Tensors))
	for k := range tensors {
		tensors[k] = job.TensorID(k)
	}
	for order := range orders(j) {
		for perm := range permutation.All(tensors) {
			p := plan.New(j, "test", c.Links[0].Name)
			p.Order, p.Ops = order, j.OpsFingerprint()
			p.Updates[0].At = plan.AtRead
			for _, k := range perm {
				p.AllReduce(0, plan.WholeTensors(j, k))
			}
			if !plan.Check(p, j, plan.DefaultLimits).OK() {
				continue
			}
			r, err := sim.Run(context.Background(), j, c, p, sim.Options{Iterations: 8})
			if err != nil {
				t.Fatal(err)
			}
			best = min(best, r.Time)
		}
	}
	return best
}

// orders yields every order of the lanes that permutes their stretches.
func orders(j *job.Job) func(yield func([][]job.OpID) bool) {
	stretch := bound.Stretches(j)
	type run struct {
		lane job.LaneID
		ops  []job.OpID
	}
	var runs []run
	at := map[int32]int{}
	for o := range j.Ops {
		s := int32(-1 - o)
		if stretch != nil {
			s = stretch[o]
		}
		i, ok := at[s]
		if !ok {
			i = len(runs)
			at[s] = i
			runs = append(runs, run{lane: j.Ops[o].Lane})
		}
		runs[i].ops = append(runs[i].ops, job.OpID(o))
	}
	return func(yield func([][]job.OpID) bool) {
		order := make([][]job.OpID, len(j.Lanes))
		var from func(i int) bool
		from = func(i int) bool {
			if i == len(runs) {
				out := make([][]job.OpID, len(order))
				for l := range order {
					out[l] = slices.Clone(order[l])
				}
				return yield(out)
			}
			l := runs[i].lane
			n := len(order[l])
			for perm := range permutation.All(runs[i].ops) {
				if !topological(j, perm) {
					continue
				}
				order[l] = append(order[l][:n], perm...)
				if !from(i + 1) {
					return false
				}
			}
			order[l] = order[l][:n]
			return true
		}
		from(0)
	}
}

// topological reports whether no op of the list needs a later one.
func topological(j *job.Job, ops []job.OpID) bool {
	for i, o := range ops {
		for _, d := range j.Ops[o].Deps {
			if slices.Contains(ops[i:], d) {
				return false
			}
		}
	}
	return true
}

// No order of the ops and of the transfers of small graphs comes out below.
func TestReorderedHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3).Draw(t, "tensors")
		var fwd []float64
		var bytes []int64
		for range n {
			fwd = append(fwd, float64(rapid.IntRange(0, 9).Draw(t, "forward")))
			bytes = append(bytes, int64(rapid.IntRange(1, 9).Draw(t, "bytes")))
		}
		var ops []backward
		for i := range rapid.IntRange(n, 5).Draw(t, "ops") {
			b := backward{time: float64(rapid.IntRange(0, 9).Draw(t, "time")), tensor: -1}
			if i < n {
				b.tensor = i
			}
			ops = append(ops, b)
		}
		ops = rapid.Permutation(ops).Draw(t, "recorded")
		for i := range ops {
			for d := range i {
				if rapid.IntRange(0, 2).Draw(t, "dep") == 0 {
					ops[i].deps = append(ops[i].deps, d)
				}
			}
		}
		j := graph(fwd, bytes, ops)
		if rapid.IntRange(0, 3).Draw(t, "lanes") == 0 { // the last backward op computes elsewhere
			o := n + len(ops) - 1
			j.Lanes = append(j.Lanes, job.Lane{Name: "other", Kind: job.Device})
			j.Ops[o].Lane = 1
			for k := range j.Tensors {
				u := &j.Ops[j.Tensors[k].Updaters[0]]
				u.Deps = slices.Compact(append(slices.Clone(u.Deps), job.OpID(o)))
			}
		}
		c := serial(float64(rapid.IntRange(0, 3).Draw(t, "alpha")), 1)
		b, err := bound.Reordered(j, c)
		if err != nil {
			t.Fatal(err)
		}
		if best := fastest(t, j, c); best < b.Time-1e-6 {
			t.Fatalf("an order takes %v, below the bound of %v (%s)", best, b.Time, b.Why)
		}
		s, err := bound.Synchronous(j, c)
		if err != nil || b.Time > s.Time+1e-6 {
			t.Fatalf("%v in any order, %v as recorded (%v)", b.Time, s.Time, err)
		}
	})
}

// Where no op may change places the bounds agree.
func TestReorderedOfFixedOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, c := random.Job(t), random.Cluster(t) // recorded
		a, err := bound.Synchronous(j, c)
		if err != nil {
			t.Fatal(err)
		}
		b, err := bound.Reordered(j, c)
		if err != nil || a != b {
			t.Fatalf("%v and %v (%v)", a, b, err)
		}
	})
}
