package priority

import (
	"math"
	"slices"

	"weft/internal/splitmix"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

const (
	boSteps  = 15   // points tried
	boRandom = 10   // of them at random, first
	boXi     = 0.1  // what an improvement must exceed, in standard deviations of the values seen
	boNoise  = 1e-6 // variance added to each value seen
	boGrid   = 33   // points a side among which the expected improvement is largest
)

// lengths are the length scales of which the likeliest is taken, as shares of
// the ranges.
var lengths = []float64{0.05, 0.1, 0.2, 0.4, 0.8, 1.6}

// point is a place in the square that is searched: [0, 1] each way.
type point [2]float64

// bayes minimises a function over a square: first at points drawn at random from
// a fixed seed, then where the expected improvement (EI) of a Gaussian process
// with a Matérn 5/2 kernel is largest.
type bayes struct {
	points []point
	values []float64
	drawn  uint64 // state of the draws
}

// tell notes the function's value at a point.
func (b *bayes) tell(at point, value float64) {
	b.points, b.values = append(b.points, at), append(b.values, value)
}

// next is the point to try next.
func (b *bayes) next() point {
	if len(b.points) < boRandom {
		return b.draw()
	}
	g, ok := b.fit()
	if !ok {
		return b.draw()
	}
	best, most := b.draw(), -1.0
	for x := range boGrid {
		for y := range boGrid {
			at := point{float64(x) / (boGrid - 1), float64(y) / (boGrid - 1)}
			if slices.Contains(b.points, at) {
				continue
			}
			if ei := g.improvement(at); ei > most {
				best, most = at, ei
			}
		}
	}
	return best
}

// draw is a point at random.
func (b *bayes) draw() (p point) {
	for i := range p {
		b.drawn += splitmix.Step
		p[i] = splitmix.Float(splitmix.Mix(b.drawn))
	}
	return p
}

// process is a Gaussian process conditioned on the values seen, which are scaled
// to mean 0 and standard deviation 1.
type process struct {
	points []point
	length float64
	chol   mat.Cholesky
	weight mat.VecDense // K⁻¹·values
	least  float64      // of the values

	near, solved *mat.VecDense // scratch of predict
}

// fit conditions the process of the likeliest length scale on what was seen. Not
// if all values are equal: then they say nothing about where to look.
func (b *bayes) fit() (best *process, ok bool) {
	n := len(b.values)
	mean, deviation := stat.MeanStdDev(b.values, nil)
	if !(deviation > 0) || math.IsInf(deviation, 0) {
		return nil, false
	}
	y := mat.NewVecDense(n, nil)
	for i, v := range b.values {
		y.SetVec(i, (v-mean)/deviation)
	}
	likeliest := math.Inf(-1)
	for _, length := range lengths {
		g := &process{
			points: b.points, length: length, least: mat.Min(y),
			near: mat.NewVecDense(n, nil), solved: mat.NewVecDense(n, nil),
		}
		k := mat.NewSymDense(n, nil)
		for i := range n {
			for j := range i {
				k.SetSym(i, j, g.kernel(b.points[i], b.points[j]))
			}
			k.SetSym(i, i, 1+boNoise)
		}
		if !g.chol.Factorize(k) || g.chol.SolveVecTo(&g.weight, y) != nil {
			continue
		}
		if l := -mat.Dot(y, &g.weight)/2 - g.chol.LogDet()/2; l > likeliest {
			best, likeliest = g, l
		}
	}
	return best, best != nil
}

// kernel is Matérn 5/2.
func (g *process) kernel(a, b point) float64 {
	d := math.Sqrt(5) * math.Hypot(a[0]-b[0], a[1]-b[1]) / g.length
	return (1 + d + d*d/3) * math.Exp(-d)
}

// predict is the mean and the standard deviation at a point.
func (g *process) predict(at point) (mean, deviation float64) {
	for i, p := range g.points {
		g.near.SetVec(i, g.kernel(at, p))
	}
	if g.chol.SolveVecTo(g.solved, g.near) != nil {
		return 0, 0
	}
	return mat.Dot(g.near, &g.weight), math.Sqrt(max(0, 1-mat.Dot(g.near, g.solved)))
}

// improvement is the expected improvement at a point on the least value seen, by
// more than xi.
func (g *process) improvement(at point) float64 {
	mean, deviation := g.predict(at)
	return expectedImprovement(g.least-mean-boXi, deviation)
}

func expectedImprovement(gain, deviation float64) float64 {
	if deviation == 0 {
		return max(0, gain)
	}
	z := gain / deviation
	return gain*distuv.UnitNormal.CDF(z) + deviation*distuv.UnitNormal.Prob(z)
}
