// Package parallel does independent pieces of work on all processors.
package parallel

import (
	"cmp"
	"context"
	"runtime"
	"sync"
)

// Do does the work 0 to n-1, as many pieces at once as there are processors, and
// returns when none runs any more. The error is the cause of ctx's end, with which
// no further piece begins, or that of the first piece, by number, that failed: it
// does not depend on the number of processors. Progress, if set, is told how many
// pieces are done; calls do not overlap.
func Do(ctx context.Context, n int, progress func(done, total int), work func(i int) error) error {
	var (
		all        sync.WaitGroup
		mu         sync.Mutex
		next, done int
		failures   = make([]error, n)
	)
	for range min(n, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n || ctx.Err() != nil {
					return
				}
				failures[i] = work(i)
				mu.Lock()
				done++
				if progress != nil {
					progress(done, n)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return cmp.Or(append([]error{context.Cause(ctx)}, failures...)...)
}
