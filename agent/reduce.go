package agent

import (
	"context"

	"weft/collective"
	"weft/collective/kernel"
	"weft/internal/parallel"
	"weft/job"
)

// pieceBytes is what one goroutine reduces at a time: what fits into a second-level
// cache with what it is made of. A call of no more is reduced at once rather than beside
// all else: it takes less time than to hand it over.
const pieceBytes = 256 << 10

// reducible is nil for element types that can be reduced.
func reducible(d job.DType) error {
	_, err := kernel.For(d, kernel.Sum)
	return err
}

// mean is how gradients of a type are reduced: floating-point numbers to their
// mean, each contribution divided before it is added, as DistributedDataParallel
// does; integers to their sum.
func mean(d job.DType, world int) collective.Reduction {
	r := collective.Reduction{DType: d, Op: kernel.Sum}
	if k, err := kernel.For(d, kernel.Sum); err == nil && k.Scale != nil {
		r.Scale = 1 / float64(world)
	}
	return r
}

// reduce sets dst to the reduction of the sources, in their order; large ones in
// pieces on all processors.
func reduce(r collective.Reduction, dst []byte, sources [][]byte) error {
	pieces := (len(dst) + pieceBytes - 1) / pieceBytes
	if pieces <= 1 {
		return collective.ReduceLocal(r, dst, sources...)
	}
	return parallel.Do(context.Background(), pieces, nil, func(i int) error {
		from, to := i*pieceBytes, min((i+1)*pieceBytes, len(dst))
		part := make([][]byte, len(sources))
		for k := range sources {
			part[k] = sources[k][from:to]
		}
		return collective.ReduceLocal(r, dst[from:to], part...)
	})
}
