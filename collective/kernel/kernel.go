// Package kernel combines vectors of numbers element by element: the arithmetic
// of the collectives.
//
// Vectors are byte slices in the machine's byte order, so that one buffer serves
// every element type. Every element is computed alone and rounded once an
// operation, to nearest even: float16 and bfloat16 are widened to float32 and
// rounded back. No operation is fused with another. So portable and vector code give the same bits,
// and the bits of an element never depend on its neighbours or on the length.
// The one exception: which NaN comes out where NaNs went in is not specified.
package kernel

import (
	"fmt"

	"weft/job"
)

// Op is what becomes of two contributions to one element.
type Op uint8

const (
	Sum Op = iota // integers wrap around
	Min           // a NaN among the contributions wins; -0 is below +0
	Max           // likewise
)

var opNames = []string{"sum", "min", "max"}

func (o Op) String() string { return opNames[o] }

// Kernel is the arithmetic of one element type and operation. The vectors of a
// call have the same length, a whole number of elements, and are aligned to the
// element ([Aligned]). dst may be one of the sources, but not overlap it otherwise.
type Kernel struct {
	// Combine sets dst to a op b.
	Combine func(dst, a, b []byte)
	// Scale sets dst to a · k, k first rounded to the element type (of float16 and
	// bfloat16: to float32). Nil for integers, and for Min and Max.
	Scale func(dst, a []byte, k float64)
	// CombineScaled sets dst to a + b · k, where the product is rounded first, as
	// Scale would. Nil where Scale is.
	CombineScaled func(dst, a, b []byte, k float64)
}

// For returns the kernel of an element type and operation. It is an error to ask
// for an element type other than float32, float64, float16, bfloat16, int32, int64.
func For(d job.DType, op Op) (Kernel, error) {
	if int(op) >= len(opNames) {
		return Kernel{}, fmt.Errorf("kernel: unknown operation %d", op)
	}
	if k, ok := vector(d, op); ok {
		return k, nil
	}
	return portable(d, op)
}

// portable returns the kernel in plain Go.
func portable(d job.DType, op Op) (Kernel, error) {
	switch d {
	case job.Float32:
		return floats[float32](op), nil
	case job.Float64:
		return floats[float64](op), nil
	case job.Float16:
		return halves(op, fromFloat16, toFloat16), nil
	case job.BFloat16:
		return halves(op, fromBFloat16, toBFloat16), nil
	case job.Int32:
		return integers[int32](op), nil
	case job.Int64:
		return integers[int64](op), nil
	}
	return Kernel{}, fmt.Errorf("kernel: %v of %v is not supported: reduce float32, float64, float16, bfloat16, int32 or int64", op, d)
}
