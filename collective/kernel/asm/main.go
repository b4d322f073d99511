// Command asm writes the vector kernels of package kernel for amd64 with AVX2, and F16C
// for float16:
//
//	go run . -out ../vector_amd64.s -stubs ../stubs_amd64.go -pkg kernel
//
// Every function works on n bytes, a multiple of 128, and does to each element exactly
// what the portable code does.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// element is an element type: how it comes into a register, and back.
type element struct {
	name   string
	scalar string // of Go, that a vector is multiplied by; empty: it is not
	step   int    // bytes of memory that one register holds
	load   func(m Mem, to reg.VecVirtual)
	store  func(from reg.VecVirtual, m Mem)
	add    func(a, b, to reg.VecVirtual)
	least  func(a, b, to reg.VecVirtual)
	most   func(a, b, to reg.VecVirtual)
	mul    func(a, b, to reg.VecVirtual)
	spread func(k Op, to reg.VecVirtual) // one scalar into every element
	round  func(v reg.VecVirtual)        // to the element's precision; nil: it has it
}

func main() {
	single := element{
		name: "Float32", scalar: "float32", step: 32,
		load:   func(m Mem, to reg.VecVirtual) { VMOVUPS(m, to) },
		store:  func(from reg.VecVirtual, m Mem) { VMOVUPS(from, m) },
		add:    func(a, b, to reg.VecVirtual) { VADDPS(b, a, to) },
		mul:    func(a, b, to reg.VecVirtual) { VMULPS(b, a, to) },
		spread: func(k Op, to reg.VecVirtual) { VBROADCASTSS(k, to) },
	}
	single.least = ordered(func(a, b, to reg.VecVirtual) { VMINPS(b, a, to) }, false, 31)
	single.most = ordered(func(a, b, to reg.VecVirtual) { VMINPS(b, a, to) }, true, 31)

	double := element{
		name: "Float64", scalar: "float64", step: 32,
		load:   single.load,
		store:  single.store,
		add:    func(a, b, to reg.VecVirtual) { VADDPD(b, a, to) },
		mul:    func(a, b, to reg.VecVirtual) { VMULPD(b, a, to) },
		spread: func(k Op, to reg.VecVirtual) { VBROADCASTSD(k, to) },
	}
	double.least = ordered(func(a, b, to reg.VecVirtual) { VMINPD(b, a, to) }, false, 63)
	double.most = ordered(func(a, b, to reg.VecVirtual) { VMINPD(b, a, to) }, true, 63)

	half := single
	half.name, half.step = "Float16", 16
	half.load = func(m Mem, to reg.VecVirtual) { VCVTPH2PS(m, to) }
	half.store = func(from reg.VecVirtual, m Mem) { VCVTPS2PH(U8(0), from, m) }
	half.round = func(v reg.VecVirtual) {
		x := XMM()
		VCVTPS2PH(U8(0), v, x)
		VCVTPH2PS(x, v)
	}

	brain := single
	brain.name, brain.step = "BFloat16", 16
	brain.load = func(m Mem, to reg.VecVirtual) {
		VPMOVZXWD(m, to)
		VPSLLD(U8(16), to, to)
	}
	brain.store = func(from reg.VecVirtual, m Mem) {
		v := YMM()
		VMOVUPS(from, v)
		toBrain(v)
		VPACKUSDW(v, v, v) // within the halves of the register
		VPERMQ(U8(0b1000), v, v)
		VMOVUPS(v.AsX(), m)
	}
	brain.round = func(v reg.VecVirtual) {
		toBrain(v)
		VPSLLD(U8(16), v, v)
	}

	word := element{
		name: "Int32", step: 32,
		load:  single.load,
		store: single.store,
		add:   func(a, b, to reg.VecVirtual) { VPADDD(b, a, to) },
		least: func(a, b, to reg.VecVirtual) { VPMINSD(b, a, to) },
		most:  func(a, b, to reg.VecVirtual) { VPMAXSD(b, a, to) },
	}
	long := element{
		name: "Int64", step: 32,
		load:  single.load,
		store: single.store,
		add:   func(a, b, to reg.VecVirtual) { VPADDQ(b, a, to) },
		least: func(a, b, to reg.VecVirtual) { pick(a, b, b, a, to) },
		most:  func(a, b, to reg.VecVirtual) { pick(a, b, a, b, to) },
	}

	for _, e := range []element{single, double, half, brain, word, long} {
		combine("add", e, e.add)
		combine("least", e, e.least)
		combine("most", e, e.most)
		if e.scalar != "" {
			scale(e)
			addScaled(e)
		}
	}
	features()
	Generate()
}

