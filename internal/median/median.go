// Package median has the median.
package median

import "slices"

// Of is the median of x, the mean of the two in the middle where there are two; 0 of
// nothing. It leaves x as it is.
func Of(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(x))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
