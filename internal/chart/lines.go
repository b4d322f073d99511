package chart

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"weft/internal/svg"
)

// Lines draws a line chart. Each line needs as many X as Values; where it has no
// value it is broken. Lines have their names at their ends: no legend sends the
// eye back and forth.
func Lines(w io.Writer, l LineChart) error {
	if n := len(l.Lines); n > maxLines {
		return fmt.Errorf("chart %q: %d lines, at most %d can be told apart", l.Title, n, maxLines)
	}
	var xs, ys []float64
	names := 0.0
	for _, s := range l.Lines {
		if len(s.X) != len(s.Values) {
			return fmt.Errorf("chart %q: line %q has %d values at %d places", l.Title, s.Name, len(s.Values), len(s.X))
		}
		xs, ys = append(xs, s.X...), append(ys, s.Values...)
		names = max(names, svg.Width(svg.Fit(s.Name, width/4)))
	}
	if len(xs) > maxPoints {
		return fmt.Errorf("chart %q: %d points, at most %d", l.Title, len(xs), maxPoints)
	}

	c := newCanvas(l.Title, l.Notes)
	c.y += 8
	c.Text("dim", margin, c.y, svg.Fit(l.Y.Label, width-2*margin))
	top := c.y + 12
	bottom := top + max(300, 15*float64(len(l.Lines)))
	y := newScale(l.Y, ys, bottom, top, fit{zero: true, whole: true, space: 36})
	left := 0.0
	for _, t := range y.ticks {
		left = max(left, svg.Width(number(t)))
	}
	left += margin + 4
	x := newScale(l.X, xs, left, width-margin-names-22, fit{space: 52})

	for _, t := range y.ticks {
		c.Line("rule thin", x.from, y.at(t), x.to, y.at(t))
		c.Text("dim small end", x.from-8, y.at(t)+3.5, number(t))
	}
	for _, t := range x.ticks {
		c.Line("axis thin", x.at(t), bottom, x.at(t), bottom+4)
		c.Text("dim small mid", x.at(t), bottom+16, number(t))
	}
	c.Line("axis thin", x.from, bottom, x.to, bottom)

	var ends []end
	for i := range l.Lines {
		if e, ok := c.line(i, &l.Lines[i], &x, &y); ok {
			ends = append(ends, e)
		}
	}
	spread(ends, 14, top, bottom)
	for _, e := range ends {
		c.Line(e.line+" thin", e.x+4, e.y, x.to+14, e.label)
		c.Text("ink", x.to+18, e.label+4, svg.Fit(e.name, width/4))
	}
	c.y = bottom + 16 + row
	c.Text("dim mid", (x.from+x.to)/2, c.y, svg.Fit(l.X.Label, x.to-x.from))
	return c.finish(w)
}

// line draws series i, with discs where its points are few, and returns where it
// ends; not ok if nothing of it is shown.
func (c *canvas) line(i int, s *Series, x, y *scale) (last end, ok bool) {
	class := stroke(i)
	var path []float64 // since the last gap
	var shown []int
	for k := range s.X {
		if !x.shows(s.X[k]) || !y.shows(s.Values[k]) {
			c.path(class, path)
			path = nil
			continue
		}
		path = append(path, x.at(s.X[k]), y.at(s.Values[k]))
		shown = append(shown, k)
	}
	c.path(class, path)
	if len(shown) == 0 {
		return end{}, false
	}
	if len(s.X) <= maxDiscs {
		for _, k := range shown {
			c.Circle(fill(i), x.at(s.X[k]), y.at(s.Values[k]), 3, fmt.Sprintf("%s: %s at %s", s.Name, number(s.Values[k]), number(s.X[k])))
		}
	}
	k := shown[len(shown)-1]
	at := y.at(s.Values[k])
	return end{name: s.Name, line: class, x: x.at(s.X[k]), y: at, label: at}, true
}

const maxDiscs = 40 // of a line; more would run together

func (c *canvas) path(class string, points []float64) {
	if len(points) > 2 {
		c.Line(class, points...)
	}
}

// end is where a line ends, and the height of its name.
type end struct {
	name, line  string
	x, y, label float64
}

// spread moves labels apart, to at least gap, in the order of their ends, and
// keeps them between top and bottom where there is room.
func spread(ends []end, gap, top, bottom float64) {
	slices.SortStableFunc(ends, func(a, b end) int { return cmp.Compare(a.y, b.y) })
	for i := range ends {
		ends[i].label = max(ends[i].y, top)
		if i > 0 {
			ends[i].label = max(ends[i].label, ends[i-1].label+gap)
		}
	}
	for i := len(ends) - 1; i >= 0; i-- {
		ends[i].label = min(ends[i].label, bottom)
		if i+1 < len(ends) {
			ends[i].label = min(ends[i].label, ends[i+1].label-gap)
		}
	}
}
