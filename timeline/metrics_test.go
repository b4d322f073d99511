package timeline

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weft/job"
)

func about(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

func TestRX(t *testing.T) {
	m := rx().Metrics(0, 1)
	b := m.Mean
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"T", b.Iteration, 38},
		{"P", b.Computation, 4 + 4 + 2 + 8 + 2 + 2 + 1 + 4}, // 27
		{"M", b.Communication, 3 + 4 + 5 + 9},               // 21
		{"exposed", b.Exposed, 29 - 18},                     // 11 = T - P: the backward bound of RX
		{"hidden", b.Hidden(), 21 - 11},
		{"idle", b.Idle, 0},
		{"coverage", b.Coverage(), 21. / 27},
		{"UMin", b.UMin(), 27},
		{"E", b.Efficiency(), 10. / 21}, // (48 - 38)/(48 - 27)
		{"S", b.Speedup(), 21. / 27},    // (48 - 27)/27
	} {
		if !about(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, c.got, c.want)
		}
	}
	// bytes, ready, queued and transfer times are in the comment of rx; a byte a
	// microsecond is 8 Mbit/s.
	want := []TransferMetrics{
		{1, 0, "ar4", 1, 7, 8, 0, 9},
		{1, 1, "ar3", 1, 3, 10, 7, 5},
		{1, 2, "ar2", 1, 2, 14, 8, 4},
		{1, 3, "ar1", 1, 1, 18, 8, 3},
	}
	if !slices.Equal(m.Transfers, want) {
		t.Errorf("transfers:\n got %v\nwant %v", m.Transfers, want)
	}
	if got := m.Transfers[0].Bandwidth(); !about(got, 7./9*8e6) {
		t.Errorf("bandwidth of ar4: got %v, want 7 bytes in 9 us, 6.22e6 bit/s", got)
	}
}

func TestBreakdown(t *testing.T) {
	for _, c := range []struct {
		name           string
		b              Breakdown
		hidden, cr     float64
		efficiency, sp float64
	}{
		{"no overlap", Breakdown{Iteration: 30, Computation: 20, Communication: 10, Exposed: 10}, 0, 0.5, 0, 0.5},
		{"full overlap", Breakdown{Iteration: 20, Computation: 20, Communication: 10}, 10, 0.5, 1, 0.5},
		{"equal halves, full overlap", Breakdown{Iteration: 10, Computation: 10, Communication: 10}, 10, 1, 1, 1},
		{"idle for longer than was hidden", Breakdown{Iteration: 40, Computation: 20, Communication: 10, Exposed: 10, Idle: 10}, 0, 0.5, -1, 0.5},
		{"no communication", Breakdown{Iteration: 25, Computation: 20}, 0, 0, 1, 0},
		{"no computation", Breakdown{Iteration: 25, Communication: 20, Exposed: 25}, 0, 0, 1, 0},
		{"waits for peers longer than transfers take", Breakdown{Iteration: 50, Computation: 20, Communication: 10, Exposed: 30}, 0, 0.5, -2, 0.5},
		{"nothing", Breakdown{}, 0, 0, 1, 0},
	} {
		if got := []float64{c.b.Hidden(), c.b.Coverage(), c.b.Efficiency(), c.b.Speedup()}; !slices.EqualFunc(got, []float64{c.hidden, c.cr, c.efficiency, c.sp}, about) {
			t.Errorf("%s: hidden, coverage, E, S: got %v, want %v", c.name, got, []float64{c.hidden, c.cr, c.efficiency, c.sp})
		}
	}
}

