package deft

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// log writes a solution as the table of section 13.10: a line an iteration,
// buckets named from 1 next to the input.
func (s *solution) log(buckets, iterations int) string {
	var b strings.Builder
	for t := range min(iterations, len(s.Cases)) {
		fmt.Fprintf(&b, "%d %c:", t, s.Cases[t])
		for _, back := range []bool{false, true} {
			for _, x := range s.Sends {
				if x.Iteration == t && x.Backward == back {
					fmt.Fprintf(&b, " %s%d.%d", []string{"", "slow "}[x.Link], x.Generation, buckets-x.Bucket)
				}
			}
			if !back {
				b.WriteString(" |")
			}
		}
		for g, x := range s.Generations {
			if x.Applied == t {
				fmt.Fprintf(&b, "; apply %d", g)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// unbound leaves the queues to themselves, as section 13.4 has them.
var unbound = rule{Delay: mostDelay}

func solve(t rapid.TB, p problem, r rule) *solution {
	t.Helper()
	x, err := newSolver(p, newWork())
	if err != nil {
		t.Fatal(err)
	}
	s, err := x.solve(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Section 13.10: RX on one link. In iteration t the forward pass sends buckets
// 3, 2 of the generation before (5 + 4 = 9 = F); the backward pass its bucket 1,
// then bucket 4 of its own generation (8 to 17, of 18).
func TestRX(t *testing.T) {
	s := solve(t, problem{Forward: 9, Backward: 18, Ready: []float64{8, 10, 14, 18}, Cost: [][]float64{{9, 5, 4, 3}}}, unbound)
	want := "0 A: | 0.4\n" +
		"1 B: 0.3 0.2 | 0.1 1.4; apply 0\n"
	if got := s.log(4, 2); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if s.Period != 1 || s.Updates != 1 {
		t.Errorf("K = %d, J = %d, want 1 and 1", s.Period, s.Updates)
	}
}

// above is the second example of section 13.10: coverage rate 7/6.
var above = problem{Forward: 4, Backward: 8, Ready: []float64{2, 4, 6, 8}, Cost: [][]float64{{4, 3, 4, 3}}}

// The table of section 13.10, row by row.
func TestCoverageAboveOne(t *testing.T) {
	s := solve(t, above, unbound)
	want := "0 A: | 0.4\n" +
		"1 B: 0.2 | 0.3 0.1; apply 0\n" +
		"2 C: 1.4 | 1.3 1.2\n" +
		"3 A: 1.1 | 2.4; apply 1\n" +
		"4 B: 2.2 | 2.3 2.1; apply 2\n"
	if got := s.log(4, 5); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	want2 := []generation{{0, 1, 1}, {1, 1, 3}, {2, 2, 4}}
	if !slices.Equal(s.Generations[:3], want2) {
		t.Errorf("generations %v, want %v", s.Generations[:3], want2)
	}
	if s.Period != 3 || s.Updates != 2 {
		t.Errorf("K = %d, J = %d, want 3 and 2", s.Period, s.Updates)
	}
}

// With a second link of half the speed each iteration from the third on sends 4
// in forward, 3 and 2 on the fast link and 1 on the slow one in backward: case B.
func TestSecondLink(t *testing.T) {
	p := above
	p.Cost = [][]float64{p.Cost[0], {8, 6, 8, 6}}
	s := solve(t, p, unbound)
	lines := strings.SplitAfter(s.log(4, 1000), "\n")
	for at := s.Prologue; at < len(s.Cases); at++ {
		g := at - 1
		want := fmt.Sprintf("%d B: %[2]d.4 | %[2]d.3 %[2]d.2 slow %[2]d.1; apply %[2]d\n", at, g)
		if lines[at] != want {
			t.Errorf("got %swant %s", lines[at], want)
		}
	}
	if s.Period != 1 || s.Updates != 1 || s.Prologue > 3 {
		t.Errorf("K = %d, J = %d after %d, want 1 and 1 after at most 3", s.Period, s.Updates, s.Prologue)
	}
}

// A bucket of 5003 us spans passes of 997 and 2003 us, and would end elsewhere in
// them each time: K·3000 = J·5003 would take 5003 iterations. So the queues are
// emptied, and computation waits for the last: less than 5003 us in a period.
func TestRests(t *testing.T) {
	s := solve(t, problem{Forward: 997, Backward: 2003, Ready: []float64{2003}, Cost: [][]float64{{5003}}}, unbound)
	if most := (3000*float64(s.Period) + s.Overrun) / 5003; !s.Rested || !s.Spans || s.Period > restAfter+3 || s.rate() < 0.5 || float64(s.Updates) > most || s.Overrun > 5003 {
		t.Errorf("rested %v, spans %v, K = %d, J = %d, %v us of overrun; want J of K/2 to %v", s.Rested, s.Spans, s.Period, s.Updates, s.Overrun, most)
	}
	last := s.period()[s.Updates-1]
	if first := s.period()[0]; first.Applied+s.Period < last.Applied {
		t.Errorf("generations %v of a period of %d are not applied in order", s.period(), s.Period)
	}
}

// Coverage 2, one bucket that is ready at once: C = 6 beside F = 1 and B = 2. A
// generation of one iteration, due in the next, has 2 + 1 + 2 to send in before
// that one ends, and the link is never idle: T = C. Of two iterations the link has
// the same 5, and computation waits for 1 in 2·3: T = 3.5. Of three it waits for
// 1 in 3·3. With a delay of 2 and two iterations nothing waits.
func TestDue(t *testing.T) {
	p := problem{Forward: 1, Backward: 2, Ready: []float64{0, 0, 0}, Cost: [][]float64{{2, 2, 2}}}
	for _, x := range []struct {
		rule rule
		time float64
		rate float64
	}{
		{rule{0, 1}, 1 + 6, 1}, {rule{1, 1}, 6, 1}, {rule{1, 2}, 3.5, 0.5}, {rule{1, 3}, 10.0 / 3, 1.0 / 3}, {rule{2, 2}, 3, 0.5},
	} {
		s := solve(t, p, x.rule)
		if !near(s.Time, x.time, 1e-9) || s.rate() != x.rate {
			t.Errorf("%+v: %v us at rate %v, want %v at %v\n%s", x.rule, s.Time, s.rate(), x.time, x.rate, s.log(3, 12))
		}
		if delay, _ := s.delay(); delay > x.rule.Delay {
			t.Errorf("%+v: a delay of %d", x.rule, delay)
		}
	}
}

// brute is the best packing among all (links + 1)^n, with section 13.5's ties.
func brute(items []item, free []int, capacity int) (value int, set []bool, slow int) {
	n := len(items)
	value = -1
	x, take := slices.Clone(free), make([]bool, n)
	var walk func(i, v int)
	walk = func(i, v int) {
		if i == n {
			load := 0
			for _, y := range x[1:] {
				load += y
			}
			c := cmp.Compare(v, value)
			if c == 0 { // the set that is first in dispatch order
				for k := 0; k < n && c == 0; k++ {
					if take[k] != set[k] {
						c = map[bool]int{true: 1, false: -1}[take[k]]
					}
				}
			}
			if c > 0 || c == 0 && load < slow {
				value, set, slow = v, slices.Clone(take), load
			}
			return
		}
		walk(i+1, v)
		for l := range x {
			was := x[l]
			if x[l] = max(items[i].ready, x[l]) + items[i].weight[l]; x[l] <= capacity {
				take[i] = true
				walk(i+1, v+items[i].value)
				take[i] = false
			}
			x[l] = was
		}
	}
	walk(0, 0)
	return value, set, slow
}

func TestPackingEqualsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		links := rapid.IntRange(1, 3).Draw(t, "links")
		n := rapid.IntRange(1, []int{0, 10, 8, 6}[links]).Draw(t, "buckets")
		capacity := rapid.IntRange(0, 60).Draw(t, "capacity")
		largest := rapid.IntRange(1, 40).Draw(t, "largest")
		fresh, proportional := rapid.Bool().Draw(t, "fresh"), rapid.Bool().Draw(t, "proportional")
		items, free := make([]item, n), make([]int, links)
		ready := 0
		for i := range items {
			for l := range links {
				w := rapid.IntRange(0, largest).Draw(t, "weight")
				if l > 0 && proportional {
					w = items[i].weight[0] * (l + 1)
				}
				items[i].weight = append(items[i].weight, w)
			}
			items[i].value = items[i].weight[0]
			if fresh {
				ready += rapid.IntRange(0, 10).Draw(t, "backward")
				items[i].ready = ready
			}
		}
		for l := range free {
			free[l] = rapid.IntRange(0, capacity).Draw(t, "free")
		}
		value, set, slow := brute(items, free, capacity)
		p := packer{work: newWork()}
		got := p.pack(items, free, capacity)
		x, total, load := slices.Clone(free), 0, 0
		for i, l := range got.link {
			if (l != none) != set[i] {
				t.Fatalf("links %v, want the set %v of value %d", got.link, set, value)
			}
			if l == none {
				continue
			}
			if x[l] = max(items[i].ready, x[l]) + items[i].weight[l]; x[l] > capacity {
				t.Fatalf("links %v: bucket %d ends at %d, the window at %d", got.link, i, x[l], capacity)
			}
			total += items[i].value
		}
		for _, y := range x[1:] {
			load += y
		}
		var start state
		for l := range free {
			start.x[l] = int32(free[l])
		}
		// What decides when the search does not, by itself.
		p.bounds(&start)
		if all := p.exhaust(start, 0); all.value != value || !all.exact {
			t.Fatalf("dynamic programming: value %d, exact %v, want %d", all.value, all.exact, value)
		} else {
			for i, l := range all.link {
				if (l != none) != set[i] {
					t.Fatalf("dynamic programming: links %v, want the set %v", all.link, set)
				}
			}
		}
		if total != value || got.value != value || !fresh && load != slow || !got.exact {
			t.Fatalf("links %v: value %d (says %d, exact %v), slow links %d; want %d, %d", got.link, total, got.value, got.exact, load, value, slow)
		}
	})
}

// many draws a problem of n buckets on the given number of links, of the given
// coverage rate; the second link is mu times slower.
func many(seed uint64, n, links int, coverage, mu float64) problem {
	r := rand.New(rand.NewPCG(seed, 1))
	p := problem{Forward: 100_000, Backward: 200_000}
	at, c := 0.0, make([]float64, n)
	sum, back := 0.0, make([]float64, n)
	for i := range n {
		c[i], back[i] = r.ExpFloat64()+0.1, r.Float64()+0.1
		sum += c[i]
		at += back[i]
	}
	now := 0.0
	for i := range n {
		now += back[i] / at * p.Backward
		p.Ready = append(p.Ready, min(now, p.Backward))
		c[i] = min(c[i]*coverage*(p.Forward+p.Backward)/sum, p.Forward)
	}
	f := 1.0
	for range links {
		row := make([]float64, n)
		for i := range row {
			row[i] = c[i] * f
		}
		p.Cost = append(p.Cost, row)
		f *= mu
	}
	return p
}

func BenchmarkSolve(b *testing.B) {
	for _, n := range []int{50, 200} {
		for _, coverage := range []float64{0.9, 1.4, 2.3} {
			b.Run(fmt.Sprintf("buckets=%d/coverage=%v", n, coverage), func(b *testing.B) {
				b.ReportAllocs()
				inexact, windows, gap, seed := 0, 0, 0.0, uint64(0)
				for b.Loop() {
					seed++
					s := solve(b, many(seed, n, 2, coverage, 1.7), unbound)
					inexact, windows, gap = inexact+s.Inexact, windows+2*len(s.Cases), gap+s.Gap/200_000
				}
				b.ReportMetric(float64(inexact)/float64(windows), "inexact/window")
				b.ReportMetric(100*gap/float64(b.N), "gap-%")
				b.ReportMetric(float64(windows)/2/float64(b.N), "iterations")
			})
		}
	}
}
