package server

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// cutsOf lists the ends of the segments that mask makes of n transfers.
func cutsOf(mask, n int) []int {
	var cuts []int
	for j := 1; j < n; j++ {
		if mask>>(j-1)&1 != 0 {
			cuts = append(cuts, j)
		}
	}
	return append(cuts, n)
}

// pushed is when segments end that are sent one behind the other, each once the
// last of it is ready.
func pushed(size, ready []float64, d float64, cuts []int) (end float64) {
	from := 0
	for _, to := range cuts {
		end = max(end, ready[to-1]) + d
		for _, s := range size[from:to] {
			end += s
		}
		from = to
	}
	return end
}

// pulled is when computation ends that needs each transfer where it stands in at,
// its segments being sent one behind the other.
func pulled(size, at []float64, d float64, cuts []int) float64 {
	came, now := 0.0, at[0]
	from := 0
	for _, to := range cuts {
		came += d
		for _, s := range size[from:to] {
			came += s
		}
		now = max(now, came) + at[to] - at[from]
		from = to
	}
	return now
}

func TestSegmentsAreBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 10).Draw(t, "layers")
		value := rapid.IntRange(0, 12)
		size, ready, at := make([]float64, n), make([]float64, n), []float64{float64(value.Draw(t, "lead"))}
		for i := range size {
			size[i], ready[i] = float64(value.Draw(t, "size")), float64(value.Draw(t, "backward"))
			if i > 0 {
				ready[i] += ready[i-1]
			}
			at = append(at, at[i]+float64(value.Draw(t, "forward")))
		}
		d := float64(value.Draw(t, "start-up"))
		best := [2]float64{math.Inf(1), math.Inf(1)}
		for mask := range 1 << (n - 1) {
			cuts := cutsOf(mask, n)
			best[0] = min(best[0], pushed(size, ready, d, cuts))
			best[1] = min(best[1], pulled(size, at, d, cuts))
		}
		end, cuts := push(size, ready, d)
		if got := pushed(size, ready, d, cuts); end != best[0] || got != best[0] {
			t.Fatalf("pushes cut at %v end at %v, it says %v; the best end at %v", cuts, got, end, best[0])
		}
		end, cuts = pull(size, at, d)
		if got := pulled(size, at, d, cuts); end != best[1] || got != best[1] {
			t.Fatalf("pulls cut at %v let computation end at %v, it says %v; the best at %v", cuts, got, end, best[1])
		}
	})
}

// RX: sizes and start-up as in section 0.5, layers from the input.
func TestSegmentsOfRX(t *testing.T) {
	size, at := []float64{1, 2, 3, 7}, []float64{0, 2, 4, 5, 9}
	if end, cuts := pull(size, at, 2); end != 21 || !slices.Equal(cuts, []int{3, 4}) {
		t.Errorf("pulls cut at %v end at %v; want {1,2,3},{4} and 21", cuts, end)
	}
	if one, each := pulled(size, at, 2, []int{4}), pulled(size, at, 2, []int{1, 2, 3, 4}); one != 24 || each != 25 {
		t.Errorf("one segment ends at %v, layer by layer at %v; want 24 and 25", one, each)
	}
	if end, cuts := push([]float64{7, 3, 2, 1}, []float64{8, 10, 14, 18}, 2); end != 26 || !slices.Equal(cuts, []int{1, 4}) {
		t.Errorf("pushes cut at %v end at %v; want {4},{3,2,1} and 26", cuts, end)
	}
}

// Without start-ups nothing can be left out: all of maxLayers segments are tried.
func BenchmarkPull(b *testing.B) {
	size, at := make([]float64, maxLayers), make([]float64, maxLayers+1)
	for i := range size {
		size[i], at[i+1] = float64(i*7919%1000), at[i]+float64(i*104729%1000)
	}
	for b.Loop() {
		pull(size, at, 0)
	}
}