// ordered is the lesser, or the greater, of two floating-point numbers. VMIN gives its
// second operand where one is NaN or both are zeros, so that the least is in one of its
// two orders, and a NaN, or the sign of -0, survives OR. The greater is the lesser with
// the signs turned.
func ordered(minimum func(a, b, to reg.VecVirtual), greater bool, sign uint64) func(a, b, to reg.VecVirtual) {
	return func(a, b, to reg.VecVirtual) {
		x, y := a, b
		signs := YMM()
		turn := VXORPS
		if greater {
			x, y = YMM(), YMM()
			VPCMPEQD(signs, signs, signs)
			if sign == 63 {
				VPSLLQ(U8(63), signs, signs)
			} else {
				VPSLLD(U8(31), signs, signs)
			}
			turn(signs, a, x)
			turn(signs, b, y)
		}
		other := YMM()
		minimum(x, y, other)
		minimum(y, x, to)
		VORPS(other, to, to)
		if greater {
			turn(signs, to, to)
		}
	}
}

// pick sets to to yes where a is greater than b, and to no elsewhere: 64-bit integers.
func pick(a, b, yes, no, to reg.VecVirtual) {
	mask := YMM()
	VPCMPGTQ(b, a, mask)
	VBLENDVPD(mask, yes, no, to)
}

// toBrain rounds float32 to bfloat16, to even, which it leaves in the low halves; a NaN
// becomes 0x7fc0.
func toBrain(v reg.VecVirtual) {
	nan, odd, bias, quiet := YMM(), YMM(), YMM(), YMM()
	VCMPPS(U8(3), v, v, nan)
	VPSRLD(U8(16), v, odd)
	VPCMPEQD(bias, bias, bias) // 1 is the top bit of all ones
	VPSRLD(U8(31), bias, bias)
	VPAND(bias, odd, odd)
	VPSLLD(U8(15), bias, bias) // 0x7fff
	VPADDD(odd, v, v)
	VPADDD(bias, v, v)
	VPSUBD(one(), v, v)
	VPSRLD(U8(16), v, v)
	VPCMPEQD(quiet, quiet, quiet) // 0x7fc0: nine ones, six zeros
	VPSRLD(U8(23), quiet, quiet)
	VPSLLD(U8(6), quiet, quiet)
	VBLENDVPS(nan, quiet, v, v)
}

func one() reg.VecVirtual {
	v := YMM()
	VPCMPEQD(v, v, v)
	VPSRLD(U8(31), v, v)
	return v
}

// loop calls body with the offset, in bytes, of each of two registers that follow each
// other, until n bytes are done.
func loop(e element, pointers []reg.GPVirtual, body func(offset int)) {
	n := Load(Param("n"), GP64())
	Label("loop")
	TESTQ(n, n)
	JZ(LabelRef("done"))
	for i := range 2 {
		body(i * e.step)
	}
	for _, p := range pointers {
		ADDQ(U8(2*e.step), p)
	}
	SUBQ(U8(2*e.step), n)
	JMP(LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}

func pointer(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

func combine(name string, e element, op func(a, b, to reg.VecVirtual)) {
	TEXT(name+e.name, NOSPLIT, "func(dst, a, b *byte, n int)")
	Pragma("noescape")
	dst, a, b := pointer("dst"), pointer("a"), pointer("b")
	loop(e, []reg.GPVirtual{dst, a, b}, func(offset int) {
		x, y := YMM(), YMM()
		e.load(Mem{Base: a, Disp: offset}, x)
		e.load(Mem{Base: b, Disp: offset}, y)
		to := YMM()
		op(x, y, to)
		e.store(to, Mem{Base: dst, Disp: offset})
	})
}

// factor is the scalar k in every element of a register.
func factor(e element) reg.VecVirtual {
	k, err := Param("k").Resolve()
	if err != nil {
		panic(err)
	}
	v := YMM()
	e.spread(k.Addr, v)
	return v
}

func scale(e element) {
	TEXT("scale"+e.name, NOSPLIT, "func(dst, a *byte, n int, k "+e.scalar+")")
	Pragma("noescape")
	dst, a, k := pointer("dst"), pointer("a"), factor(e)
	loop(e, []reg.GPVirtual{dst, a}, func(offset int) {
		x := YMM()
		e.load(Mem{Base: a, Disp: offset}, x)
		e.mul(x, k, x)
		e.store(x, Mem{Base: dst, Disp: offset})
	})
}

func addScaled(e element) {
	TEXT("addScaled"+e.name, NOSPLIT, "func(dst, a, b *byte, n int, k "+e.scalar+")")
	Pragma("noescape")
	dst, a, b, k := pointer("dst"), pointer("a"), pointer("b"), factor(e)
	loop(e, []reg.GPVirtual{dst, a, b}, func(offset int) {
		x, y := YMM(), YMM()
		e.load(Mem{Base: b, Disp: offset}, y)
		e.mul(y, k, y)
		if e.round != nil {
			e.round(y)
		}
		e.load(Mem{Base: a, Disp: offset}, x)
		e.add(x, y, x)
		e.store(x, Mem{Base: dst, Disp: offset})
	})
}

// features is what CPUID says of F16C, which no AVX2 flag includes.
func features() {
	TEXT("leaf1", NOSPLIT, "func() (ecx uint32)")
	MOVL(U32(1), reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID()
	Store(reg.ECX, ReturnIndex(0))
	RET()
}
