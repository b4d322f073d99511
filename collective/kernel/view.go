package kernel

import "unsafe"

// number is what a vector may hold; float16 and bfloat16 are uint16.
type number interface {
	float32 | float64 | int32 | int64 | uint16
}

// view is the elements that b holds. It is the one place that reinterprets memory.
func view[T number](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

// Aligned tells whether b starts at a multiple of size, the bytes of an element.
func Aligned(b []byte, size int64) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(size) == 0
}
