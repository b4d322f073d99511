package kernel

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"weft/job"
)

var types = []job.DType{job.Float32, job.Float64, job.Float16, job.BFloat16, job.Int32, job.Int64}

// TestFloat16 checks every binary16 value, and rounding at every boundary between
// two of them, against the definition: m · 2^e by math/big.
func TestFloat16(t *testing.T) { testHalf(t, 10, 15, fromFloat16, toFloat16) }

func TestBFloat16(t *testing.T) { testHalf(t, 7, 127, fromBFloat16, toBFloat16) }

func testHalf(t *testing.T, fraction, bias int, wide func(uint16) float32, narrow func(float32) uint16) {
	infinity := uint16(2*bias+1) << fraction
	value := func(h uint16) float64 { // of a finite positive number; of infinity: what would follow
		exponent, f := int(h>>fraction), float64(h&(1<<fraction-1))
		if exponent == 0 {
			return math.Ldexp(f, 1-bias-fraction)
		}
		return math.Ldexp(f+float64(int(1)<<fraction), exponent-bias-fraction)
	}
	for h := uint16(0); h < infinity; h++ {
		x, next := value(h), value(h+1)
		if got := wide(h); float64(got) != x {
			t.Fatalf("%#04x is %v, want %v", h, got, x)
		}
		middle, exact := float32((x+next)/2), new(big.Float).SetFloat64((x+next)/2)
		if f, _ := exact.Float32(); float64(f) != (x+next)/2 { // below float32's own subnormals: bfloat16 only
			t.Fatalf("the middle above %#04x is no float32", h)
		}
		even := h + h&1
		for _, c := range []struct {
			f    float32
			want uint16
		}{
			{float32(x), h}, {middle, even},
			{math.Nextafter32(middle, 0), h}, {math.Nextafter32(middle, math.MaxFloat32), h + 1},
		} {
			for _, sign := range []uint16{0, 0x8000} {
				f := math.Float32frombits(math.Float32bits(c.f) | uint32(sign)<<16)
				if got := narrow(f); got != c.want|sign {
					t.Fatalf("%v (near %#04x) rounds to %#04x, want %#04x", f, h, got, c.want|sign)
				}
			}
		}
	}
	if got := wide(infinity); !math.IsInf(float64(got), 1) {
		t.Errorf("%#04x is %v, want infinity", infinity, got)
	}
	if got := narrow(float32(math.Inf(-1))); got != infinity|0x8000 {
		t.Errorf("-infinity rounds to %#04x", got)
	}
	if got := wide(narrow(float32(math.NaN()))); got == got {
		t.Errorf("NaN becomes %v", got)
	}
	if got := wide(infinity + 1); got == got {
		t.Errorf("%#04x is %v, want NaN", infinity+1, got)
	}
}

// TestKernels compares every kernel with the definition of its operation, element by
// element through float64 and big numbers, over random bits and special values, for
// lengths around every unrolling, in place and not.
func TestKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, kernel := range []func(job.DType, Op) (Kernel, error){For, portable} {
		testKernels(t, r, kernel)
	}
	for _, d := range []job.DType{job.Int8, job.Bool, job.Float8} {
		if _, err := For(d, Sum); err == nil {
			t.Errorf("%v has a kernel", d)
		}
	}
}

func testKernels(t *testing.T, r *rand.Rand, kernel func(job.DType, Op) (Kernel, error)) {
	for _, d := range types {
		for op := Sum; op <= Max; op++ {
			k, err := kernel(d, op)
			if err != nil {
				t.Fatal(err)
			}
			size := int(d.Bytes())
			for _, n := range []int{0, 1, 3, 4, 7, 31, 64, 65, 127, 300, 1024, 1031} {
				a, b := random(r, d, n), random(r, d, n)
				want := func(f func(x, y number64) number64) []byte {
					out := make([]byte, n*size)
					for i := range n {
						put(out, d, i, f(get(a, d, i), get(b, d, i)))
					}
					return out
				}
				check := func(what string, run func(dst, a, b []byte), want []byte) {
					t.Helper()
					for _, alias := range []string{"apart", "dst is a", "dst is b"} {
						x, y := clone(a), clone(b)
						dst := make([]byte, n*size)
						switch alias {
						case "dst is a":
							dst = x
						case "dst is b":
							dst = y
						}
						run(dst, x, y)
						if i := differ(d, dst, want); i >= 0 {
							t.Fatalf("%v %v %s (%s), %d elements: element %d of %v and %v is %v, want %v", d, op, what, alias, n, i,
								get(a, d, i), get(b, d, i), get(dst, d, i), get(want, d, i))
						}
					}
				}
				check("combine", k.Combine, want(func(x, y number64) number64 { return reference(d, op, x, y) }))
				if scales := op == Sum && d != job.Int32 && d != job.Int64; (k.Scale != nil) != scales || (k.CombineScaled != nil) != scales {
					t.Fatalf("%v %v: scale %v, want %v", d, op, k.Scale != nil, scales)
				}
				if k.Scale == nil {
					continue
				}
				for _, s := range []float64{0.5, 1.0 / 3} {
					check("scale", func(dst, _, b []byte) { k.Scale(dst, b, s) }, want(func(_, y number64) number64 { return scaled(d, y, s) }))
					check("combine scaled", func(dst, a, b []byte) { k.CombineScaled(dst, a, b, s) },
						want(func(x, y number64) number64 { return reference(d, Sum, x, scaled(d, y, s)) }))
				}
			}
		}
	}
}

