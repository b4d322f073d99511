package kernel

import (
	"weft/job"

	"golang.org/x/sys/cpu"
)

//go:generate go -C asm run . -out ../vector_amd64.s -stubs ../stubs_amd64.go -pkg kernel

// f16c: the processor converts float16. Every known one with AVX2 does.
var f16c = cpu.X86.HasAVX2 && leaf1()&(1<<29) != 0

// vector returns the kernel in vector instructions, where there is one.
func vector(d job.DType, op Op) (Kernel, bool) {
	if !cpu.X86.HasAVX2 || d == job.Float16 && !f16c {
		return Kernel{}, false
	}
	v, ok := vectors[d]
	if !ok {
		return Kernel{}, false
	}
	k, err := portable(d, op)
	if err != nil {
		return Kernel{}, false
	}
	k.Combine = ahead(v.combine[op], k.Combine)
	if k.Scale == nil {
		return k, true
	}
	scale, addScaled := k.Scale, k.CombineScaled
	k.Scale = func(dst, a []byte, s float64) {
		n := len(dst) &^ (unit - 1)
		if n > 0 {
			a := a[:len(dst)]
			v.scale(&dst[0], &a[0], n, s)
		}
		scale(dst[n:], a[n:], s)
	}
	k.CombineScaled = func(dst, a, b []byte, s float64) {
		n := len(dst) &^ (unit - 1)
		if n > 0 {
			a, b := a[:len(dst)], b[:len(dst)]
			v.addScaled(&dst[0], &a[0], &b[0], n, s)
		}
		addScaled(dst[n:], a[n:], b[n:], s)
	}
	return k, true
}

// unit is the bytes that every vector loop takes whole multiples of; the portable loop
// does the rest.
const unit = 128

// ahead is the vector loop, and the portable one for the rest.
func ahead(loop func(dst, a, b *byte, n int), rest func(dst, a, b []byte)) func(dst, a, b []byte) {
	return func(dst, a, b []byte) {
		n := len(dst) &^ (unit - 1)
		if n > 0 {
			a, b := a[:len(dst)], b[:len(dst)]
			loop(&dst[0], &a[0], &b[0], n)
		}
		if n < len(dst) {
			rest(dst[n:], a[n:], b[n:])
		}
	}
}

// loops are the vector loops of one element type.
type loops struct {
	combine   [3]func(dst, a, b *byte, n int) // by Op
	scale     func(dst, a *byte, n int, k float64)
	addScaled func(dst, a, b *byte, n int, k float64)
}

var vectors = map[job.DType]loops{
	job.Float32: {
		[...]func(dst, a, b *byte, n int){addFloat32, leastFloat32, mostFloat32},
		func(dst, a *byte, n int, k float64) { scaleFloat32(dst, a, n, float32(k)) },
		func(dst, a, b *byte, n int, k float64) { addScaledFloat32(dst, a, b, n, float32(k)) },
	},
	job.Float64: {[...]func(dst, a, b *byte, n int){addFloat64, leastFloat64, mostFloat64}, scaleFloat64, addScaledFloat64},
	job.Float16: {
		[...]func(dst, a, b *byte, n int){addFloat16, leastFloat16, mostFloat16},
		func(dst, a *byte, n int, k float64) { scaleFloat16(dst, a, n, float32(k)) },
		func(dst, a, b *byte, n int, k float64) { addScaledFloat16(dst, a, b, n, float32(k)) },
	},
	job.BFloat16: {
		[...]func(dst, a, b *byte, n int){addBFloat16, leastBFloat16, mostBFloat16},
		func(dst, a *byte, n int, k float64) { scaleBFloat16(dst, a, n, float32(k)) },
		func(dst, a, b *byte, n int, k float64) { addScaledBFloat16(dst, a, b, n, float32(k)) },
	},
	job.Int32: {combine: [...]func(dst, a, b *byte, n int){addInt32, leastInt32, mostInt32}},
	job.Int64: {combine: [...]func(dst, a, b *byte, n int){addInt64, leastInt64, mostInt64}},
}
