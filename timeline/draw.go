package timeline

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"

	"weft/job"
)

// DrawOptions choose what [Draw] shows.
type DrawOptions struct {
	Iteration int
	Width     int  // columns of a line; 0: 80, at least 40
	Ranks     int  // how many ranks at most; 0: all
	Queued    bool // also the transfers that wait for their link
}

// What a cell shows: the character of what fills most of it. Compute spans have
// the first four, by phase.
const (
	inks    = "><+~=-."
	inkUsed = ':' // what is there fills less than half of the cell
)

var inkNames = [len(inks)]string{"forward", "backward", "update", "runtime", "transfer", "queued", "wait"}

func ink(s *Span) int {
	if s.Kind == Compute {
		return int(s.Phase)
	}
	return int(job.Runtime) + int(s.Kind)
}

// Draw renders one iteration as text: a row a lane, and more rows for a lane
// whose spans overlap. A span of two cells or more starts with a bar and as
// much of its name as fits. A timeline without boundaries is drawn whole.
func Draw(w io.Writer, t *Timeline, o DrawOptions) error {
	if err := t.Validate(); err != nil {
		return err
	}
	from, to, err := t.window(o.Iteration)
	if err != nil {
		return err
	}
	label := 0
	for _, l := range t.Lanes {
		label = max(label, min(len([]rune(l.Name)), 16))
	}
	if o.Width == 0 {
		o.Width = 80
	}
	d := drawing{w: bufio.NewWriter(w), t: t, from: from, label: label, cells: max(o.Width, 40) - label - 1}
	d.cell = (to - from) / float64(d.cells)
	unit, name := 1.0, "us"
	if to-from >= 1e4 {
		unit, name = 1000, "ms"
	}
	if len(t.Iterations) > 0 {
		fmt.Fprintf(d.w, "iteration %d: ", o.Iteration)
	}
	fmt.Fprintf(d.w, "%s to %s %s, a column is %s %s\n", digits(from/unit), digits(to/unit), name, digits(d.cell/unit), name)

	visible := func(s *Span) bool {
		return s.End >= from && s.Start <= to && (o.Ranks <= 0 || int(s.Rank) < o.Ranks) && (o.Queued || s.Kind != Queued)
	}
	// The queue of a link has rows of its own, below its transfers.
	busy, busyRows := t.pack(func(s *Span) bool { return visible(s) && s.Kind != Queued })
	queue, queueRows := t.pack(func(s *Span) bool { return visible(s) && s.Kind == Queued })
	rows := make([][]int32, len(busyRows)) // spans by row: lane of rank
	for i := range t.Spans {
		if s := &t.Spans[i]; visible(s) {
			row := int(s.Rank)*len(t.Lanes) + int(s.Lane)
			rows[row] = append(rows[row], int32(i))
		}
	}
	for i, r := range t.Ranks {
		if o.Ranks > 0 && i == o.Ranks {
			rest := Timeline{Ranks: t.Ranks[i:]}
			fmt.Fprintf(d.w, "and %d more ranks\n", rest.World())
			break
		}
		if t.World() > 1 {
			fmt.Fprintln(d.w, r.title())
		}
		for j, l := range t.Lanes {
			row := i*len(t.Lanes) + j
			d.lane(l.Name, rows[row], busy, max(1, busyRows[row]))
			d.lane("", rows[row], queue, queueRows[row])
		}
	}
	d.legend()
	return d.w.Flush()
}

// window is the time of an iteration, or of everything if there are none.
func (t *Timeline) window(iteration int) (from, to float64, err error) {
	if n := len(t.Iterations) - 1; n > 0 {
		if iteration < 0 || iteration >= n {
			return 0, 0, fmt.Errorf("timeline: no iteration %d to draw, there are %d", iteration, n)
		}
		return t.Iterations[iteration], t.Iterations[iteration+1], nil
	}
	for i, s := range t.Spans {
		if i == 0 {
			from, to = s.Start, s.End
		}
		to = max(to, s.End)
	}
	return from, to, nil
}

type drawing struct {
	w            *bufio.Writer
	t            *Timeline
	from, cell   float64 // time of the first column, and of one column
	label, cells int     // columns
	used         [len(inks)]bool
	partly       bool
}

// lane draws the spans of a lane that track gives a track, a line a track.
func (d *drawing) lane(name string, spans, track []int32, tracks int) {
	for k := range tracks {
		line := make([]rune, d.cells)
		fill := make([][len(inks)]float64, d.cells)
		for _, i := range spans {
			if int(track[i]) == k {
				d.fill(fill, &d.t.Spans[i])
			}
		}
		for i := range line {
			line[i] = d.pick(&fill[i])
		}
		for _, i := range spans {
			if int(track[i]) == k {
				d.mark(line, &d.t.Spans[i])
			}
		}
		text := strings.TrimRight(fmt.Sprintf("%-*s %s", d.label, clip(name, d.label), string(line)), " ")
		fmt.Fprintln(d.w, text)
		name = ""
	}
}

// column is where a time is drawn, at the edge if it is outside.
func (d *drawing) column(at float64) float64 {
	if d.cell == 0 {
		return 0
	}
	return max(0, min(float64(d.cells), (at-d.from)/d.cell))
}

// fill adds to each cell the time that s takes of it, in cells.
func (d *drawing) fill(fill [][len(inks)]float64, s *Span) {
	a, b := d.column(s.Start), d.column(s.End)
	for i := int(a); float64(i) < b; i++ {
		fill[i][ink(s)] += min(b, float64(i+1)) - max(a, float64(i))
	}
}

func (d *drawing) pick(fill *[len(inks)]float64) rune {
	sum, most := 0.0, 0
	for i, f := range fill {
		sum += f
		if f > fill[most] {
			most = i
		}
	}
	const rounding = 1e-6
	switch {
	case sum < rounding:
		return ' '
	case sum < 0.5-rounding:
		d.partly = true
		return inkUsed
	}
	d.used[most] = true
	return rune(inks[most])
}

// mark writes the bar and the name of s over its cells.
func (d *drawing) mark(line []rune, s *Span) {
	a, b := int(math.Round(d.column(s.Start))), int(math.Round(d.column(s.End)))
	if b-a < 2 {
		return
	}
	line[a] = '|'
	copy(line[a+1:b], []rune(clip(s.Name, b-a-1)))
}

// legend explains the characters that were used.
func (d *drawing) legend() {
	var parts []string
	for i, used := range d.used {
		if used {
			parts = append(parts, string(inks[i])+" "+inkNames[i])
		}
	}
	if d.partly {
		parts = append(parts, string(inkUsed)+" less than half a column")
	}
	if len(parts) > 0 {
		fmt.Fprintln(d.w, strings.Join(parts, "  "))
	}
}

// clip cuts s to n printable runes.
func clip(s string, n int) string {
	r := []rune(s)
	r = r[:min(n, len(r))]
	for i := range r {
		if !unicode.IsPrint(r[i]) {
			r[i] = '?'
		}
	}
	return string(r)
}

// digits writes x with four significant digits, or as many as its integer part
// has.
func digits(x float64) string {
	decimals := 3
	for m := math.Abs(x); m >= 10 && decimals > 0; m /= 10 {
		decimals--
	}
	s := strconv.FormatFloat(x, 'f', decimals, 64)
	if decimals > 0 {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}
