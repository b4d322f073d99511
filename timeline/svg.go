package timeline

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"weft/internal/svg"
	"weft/job"
)

// SVGOptions choose what [SVG] shows.
type SVGOptions struct {
	Title string // "": the timeline's name
	// Iteration is the first one shown, Iterations how many; 0: one.
	Iteration, Iterations int
	Rank                  int // position in Ranks
	// Label is what a transfer is called; nil: its name, a colour a bucket.
	Label func(*Span) Label
	Note  string // below the legend: what labels mean
}

// Label is what a picture calls a transfer.
type Label struct {
	Text  string // in its box
	Group string // what else has the colour: in the legend, and where Text has no room
	Color int    // the number of a colour
}

// The picture's measures, pixels.
const (
	svgWidth  = 800.0
	svgMargin = 18.0
	svgText   = 17.0 // height of a line of text
	svgTrack  = 22.0 // height of a row
	svgGap    = 2.0  // between rows of a lane
	svgLanes  = 10.0 // between lanes
	svgTracks = 12   // rows of a lane at most
	svgRows   = 64   // rows of a picture at most
	svgNamed  = 8    // transfers that the legend names at most
)

// look is what a span looks like: the classes of its box.
type look int

const (
	lookWait  look = 4 // after the phases
	lookColor look = 5 // and then the colours of transfers
	looks          = int(lookColor) + svg.Colors
)

var lookNames = [lookColor]string{"forward", "backward", "update", "runtime", "wait for communication"}

// Computation is grey, transfers are coloured, waits hatched in red: what costs
// time stands out. In light and in dark surroundings.
var svgPaints = func() []svg.Paint {
	colors := [looks][2]string{
		{"#d8dfe7", "#39424e"}, {"#afbac7", "#59636f"}, {"#8592a1", "#7d8793"}, {"#e9dcc9", "#4f4434"}, {},
		{"#a9c9fb", "#264f8f"}, {"#fcc893", "#8a4a12"}, {"#a5dfb9", "#1f6b3d"}, {"#f7b3bc", "#8c2f3d"},
		{"#cdbaf3", "#553a96"}, {"#9bdde2", "#17676f"}, {"#efb4dc", "#82306a"}, {"#e3d092", "#6b5715"},
	}
	paints := []svg.Paint{
		{Class: "calm", Property: "fill", Light: "#fdf1f2", Dark: "#2a1a1f"},
		{Class: "hatch", Property: "stroke", Light: "#d96a78", Dark: "#c25563"},
	}
	for i, c := range colors {
		if look(i) != lookWait {
			paints = append(paints, svg.Paint{Class: fmt.Sprint("k", i), Property: "fill", Light: c[0], Dark: c[1]})
		}
	}
	return paints
}()

