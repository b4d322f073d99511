package plan

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft/job"
)

// memoryJob has a forward op that keeps 10 bytes for the backward pass of its
// own layer, one that keeps 20, and gradients of activations of 5 and 7.
//
//	op      f1  f2  b2  b1  u
//	output  10  20   5   7  0
//	needs       f1  f2  b2
//	                f1  f1
func memoryJob() *job.Job {
	j := job.Chain("memory", []float64{1, 1}, []float64{1, 1}, []int64{8, 4})
	for o, bytes := range []int64{10, 20, 5, 7} {
		j.Ops[o].Output = bytes
	}
	j.Ops[2].Deps = []job.OpID{0, 1} // b2 needs f2, and f1, its input
	j.Ops[3].Deps = []job.OpID{2, 0}
	j.Optimizer = 24
	return j
}

// In memory are during f1: 10; f2: 10 + 20; b2: 10 + 20 + 5; b1: 10 + 5 + 7.
func TestMemoryOf(t *testing.T) {
	j := memoryJob()
	p := New(j, "test", "net")
	want := Memory{Weights: 12, Optimizer: 24, Activations: 35, Gradients: 12}
	if got := MemoryOf(p, j); got != want || got.Total() != 83 {
		t.Errorf("got %+v, want %+v, 83 in all", got, want)
	}
	p.Buffers, p.Copies = 3, true
	if got := MemoryOf(p, j); got.Gradients != 4*12 {
		t.Errorf("three buffers and the buckets take %d, want 48", got.Gradients)
	}
	for o := range j.Ops {
		j.Ops[o].Output = 0
	}
	want = Memory{Weights: 12, Optimizer: 24, Gradients: 48, Partial: true}
	if got := MemoryOf(p, j); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// b2 runs while f1 is kept for b1, f2 for itself, whatever the order: 10 + 20 + 5.
// f3, which nobody needs any more, is not there in some order.
func TestLeastMemory(t *testing.T) {
	j := memoryJob()
	j.Ops = append(j.Ops, job.Op{Name: "f3", Phase: job.Forward, Tensor: -1, Output: 100})
	want := Memory{Weights: 12, Optimizer: 24, Activations: 35, Gradients: 12, Least: true}
	if got := LeastMemory(j); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := LeastMemory(j).Within(82); err == nil || !strings.Contains(err.Error(), "it needs at least 0.1 MB") {
		t.Error(err)
	}
	j.Ops = j.Ops[:2] // no backward op
	if got := LeastMemory(j).Activations; got != 0 {
		t.Errorf("%d, want 0", got)
	}
}

// Two branches a and b of 10 and 1 bytes, each with a successor that needs
// nothing else and leaves nothing: in the recorded order a, b, a', b' 11 bytes
// are there at once, one branch after the other 10.
func TestMemoryOfOrder(t *testing.T) {
	j := job.Chain("order", []float64{1, 1}, []float64{1, 1}, []int64{8, 4})
	j.Ops[1].Deps, j.Ops[2].Deps, j.Ops[3].Deps = nil, []job.OpID{0}, []job.OpID{1}
	j.Ops[0].Output, j.Ops[1].Output = 10, 1
	p := New(j, "test", "net")
	if got := MemoryOf(p, j).Activations; got != 11 {
		t.Errorf("recorded order: %d, want 11", got)
	}
	p.Order = [][]job.OpID{{0, 2, 1, 3, 4, 5}}
	if got := MemoryOf(p, j).Activations; got != 10 {
		t.Errorf("branch after branch: %d, want 10", got)
	}
}

// TestActivations looks at each op of a random order of random jobs, on up to
// three lanes, and adds up what is in memory while it runs.
func TestActivations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "ops")
		j := &job.Job{Lanes: []job.Lane{{Name: "a", Kind: job.Device}, {Name: "b", Kind: job.Device}, {Name: "c", Kind: job.Device}}}
		for o := range n {
			x := job.Op{Lane: rapid.Int32Range(0, 2).Draw(t, "lane"), Output: rapid.Int64Range(0, 9).Draw(t, "output")}
			for d := range o {
				if rapid.IntRange(0, 3).Draw(t, "dep") == 0 {
					x.Deps = append(x.Deps, job.OpID(d))
				}
			}
			j.Ops = append(j.Ops, x)
		}
		ops := sequence(j, nil)
		at := make([]int, n)
		for i, o := range ops {
			at[o] = i
		}
		if sorted := slices.Sorted(slices.Values(ops)); len(slices.Compact(sorted)) != n {
			t.Fatalf("%v are not all ops, each once", ops)
		}
		for o := range j.Ops {
			for d := range j.Ops {
				if (slices.Contains(j.Ops[o].Deps, job.OpID(d)) || d < o && j.Ops[d].Lane == j.Ops[o].Lane) && at[d] > at[o] {
					t.Fatalf("%v: op %d after op %d", ops, d, o)
				}
			}
		}
		var most int64
		for now := range ops {
			var sum int64
			for o := range j.Ops {
				end := at[o]
				for v := range j.Ops {
					if slices.Contains(j.Ops[v].Deps, job.OpID(o)) {
						end = max(end, at[v])
					}
				}
				if at[o] <= now && now <= end {
					sum += j.Ops[o].Output
				}
			}
			most = max(most, sum)
		}
		if got := activations(j, ops); got != most {
			t.Errorf("%d, want %d", got, most)
		}
		// Any order that the dependencies allow takes at least what is there
		// across each op.
		var order []job.OpID
		for len(order) < n {
			var ready []job.OpID
			for o := range j.Ops {
				done := func(d job.OpID) bool { return slices.Contains(order, d) }
				if !done(job.OpID(o)) && !slices.ContainsFunc(j.Ops[o].Deps, func(d job.OpID) bool { return !done(d) }) {
					ready = append(ready, job.OpID(o))
				}
			}
			order = append(order, rapid.SampledFrom(ready).Draw(t, "next"))
		}
		for v := range j.Ops {
			if least, got := across(j, v), activations(j, order); least > got || least < j.Ops[v].Output {
				t.Errorf("at least %d while op %d runs, but order %v takes %d", least, v, order, got)
			}
		}
	})
}

