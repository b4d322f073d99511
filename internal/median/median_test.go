package median

import (
	"slices"
	"testing"
)

func TestOf(t *testing.T) {
	for _, x := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{7}, 7}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 9, 1, 2}, 3}} {
		before := slices.Clone(x.of)
		if got := Of(x.of); got != x.want || !slices.Equal(x.of, before) {
			t.Errorf("of %v: %v, want %v; it is %v afterwards", before, got, x.want, x.of)
		}
	}
}
