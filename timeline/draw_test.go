package timeline

import (
	"strings"
	"testing"
)

func drawn(t *testing.T, tl *Timeline, o DrawOptions) string {
	t.Helper()
	var b strings.Builder
	if err := Draw(&b, tl, o); err != nil {
		t.Fatal(err)
	}
	return "\n" + b.String()
}

func same(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got:%swant:%s", got, want)
	}
}

// 45 columns less the label and a space leave 38, one a microsecond: each span
// of the comment of rx has as many characters as it takes microseconds.
func TestDrawRX(t *testing.T) {
	same(t, drawn(t, rx(), DrawOptions{Width: 45, Queued: true}), `
iteration 0: 0 to 38 us, a column is 1 us
gpu    |b4<<<<<|b|b2<|b1<|wait......|f|f>|f4>
10Gbit         |ar4=====|ar3=|ar2|ar
                 |ar3--- |ar1----
                     |ar2----
> forward  < backward  = transfer  - queued  . wait
`)
}

// Two columns a microsecond. x takes one column, a four, y a fifth of the last.
func TestDrawParts(t *testing.T) {
	tl := &Timeline{
		Ranks:      []Rank{{Rank: 3, Stands: []int{3, 4}}, {Rank: 5}, {Rank: 6, Stands: []int{6, 7}}},
		Lanes:      []Lane{{"cpu", Host}},
		Iterations: []float64{0, 9, 27},
		Spans: []Span{
			{Name: "x", Phase: 2, Start: 9, End: 9.5, Bucket: -1},
			{Name: "a\tb", Start: 10, End: 12, Bucket: -1},
			{Rank: 1, Name: "before and after", Phase: 3, Start: 0, End: 99, Bucket: -1},
			{Name: "y", Start: 26.9, End: 27, Bucket: -1},
		},
	}
	tl.Sort()
	same(t, drawn(t, tl, DrawOptions{Width: 40, Iteration: 1, Ranks: 2}), `
iteration 1: 9 to 27 us, a column is 0.5 us
rank 3 (and 1 alike)
cpu + |a?b                             :
rank 5
cpu |before and after~~~~~~~~~~~~~~~~~~~
and 2 more ranks
> forward  + update  ~ runtime  : less than half a column
`)
}

func TestDrawEdges(t *testing.T) {
	same(t, drawn(t, &Timeline{}, DrawOptions{}), `
0 to 0 us, a column is 0 us
`)
	// Without boundaries all is drawn; from 20 ms on in milliseconds.
	tl := &Timeline{Ranks: []Rank{{}}, Lanes: []Lane{{"a lane with a long name", Device}},
		Spans: []Span{{Name: "op", Start: 1000, End: 47000, Bucket: -1}}}
	same(t, drawn(t, tl, DrawOptions{Width: 40}), `
1 to 47 ms, a column is 2 ms
a lane with a lo |op>>>>>>>>>>>>>>>>>>>>
> forward
`)
	if err := Draw(&strings.Builder{}, rx(), DrawOptions{Iteration: 1}); err == nil || !strings.Contains(err.Error(), "no iteration 1 to draw, there are 1") {
		t.Errorf("iteration 1 of 1: got error %v", err)
	}
}