// number64 is an element of any type: its value as a float64, or as an int64.
type number64 struct {
	f float64
	i int64
}

func (n number64) String() string { return fmt.Sprintf("%v/%d", n.f, n.i) }

func get(b []byte, d job.DType, i int) number64 {
	switch d {
	case job.Float32:
		return number64{f: float64(view[float32](b)[i])}
	case job.Float64:
		return number64{f: view[float64](b)[i]}
	case job.Float16:
		return number64{f: float64(fromFloat16(view[uint16](b)[i]))}
	case job.BFloat16:
		return number64{f: float64(fromBFloat16(view[uint16](b)[i]))}
	case job.Int32:
		return number64{i: int64(view[int32](b)[i])}
	}
	return number64{i: view[int64](b)[i]}
}

func put(b []byte, d job.DType, i int, n number64) {
	switch d {
	case job.Float32:
		view[float32](b)[i] = float32(n.f)
	case job.Float64:
		view[float64](b)[i] = n.f
	case job.Float16:
		view[uint16](b)[i] = toFloat16(float32(n.f))
	case job.BFloat16:
		view[uint16](b)[i] = toBFloat16(float32(n.f))
	case job.Int32:
		view[int32](b)[i] = int32(n.i)
	case job.Int64:
		view[int64](b)[i] = n.i
	}
}

// round is the nearest value of the type: float64 sums and products of two float32
// (of two halves) round to float32 as the exact ones do (Figueroa 1995: 53 bits are at
// least twice 24 and two more), and so do float32 ones of two halves.
func round(d job.DType, f float64) number64 {
	b := make([]byte, 8)
	put(b, d, 0, number64{f: f})
	return get(b, d, 0)
}

func reference(d job.DType, op Op, x, y number64) number64 {
	integer := d == job.Int32 || d == job.Int64
	if op == Sum {
		if integer {
			return number64{i: x.i + y.i}
		}
		return round(d, x.f+y.f)
	}
	switch {
	case x.f != x.f || y.f == y.f && (integer && x.i < y.i || !integer && (x.f < y.f || x.f == y.f && math.Signbit(x.f))):
	default:
		x, y = y, x
	}
	if x.f != x.f || op == Min {
		return x
	}
	return y
}

func scaled(d job.DType, y number64, k float64) number64 {
	if d != job.Float64 {
		k = float64(float32(k))
	}
	return round(d, y.f*k)
}

// random fills n elements with random bits, random small numbers and special values.
func random(r *rand.Rand, d job.DType, n int) []byte {
	b := make([]byte, n*int(d.Bytes()))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	special := []number64{{}, {f: math.Copysign(0, -1), i: -1}, {1, 1}, {f: math.Inf(1), i: math.MaxInt64}, {math.Inf(-1), math.MinInt64}, {math.NaN(), math.MaxInt32}}
	for i := range n {
		switch r.IntN(4) {
		case 0:
			put(b, d, i, special[r.IntN(len(special))])
		case 1:
			put(b, d, i, number64{r.NormFloat64(), r.Int64()})
		}
	}
	return b
}

func clone(b []byte) []byte { return append(make([]byte, 0, len(b)), b...) }

// differ returns the first element in which a and b differ, -1 if none. NaNs are one.
func differ(d job.DType, a, b []byte) int {
	size := int(d.Bytes())
	for i := range len(a) / size {
		x, y := get(a, d, i), get(b, d, i)
		if string(a[i*size:(i+1)*size]) != string(b[i*size:(i+1)*size]) && (x.f == x.f || y.f == y.f) {
			return i
		}
	}
	return -1
}

func BenchmarkCombine(b *testing.B) {
	for _, bytes := range []int{4 << 10, 256 << 10, 64 << 20} {
		dst, src := make([]byte, bytes), make([]byte, bytes)
		for i := range src { // the first touch of memory is slow
			dst[i], src[i] = byte(i), byte(i)
		}
		b.Run(fmt.Sprintf("copy/%dKiB", bytes>>10), func(b *testing.B) {
			b.SetBytes(int64(bytes))
			for b.Loop() {
				copy(dst, src)
			}
		})
		for _, d := range types {
			for op := Sum; op <= Min; op++ {
				k, _ := For(d, op)
				b.Run(fmt.Sprintf("%v-%v/%dKiB", op, d, bytes>>10), func(b *testing.B) {
					b.SetBytes(int64(bytes))
					for b.Loop() {
						k.Combine(dst, dst, src)
					}
				})
			}
		}
	}
}