// Two ranks over two iterations of 10 us, the first rank alone and the second
// for three. Device streams a and b compute at the same time; the host computes
// too, which is not computation of a job with devices.
func TestSeveralRanksAndLanes(t *testing.T) {
	span := func(rank, lane int32, kind SpanKind, iteration int32, start, end float64) Span {
		return Span{Rank: rank, Lane: lane, Kind: kind, Name: kind.String(), Iteration: iteration, Start: start, End: end, Bytes: 100, Bucket: 5}
	}
	tl := &Timeline{
		Ranks:      []Rank{{Rank: 2}, {Rank: 1, Stands: []int{3, 1, 0}}},
		Lanes:      []Lane{{"host", Host}, {"a", Device}, {"b", Device}, {"x", Link}, {"y", Link}},
		Iterations: []float64{0, 10, 20},
		Spans: []Span{
			span(0, 0, Compute, 0, 0, 20),
			span(0, 1, Compute, 0, 1, 5), // a and b: union 1 to 7
			span(0, 2, Compute, 0, 3, 7),
			span(0, 3, Transfer, 0, 4, 6), // x and y: union 4 to 9
			span(0, 4, Transfer, 0, 5, 9),
			span(0, 1, Wait, 0, 6, 9),       // a waits 6 to 9, b until 7 computes
			span(0, 1, Compute, 1, 18, 25),  // cut at 20: 2
			span(1, 1, Compute, 0, -5, 10),  // cut at 0: 10
			span(1, 1, Wait, 0, 10, 20),     //
			span(1, 3, Queued, 0, 10, 11),   // ready at 10, 10 after its start
			span(1, 3, Transfer, 1, 12, 16), // ready at 2 after its start
		},
	}
	tl.Sort()
	if err := tl.Validate(); err != nil {
		t.Fatal(err)
	}
	m := tl.Metrics(0, 2)
	// Rank 2: P = 6 + 2, M = 5, exposed 3; busy 1 to 9 and 18 to 20: idle 10.
	// Rank 1: P = 10, M = 4, exposed 10; idle 0. All halved: two iterations.
	want := []Breakdown{
		{Iteration: 10, Computation: 4, Communication: 2.5, Exposed: 1.5, Idle: 5},
		{Iteration: 10, Computation: 5, Communication: 2, Exposed: 5, Idle: 0},
	}
	if !slices.Equal(m.Ranks, want) {
		t.Errorf("ranks:\n got %+v\nwant %+v", m.Ranks, want)
	}
	// The second weighs three of four.
	if mean := (Breakdown{10, 4.75, 2.125, 4.125, 1.25}); m.Mean != mean {
		t.Errorf("mean: got %+v, want %+v", m.Mean, mean)
	}
	if m.WorstRank != 0 || m.Worst != want[1] {
		t.Errorf("worst: got rank %d, %+v; want rank 0, which 1 stands for, %+v", m.WorstRank, m.Worst, want[1])
	}
	// x: rank 2 once in iteration 0, ready 4, 2 us; three ranks once in iteration
	// 1, ready 12 - 10 = 2, and 1 us in the queue, 4 us. y: rank 2 once.
	transfers := []TransferMetrics{
		{3, 5, "transfer", 4. / 4 / 2, 100, (4 + 3*2) / 4., 0, (2 + 3*4) / 4.},
		{4, 5, "transfer", 1. / 4 / 2, 100, 5, 0, 4},
	}
	if !slices.Equal(m.Transfers, transfers) {
		t.Errorf("transfers:\n got %+v\nwant %+v", m.Transfers, transfers)
	}

	// Iteration 1 alone.
	if got, want := tl.Metrics(1, 2).Ranks[0], (Breakdown{Iteration: 10, Computation: 2, Idle: 8}); got != want {
		t.Errorf("iteration 1: got %+v, want %+v", got, want)
	}
	// Ranges are limited to what there is.
	if a, b := tl.Metrics(-3, 99), m; fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("too wide a range: got %+v, want %+v", a, b)
	}
	for _, r := range [][2]int{{0, 0}, {1, 0}, {2, 3}, {7, 9}} {
		if got := tl.Metrics(r[0], r[1]); got.Mean != (Breakdown{}) || got.Ranks != nil || got.WorstRank != -1 {
			t.Errorf("range %v: got %+v, want nothing", r, got)
		}
	}
	if got := (&Timeline{}).Metrics(0, 1); got.Mean != (Breakdown{}) {
		t.Errorf("empty timeline: got %+v", got)
	}
}

