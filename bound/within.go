package bound

import (
	"fmt"
	"math"
	"strings"

	"weft/plan"
)

// pace is what limits say of every plan within them. Call the iterations from
// the last of a generation to the first that reads its update its reach.
type pace struct {
	rate   float64 // updates an iteration, at least
	reach  float64 // iterations, at most
	oldest float64 // length of a generation, at most; with its reach, one more at most
	// staleness is its limit in words, if the rate follows from it.
	staleness string
}

func paceOf(l plan.Limits) pace {
	p := pace{oldest: 1 + float64(max(0, l.MaxStaleness))}
	p.rate = min(1, max(l.MinUpdateRate, 1/p.oldest))
	p.reach = min(1+float64(max(0, l.MaxDelay)), p.oldest)
	if p.rate < 1 && p.rate > l.MinUpdateRate {
		p.staleness = fmt.Sprintf("a staleness of at most %d", l.MaxStaleness)
	}
	return p
}

// more lists for how many generations, beside one, to look for the set of
// tensors that is worst.
func (p pace) more() []float64 {
	if p.rate == 1 {
		return []float64{0} // the links alone bound the others
	}
	return []float64{0, 1}
}

// around is the least time of an iteration, given the least times of a reach, of
// the transfers of one more generation, and of an iteration. docs/bounds.md
// proves it.
func (p pace) around(reach, again, iteration float64) float64 {
	return max(p.strides(reach, iteration), p.runs(reach, again, iteration))
}

// strides goes from the last iteration of a generation over its reach, and on to
// the next last iteration of another. Of the iterations, reaches are at least the
// rate-th part, because all last iterations lie in them; and the way is no longer
// than oldest on the mean.
func (p pace) strides(reach, iteration float64) float64 {
	way := max(p.reach, min(p.oldest, p.reach/p.rate))
	return (reach + (way-p.reach)*iteration) / way
}

// runs divides the generations into runs, in which each ends in the reach of the
// one before. From a run's first end to the last one's read all its transfers go
// over the links; then, until the next run's first end, iterations only compute.
//
// A run of n generations takes so much time for so many iterations, from the last
// end of the run before to its own: the least time of an iteration is that of the
// best mix of runs that keeps the rate, a linear program with one constraint. Its
// dual is to find the price of a generation for which the cheapest run costs most.
// A run's time and iterations are linear in the length of its first generation,
// that one's reach and n, so the cheapest is at a corner.
func (p pace) runs(reach, again, iteration float64) float64 {
	type run struct{ n, iterations, time float64 }
	r, longest := p.reach, max(1, p.oldest+1-p.reach) // of a generation with that reach
	runs := []run{
		{1, 1, reach + (1-r)*iteration},
		{1, longest, reach + (longest-r)*iteration},
		{1, p.oldest, reach + (p.oldest-1)*iteration},
	}
	if r > 1 {
		runs = append(runs,
			run{2, r, reach + again + (1-r)*iteration},
			run{2, longest + r - 1, reach + again + (longest-r)*iteration},
			run{1, r - 1, again}) // one more in a long run
	}
	cheapest := func(price float64) float64 {
		least := math.Inf(1)
		for _, x := range runs {
			paid := x.time - x.n*price
			if paid < 0 {
				return 0 // more iterations are no longer better
			}
			least = min(least, paid/x.iterations+p.rate*price)
		}
		return least
	}
	most := max(cheapest(0), cheapest(again))
	for i, x := range runs {
		for _, y := range runs[:i] {
			price := (x.time*y.iterations - y.time*x.iterations) / (x.n*y.iterations - y.n*x.iterations)
			if price > 0 && price < again {
				most = max(most, cheapest(price))
			}
		}
	}
	return most
}

// rateLimit names the limit that keeps updates from being rarer, if synchronous
// plans do not have it.
func (p pace) rateLimit() string {
	switch {
	case p.rate == 1:
		return ""
	case p.staleness != "":
		return " at " + p.staleness
	}
	return fmt.Sprintf(" at an update rate of at least %.3g", p.rate)
}

// limits names those of delay and rate.
func (p pace) limits() string {
	if p.reach == 1 {
		return p.rateLimit()
	}
	delay := fmt.Sprintf(" at a delay of at most %g", p.reach-1)
	if p.rate == 1 {
		return delay
	}
	return delay + " and" + strings.TrimPrefix(p.rateLimit(), " at")
}
