package collective

import (
	"fmt"
	"sync"

	"weft/collective/kernel"
	"weft/job"
	"weft/plan"
)

// Reduction is what is computed of the contributions.
type Reduction struct {
	DType job.DType
	Op    kernel.Op
	// Scale multiplies every contribution before it is added, rounded to the element
	// type, as DistributedDataParallel does: the mean of n is the Sum with Scale 1/n.
	// 0 and 1: nothing is multiplied. Only for the Sum of floating-point numbers.
	Scale float64
}

// arithmetic is a reduction made ready.
type arithmetic struct {
	kernel.Kernel
	size  int64 // bytes of an element
	scale float64
}

func (r Reduction) arithmetic() (arithmetic, error) {
	k, err := kernel.For(r.DType, r.Op)
	if err != nil {
		return arithmetic{}, err
	}
	a := arithmetic{k, r.DType.Bytes(), r.Scale}
	if a.scale == 0 {
		a.scale = 1
	}
	if a.scale != 1 && k.Scale == nil {
		return arithmetic{}, fmt.Errorf("collective: %v of %v cannot be scaled (by %v): only sums of floating-point numbers can", r.Op, r.DType, r.Scale)
	}
	return a, nil
}

// work is memory that one goroutine reduces in: parts of the first-level cache.
type work struct {
	sum, own [8 << 10]byte
	views    [][]byte
}

var works = sync.Pool{New: func() any { return new(work) }}

// fold sets dst to the reduction of the sources, in their order, each scaled. dst may
// be one of them. tmp holds sums of three sources and more, and scaled ones.
func (a arithmetic) fold(dst []byte, sources [][]byte, tmp []byte) {
	if len(sources) == 1 {
		if a.scale != 1 {
			a.Scale(dst, sources[0], a.scale)
		} else if len(dst) > 0 && &dst[0] != &sources[0][0] {
			copy(dst, sources[0])
		}
		return
	}
	last := sources[len(sources)-1]
	if len(sources) == 2 && a.scale == 1 {
		a.Combine(dst, sources[0], last)
		return
	}
	for from := 0; from < len(dst); from += len(tmp) {
		to := min(from+len(tmp), len(dst))
		sum, first := tmp[:to-from], sources[0][from:to]
		if a.scale == 1 {
			for _, s := range sources[1 : len(sources)-1] {
				a.Combine(sum, first, s[from:to])
				first = sum
			}
			a.Combine(dst[from:to], first, last[from:to])
			continue
		}
		a.Scale(sum, first, a.scale)
		for _, s := range sources[1 : len(sources)-1] {
			a.CombineScaled(sum, sum, s[from:to], a.scale)
		}
		a.CombineScaled(dst[from:to], sum, last[from:to], a.scale)
	}
}

// ReduceLocal sets dst to the reduction of the sources, in their order: what the workers
// of one host contribute together. dst may be one of the sources. All have the same
// length; any range of a bucket may be reduced by itself, and at the same time as others.
func ReduceLocal(r Reduction, dst []byte, sources ...[]byte) error {
	a, err := r.arithmetic()
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		return fmt.Errorf("collective: nothing to reduce")
	}
	for _, s := range append(sources[:len(sources):len(sources)], dst) {
		if err := a.check(s, int64(len(dst))); err != nil {
			return err
		}
	}
	w := works.Get().(*work)
	defer works.Put(w)
	a.fold(dst, sources, w.sum[:])
	return nil
}

// check refuses memory that has the wrong length or does not start at an element.
func (a arithmetic) check(b []byte, length int64) error {
	switch {
	case int64(len(b)) != length || length%a.size != 0:
		return fmt.Errorf("collective: a buffer of %d bytes for %d, elements of %d", len(b), length, a.size)
	case !kernel.Aligned(b, a.size):
		return fmt.Errorf("collective: a buffer is not aligned to its elements of %d bytes", a.size)
	}
	return nil
}

// Reference returns the result of an all-reduce, computed in one place from the workers'
// contributions to a bucket by rank. Every program, however the bucket is cut, gives
// these bits.
func Reference(r Reduction, l Layout, slices []plan.Slice, contributions [][]byte) ([]byte, error) {
	a, err := r.arithmetic()
	if err != nil {
		return nil, err
	}
	if len(contributions) != l.Workers() || len(l) == 0 {
		return nil, fmt.Errorf("collective: %d contributions of %d workers", len(contributions), l.Workers())
	}
	bytes := Elements(slices) * a.size
	hosts := make([][]byte, len(l))
	for h, rank := 0, 0; h < len(l); h++ {
		hosts[h] = make([]byte, bytes)
		if err := ReduceLocal(r, hosts[h], contributions[rank:rank+l[h]]...); err != nil {
			return nil, err
		}
		rank += l[h]
	}
	out := make([]byte, bytes)
	for _, run := range runs(slices, len(l)) {
		from, to := run.Start*a.size, (run.Start+run.Length)*a.size
		for d := range hosts {
			h := hosts[(run.Owner+1+d)%len(l)][from:to]
			if d == 0 {
				copy(out[from:to], h)
			} else {
				a.Combine(out[from:to], out[from:to], h)
			}
		}
	}
	return out, nil
}
