package agent

import (
	"context"
	"fmt"
	"unsafe"

	"weft/internal/parallel"
	"weft/job"
)

// reduction is what is computed of the workers' contributions, in their order.
type reduction struct {
	dtype job.DType
	op    string  // sum, min or max
	scale float64 // multiplies every contribution; only of a sum of floating-point numbers
}

// pieceBytes is what one goroutine reduces at a time.
const pieceBytes = 256 << 10

func reducible(d job.DType) bool {
	switch d {
	case job.Float32, job.Float64, job.Int32, job.Int64:
		return true
	}
	return false
}

// mean is how gradients of a type are reduced: floating-point numbers to their
// mean, each contribution divided before it is added, as DistributedDataParallel
// does; integers to their sum.
func mean(d job.DType, world int) reduction {
	r := reduction{d, "sum", 1}
	if d == job.Float32 || d == job.Float64 {
		r.scale = 1 / float64(world)
	}
	return r
}

// reduce sets dst to the reduction of the sources, large ones in pieces on all
// processors.
func (r reduction) reduce(dst []byte, sources [][]byte) error {
	pieces := (len(dst) + pieceBytes - 1) / pieceBytes
	work := func(i int) error {
		from, to := i*pieceBytes, min((i+1)*pieceBytes, len(dst))
		part := make([][]byte, len(sources))
		for k := range sources {
			part[k] = sources[k][from:to]
		}
		return r.piece(dst[from:to], part)
	}
	if pieces <= 1 {
		return r.piece(dst, sources)
	}
	return parallel.Do(context.Background(), pieces, nil, work)
}

func (r reduction) piece(dst []byte, sources [][]byte) error {
	switch r.dtype {
	case job.Float32:
		return fold[float32](r, dst, sources)
	case job.Float64:
		return fold[float64](r, dst, sources)
	case job.Int32:
		return fold[int32](r, dst, sources)
	case job.Int64:
		return fold[int64](r, dst, sources)
	}
	return fmt.Errorf("weft cannot reduce %v", r.dtype)
}

type number interface {
	float32 | float64 | int32 | int64
}

func fold[T number](r reduction, dst []byte, sources [][]byte) error {
	d, scale := view[T](dst), T(r.scale)
	for k, s := range sources {
		s := view[T](s)
		switch {
		case k == 0:
			for i := range d {
				d[i] = s[i] * scale
			}
		case r.op == "sum":
			for i := range d {
				d[i] += T(s[i] * scale) // rounded twice, never fused
			}
		case r.op == "min":
			for i := range d {
				d[i] = min(d[i], s[i])
			}
		case r.op == "max":
			for i := range d {
				d[i] = max(d[i], s[i])
			}
		}
	}
	return nil
}

func view[T number](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var x T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(x)))
}
