package permutation

import "testing"

func TestAll(t *testing.T) {
	for in, want := range map[string]int{"": 1, "a": 1, "ab": 2, "abc": 6, "abcde": 120} {
		seen := map[string]bool{}
		n := 0
		for x := range All([]byte(in)) {
			if n == 0 && string(x) != in {
				t.Errorf("the first order of %q is %q", in, x)
			}
			seen[string(x)] = true
			n++
		}
		if n != want || len(seen) != want {
			t.Errorf("%q: %d orders, of which %d differ; want %d", in, n, len(seen), want)
		}
	}
	for range All([]int{1, 2, 3}) {
		break // and no more is yielded, or range panics
	}
}
