// Package svg writes pictures that look after themselves: no script, no font of
// their own, one look in light and one in dark surroundings, and text that
// cannot be anything but text, whatever is in it.
//
// Lengths are pixels, from the upper left corner.
package svg

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Doc is a picture under construction. What it draws has a class, which a
// [Paint] colours. Several classes may be given with spaces between.
type Doc struct {
	Width, Height float64
	Title         string  // what a reader is told who cannot see it
	Paints        []Paint // beside those of every picture

	body bytes.Buffer
}

// Paint colours a class, in light and in dark surroundings.
type Paint struct {
	Class       string
	Property    string // "fill", "stroke"
	Light, Dark string // colours
}

// Size of the text of each class, pixels. Other text is plain.
const (
	Plain = 12.0
	Large = 15.0 // class title
	Small = 10.0 // class small
)

// Colors is how many classes c0, c1, ... there are to tell series apart. They fill;
// l0, l1, ... draw lines in the same colours.
const Colors = 8

var hues = [Colors][2]string{
	{"#2f6fde", "#6ea8fe"}, {"#e8730c", "#ff9d4d"}, {"#1f9d55", "#4cc988"}, {"#d33a4f", "#ff7a88"},
	{"#7a4fd0", "#b392f0"}, {"#0e8f9c", "#4dd0d8"}, {"#c2409b", "#f283cf"}, {"#8a6d1d", "#d4b45a"},
}

// paints are those of every picture: what is behind it, its text, text of second
// rank, rules of a grid, axes.
var paints = []Paint{
	{"back", "fill", "#ffffff", "#161b22"},
	{"back", "stroke", "#d8dee4", "#30363d"},
	{"ink", "fill", "#1f2328", "#e6edf3"},
	{"dim", "fill", "#59636e", "#9198a1"},
	{"rule", "stroke", "#e4e8ec", "#2a3038"},
	{"axis", "stroke", "#8c959f", "#6e7681"},
}

const rules = `text{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}` +
	`.title{font-size:15px;font-weight:600}.small{font-size:10px}.mid{text-anchor:middle}.end{text-anchor:end}` +
	`.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.thin{stroke-width:1}` +
	`.dash{stroke-dasharray:6 4}.dots{stroke-dasharray:1.5 4}`

// Rect draws a rectangle; round is the radius of its corners. Tip is what a
// reader sees who points at it, "" for nothing.
func (d *Doc) Rect(class string, x, y, w, h, round float64, tip string) {
	fmt.Fprintf(&d.body, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"`, class, num(x), num(y), num(w), num(h))
	if round > 0 {
		fmt.Fprintf(&d.body, ` rx="%s"`, num(round))
	}
	d.end("rect", tip)
}

// Circle draws a disc.
func (d *Doc) Circle(class string, x, y, r float64, tip string) {
	fmt.Fprintf(&d.body, `<circle class="%s" cx="%s" cy="%s" r="%s"`, class, num(x), num(y), num(r))
	d.end("circle", tip)
}

func (d *Doc) end(element, tip string) {
	if tip == "" {
		d.body.WriteString("/>\n")
		return
	}
	fmt.Fprintf(&d.body, "><title>%s</title></%s>\n", escape(tip), element)
}

// Line draws a line through points x0, y0, x1, y1, ...
func (d *Doc) Line(class string, points ...float64) {
	fmt.Fprintf(&d.body, `<polyline class="%s" points="`, class)
	for i, p := range points {
		if i > 0 {
			d.body.WriteByte(" ,"[i%2])
		}
		d.body.WriteString(num(p))
	}
	d.body.WriteString("\"/>\n")
}

// Text writes s; y is its base line, and x its left, middle (class mid) or right
// (class end).
func (d *Doc) Text(class string, x, y float64, s string) {
	fmt.Fprintf(&d.body, "<text class=\"%s\" x=\"%s\" y=\"%s\">%s</text>\n", class, num(x), num(y), escape(s))
}

// Raw adds an element as it is: a definition.
func (d *Doc) Raw(element string) { d.body.WriteString(element + "\n") }

// WriteTo writes the picture, on a card that sets it off from any page.
func (d *Doc) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	width, height := num(d.Width), num(d.Height)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>\n%s\n", escape(d.Title), rules)
	var dark strings.Builder
	paint := func(p Paint) {
		fmt.Fprintf(&b, ".%s{%s:%s}", p.Class, p.Property, p.Light)
		fmt.Fprintf(&dark, ".%s{%s:%s}", p.Class, p.Property, p.Dark)
	}
	for _, p := range paints {
		paint(p)
	}
	for i, h := range hues {
		paint(Paint{fmt.Sprint("c", i), "fill", h[0], h[1]})
		paint(Paint{fmt.Sprint("l", i), "stroke", h[0], h[1]})
	}
	for _, p := range d.Paints {
		paint(p)
	}
	fmt.Fprintf(&b, "\n@media (prefers-color-scheme:dark){%s}\n</style>\n", &dark)
	fmt.Fprintf(&b, `<rect class="back" x=".5" y=".5" width="%s" height="%s" rx="6"/>`+"\n", num(d.Width-1), num(d.Height-1))
	d.body.WriteTo(&b)
	b.WriteString("</svg>\n")
	return b.WriteTo(w)
}

// Step is the smallest of 1, 2, 5, 10, ... of which at most so many cover span; 0
// where there is nothing to cover.
func Step(span float64, most int) float64 {
	if !(span > 0) || math.IsInf(span, 1) || most < 1 {
		return 0
	}
	step := math.Pow(10, math.Floor(math.Log10(span/float64(most))))
	for _, f := range []float64{1, 2, 5} {
		if span/(step*f) <= float64(most) {
			return step * f
		}
	}
	return 10 * step
}

// num writes a length to a hundredth of a pixel.
func num(x float64) string {
	s := strconv.FormatFloat(x, 'f', 2, 64)
	s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	if s == "-0" {
		return "0"
	}
	return s
}

// escape makes s text of an element: markup is spelled out, and what cannot be
// seen, or turns the direction of writing, is replaced.
func escape(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
	var b strings.Builder
	xml.EscapeText(&b, []byte(s))
	return b.String()
}

// Width is about how long s is in plain text, in a wide font: what fits by it
// fits in others.
func Width(s string) float64 {
	w := 0.0
	for _, r := range s {
		w += advance(r)
	}
	return w * Plain
}

// advance of a rune, in sizes of the font.
func advance(r rune) float64 {
	switch {
	case strings.ContainsRune("ijlI.,:;|!'()[]ft ", r):
		return 0.38
	case strings.ContainsRune("mwMW@%", r):
		return 0.95
	case r >= 'A' && r <= 'Z':
		return 0.7
	case r < 0x2e80:
		return 0.62
	}
	return 1 // as wide as high
}

// Fit is s, or as much of its beginning as is at most width long in plain text,
// with an ellipsis; "" where that is not even a letter.
func Fit(s string, width float64) string {
	const ellipsis = 0.8 * Plain
	used, cut := 0.0, 0 // cut: bytes that leave room for the ellipsis
	for i, r := range s {
		if used+ellipsis <= width {
			cut = i
		}
		if used += advance(r) * Plain; used > width {
			if cut == 0 {
				return ""
			}
			return s[:cut] + "…"
		}
	}
	return s
}
