package kernel

import "math"

// fromFloat16 widens an IEEE 754 binary16; exact.
func fromFloat16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	magnitude := uint32(h & 0x7fff)
	switch {
	case magnitude >= 0x7c00: // infinity, NaN
		return math.Float32frombits(sign | 0x7f800000 | magnitude<<13)
	case magnitude >= 0x0400: // normal: the exponent's bias is 112 more
		return math.Float32frombits(sign | (magnitude<<13 + 112<<23))
	}
	const smallest = 1.0 / (1 << 24) // a subnormal is this many times its bits
	return math.Float32frombits(sign | math.Float32bits(float32(magnitude)*smallest))
}

// toFloat16 rounds to the nearest binary16, ties to even; from 65520 on to infinity.
func toFloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	magnitude := bits & 0x7fffffff
	switch {
	case magnitude > 0x7f800000: // a quiet NaN with what fits of the payload
		return sign | 0x7e00 | uint16(magnitude>>13&0x3ff)
	case magnitude >= 0x477ff000: // 65520
		return sign | 0x7c00
	case magnitude >= 0x38800000: // 2^-14: normal
		magnitude -= 112 << 23
		return sign | uint16((magnitude+0xfff+magnitude>>13&1)>>13)
	}
	// Subnormal: adding 1/2 leaves the multiple of 2^-24, rounded, in the low bits.
	return sign | uint16(math.Float32bits(math.Float32frombits(magnitude)+0.5)-math.Float32bits(0.5))
}

// fromBFloat16 widens a bfloat16; exact.
func fromBFloat16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// toBFloat16 rounds to the nearest bfloat16, ties to even.
func toBFloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	if f != f {
		return 0x7fc0
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}
