package server

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"weft/internal/permutation"

	"pgregory.net/rapid"
)

// graph makes a worker of receives of the given times, and of ops: each the
// receives that it depends on, and its time.
func graph(receives []float64, ops ...op) *worker {
	w := newWorker(receives)
	for _, o := range ops {
		on := newSet(len(receives))
		for _, r := range o.on {
			on.add(r)
		}
		w.needs[w.need(on)].time += o.time
	}
	return w
}

type op struct {
	on   []int
	time float64
}

// makespan is when one lane ends that gets its receives in the given order:
// max over k of A_k, the arrival of the k-th, plus all computation whose last
// receive is the k-th or a later one (section 8.2).
func (w *worker) makespan(order []int) float64 {
	last := make([]float64, len(order)+1)
	for _, n := range w.needs {
		at := 0
		for k, r := range order {
			if n.on.has(r) {
				at = k + 1
			}
		}
		last[at] += n.time
	}
	arrival, rest := 0.0, 0.0
	for _, x := range last {
		rest += x
	}
	end := rest
	for k, r := range order {
		arrival += w.time[r]
		rest -= last[k]
		end = max(end, arrival+rest)
	}
	return end
}

// best is the least makespan of all orders.
func (w *worker) best() float64 {
	least := math.Inf(1)
	order := make([]int, len(w.time))
	for r := range order {
		order[r] = r
	}
	for x := range permutation.All(order) {
		least = min(least, w.makespan(x))
	}
	return least
}

// The example of section 8.2.
func TestTicTacExample(t *testing.T) {
	w := graph([]float64{1, 3, 2, 2}, op{[]int{0}, 4}, op{[]int{0, 1}, 2}, op{[]int{0, 1, 2}, 1}, op{[]int{0, 1, 2, 3}, 3})
	p := w.properties(w.time)
	p.impendAll()
	if want := []float64{4, 4, 6, 8}; !slices.Equal(p.plus, want) {
		t.Errorf("M+ = %v, want %v", p.plus, want)
	}
	if want := []float64{4, 0, 0, 0}; !slices.Equal(p.alone, want) {
		t.Errorf("P = %v, want %v", p.alone, want)
	}
	if order, _ := w.tac(); !slices.Equal(order, []int{0, 1, 2, 3}) {
		t.Errorf("TAC's order is %v", order)
	}
	p = w.properties([]float64{1, 1, 1, 1})
	p.impendAll()
	if want := []float64{2, 2, 3, 4}; !slices.Equal(p.plus, want) {
		t.Errorf("TIC's M+ = %v, want %v", p.plus, want)
	}
	if priority := w.tic(); !slices.Equal(priority, []int{0, 0, 2, 3}) {
		t.Errorf("TIC's priorities are %v", priority)
	}
}

// Here 0 < 3 < 2 < 0 by the comparison: receives 0..3 of times (1,1,1,2), of which 2
// and 3 block 1 each alone and 0 blocks 3.
//
//	0 against 3: min(P_3, M_0) = 1, min(P_0, M_3) = 2: 0 first
//	3 against 2: min(P_2, M_3) = 1, min(P_3, M_2) = 1; M+ = 3 against 4: 3 first
//	2 against 0: min(P_0, M_2) = 1, min(P_2, M_0) = 1; M+ = 4 against infinity: 2 first
//	1 has P = 0 and stands behind all three.
//
// Scanned by number: 0, then 2 beats it, then 3 beats 2. With 3 gone, op {1,3} blocks
// on 1 alone, P_1 = 1; {1,2,3} has M+ = 2. 0 against 1: 1, 1, and M+ infinite against 2: 1
// first; 2 against 1: 1, 1, and 2 against 2: not less. Then 2 has P = 2: against 0 both
// are min(3, 1) = 1, M+ infinite both: 0 stays.
func TestTacCycle(t *testing.T) {
	w := graph([]float64{1, 1, 1, 2}, op{[]int{2}, 1}, op{[]int{3}, 1}, op{[]int{1, 2, 3}, 1}, op{[]int{0}, 3}, op{[]int{1, 3}, 1})
	if order, whole := w.tac(); !slices.Equal(order, []int{3, 1, 0, 2}) || !whole {
		t.Errorf("order %v, whole %t; want [3 1 0 2]", order, whole)
	}
}

// P is 0 for receives 0 and 2 until one of them is chosen, so 1 goes first: 5 + 1 + 1 +
// 6 = 13. As 0, 2, 1: 2 + 6 + 1 = 9.
func TestTacException(t *testing.T) {
	w := graph([]float64{1, 5, 1}, op{[]int{0, 2}, 6}, op{[]int{1}, 1})
	order, _ := w.tac()
	if !slices.Equal(order, []int{1, 0, 2}) || w.makespan(order) != 13 || w.best() != 9 {
		t.Errorf("order %v takes %v, the best %v", order, w.makespan(order), w.best())
	}
}

// With up to two receives, or where each op needs one, TAC is Johnson's rule.
func TestTacIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Bool().Draw(t, "one each")
		n := rapid.IntRange(1, 2).Draw(t, "receives")
		if one {
			n = rapid.IntRange(1, 6).Draw(t, "receives")
		}
		receives := make([]float64, n)
		for r := range receives {
			receives[r] = float64(rapid.IntRange(0, 9).Draw(t, "receive"))
		}
		w := graph(receives)
		for range rapid.IntRange(0, 8).Draw(t, "ops") {
			on := newSet(n)
			if one {
				on.add(rapid.IntRange(0, n-1).Draw(t, "receive"))
			} else {
				on[0] = uint64(rapid.IntRange(0, 1<<n-1).Draw(t, "set"))
			}
			w.needs[w.need(on)].time += float64(rapid.IntRange(0, 9).Draw(t, "op"))
		}
		order, _ := w.tac()
		if got, want := w.makespan(order), w.best(); got != want {
			t.Fatalf("order %v takes %v, the best %v", order, got, want)
		}
	})
}

