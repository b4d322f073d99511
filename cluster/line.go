package cluster

import (
	"fmt"
	"math"
)

// Line is the latency, microseconds, and slowness, microseconds a byte, that explain
// the times of points of one kind, by ascending size.
//
// Slowness is the slope of the line through two of the larger half of the points, or
// through one and the origin, that has the least sum of relative errors over that half:
// one that was disturbed does not bend it, and neither do small ones, which a shaper may
// let pass at once. Latency is what the slowness leaves of the smallest point.
func Line(points []Point) (latency, slowness float64, err error) {
	for _, p := range points {
		if !(p.Time > 0) || p.Bytes <= 0 {
			return 0, 0, fmt.Errorf("%d bytes took %v us", p.Bytes, p.Time)
		}
	}
	large := points[max(0, min(len(points)/2, len(points)-2)):] // two at least
	least := math.Inf(1)
	try := func(at, slope float64) {
		sum := 0.0
		for _, p := range large {
			sum += math.Abs((at+slope*float64(p.Bytes))/p.Time - 1)
		}
		if slope > 0 && sum < least {
			slowness, least = slope, sum
		}
	}
	for i, p := range large {
		try(0, p.Time/float64(p.Bytes))
		for _, q := range large[:i] {
			slope := (p.Time - q.Time) / float64(p.Bytes-q.Bytes)
			try(p.Time-slope*float64(p.Bytes), slope)
		}
	}
	if slowness == 0 {
		return 0, 0, fmt.Errorf("nothing was measured")
	}
	return max(0, points[0].Time-slowness*float64(points[0].Bytes)), slowness, nil
}

// OneMedium reports whether two links are rather one after the other on a medium than at
// the same time on two: alone is what the slower one took by itself, together what both
// took at once, and shared what they would on a medium as fast as the faster of the two.
// Where that would make little difference, they are not.
func OneMedium(alone, together, shared float64) bool {
	return shared > 1.1*alone && together > (alone+shared)/2
}
