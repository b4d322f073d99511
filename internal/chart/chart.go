// Package chart draws the charts of studies, as SVG: bars grouped by name, and
// lines over a number.
package chart

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"weft/internal/svg"
)

// Axis is a measured quantity.
type Axis struct {
	Label string // what it measures, and its unit: "iteration time, ms"
	Log   bool   // logarithmic: what is not positive is not shown
}

// Series is one value a group of a bar chart, or one a point of a line. NaN: there
// is none.
type Series struct {
	Name   string
	X      []float64 // of a line; a bar chart ignores it
	Values []float64
}

// BarChart is a group of bars a name, one bar a series. Bars lie, so that names
// of any length are read without turning the head.
type BarChart struct {
	Title  string
	Notes  []string // below the title: what is assumed
	Value  Axis
	Groups []string
	Series []Series // Values: one a group
}

// LineChart is lines over a number. Points are joined in the order given.
type LineChart struct {
	Title string
	Notes []string
	X, Y  Axis
	Lines []Series
}

// What a chart holds at most: more is not a picture.
const (
	maxBars   = 2000
	maxLines  = 64
	maxPoints = 100_000 // of all lines
)

const (
	width  = 760.0
	margin = 20.0
	row    = 17.0 // height of a line of text
)

// canvas is a chart being drawn: y is where the next thing goes.
type canvas struct {
	svg.Doc
	y float64
}

func newCanvas(title string, notes []string) *canvas {
	c := &canvas{Doc: svg.Doc{Width: width, Title: title}, y: margin + 12}
	c.Text("title ink", margin, c.y, svg.Fit(title, (width-2*margin)*svg.Plain/svg.Large))
	for _, n := range notes {
		c.y += row
		c.Text("dim", margin, c.y, svg.Fit(n, width-2*margin))
	}
	c.y += 12
	return c
}

func (c *canvas) finish(w io.Writer) error {
	c.Height = c.y + margin
	_, err := c.WriteTo(w)
	return err
}

// legend names the series that stand apart by colour.
func (c *canvas) legend(series []Series) {
	x := margin
	for i, s := range series {
		name := svg.Fit(s.Name, width/2)
		w := 18 + svg.Width(name) + 16
		if x > margin && x+w > width-margin {
			x, c.y = margin, c.y+row
		}
		c.Rect(fill(i), x, c.y-3, 12, 12, 2, "")
		c.Text("ink", x+18, c.y+7, name)
		x += w
	}
	c.y += row
}

// fill and stroke are the classes of a series.
func fill(i int) string { return fmt.Sprint("c", i%svg.Colors) }

func stroke(i int) string {
	return fmt.Sprint("line l", i%svg.Colors, [...]string{"", " dash", " dots"}[i/svg.Colors%3])
}

// scale maps the values of an axis to pixels.
type scale struct {
	log      bool
	lo, hi   float64 // values
	from, to float64 // pixels
	ticks    []float64
	grain    float64 // of a linear axis: less cannot be seen
}

// fit tells what an axis covers beside its values.
type fit struct {
	zero  bool    // zero, unless the axis is logarithmic
	whole bool    // all up to the next ticks; a logarithmic axis always does
	space float64 // between ticks, pixels, at least
}

// newScale covers values.
func newScale(a Axis, values []float64, from, to float64, f fit) scale {
	s := scale{log: a.Log, lo: math.Inf(1), hi: math.Inf(-1), from: from, to: to}
	for _, v := range values {
		if s.shows(v) {
			s.lo, s.hi = min(s.lo, v), max(s.hi, v)
		}
	}
	if s.lo > s.hi { // nothing to show
		s.lo, s.hi = 1, 1
	}
	if f.zero && !s.log {
		s.lo, s.hi = min(s.lo, 0), max(s.hi, 0)
	}
	most := max(2, int(math.Abs(to-from)/f.space))
	if s.log {
		s.logTicks(most)
	} else {
		s.linearTicks(most, f.whole)
	}
	return s
}

// shows reports whether v has a place on the axis. Numbers that leave no room
// to compute with have none.
func (s *scale) shows(v float64) bool {
	return math.Abs(v) < 1e100 && (!s.log || v > 1e-100)
}

// linearTicks puts at most so many steps between ticks.
func (s *scale) linearTicks(most int, whole bool) {
	if s.hi-s.lo <= 1e-9*max(math.Abs(s.lo), math.Abs(s.hi)) {
		pad := max(math.Abs(s.hi)/2, 1e-90)
		s.lo, s.hi = s.lo-pad, s.hi+pad
	}
	step := svg.Step(s.hi-s.lo, most)
	first, last := math.Ceil(s.lo/step-1e-9), math.Floor(s.hi/step+1e-9)
	if whole {
		first, last = math.Floor(s.lo/step+1e-9), math.Ceil(s.hi/step-1e-9)
		s.lo, s.hi = first*step, last*step
	}
	for k := first; k <= last; k++ {
		s.ticks = append(s.ticks, k*step)
	}
	s.grain = math.Pow(10, math.Floor(math.Log10(step/1000)))
}

// round rounds v to what can be told apart on the axis.
func (s *scale) round(v float64) float64 {
	if s.log {
		return v
	}
	return math.Round(v/s.grain) * s.grain
}

// logTicks puts ticks at 1, 2 and 5 of each decade, or at decades, as many as
// there is room for, and widens the axis to them.
func (s *scale) logTicks(most int) {
	if s.lo == s.hi {
		s.lo, s.hi = s.lo/2, s.hi*2
	}
	first, last := math.Floor(math.Log10(s.lo)), math.Ceil(math.Log10(s.hi))
	every := math.Ceil((last - first + 1) / float64(most))
	digits := []float64{1, 2, 5}
	if 3*math.Log10(s.hi/s.lo) > float64(most) {
		digits = digits[:1]
	}
	var all []float64
	for e := first; e <= last; e += every {
		for _, d := range digits {
			all = append(all, d*math.Pow(10, e))
		}
	}
	all = append(all, math.Pow(10, last+every))
	const near = 1 + 1e-9
	a, b := 0, len(all)-1
	for a+1 < len(all) && all[a+1] <= s.lo*near {
		a++
	}
	for b > a+1 && all[b-1]*near >= s.hi {
		b--
	}
	s.ticks = all[a : b+1]
	s.lo, s.hi = all[a], all[b]
}

func (s *scale) at(v float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		lo, hi, v = math.Log(lo), math.Log(hi), math.Log(v)
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

// number writes v with three significant digits, or all that its integer part has.
func number(v float64) string {
	suffix := ""
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1e15 || a < 1e-4:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case a >= 1e9:
		v, suffix = v/1e9, "G"
	case a >= 1e6:
		v, suffix = v/1e6, "M"
	case a >= 1e5:
		v, suffix = v/1e3, "k"
	}
	decimals := 2
	for a := math.Abs(v); a >= 10 && decimals > 0; a /= 10 {
		decimals--
	}
	for a := math.Abs(v); a < 1; a *= 10 {
		decimals++
	}
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s + suffix
}
