//go:build !race

package transport

import (
	"context"
	"testing"
	"time"
)

// Nothing is allocated per message. (The race detector makes pools forget.)
func TestEndpointAllocatesNothing(t *testing.T) {
	es := connectAll(t, "127.0.0.1", 2, TCPOptions{Checksum: true})
	defer closeAll(t, es)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for _, n := range []int{0, 4 << 10, Eager, 1 << 20} {
		there, back := make([]byte, n), make([]byte, n)
		const runs = 50
		done := make(chan error, 1)
		go func() {
			for i := range runs + 1 {
				if err := es[1].Recv(ctx, 0, Tag{Op: uint64(i)}, back); err != nil {
					done <- err
					return
				}
				if err := es[1].Send(ctx, 0, Tag{Op: uint64(i)}, back); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		op := uint64(0)
		allocs := testing.AllocsPerRun(runs, func() {
			if err := es[0].Send(ctx, 1, Tag{Op: op}, there); err != nil {
				t.Error(err)
			}
			if err := es[0].Recv(ctx, 1, Tag{Op: op}, there); err != nil {
				t.Error(err)
			}
			op++
		})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if allocs != 0 {
			t.Errorf("%d bytes: %v allocations per message and answer", n, allocs)
		}
	}
}
