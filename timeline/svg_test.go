package timeline

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weft/job"
)

var rewrite = flag.Bool("rewrite", false, "write the pictures of testdata anew")

// box is a span as drawn: its class, its tip, its place in pixels.
type box struct {
	class, tip string
	x, width   float64
}

// drawnSVG draws, holds the result to what every picture must be, and returns
// its boxes with a tip.
func drawnSVG(t *testing.T, tl *Timeline, o SVGOptions) (picture []byte, boxes []box, texts []string) {
	t.Helper()
	var b bytes.Buffer
	if err := SVG(&b, tl, o); err != nil {
		t.Fatal(err)
	}
	number := func(s string) float64 {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			t.Errorf("%q where a length belongs", s)
		}
		return x
	}
	d := xml.NewDecoder(bytes.NewReader(b.Bytes()))
	var path []string
	var rect box
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.Bytes(), boxes, texts
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			path = append(path, e.Name.Local)
			if !slices.Contains([]string{"svg", "title", "style", "rect", "text", "polyline", "pattern", "line"}, e.Name.Local) {
				t.Errorf("an element %s", e.Name.Local)
			}
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "x", "y", "width", "height", "rx":
					number(a.Value)
				}
				if e.Name.Local == "rect" {
					switch a.Name.Local {
					case "class":
						rect.class = a.Value
					case "x":
						rect.x = number(a.Value)
					case "width":
						rect.width = number(a.Value)
					}
				}
			}
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			switch n := len(path); {
			case n >= 2 && path[n-2] == "rect" && path[n-1] == "title":
				rect.tip = string(e)
				boxes = append(boxes, rect)
			case n >= 1 && path[n-1] == "text":
				texts = append(texts, string(e))
			}
		}
	}
}

// TestSVG draws the running example twice over. Each box is where the comment of
// rx has it, to the half pixel by which neighbours stand apart.
func TestSVG(t *testing.T) {
	tl := rx()
	for _, s := range slices.Clone(tl.Spans) {
		s.Start, s.End, s.Iteration = s.Start+38, s.End+38, 1
		tl.Spans = append(tl.Spans, s)
	}
	tl.Flows = nil
	tl.Iterations = []float64{0, 38, 76}
	tl.Sort()
	picture, boxes, texts := drawnSVG(t, tl, SVGOptions{Iterations: 2})

	zero, pixel := 0.0, 0.0 // of 0 us, and how many a us
	for _, b := range boxes {
		if strings.HasPrefix(b.tip, "b4: 8 us from 0 us") {
			zero, pixel = b.x-0.5, (b.width+1)/8
		}
	}
	for tip, at := range map[string][2]float64{
		"ar4: 9 us from 8 us, 7 bytes":  {8, 17},
		"ar3: 5 us from 17 us, 3 bytes": {17, 22},
		"ar1: 3 us from 26 us, 1 bytes": {26, 29},
		"wait: 11 us from 18 us":        {18, 29},
		"f4: 4 us from 34 us":           {34, 38},
		"ar4: 9 us from 46 us, 7 bytes": {46, 55},
		"f4: 4 us from 72 us":           {72, 76},
	} {
		i := slices.IndexFunc(boxes, func(b box) bool { return b.tip == tip })
		if i < 0 {
			t.Errorf("no box %q", tip)
			continue
		}
		x, end := zero+at[0]*pixel, zero+at[1]*pixel
		if b := boxes[i]; math.Abs(b.x-x) > 0.6 || math.Abs(b.x+b.width-end) > 0.6 {
			t.Errorf("%s: from %g to %g, want about %g to %g", tip, b.x, b.x+b.width, x, end)
		}
	}
	for _, want := range []string{"gpu", "10Gbit", "iteration 0: 38 us", "iteration 1: 38 us", "b4", "forward", "wait for communication", "time, us"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q among %q", want, texts)
		}
	}
	golden(t, "testdata/rx.svg", picture)
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the picture is not %s; -rewrite, and look at it", file)
	}
}

