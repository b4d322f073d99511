package profile

import (
	"math"
	"strings"
	"testing"
)

// Two ranks, two iterations. Losses 3, 1 and 2, 2: the mean is 2. Drifts 0.5, 0.3 and 0.1,
// 0.3: means 0.4 and 0.2, variances 0.02 each.
func TestDescended(t *testing.T) {
	reports := []Report{
		{Descent: &Descent{Losses: []float64{3, 2}, Drifts: []float64{0.5, 0.1}}},
		{Descent: &Descent{Losses: []float64{1, 2}, Drifts: []float64{0.3, 0.3}}},
	}
	w, err := Descended(reports)
	if err != nil || w.Loss != 2 || math.Abs(w.Drift-0.3) > 1e-12 || math.Abs(w.Spread-math.Sqrt(0.02)) > 1e-12 || w.Sum {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestNoDescent(t *testing.T) {
	one := &Descent{Losses: []float64{1}, Drifts: []float64{0.1}}
	for want, of := range map[string][]Report{
		"some rank's loss is not known": {{Descent: one}, {}},
		"two ranks or more":             {{Descent: one}},
		"rank 1 tells 2 losses":         {{Descent: one}, {Descent: &Descent{Losses: []float64{1, 1}, Drifts: []float64{0, 0}}}},
		"the loss is -1":                {{Descent: &Descent{Losses: []float64{-1}, Drifts: []float64{0}}}, {Descent: &Descent{Losses: []float64{-1}, Drifts: []float64{0}}}},
		"is not known":                  {{Descent: one}, {Descent: &Descent{Losses: []float64{1}}}},
	} {
		if w, err := Descended(of); err == nil || !strings.Contains(err.Error(), want) || w != (Walk{}) {
			t.Errorf("%+v, %v, want %q", w, err, want)
		}
	}
}