const hatch = `<pattern id="wait" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
	`<rect class="calm" width="5" height="5"/><line class="hatch" x1="0" y1="0" x2="0" y2="5" stroke-width="2"/></pattern>` +
	`<style>.k4{fill:url(#wait)}.faint{opacity:.5}</style>`

// SVG writes a picture of iterations of one rank: a row a lane, more rows for
// transfers in flight together, a legend, and a time axis that starts with the
// first iteration. Spans thinner than a pixel are drawn together, so the picture
// has at most a few elements a pixel, however long the timeline. A timeline
// without boundaries is drawn whole.
func SVG(w io.Writer, t *Timeline, o SVGOptions) error {
	if err := t.Validate(); err != nil {
		return err
	}
	from, to, err := t.window(o.Iteration)
	if err != nil {
		return err
	}
	if n := max(o.Iterations, 1); len(t.Iterations) > 1 {
		if _, to, err = t.window(o.Iteration + n - 1); err != nil {
			return err
		}
	}
	if o.Rank < 0 || len(t.Ranks) > 0 && o.Rank >= len(t.Ranks) {
		return fmt.Errorf("timeline: no rank %d to draw, there are %d", o.Rank, len(t.Ranks))
	}
	p := picture{t: t, o: o, from: from, to: to, left: svgMargin, right: svgWidth - svgMargin}
	p.Width, p.Title, p.Paints = svgWidth, o.Title, svgPaints
	if p.Title == "" {
		p.Title = t.Name
	}
	p.unit, p.unitName = 1, "us"
	switch length := to - from; {
	case length >= 2e7:
		p.unit, p.unitName = 1e6, "s"
	case length >= 1e4:
		p.unit, p.unitName = 1e3, "ms"
	}
	p.Raw(hatch)
	p.y = svgMargin + 11
	p.Text("title ink", p.left, p.y, svg.Fit(p.Title, (svgWidth-2*svgMargin)*svg.Plain/svg.Large))
	p.y += 8
	p.lanes()
	p.legend()
	p.Height = p.y + svgMargin - 6
	_, err = p.WriteTo(w)
	return err
}

type picture struct {
	svg.Doc
	t              *Timeline
	o              SVGOptions
	from, to       float64 // time
	left, right, y float64 // pixels
	unit           float64 // microseconds
	unitName       string
	used           [looks]bool
	names          []named // of transfers, as met
	unnamed        bool    // there are more
}

// named is what the legend calls a look.
type named struct {
	text string
	look look
}

// x is where a time is drawn, at the edge if it is outside.
func (p *picture) x(at float64) float64 {
	if p.to <= p.from {
		return p.left
	}
	return p.left + max(0, min(1, (at-p.from)/(p.to-p.from)))*(p.right-p.left)
}

func (p *picture) time(us float64) string { return digits(us/p.unit) + " " + p.unitName }

// lanes draws the rows of the rank, the boundaries and the time axis.
func (p *picture) lanes() {
	shown := func(s *Span) bool {
		return int(s.Rank) == p.o.Rank && s.Kind != Queued && s.End > s.Start && s.End >= p.from && s.Start <= p.to
	}
	track, count := p.t.pack(shown)
	rows := make([][]int32, len(p.t.Lanes)) // spans by lane
	for i := range p.t.Spans {
		if s := &p.t.Spans[i]; shown(s) {
			rows[s.Lane] = append(rows[s.Lane], int32(i))
		}
	}
	label := 0.0
	for l := range p.t.Lanes {
		label = max(label, svg.Width(svg.Fit(p.t.Lanes[l].Name, svgWidth/6)))
	}
	p.left += label + 10
	top := p.y
	p.y += svgText + 4

	room := svgRows
	for l, lane := range p.t.Lanes {
		all := count[p.o.Rank*len(p.t.Lanes)+l]
		if len(rows[l]) == 0 && lane.Kind != Link {
			continue // its ops take no time, or run in other iterations
		}
		byTrack := make([][]piece, max(1, all))
		for _, i := range rows[l] {
			s := &p.t.Spans[i]
			byTrack[track[i]] = append(byTrack[track[i]], piece{s, s.Start, s.End})
		}
		if all > svgTracks {
			byTrack = [][]piece{successive(byTrack)}
		}
		if room -= len(byTrack); room < 0 {
			p.Text("dim small", p.left, p.y+8, fmt.Sprintf("and %d more lanes", len(p.t.Lanes)-l))
			p.y += svgText
			break
		}
		p.Text("ink end", p.left-10, p.y+svgTrack/2+4, svg.Fit(lane.Name, svgWidth/6))
		for k := range byTrack {
			p.Line("rule thin", p.left, p.y+svgTrack, p.right, p.y+svgTrack)
			p.row(byTrack[k])
			p.y += svgTrack + svgGap
		}
		if all > svgTracks {
			p.Text("dim small", p.left, p.y+9, fmt.Sprintf("up to %d at a time, each shown from the end of the one before", all))
			p.y += svgText
		}
		p.y += svgLanes - svgGap
	}
	p.y -= svgLanes / 2
	p.boundaries(top)
	p.axis()
}

// piece is a span, and the part of it that is shown.
type piece struct {
	*Span
	from, to float64
}

// successive cuts spans of several tracks so that none overlap: each begins when
// the one before it ends. Of transfers that share a wire, that is their time on it.
func successive(tracks [][]piece) []piece {
	all := slices.Concat(tracks...)
	slices.SortStableFunc(all, func(a, b piece) int { return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.from, b.from)) })
	for i := 1; i < len(all); i++ {
		all[i].from = max(all[i].from, all[i-1].to)
	}
	return all
}

// row draws spans: those wider than a pixel as boxes, the others pixel by pixel,
// each in the colour of what takes most of it.
func (p *picture) row(pieces []piece) {
	fill := map[int]*[looks]float64{} // by pixel
	for _, s := range pieces {
		a, b := p.x(s.from), p.x(s.to)
		text, k := p.what(s.Span)
		if b-a >= 1 {
			p.box(a, b, k, s.Span, text...)
			continue
		}
		px := min(int(a), int(p.right)-1)
		if fill[px] == nil {
			fill[px] = new([looks]float64)
		}
		fill[px][k] += max(b-a, 1e-3)
		p.used[k] = true
	}
	pixels := make([]int, 0, len(fill))
	class := func(px int) string {
		most, sum := 0, 0.0
		for l, f := range fill[px] {
			sum += f
			if f > fill[px][most] {
				most = l
			}
		}
		if sum < 0.5 {
			return fmt.Sprintf("k%d faint", most)
		}
		return fmt.Sprint("k", most)
	}
	for px := range fill {
		pixels = append(pixels, px)
	}
	slices.Sort(pixels)
	for i := 0; i < len(pixels); {
		k, c := i+1, class(pixels[i])
		for k < len(pixels) && pixels[k] == pixels[k-1]+1 && class(pixels[k]) == c {
			k++
		}
		p.Rect(c, float64(pixels[i]), p.y+1, float64(k-i), svgTrack-2, 0, "")
		i = k
	}
}

