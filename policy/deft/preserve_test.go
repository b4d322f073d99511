package deft

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func near(a, b, by float64) bool { return math.Abs(a-b) <= by }

// Section 13.8: z = 0.05 - 0.1·0.4 = 0.01, deviation 0.1·2/4 = 0.05, a = 0.2.
func TestExpect(t *testing.T) {
	if got := expect(0.05, 0, 0.1, 0.4, 2, 16); !near(got, 0.0406895, 5e-8) {
		t.Errorf("E = %.7f, want 0.0406895", got)
	}
	// Without spread the walk is a step, and below the floor it rebounds.
	if got := expect(1, 0.25, 0.5, 2, 0, 16); got != 0.25+0.25 {
		t.Errorf("E = %v, want |1 - 0.25 - 1| + 0.25", got)
	}
}

// expect is the mean of |x| + floor over the normal distribution.
func TestExpectIsTheMean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, floor := rapid.Float64Range(0, 3).Draw(t, "loss"), rapid.Float64Range(0, 1).Draw(t, "floor")
		rate, drift := rapid.Float64Range(0.01, 1).Draw(t, "rate"), rapid.Float64Range(0, 2).Draw(t, "drift")
		spread, m := rapid.Float64Range(0.1, 5).Draw(t, "spread"), rapid.Float64Range(1, 64).Draw(t, "samples")
		const steps, width = 20000, 9.0 // of the distribution, in deviations
		sum, mass := 0.0, 0.0
		for i := range steps {
			u := (float64(i)+0.5)/steps*2*width - width
			w := math.Exp(-u * u / 2)
			mass += w
			sum += w * (math.Abs(s-floor-rate*(drift+u*spread/math.Sqrt(m))) + floor)
		}
		if got := expect(s, floor, rate, drift, spread, m); !near(got, sum/mass, 1e-5) {
			t.Fatalf("E = %v, integrated %v", got, sum/mass)
		}
	})
}

// Section 13.8: three iterations against generations of one and two.
func TestRatio(t *testing.T) {
	for _, x := range []struct {
		loss, spread            float64
		base, averaged, summed  float64
		ratio, ratioSummed, tol float64
	}{
		{2, 2, 1.94, 1.96, 1.94, 1.0103, 1, 5e-5},
		{0.1, 4, 0.056603, 0.063432, 0.066234, 1.1206, 1.1702, 5e-5},
	} {
		s := Statistics{Loss: x.loss, Rate: 0.05, Drift: 0.4, Spread: x.spread, Samples: 16}
		sum := s
		sum.Sum = true
		for name, v := range map[string][2]float64{
			"base":     {s.chain([]int{1, 1, 1}), x.base},
			"averaged": {s.chain([]int{1, 2}), x.averaged},
			"summed":   {sum.chain([]int{1, 2}), x.summed},
		} {
			if !near(v[0], v[1], 5e-7) {
				t.Errorf("loss %v, %s: %.6f, want %.6f", x.loss, name, v[0], v[1])
			}
		}
		if r := s.Ratio([]int{1, 2}); !near(r, x.ratio, x.tol) {
			t.Errorf("loss %v: R = %.4f, want %.4f", x.loss, r, x.ratio)
		}
		if r := sum.Ratio([]int{1, 2}); !near(r, x.ratioSummed, x.tol) {
			t.Errorf("loss %v: R summed = %.4f, want %.4f", x.loss, r, x.ratioSummed)
		}
		if r := s.Ratio([]int{1, 1, 1}); r != 1 {
			t.Errorf("loss %v: R = %v at J = K, want 1", x.loss, r)
		}
	}
}

// v = (1, 2), (0.5 + 3, 1 + 0) = (3.5, 1), (1.75 - 1, 0.5 + 1) = (0.75, 1.5).
func TestDrifts(t *testing.T) {
	got := Drifts(0.5, [][]float64{{1, 2}, {3, 0}, {-1, 1}})
	for i, want := range []float64{1 + 4, 3 * 3.5, -0.75 + 1.5} {
		if got[i] != want {
			t.Errorf("mu %d = %v, want %v", i, got[i], want)
		}
	}
}
