//go:build !race

package collective

import (
	"context"
	"sync"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// A transfer of many chunks allocates what one of few does: nothing by chunk. (The race
// detector makes pools forget.)
func TestChunksAllocateNothing(t *testing.T) {
	const bytes = 2 << 20
	es := connect(t, "loopback", 2)
	op := uint64(0)
	for _, alg := range []Algorithm{Ring, Direct, Exchange} {
		allocations := func(chunk int64) float64 {
			var ts []*Transfer
			for rank := range es {
				s := Spec{Kind: cluster.AllReduce, Algorithm: alg, World: 2, Chunk: chunk / 4, Slices: []plan.Slice{{Length: bytes / 4}}}
				p, err := s.Program(rank)
				if err != nil {
					t.Fatal(err)
				}
				// A contribution that is added as it comes, and one that is scaled on the way.
				r := Reduction{DType: job.Float32, Scale: float64(1 + rank)}
				ts = append(ts, &Transfer{Program: p, Reduction: r, Result: make([]byte, bytes)})
			}
			return testing.AllocsPerRun(10, func() {
				op++
				var all sync.WaitGroup
				for rank, x := range ts {
					x.Op = op
					all.Go(func() {
						if err := x.Run(context.Background(), es[rank]); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
			})
		}
		few, many := allocations(512<<10), allocations(16<<10)
		if many > few+20 { // of 100 messages more a host; what a garbage collection takes from a pool is made again
			t.Errorf("%v: %v allocations in chunks of 512 KiB, %v in chunks of 16 KiB", alg, few, many)
		}
	}
}
