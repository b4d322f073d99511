package deft

import "math"

// Statistics are what the preserver knows of the training, measured at one
// point of it, the same on all ranks (section 13.8).
type Statistics struct {
	Loss, Floor float64 // s_0 and S_min
	Rate        float64 // eta, the learning rate
	// Drift is mu: the squared norm of the gradient, or with momentum its product
	// with the velocity (see [Drifts]). Spread is sigma: the root of f'Σf, Σ the
	// covariance of a single sample's gradient.
	Drift, Spread float64
	Samples       float64 // of an iteration, over all workers
	// Sum: the gradients of a generation are summed, not averaged, so that its
	// learning rate is multiplied by its length.
	Sum bool
}

// expect is the expected loss after one update of the Gaussian walk with
// rebound (Yin, Luo, Nakamura, KDD 2017) from the loss s:
//
//	s' = |s - floor - rate·d| + floor, d ~ N(drift, spread²/samples)
//
// That DeFT uses it is unverified.
func expect(s, floor, rate, drift, spread, samples float64) float64 {
	z := s - floor - rate*drift
	deviation := rate * spread / math.Sqrt(samples)
	if deviation == 0 {
		return math.Abs(z) + floor
	}
	a := z / deviation
	return z*math.Erf(a/math.Sqrt2) + deviation*math.Sqrt(2/math.Pi)*math.Exp(-a*a/2) + floor
}

// chain is the expected loss after one update by each of the generations, whose
// lengths are given in iterations, drift and spread held.
func (s *Statistics) chain(lengths []int) float64 {
	loss := s.Loss
	for _, k := range lengths {
		rate := s.Rate
		if s.Sum {
			rate *= float64(k)
		}
		loss = expect(loss, s.Floor, rate, s.Drift, s.Spread, s.Samples*float64(k))
	}
	return loss
}

// Ratio is R: the expected loss after the given generations, over that after as
// many updates of one iteration each as they have iterations. 1: no difference.
func (s *Statistics) Ratio(lengths []int) float64 {
	n := 0
	for _, k := range lengths {
		n += k
	}
	single := make([]int, n)
	for i := range single {
		single[i] = 1
	}
	base, got := s.chain(single), s.chain(lengths)
	if base == got {
		return 1
	}
	return got / base
}

// Tolerance is how far the ratio of expected losses may be from 1, if nobody says.
const Tolerance = 0.01

// Accepts reports whether the preserver lets generations of these lengths be.
func (s *Statistics) Accepts(lengths []int, tolerance float64) bool {
	return math.Abs(s.Ratio(lengths)-1) <= tolerance
}

// Drifts is the momentum form of mu: of successive gradients, the product of
// each with the velocity v = momentum·v + gradient.
func Drifts(momentum float64, gradients [][]float64) []float64 {
	out := make([]float64, len(gradients))
	var v []float64
	for t, g := range gradients {
		if v == nil {
			v = make([]float64, len(g))
		}
		for i, x := range g {
			v[i] = momentum*v[i] + x
			out[t] += x * v[i]
		}
	}
	return out
}
