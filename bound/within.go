package bound

import (
	"fmt"

	"weft/plan"
)

// pace is what limits say of every plan within them.
type pace struct {
	rate float64 // updates an iteration, at least
	// reach is the most iterations from the last of a generation to the first
	// that reads its update.
	reach float64
	// stride is the most iterations, on the mean, from the last of a generation
	// to the first end of another that is no sooner than that read.
	stride float64
}

// paceOf derives the pace. No generation is longer than MaxStaleness + 1, so the
// rate is at least one over that. A stride is a reach and the rest of a
// generation that has begun by then. The reach of a generation of length k is at
// most MaxStaleness + 2 - k, and its rest at most k - 1: together MaxStaleness +
// 1 on the mean. And all ends of generations lie in reaches, one an iteration at
// most, so at a rate r reaches are at least the r-th part of all iterations.
func paceOf(l plan.Limits) pace {
	oldest := 1 + float64(max(0, l.MaxStaleness))
	p := pace{rate: min(1, max(l.MinUpdateRate, 1/oldest)), reach: min(1+float64(max(0, l.MaxDelay)), oldest)}
	p.stride = max(p.reach, min(oldest, p.reach/p.rate))
	return p
}

// around is the least time of an iteration, given the least time of a reach and
// that of any other iteration.
func (p pace) around(reach, iteration float64) float64 {
	return (reach + (p.stride-p.reach)*iteration) / p.stride
}

// atRate and within name the limits that a bound rests on, if they are not those
// of synchronous plans.
func (p pace) atRate() string {
	if p.rate == 1 {
		return ""
	}
	return fmt.Sprintf(" at an update rate of at least %.3g", p.rate)
}

func (p pace) within() string {
	if p.reach == 1 {
		return ""
	}
	return fmt.Sprintf(" %g iterations later", p.reach)
}