// Of a CPU job the host lanes compute.
func TestCPUJob(t *testing.T) {
	tl := rx()
	tl.Lanes[0].Kind = Host
	if got, want := tl.Metrics(0, 1).Mean, rx().Metrics(0, 1).Mean; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// timelines draws valid timelines whose times are whole nanoseconds and whose
// spans overlap in any way.
func timelines() *rapid.Generator[*Timeline] {
	return rapid.Custom(func(t *rapid.T) *Timeline {
		tl := &Timeline{Name: rapid.String().Draw(t, "name")}
		order := rapid.Permutation([]int{0, 1, 2, 3, 4, 7, 900}).Draw(t, "ranks")
		for len(order) > 0 {
			n := rapid.IntRange(1, len(order)).Draw(t, "stands")
			r := Rank{Rank: order[0]}
			if n > 1 {
				r.Stands = slices.Clone(order[:n])
			}
			tl.Ranks = append(tl.Ranks, r)
			order = order[n:]
		}
		for i := range rapid.IntRange(1, 2).Draw(t, "compute lanes") {
			tl.Lanes = append(tl.Lanes, Lane{fmt.Sprint("lane", i), LaneKind(rapid.IntRange(0, int(Device)).Draw(t, "kind"))})
		}
		compute := len(tl.Lanes)
		for range rapid.IntRange(0, 2).Draw(t, "links") {
			tl.Lanes = append(tl.Lanes, Lane{rapid.String().Draw(t, "link"), Link})
		}
		when := rapid.Custom(func(t *rapid.T) float64 {
			if rapid.Bool().Draw(t, "coarse") {
				return float64(rapid.IntRange(-3, 20).Draw(t, "us"))
			}
			return float64(rapid.Int64Range(-3000, 20000).Draw(t, "ns")) / 1000
		})
		tl.Iterations = rapid.SliceOfN(when, 2, 4).Draw(t, "iterations")
		slices.Sort(tl.Iterations)
		for range rapid.IntRange(0, 30).Draw(t, "spans") {
			lane := rapid.IntRange(0, len(tl.Lanes)-1).Draw(t, "lane")
			s := Span{Rank: int32(rapid.IntRange(0, len(tl.Ranks)-1).Draw(t, "rank")), Lane: int32(lane), Bucket: -1,
				Name:      rapid.SampledFrom([]string{"a", "b", "", "\"\\\x00\u2028é"}).Draw(t, "name"),
				Iteration: int32(rapid.IntRange(-1, 3).Draw(t, "iteration")), Start: when.Draw(t, "start"), End: when.Draw(t, "end")}
			if s.End < s.Start {
				s.Start, s.End = s.End, s.Start
			}
			if lane < compute {
				s.Kind = rapid.SampledFrom([]SpanKind{Compute, Wait}).Draw(t, "kind")
				if s.Kind == Compute {
					s.Phase = uint8(rapid.IntRange(0, int(job.Runtime)).Draw(t, "phase"))
				}
			} else {
				s.Kind = rapid.SampledFrom([]SpanKind{Transfer, Queued}).Draw(t, "kind")
				s.Bytes, s.Bucket = rapid.Int64Range(0, math.MaxInt64).Draw(t, "bytes"), rapid.Int32Range(-1, 3).Draw(t, "bucket")
			}
			tl.Spans = append(tl.Spans, s)
		}
		ends := []int32{}
		for i, s := range tl.Spans {
			if s.Kind != Queued {
				ends = append(ends, int32(i))
			}
		}
		if len(ends) > 0 {
			for range rapid.IntRange(0, 5).Draw(t, "flows") {
				tl.Flows = append(tl.Flows, Flow{rapid.SampledFrom(ends).Draw(t, "from"), rapid.SampledFrom(ends).Draw(t, "to")})
			}
		}
		tl.Sort()
		return tl
	})
}

func TestMetricsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := timelines().Draw(t, "timeline")
		if err := tl.Validate(); err != nil {
			t.Fatal(err)
		}
		from := rapid.IntRange(0, len(tl.Iterations)-2).Draw(t, "from")
		to := rapid.IntRange(from+1, len(tl.Iterations)-1).Draw(t, "to")
		m := tl.Metrics(from, to)
		for i, b := range append([]Breakdown{m.Mean, m.Worst}, m.Ranks...) {
			if e := b.Efficiency(); !(e <= 1) {
				t.Fatalf("breakdown %d: E = %v > 1: %+v", i, e, b)
			}
			if s := b.Speedup(); !(s >= 0 && s <= 1) {
				t.Fatalf("breakdown %d: S = %v is not within 0 to 1: %+v", i, s, b)
			}
			if b.Exposed <= b.Communication && !about(b.Hidden()+b.Exposed, b.Communication) {
				t.Fatalf("breakdown %d: hidden %v + exposed %v is not the communication %v", i, b.Hidden(), b.Exposed, b.Communication)
			}
			for _, part := range []float64{b.Computation, b.Communication, b.Exposed, b.Idle} {
				if !(part >= 0 && part <= b.Iteration*(1+1e-12)) {
					t.Fatalf("breakdown %d: a part is not within the iteration: %+v", i, b)
				}
			}
			if sum := b.Computation + b.Exposed + b.Idle; sum < b.Iteration*(1-1e-12)-1e-12 {
				t.Fatalf("breakdown %d: computation, exposed and idle do not fill the iteration: %+v", i, b)
			}
		}
	})
}