func TestWithin(t *testing.T) {
	m := Memory{Weights: 27e9, Optimizer: 54e9, Activations: 5_432_100_000, Gradients: 27e9}
	if err := m.Within(m.Total()); err != nil {
		t.Error(err)
	}
	err := m.Within(32e9)
	if e, ok := errors.AsType[*MemoryError](err); !ok || e.Limit != 32e9 || e.Need != m {
		t.Errorf("%#v", err)
	}
	for _, c := range []struct {
		m     Memory
		limit int64
		want  string
	}{
		{m, 32e9, "it needs 113.5 GB of memory, 81.5 GB more than the limit of 32 GB: weights 27 GB, optimizer 54 GB, gradients 27 GB, activations 5.5 GB"},
		{Memory{Weights: 4e6, Gradients: 4e6, Partial: true}, 5e6, "it needs at least 8 MB of memory, 3 MB more than the limit of 5 MB: weights 4 MB, optimizer 0 MB, gradients 4 MB; activations are unknown"},
	} {
		if err := c.m.Within(c.limit); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

// Sizes that do not fit into 64 bits are the largest that do.
func TestMemoryOfHuge(t *testing.T) {
	j := memoryJob()
	j.Tensors[0].Elements = math.MaxInt64 / 8
	p := New(j, "test", "net")
	p.Buffers = 1 << 16
	if got := MemoryOf(p, j); got.Gradients != math.MaxInt64 || got.Total() != math.MaxInt64 {
		t.Errorf("%+v", got)
	}
	if err := MemoryOf(p, j).Within(1 << 40); err == nil {
		t.Error("it fits")
	}
}
