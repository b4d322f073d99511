package kernel

type real interface{ float32 | float64 }

type integer interface{ int32 | int64 }

func floats[T real](op Op) Kernel {
	if op != Sum {
		return Kernel{Combine: ordered[T](op)}
	}
	return Kernel{Combine: combine(add[T]), Scale: scale[T], CombineScaled: addScaled[T]}
}

func integers[T integer](op Op) Kernel {
	if op != Sum {
		return Kernel{Combine: ordered[T](op)}
	}
	return Kernel{Combine: combine(add[T])}
}

func ordered[T real | integer](op Op) func(dst, a, b []byte) {
	if op == Min {
		return combine(least[T])
	}
	return combine(most[T])
}

// combine gives a loop over elements the signature of [Kernel.Combine].
func combine[T number](loop func(dst, a, b []T)) func(dst, a, b []byte) {
	return func(dst, a, b []byte) { loop(view[T](dst), view[T](a), view[T](b)) }
}

// The loops are unrolled by four: enough to hide the bounds and the counter.

func add[T real | integer](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for len(dst) >= 4 && len(a) >= 4 && len(b) >= 4 {
		dst[0] = a[0] + b[0]
		dst[1] = a[1] + b[1]
		dst[2] = a[2] + b[2]
		dst[3] = a[3] + b[3]
		dst, a, b = dst[4:], a[4:], b[4:]
	}
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func least[T real | integer](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = min(a[i], b[i])
	}
}

func most[T real | integer](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = max(a[i], b[i])
	}
}

func scale[T real](dst, a []byte, k float64) {
	to, from, t := view[T](dst), view[T](a), T(k)
	from = from[:len(to)]
	for i := range to {
		to[i] = from[i] * t
	}
}

// The conversion of the product keeps the compiler from fusing it with the sum.
func addScaled[T real](dst, a, b []byte, k float64) {
	to, x, y, t := view[T](dst), view[T](a), view[T](b), T(k)
	x, y = x[:len(to)], y[:len(to)]
	for len(to) >= 4 && len(x) >= 4 && len(y) >= 4 {
		to[0] = x[0] + T(y[0]*t)
		to[1] = x[1] + T(y[1]*t)
		to[2] = x[2] + T(y[2]*t)
		to[3] = x[3] + T(y[3]*t)
		to, x, y = to[4:], x[4:], y[4:]
	}
	for i := range to {
		to[i] = x[i] + T(y[i]*t)
	}
}

// halves is the kernel of a 16-bit float type, through float32.
func halves(op Op, wide func(uint16) float32, narrow func(float32) uint16) Kernel {
	loop := func(f func(x, y float32) float32) func(dst, a, b []byte) {
		return combine(func(dst, a, b []uint16) {
			a, b = a[:len(dst)], b[:len(dst)]
			for i := range dst {
				dst[i] = narrow(f(wide(a[i]), wide(b[i])))
			}
		})
	}
	switch op {
	case Min:
		return Kernel{Combine: loop(func(x, y float32) float32 { return min(x, y) })}
	case Max:
		return Kernel{Combine: loop(func(x, y float32) float32 { return max(x, y) })}
	}
	return Kernel{
		Combine: loop(func(x, y float32) float32 { return x + y }),
		Scale: func(dst, a []byte, k float64) {
			to, from, t := view[uint16](dst), view[uint16](a), float32(k)
			from = from[:len(to)]
			for i := range to {
				to[i] = narrow(wide(from[i]) * t)
			}
		},
		CombineScaled: func(dst, a, b []byte, k float64) {
			to, x, y, t := view[uint16](dst), view[uint16](a), view[uint16](b), float32(k)
			x, y = x[:len(to)], y[:len(to)]
			for i := range to {
				to[i] = narrow(wide(x[i]) + wide(narrow(wide(y[i])*t)))
			}
		},
	}
}