func TestMetricsOfExpanded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := timelines().Draw(t, "timeline")
		n := len(tl.Iterations) - 1
		e := tl.Expand()
		a, b := tl.Metrics(0, n), e.Metrics(0, n)
		for i, r := range tl.Ranks {
			for _, rank := range r.All() {
				j := slices.IndexFunc(e.Ranks, func(r Rank) bool { return r.Rank == rank })
				if a.Ranks[i] != b.Ranks[j] {
					t.Fatalf("rank %d: got %+v, want %+v as rank %d", rank, b.Ranks[j], a.Ranks[i], r.Rank)
				}
			}
		}
		if a.Worst != b.Worst || a.WorstRank != b.WorstRank {
			t.Fatalf("worst: rank %d %+v, expanded rank %d %+v", a.WorstRank, a.Worst, b.WorstRank, b.Worst)
		}
		same := func(a, b []float64) bool { return slices.EqualFunc(a, b, about) }
		if !same([]float64{a.Mean.Iteration, a.Mean.Computation, a.Mean.Communication, a.Mean.Exposed, a.Mean.Idle},
			[]float64{b.Mean.Iteration, b.Mean.Computation, b.Mean.Communication, b.Mean.Exposed, b.Mean.Idle}) {
			t.Fatalf("mean: %+v, expanded %+v", a.Mean, b.Mean)
		}
		if len(a.Transfers) != len(b.Transfers) {
			t.Fatalf("%d transfers, expanded %d", len(a.Transfers), len(b.Transfers))
		}
		for _, x := range a.Transfers {
			if !slices.ContainsFunc(b.Transfers, func(y TransferMetrics) bool {
				return x.Lane == y.Lane && x.Bucket == y.Bucket && x.Name == y.Name &&
					same([]float64{x.Count, x.Bytes, x.Ready, x.Queued, x.Time}, []float64{y.Count, y.Bytes, y.Ready, y.Queued, y.Time})
			}) {
				t.Fatalf("transfer %+v is not among the expanded %+v", x, b.Transfers)
			}
		}
	})
}

// million has 1e6 spans: 1,000 iterations of 1,000, with arrows.
func million() *Timeline {
	t := &Timeline{Ranks: []Rank{{Rank: 0}}, Lanes: []Lane{{"gpu", Device}, {"link", Link}}}
	names := make([]string, 250)
	for i := range names {
		names[i] = fmt.Sprint("aten::layer", i)
	}
	for it := range int32(1000) {
		at := float64(it) * 10000
		t.Iterations = append(t.Iterations, at)
		for k := range int32(250) {
			x := at + float64(k)*40
			n := int32(len(t.Spans))
			t.Spans = append(t.Spans,
				Span{Lane: 0, Phase: 1, Name: names[k], Iteration: it, Start: x, End: x + 20.125, Bucket: -1},
				Span{Lane: 1, Kind: Queued, Name: names[k], Iteration: it, Start: x + 0.5, End: x + 2, Bytes: 1 << 20, Bucket: k},
				Span{Lane: 1, Kind: Transfer, Name: names[k], Iteration: it, Start: x + 2, End: x + 30.25, Bytes: 1 << 20, Bucket: k},
				Span{Lane: 0, Kind: Wait, Name: "wait", Iteration: it, Start: x + 25, End: x + 39, Bucket: -1})
			t.Flows = append(t.Flows, Flow{n, n + 2})
		}
	}
	t.Iterations = append(t.Iterations, 1e7)
	return t
}

func BenchmarkMetrics(b *testing.B) {
	t := million()
	b.ReportAllocs()
	for b.Loop() {
		t.Metrics(0, 1000)
	}
}