// box draws a span, with the first text that has room, or else as much of the last
// as is worth reading.
func (p *picture) box(a, b float64, k look, s *Span, texts ...string) {
	p.used[k] = true
	gap := min(0.5, (b-a)/8) // neighbours stand apart
	tip := svg.Fit(s.Name, 1000)
	if texts[0] != s.Name {
		tip += " (" + svg.Fit(texts[0], 1000) + ")"
	}
	tip += fmt.Sprintf(": %s from %s", p.time(s.End-s.Start), p.time(s.Start-p.from))
	if s.Kind == Transfer && s.Bytes > 0 {
		tip += fmt.Sprintf(", %d bytes", s.Bytes)
	}
	p.Rect(fmt.Sprint("k", int(k)), a+gap, p.y+1, b-a-2*gap, svgTrack-2, min(2, (b-a)/4), tip)
	if k == lookWait {
		return
	}
	const letters = 4 // of a name: fewer say nothing
	for i, text := range texts {
		fit := svg.Fit(text, (b-a-2)*svg.Plain/svg.Small)
		if fit == text || i == len(texts)-1 && len([]rune(fit)) > letters {
			p.Text("ink small mid", (a+b)/2, p.y+svgTrack/2+3.5, fit)
			return
		}
	}
}

// what is the label of a span, in one or more lengths, and its look.
func (p *picture) what(s *Span) (texts []string, k look) {
	switch s.Kind {
	case Compute:
		return []string{s.Name}, look(min(s.Phase, uint8(job.Runtime)))
	case Wait:
		return []string{s.Name}, lookWait
	}
	l := Label{Text: s.Name, Group: s.Name, Color: max(0, int(s.Bucket))}
	if p.o.Label != nil {
		l = p.o.Label(s)
	}
	n := named{l.Group, lookColor + look((l.Color%svg.Colors+svg.Colors)%svg.Colors)}
	if !slices.Contains(p.names, n) {
		if len(p.names) == svgNamed {
			p.unnamed = true
		} else {
			p.names = append(p.names, n)
		}
	}
	return []string{l.Text, l.Group}, n.look
}

// boundaries draws the lines between iterations, from top to here, and tells
// how long each is.
func (p *picture) boundaries(top float64) {
	last := math.Inf(-1) // end of the last text
	for i := p.o.Iteration; i < p.o.Iteration+max(p.o.Iterations, 1) && i+1 < len(p.t.Iterations); i++ {
		a, b := p.x(p.t.Iterations[i]), p.x(p.t.Iterations[i+1])
		if i == p.o.Iteration || a > last {
			p.Line("axis thin dash", a, top+4, a, p.y)
			text := svg.Fit(fmt.Sprintf("iteration %d: %s", i, p.time(p.t.Iterations[i+1]-p.t.Iterations[i])), (b-a-10)*svg.Plain/svg.Small)
			if text != "" {
				p.Text("dim small", a+5, top+13, text)
			}
			last = a + 2
		}
	}
	p.Line("axis thin dash", p.right, top+4, p.right, p.y)
}

func (p *picture) axis() {
	p.Line("axis thin", p.left, p.y, p.right, p.y)
	span := (p.to - p.from) / p.unit
	if step := svg.Step(span, int((p.right-p.left)/60)); step > 0 {
		for k := 0.0; k*step <= span*(1+1e-9); k++ {
			x := p.x(p.from + k*step*p.unit)
			p.Line("axis thin", x, p.y, x, p.y+4)
			p.Text("dim small mid", x, p.y+15, digits(k*step))
		}
	}
	p.Text("dim small end", p.left-10, p.y+15, "time, "+p.unitName)
	p.y += 15 + svgText
}

// legend explains the looks that were used.
func (p *picture) legend() {
	x := svgMargin
	item := func(text string, box bool, k look) {
		text = svg.Fit(text, svgWidth/2)
		w := svg.Width(text)*svg.Small/svg.Plain + 14
		if box {
			w += 16
		}
		if x > svgMargin && x+w > p.right {
			x, p.y = svgMargin, p.y+svgText
		}
		at := x
		if box {
			p.Rect(fmt.Sprint("k", int(k)), x, p.y-4, 11, 11, 2, "")
			at += 16
		}
		p.Text("dim small", at, p.y+5, text)
		x += w
	}
	for k := range lookColor {
		if p.used[k] {
			item(lookNames[k], true, k)
		}
	}
	if p.unnamed {
		item("transfers, coloured by what they carry", true, lookColor)
	} else {
		slices.SortFunc(p.names, func(a, b named) int {
			return cmp.Or(cmp.Compare(a.look, b.look), cmp.Compare(a.text, b.text))
		})
		for _, n := range p.names {
			item(n.text, true, n.look)
		}
	}
	if p.o.Note != "" {
		item(p.o.Note, false, 0)
	}
	p.y += 8
}
