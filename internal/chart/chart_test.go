package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the pictures of testdata anew")

var bandwidths = []float64{1, 2.5, 10, 25, 100}

// The pictures of testdata are there to be looked at.
func TestGolden(t *testing.T) {
	for name, draw := range map[string]func(io.Writer) error{
		"bars": func(w io.Writer) error {
			return Bars(w, BarChart{
				Title: "Iteration time of a job, by policy", Notes: []string{"16 workers; overlap slows nothing"},
				Value:  Axis{Label: "iteration time, ms"},
				Groups: []string{"wfbp", "mg-wfbp-exact", "deft"},
				Series: []Series{
					{Name: "10 Gbit/s", Values: []float64{330, 315, 230}},
					{Name: "40 Gbit/s", Values: []float64{180, 175.2, math.NaN()}},
					{Name: "lower bound", Values: []float64{220, 220, 220}},
				},
			})
		},
		"signed": func(w io.Writer) error {
			return Bars(w, BarChart{
				Title: "Gain over WFBP", Value: Axis{Label: "gain, %"},
				Groups: []string{"mg-wfbp", "horovod", "deft"},
				Series: []Series{{Values: []float64{12.3, -9.87, 61}}},
			})
		},
		"lines": func(w io.Writer) error {
			return Lines(w, LineChart{
				Title: "Iteration time over bandwidth", Notes: []string{"16 workers"},
				X: Axis{"link, Gbit/s", true}, Y: Axis{"iteration time, ms", true},
				Lines: []Series{
					{Name: "wfbp", X: bandwidths, Values: []float64{4000, 1600, 420, 200, 140}},
					{Name: "deft", X: bandwidths, Values: []float64{2000, 800, 230, 130, 121}},
					{Name: "lower bound", X: bandwidths, Values: []float64{1900, 760, 220, 120, 120}},
				},
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := draw(&b); err != nil {
				t.Fatal(err)
			}
			elements(t, b.Bytes())
			file := "testdata/" + name + ".svg"
			if *rewrite {
				if err := os.WriteFile(file, b.Bytes(), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b.Bytes(), want) {
				t.Errorf("is not %s; -rewrite, and look at it", file)
			}
		})
	}
}

// Bars are as long as their values are large, whichever way they point.
func TestBarsLength(t *testing.T) {
	var b bytes.Buffer
	values := []float64{10, 25, -5}
	if err := Bars(&b, BarChart{Groups: []string{"a", "b", "c"}, Series: []Series{{Values: values}}}); err != nil {
		t.Fatal(err)
	}
	var x, length []float64
	for _, e := range elements(t, b.Bytes()) {
		if e.Name.Local == "rect" && attr(e, "class") == "c0" {
			x, length = append(x, float(t, attr(e, "x"))), append(length, float(t, attr(e, "width")))
		}
	}
	if len(length) != 3 {
		t.Fatalf("%d bars, want 3", len(length))
	}
	for i, v := range values {
		if want := math.Abs(v) / 10 * length[0]; math.Abs(length[i]-want) > 0.05 {
			t.Errorf("bar of %g is %g long, want %g", v, length[i], want)
		}
	}
	if end := x[2] + length[2]; x[0] != x[1] || math.Abs(end-x[0]) > 0.05 {
		t.Errorf("bars start at %g and %g, the negative one ends at %g: want one zero", x[0], x[1], end)
	}
}

func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		log    bool
		most   int
		want   []float64
	}{
		{[]float64{330, 165}, false, 7, []float64{0, 50, 100, 150, 200, 250, 300, 350}},
		{[]float64{-9, 61}, false, 8, []float64{-10, 0, 10, 20, 30, 40, 50, 60, 70}},
		{[]float64{0.3}, false, 3, []float64{0, 0.1, 0.2, 0.3}},
		{[]float64{0, 0}, false, 3, nil},
		{[]float64{1, 100}, true, 8, []float64{1, 2, 5, 10, 20, 50, 100}},
		{[]float64{3, 60}, true, 8, []float64{2, 5, 10, 20, 50, 100}},
		{[]float64{1, 1e6}, true, 8, []float64{1, 10, 100, 1e3, 1e4, 1e5, 1e6}},
		{[]float64{0, -1, 7, math.NaN(), math.Inf(1)}, true, 8, []float64{2, 5, 10, 20}},
	} {
		s := newScale(Axis{Log: tc.log}, tc.values, 0, 100*float64(tc.most), fit{zero: true, whole: true, space: 100})
		if tc.want == nil {
			if len(s.ticks) == 0 || !(s.lo < s.hi) {
				t.Errorf("%v: ticks %v from %g to %g, want an axis", tc.values, s.ticks, s.lo, s.hi)
			}
			continue
		}
		if !slices.EqualFunc(s.ticks, tc.want, func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }) {
			t.Errorf("%v, log %t: ticks %v, want %v", tc.values, tc.log, s.ticks, tc.want)
		}
	}
}

