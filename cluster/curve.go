package cluster

import (
	"errors"
	"fmt"
)

// curve selects the points of one kind.
func curve(all []Point, k Kind) []Point {
	i := 0
	for i < len(all) && all[i].Kind != k {
		i++
	}
	n := i
	for n < len(all) && all[n].Kind == k {
		n++
	}
	return all[i:n]
}

// price reads a measured curve: linear between its points, beyond the last as
// the last segment goes on, below the first on the line from the start-up time.
func price(points []Point, bytes int64) Cost {
	first, last := points[0], points[len(points)-1]
	alpha := startup(points)
	from, to := Point{Time: alpha}, first
	for i := 1; i < len(points) && bytes > to.Bytes; i++ {
		from, to = points[i-1], points[i]
	}
	if len(points) > 1 && bytes > last.Bytes {
		from, to = points[len(points)-2], last
	}
	slope := (to.Time - from.Time) / float64(to.Bytes-from.Bytes)
	t := from.Time + slope*float64(bytes-from.Bytes)
	return Cost{alpha, max(t-alpha, 0)}
}

// startup is where the first segment meets zero bytes, kept between zero and
// the smallest time; zero for a single point.
func startup(points []Point) float64 {
	if len(points) < 2 {
		return 0
	}
	a, b := points[0], points[1]
	slope := (b.Time - a.Time) / float64(b.Bytes-a.Bytes)
	return min(max(a.Time-slope*float64(a.Bytes), 0), a.Time)
}

// AlphaBeta is the line alpha + beta·bytes that stands for Cost: exact where a
// formula prices the kind, the regression of fitLine over a measured curve.
// Alpha is microseconds, beta microseconds a byte. The errors are Cost's.
func (c *Cluster) AlphaBeta(link int, k Kind) (alpha, beta float64, err error) {
	cost, err := c.Cost(link, k, 1)
	if err != nil || c.World() == 1 {
		return 0, 0, err
	}
	if points := curve(c.Links[link].Curve, k); len(points) > 0 {
		return fitLine(points)
	}
	return cost.Alpha, cost.Wire, nil
}

// fitLine is the line alpha + beta·bytes with the least squared error over the
// points, of which it ignores the kind. Neither is negative: where the best
// alpha would be, the best line through the origin is taken. One point gives
// that line too.
func fitLine(points []Point) (alpha, beta float64, err error) {
	if len(points) == 0 {
		return 0, 0, errors.New("cluster: no points to fit a line to")
	}
	var n, x, y float64
	for _, p := range points {
		if p.Bytes < 0 || !(p.Time >= 0) {
			return 0, 0, fmt.Errorf("cluster: cannot fit a line to %v us for %d bytes", p.Time, p.Bytes)
		}
		n, x, y = n+1, x+float64(p.Bytes), y+p.Time
	}
	x, y = x/n, y/n
	var xx, xy, xx0, xy0 float64 // moments about the mean, and about the origin
	for _, p := range points {
		b := float64(p.Bytes)
		xx += (b - x) * (b - x)
		xy += (b - x) * (p.Time - y)
		xx0 += b * b
		xy0 += b * p.Time
	}
	if xx > 0 {
		beta = max(xy/xx, 0)
		if alpha = y - beta*x; alpha >= 0 {
			return alpha, beta, nil
		}
	}
	if xx0 == 0 {
		return y, 0, nil
	}
	return 0, xy0 / xx0, nil
}
