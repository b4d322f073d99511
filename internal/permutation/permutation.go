// Package permutation lists the orders of values, for tests by brute force.
package permutation

import (
	"iter"
	"slices"
)

// All yields every order of in, the given one first; of no values, the one empty
// order. What it yields is good until the next.
func All[T any](in []T) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		x := slices.Clone(in)
		var from func(i int) bool
		from = func(i int) bool {
			if i >= len(x)-1 {
				return yield(x)
			}
			for k := i; k < len(x); k++ {
				x[i], x[k] = x[k], x[i]
				if !from(i + 1) {
					return false
				}
				x[i], x[k] = x[k], x[i]
			}
			return true
		}
		from(0)
	}
}
