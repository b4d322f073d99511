package interval

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type iv = Interval[float64]

func TestUnion(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		name     string
		in, want []iv
	}{
		{"none", nil, nil},
		{"disjoint, unordered", []iv{{5, 6}, {1, 2}}, []iv{{1, 2}, {5, 6}}},
		{"touching", []iv{{1, 2}, {2, 3}}, []iv{{1, 3}}},
		{"overlapping", []iv{{1, 4}, {2, 6}}, []iv{{1, 6}}},
		{"nested", []iv{{1, 9}, {2, 3}, {4, 5}}, []iv{{1, 9}}},
		{"same start", []iv{{1, 2}, {1, 9}, {1, 3}}, []iv{{1, 9}}},
		{"empty, reversed and NaN vanish", []iv{{1, 1}, {4, 3}, {nan, 5}, {5, nan}, {7, 8}}, []iv{{7, 8}}},
		{"infinite", []iv{{-inf, 1}, {0, 2}}, []iv{{-inf, 2}}},
	} {
		if got := Union(slices.Clone(c.in)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b []iv
		want float64
	}{
		{"none", nil, []iv{{0, 9}}, 0},
		{"touching", []iv{{0, 5}}, []iv{{5, 9}}, 0},
		{"partial", []iv{{0, 5}}, []iv{{3, 9}}, 2},
		{"inside", []iv{{0, 9}}, []iv{{1, 2}, {4, 7}}, 1 + 3},
		{"comb", []iv{{0, 2}, {4, 6}, {8, 10}}, []iv{{1, 5}, {5, 9}}, 1 + 1 + 1 + 1},
	} {
		if got := Overlap(c.a, c.b); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if got := Overlap(c.b, c.a); got != c.want {
			t.Errorf("%s, swapped: got %v, want %v", c.name, got, c.want)
		}
	}
}

// Against counting unit cells one by one.
func TestAgainstCells(t *testing.T) {
	const cells = 40
	draw := rapid.Custom(func(t *rapid.T) []Interval[int64] {
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Interval[int64] {
			return Interval[int64]{rapid.Int64Range(0, cells).Draw(t, "start"), rapid.Int64Range(0, cells).Draw(t, "end")}
		}), 0, 12).Draw(t, "intervals")
	})
	covered := func(xs []Interval[int64]) (c [cells]bool) {
		for _, x := range xs {
			for i := x.Start; i < x.End; i++ {
				c[i] = true
			}
		}
		return c
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		inA, inB := covered(a), covered(b)
		var length, overlap int64
		for i := range cells {
			if inA[i] {
				length++
			}
			if inA[i] && inB[i] {
				overlap++
			}
		}
		shuffled := rapid.Permutation(a).Draw(t, "shuffled")
		ua, ub := Union(slices.Clone(a)), Union(slices.Clone(b))
		if got := Length(ua); got != length {
			t.Fatalf("length of %v: got %d, want %d", ua, got, length)
		}
		if got := Overlap(ua, ub); got != overlap {
			t.Fatalf("overlap of %v and %v: got %d, want %d", ua, ub, got, overlap)
		}
		if got := Union(shuffled); !slices.Equal(got, ua) {
			t.Fatalf("shuffled: got %v, want %v", got, ua)
		}
		for i := 1; i < len(ua); i++ {
			if ua[i].Start <= ua[i-1].End {
				t.Fatalf("%v: intervals %d and %d touch", ua, i-1, i)
			}
		}
	})
}

func TestWithout(t *testing.T) {
	comb := []iv{{1, 2}, {4, 6}, {8, 9}}
	for _, c := range []struct {
		name string
		x    iv
		want []iv
	}{
		{"nothing there", iv{2, 4}, []iv{{2, 4}}},
		{"covered", iv{4, 6}, nil},
		{"empty", iv{3, 3}, nil},
		{"both ends", iv{1.5, 5}, []iv{{2, 4}}},
		{"holes", iv{0, 10}, []iv{{0, 1}, {2, 4}, {6, 8}, {9, 10}}},
		{"behind all", iv{9, 12}, []iv{{9, 12}}},
	} {
		if got := Without(c.x, comb); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
