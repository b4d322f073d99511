// Package interval adds up time spans that may overlap: unions, their length,
// and how much two of them share.
package interval

import (
	"cmp"
	"slices"
)

// Number is a time: integer ticks or microseconds.
type Number interface{ ~int64 | ~float64 }

// Interval is the time from Start to End.
type Interval[T Number] struct{ Start, End T }

// Union merges xs into the disjoint intervals that cover the same time, in
// ascending order. Intervals that touch become one; those that are empty,
// reversed or NaN cover no time and vanish. Like [slices.Compact] it works in
// place: the result uses the array of xs.
func Union[T Number](xs []Interval[T]) []Interval[T] {
	xs = slices.DeleteFunc(xs, func(x Interval[T]) bool { return !(x.Start < x.End) })
	slices.SortFunc(xs, func(a, b Interval[T]) int { return cmp.Compare(a.Start, b.Start) })
	n := 0
	for _, x := range xs {
		if n > 0 && x.Start <= xs[n-1].End {
			xs[n-1].End = max(xs[n-1].End, x.End)
			continue
		}
		xs[n] = x
		n++
	}
	return xs[:n]
}

// Length is the time that a union covers.
func Length[T Number](union []Interval[T]) T {
	var sum T
	for _, x := range union {
		sum += x.End - x.Start
	}
	return sum
}

// Overlap is the time that two unions share.
func Overlap[T Number](a, b []Interval[T]) T {
	var sum T
	for len(a) > 0 && len(b) > 0 {
		start, end := max(a[0].Start, b[0].Start), min(a[0].End, b[0].End)
		if start < end {
			sum += end - start
		}
		if a[0].End < b[0].End {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return sum
}

// Without is what is left of x where a union does not cover it, in ascending order.
func Without[T Number](x Interval[T], union []Interval[T]) (left []Interval[T]) {
	i, _ := slices.BinarySearchFunc(union, x.Start, func(u Interval[T], at T) int { return cmp.Compare(u.End, at) })
	for ; i < len(union) && union[i].Start < x.End; i++ {
		if x.Start < union[i].Start {
			left = append(left, Interval[T]{x.Start, union[i].Start})
		}
		x.Start = union[i].End
	}
	if x.Start < x.End {
		left = append(left, x)
	}
	return left
}
