package svg

import (
	"math"
	"strings"
	"testing"
)

func TestFit(t *testing.T) {
	for _, tc := range []struct {
		s     string
		width float64
		want  string
	}{
		{"forward", 1000, "forward"},
		{"", 0, ""},
		{"nnnnnnnnnn", 10*0.62*Plain + 0.1, "nnnnnnnnnn"},
		{"nnnnnnnnnn", 5 * 0.62 * Plain, "nnn…"}, // 3.1 letters: room for three and the ellipsis
		{"nnn", 0.62 * Plain, ""},
		{"日本語", 2 * Plain, "日…"},
	} {
		if got := Fit(tc.s, tc.width); got != tc.want {
			t.Errorf("%q in %g is %q, want %q", tc.s, tc.width, got, tc.want)
		}
		if got := Fit(tc.s, tc.width); Width(got) > tc.width {
			t.Errorf("%q in %g is %g long", tc.s, tc.width, Width(got))
		}
	}
}

func TestEscape(t *testing.T) {
	got := escape("<&\"'>\n\x00\xff\u202e\u200bok")
	if want := "&lt;&amp;&#34;&#39;&gt;" + strings.Repeat("\ufffd", 5) + "ok"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStep(t *testing.T) {
	for _, tc := range []struct {
		span float64
		most int
		want float64
	}{
		{10, 10, 1}, {10, 9, 2}, {10, 4, 5}, {10, 1, 10}, {0.3, 3, 0.1}, {70, 8, 10}, {350, 7, 50}, {9, 1, 10},
		{0, 5, 0}, {-1, 5, 0}, {math.NaN(), 5, 0}, {math.Inf(1), 5, 0}, {1, 0, 0},
	} {
		if got := Step(tc.span, tc.most); math.Abs(got-tc.want) > 1e-9*tc.want {
			t.Errorf("%d steps over %g: %g, want %g", tc.most, tc.span, got, tc.want)
		}
	}
}

func TestNum(t *testing.T) {
	for x, want := range map[float64]string{0: "0", -0.001: "0", 1.5: "1.5", 100: "100", 0.125: "0.12", 10.999: "11"} {
		if got := num(x); got != want {
			t.Errorf("%g is %q, want %q", x, got, want)
		}
	}
}
