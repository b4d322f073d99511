package chart

import (
	"fmt"
	"io"
	"math"
	"slices"

	"weft/internal/svg"
)

const figure = 44.0 // room for the value at the end of a bar

// Bars draws a bar chart. A series needs a value a group.
func Bars(w io.Writer, b BarChart) error {
	if n := len(b.Groups) * len(b.Series); n > maxBars {
		return fmt.Errorf("chart %q: %d bars, at most %d can be told apart", b.Title, n, maxBars)
	}
	var values []float64
	for _, s := range b.Series {
		if len(s.Values) != len(b.Groups) {
			return fmt.Errorf("chart %q: series %q has %d values for %d groups", b.Title, s.Name, len(s.Values), len(b.Groups))
		}
		values = append(values, s.Values...)
	}
	bar := 12.0
	if len(b.Series) <= 1 {
		bar = 16
	}
	thick := float64(max(len(b.Series), 1)) * bar // a group's bars together
	gap := max(6, thick/4)

	c := newCanvas(b.Title, b.Notes)
	if len(b.Series) > 1 {
		c.legend(b.Series)
	}
	label := 0.0
	for _, g := range b.Groups {
		label = max(label, svg.Width(svg.Fit(g, width/3)))
	}
	from := margin + label + 10
	if !b.Value.Log && slices.ContainsFunc(values, func(v float64) bool { return v < 0 }) {
		from += figure // the value of a bar that points left
	}
	axis := newScale(b.Value, values, from, width-margin-figure, fit{zero: true, space: 70})

	top, bottom := c.y, c.y+float64(len(b.Groups))*(thick+gap)+gap
	for _, t := range axis.ticks {
		x := axis.at(t)
		c.Line("rule thin", x, top, x, bottom)
		c.Text("dim small mid", x, bottom+14, number(t))
	}
	base := axis.from
	if !axis.log {
		base = axis.at(0)
	}
	for g, name := range b.Groups {
		y := top + gap + float64(g)*(thick+gap)
		c.Text("ink end", margin+label, y+thick/2+4, svg.Fit(name, width/3))
		for i, s := range b.Series {
			c.bar(fill(i), &axis, base, y+float64(i)*bar, bar, s.Values[g], name+", "+s.Name)
		}
	}
	c.Line("axis thin", base, top, base, bottom)
	c.y = bottom + 14 + row
	c.Text("dim mid", (axis.from+axis.to)/2, c.y, svg.Fit(b.Value.Label, axis.to-axis.from))
	return c.finish(w)
}

// bar draws one, with its value at its end.
func (c *canvas) bar(class string, axis *scale, base, y, thick, v float64, name string) {
	if math.IsNaN(v) {
		c.Text("dim small", base+4, y+thick/2+3.5, "–")
		return
	}
	if !axis.shows(v) {
		c.Text("dim small", base+4, y+thick/2+3.5, number(v))
		return
	}
	x := axis.at(v)
	v = axis.round(v)
	c.Rect(class, min(base, x), y+0.5, math.Abs(x-base), thick-1, 1.5, fmt.Sprintf("%s: %s", name, number(v)))
	if v < 0 && !axis.log {
		c.Text("ink small end", x-4, y+thick/2+3.5, number(v))
	} else {
		c.Text("ink small", x+4, y+thick/2+3.5, number(v))
	}
}