func TestSVGLabels(t *testing.T) {
	_, boxes, texts := drawnSVG(t, rx(), SVGOptions{
		Note: "what RS is",
		Label: func(s *Span) Label {
			return Label{Text: "a text far too long for the box of " + s.Name, Group: "g" + s.Name[2:], Color: -1}
		},
	})
	for _, want := range []string{"g4", "g3", "what RS is"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q among %q", want, texts)
		}
	}
	for _, b := range boxes {
		if strings.HasPrefix(b.tip, "ar") && b.class != "k12" { // the last colour
			t.Errorf("%s has class %s", b.tip, b.class)
		}
	}
}

// However many spans there are, the picture stays small, and shows of each pixel
// what takes most of it.
func TestSVGSize(t *testing.T) {
	const n = 30_000
	tl := &Timeline{Ranks: []Rank{{}}, Lanes: []Lane{{"gpu", Device}, {"net", Link}}, Iterations: []float64{0, n}}
	for i := range n {
		phase := uint8(job.Forward)
		if i%3 == 0 || i > n/2 { // a third of each pixel of the first half
			phase = uint8(job.Backward)
		}
		at := float64(i)
		tl.Spans = append(tl.Spans, Span{Kind: Compute, Phase: phase, Name: "op", Start: at, End: at + 1, Bucket: -1})
		if i < 1000 { // all in flight at once
			tl.Spans = append(tl.Spans, Span{Lane: 1, Kind: Transfer, Name: fmt.Sprint("bucket ", i), Start: at, End: n - at, Bucket: int32(i)})
		}
	}
	tl.Sort()
	picture, _, texts := drawnSVG(t, tl, SVGOptions{})
	if len(picture) > 20_000 {
		t.Errorf("%d bytes", len(picture))
	}
	for _, want := range []string{"up to 1000 at a time, each shown from the end of the one before", "transfers, coloured by what they carry"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q among %q", want, texts)
		}
	}
	if f, b := bytes.Index(picture, []byte(`<rect class="k0"`)), bytes.Index(picture, []byte(`<rect class="k1"`)); f < 0 || b < f {
		t.Errorf("no run of forward pixels (%d) before one of backward pixels (%d)", f, b)
	}
}

func TestSVGHostile(t *testing.T) {
	name := "</text></svg><script>alert(1)</script>&\"'\x00\xff\u202e]]>" + strings.Repeat("x", 10_000)
	span := func(kind SpanKind, lane int32, start, end float64) Span {
		return Span{Kind: kind, Lane: lane, Name: name, Start: start, End: end, Bucket: -1}
	}
	whole := &Timeline{
		Name: name, Ranks: []Rank{{}}, Lanes: []Lane{{name, Host}, {name, Link}},
		Spans: []Span{span(Compute, 0, 0, 4), span(Transfer, 1, 1, 3), span(Wait, 0, 4, 9), span(Transfer, 1, 5, 5)},
	}
	many := &Timeline{Ranks: []Rank{{}}, Lanes: slices.Repeat([]Lane{{name, Link}}, 5000)}
	empty := &Timeline{Ranks: []Rank{{}}, Lanes: []Lane{{name, Link}}, Iterations: slices.Repeat([]float64{7}, 5000)}
	for what, tl := range map[string]*Timeline{"nothing": {}, "whole": whole, "many lanes": many, "iterations of no time": empty} {
		t.Run(what, func(t *testing.T) {
			picture, _, _ := drawnSVG(t, tl, SVGOptions{
				Title: name, Note: name, Iterations: max(1, len(tl.Iterations)-1),
				Label: func(*Span) Label { return Label{name, name, math.MinInt} },
			})
			if len(picture) > 60_000 {
				t.Errorf("%d bytes", len(picture))
			}
		})
	}
}

func TestSVGRefused(t *testing.T) {
	for want, o := range map[string]SVGOptions{
		"no iteration 1 to draw, there are 1": {Iterations: 2},
		"no iteration -1 to draw":             {Iteration: -1},
		"no rank 1 to draw, there are 1":      {Rank: 1},
		"no rank -1 to draw, there are 1":     {Rank: -1},
	} {
		if err := SVG(io.Discard, rx(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