// The properties kept up to date are those computed by their definition (section
// 8.1) again and again, and so the order is.
func TestTacByDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := population(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), rapid.IntRange(1, 70).Draw(t, "receives"), 40)
		order, whole := w.tac()
		if want := defined(w); !slices.Equal(order, want) || !whole {
			t.Fatalf("order %v, whole %t; by definition %v", order, whole, want)
		}
	})
}

func defined(w *worker) (order []int) {
	left := map[int]bool{}
	for r := range w.time {
		left[r] = true
	}
	for len(left) > 0 {
		alone, plus := make([]float64, len(w.time)), slices.Repeat([]float64{math.Inf(1)}, len(w.time))
		for _, n := range w.needs {
			var on []int
			sum := 0.0
			for r := range w.time {
				if left[r] && n.on.has(r) {
					on = append(on, r)
					sum += w.time[r]
				}
			}
			for _, r := range on {
				if len(on) == 1 {
					alone[r] += n.time
				} else {
					plus[r] = min(plus[r], sum)
				}
			}
		}
		best := -1
		for r := range w.time {
			if !left[r] {
				continue
			}
			if best < 0 {
				best = r
				continue
			}
			a, b := min(alone[best], w.time[r]), min(alone[r], w.time[best])
			if a < b || a == b && plus[r] < plus[best] {
				best = r
			}
		}
		order = append(order, best)
		delete(left, best)
	}
	return order
}

// population draws a worker: receives of 1 to 20, and ops of 0 to 20 on the receives
// of up to two ops before them and up to two more.
func population(r *rand.Rand, receives, ops int) *worker {
	time := make([]float64, receives)
	for i := range time {
		time[i] = float64(1 + r.IntN(20))
	}
	w := newWorker(time)
	sets := []set{newSet(receives)}
	for range ops {
		on := newSet(receives)
		for range r.IntN(3) {
			for i, word := range sets[r.IntN(len(sets))] {
				on[i] |= word
			}
		}
		for range r.IntN(3) {
			on.add(r.IntN(receives))
		}
		sets = append(sets, on)
		w.needs[w.need(on)].time += float64(r.IntN(21))
	}
	return w
}

var instances = flag.Int("instances", 60, "of each size in TestTacMissRate")

// TestTacMissRate prints how often, and by how much, TAC misses the best order. The
// figures of docs/policies/tictac-tac.md are those of
//
//	go test ./policy/server -run TacMissRate -instances 5000 -v
func TestTacMissRate(t *testing.T) {
	for n := 3; n <= 7; n++ {
		r := rand.New(rand.NewPCG(1, uint64(n)))
		missed, worst := 0, 1.0
		for range *instances {
			w := population(r, n, 2*n)
			order, _ := w.tac()
			got, best := w.makespan(order), w.best()
			if got < best {
				t.Fatalf("order %v takes %v, less than the best, %v", order, got, best)
			}
			if got > best {
				missed++
				worst = max(worst, got/best)
			}
		}
		t.Logf("%d receives: missed %.1f %%, at worst %.2f times the best", n, 100*float64(missed)/float64(*instances), worst)
	}
}

// Work is bounded, and what is left follows by number.
func TestTacBrokenOff(t *testing.T) {
	w := population(rand.New(rand.NewPCG(1, 1)), 70, 200)
	whole, _ := w.tac()
	for _, limit := range []int64{0, 5000} {
		p := w.properties(w.time)
		order, ok := p.order(limit)
		if ok {
			t.Fatalf("not broken off at %d", limit)
		}
		if sorted := slices.Sorted(slices.Values(order)); len(sorted) != 70 || sorted[69] != 69 {
			t.Fatalf("%v is no permutation", order)
		}
		if limit == 5000 && !reflect.DeepEqual(order[:2], whole[:2]) {
			t.Errorf("begins with %v, the whole order with %v", order[:2], whole[:2])
		}
	}
}

// 1,000 receives and 100,000 ops.
func BenchmarkTicTac(b *testing.B) {
	for _, shape := range []struct {
		name string
		make func() *worker
	}{
		{"layers", func() *worker { return layers(1000, 100_000) }},
		{"random", func() *worker { return population(rand.New(rand.NewPCG(1, 1)), 1000, 100_000) }},
	} {
		w := shape.make()
		b.Run(fmt.Sprintf("tic/%s", shape.name), func(b *testing.B) {
			for b.Loop() {
				w.tic()
			}
		})
		b.Run(fmt.Sprintf("tac/%s", shape.name), func(b *testing.B) {
			whole := false
			for b.Loop() {
				_, whole = w.tac()
			}
			if !whole {
				b.Error("broken off")
			}
		})
	}
}

// layers is branches that join now and then: each op needs the receives of its
// branch so far.
func layers(receives, ops int) *worker {
	r := rand.New(rand.NewPCG(1, 1))
	time := make([]float64, receives)
	for i := range time {
		time[i] = float64(1 + r.IntN(1000))
	}
	w := newWorker(time)
	branches := make([]set, 8)
	for i := range branches {
		branches[i] = newSet(receives)
	}
	for i := range ops {
		on := slices.Clone(branches[i%8])
		if i*receives/ops != (i+1)*receives/ops {
			on.add(i * receives / ops)
		}
		if r.IntN(200) == 0 {
			for k, word := range branches[r.IntN(8)] {
				on[k] |= word
			}
		}
		branches[i%8] = on
		w.needs[w.need(on)].time += float64(r.IntN(1000))
	}
	return w
}
