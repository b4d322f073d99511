package heap

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A heap gives values back as a list that is sorted after each one.
func TestAgainstSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := New(cmp.Less[int])
		var want []int
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			if len(want) == 0 || rapid.IntRange(0, 2).Draw(t, "push") > 0 {
				x := rapid.IntRange(0, 20).Draw(t, "value")
				h.Push(x)
				want = append(want, x)
				slices.Sort(want)
			} else {
				if first := h.First(); first != want[0] {
					t.Fatalf("the first is %d, want %d", first, want[0])
				}
				if got := h.Pop(); got != want[0] {
					t.Fatalf("popped %d, want %d", got, want[0])
				}
				want = want[1:]
			}
			if h.Len() != len(want) {
				t.Fatalf("%d values, want %d", h.Len(), len(want))
			}
		}
		h.Clear()
		if h.Len() != 0 {
			t.Fatalf("%d values when cleared", h.Len())
		}
	})
}