// An axis that need not be whole ends at its values, with ticks inside.
func TestTight(t *testing.T) {
	s := newScale(Axis{}, []float64{-17.6, 444}, 0, 600, fit{zero: true, space: 100})
	if s.lo != -17.6 || s.hi != 444 || !slices.Equal(s.ticks, []float64{0, 100, 200, 300, 400}) {
		t.Errorf("from %g to %g, ticks %v", s.lo, s.hi, s.ticks)
	}
	// A thousandth of a step is 0.1.
	for v, want := range map[float64]string{0.0143: "0", -0.0143: "0", 0.82: "0.8", -17.64: "-17.6", 443.96: "444"} {
		if got := number(s.round(v)); got != want {
			t.Errorf("%g is written %q, want %q", v, got, want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 12.34: "12.3", 175.2: "175", 0.5: "0.5", 0.01234: "0.0123", -9.87: "-9.87",
		99999: "99999", 200000: "200k", 2.5e6: "2.5M", 7e9: "7G", 1e-9: "1e-09",
	} {
		if got := number(v); got != want {
			t.Errorf("%g is written %q, want %q", v, got, want)
		}
	}
	if got := number(math.Copysign(0, -1)); got != "0" {
		t.Errorf("minus zero is written %q", got)
	}
}

// Names in lines keep their distance, their order and the picture.
func TestSpread(t *testing.T) {
	ends := []end{{name: "c", y: 98}, {name: "a", y: 97}, {name: "b", y: 97.5}, {name: "top", y: 0}}
	spread(ends, 10, 0, 100)
	var got []float64
	names := ""
	for _, e := range ends {
		got, names = append(got, e.label), names+e.name
	}
	if want := []float64{0, 80, 90, 100}; names != "topabc" || !slices.Equal(got, want) {
		t.Errorf("%s at %v, want topabc at %v", names, got, want)
	}
}

// Whatever the names and values, the picture is well formed XML, has no elements
// but ours, and bounded sizes.
func TestHostile(t *testing.T) {
	const name = "</text><script>alert(1)</script>&\"'\x00\xff\u202e]]>"
	values := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, math.MaxFloat64, math.SmallestNonzeroFloat64}
	groups := make([]string, len(values))
	for i := range groups {
		groups[i] = name + strings.Repeat("x", 10_000)
	}
	for _, log := range []bool{false, true} {
		axis := Axis{Label: name, Log: log}
		for _, v := range [][]float64{values, values[:1], nil} {
			series := []Series{{Name: name, X: v, Values: v}, {Name: name, X: v, Values: v}}
			for _, draw := range []func(io.Writer) error{
				func(w io.Writer) error {
					return Bars(w, BarChart{Title: name, Notes: []string{name}, Value: axis, Groups: groups[:len(v)], Series: series})
				},
				func(w io.Writer) error {
					return Lines(w, LineChart{Title: name, Notes: []string{name}, X: axis, Y: axis, Lines: series})
				},
			} {
				var b bytes.Buffer
				if err := draw(&b); err != nil {
					t.Fatal(err)
				}
				if b.Len() > 300_000 {
					t.Errorf("%d bytes", b.Len())
				}
				for _, e := range elements(t, b.Bytes()) {
					if !slices.Contains([]string{"svg", "title", "style", "rect", "text", "circle", "polyline"}, e.Name.Local) {
						t.Errorf("an element %s", e.Name.Local)
					}
					for _, a := range e.Attr {
						if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
							t.Errorf("%s has %s %q", e.Name.Local, a.Name.Local, a.Value)
						}
					}
				}
			}
		}
	}
}

func TestRefused(t *testing.T) {
	one := []float64{1}
	for what, err := range map[string]error{
		"1 values for 2 groups": Bars(io.Discard, BarChart{Groups: []string{"a", "b"}, Series: []Series{{Values: one}}}),
		"1 values at 0 places":  Lines(io.Discard, LineChart{Lines: []Series{{Values: one}}}),
		"bars, at most":         Bars(io.Discard, BarChart{Groups: make([]string, 3000), Series: make([]Series, 1)}),
		"lines, at most":        Lines(io.Discard, LineChart{Lines: make([]Series, 65)}),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want an error about %s", err, what)
		}
	}
}

// elements parses a picture.
func elements(t *testing.T, b []byte) (all []xml.StartElement) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(b))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok {
			all = append(all, e.Copy())
		}
	}
}

func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func float(t *testing.T, s string) float64 {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}
