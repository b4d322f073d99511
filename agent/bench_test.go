package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/collective"
	"weft/transport"
)

// BenchmarkCalls all-reduces by calls of 1 MiB, four of them under way, between two
// hosts that are connected by TCP, with a worker each. It reports the memory of both
// agents and workers that is not shared.
func BenchmarkCalls(b *testing.B) {
	ctx, l := b.Context(), collective.Layout{1, 1}
	var listeners []*transport.Listener
	var addrs []string
	for range l {
		x, err := transport.Listen(ctx, "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer x.Close()
		listeners, addrs = append(listeners, x), append(addrs, x.Addr().String())
	}
	const size, places = 1 << 20, 4
	var all sync.WaitGroup
	b.SetBytes(size)
	for rank := range l {
		all.Go(func() {
			if err := benchCalls(b, rank, size, places, agent.Config{
				World: l.Workers(), Ranks: []int{rank}, Socket: filepath.Join(shortDir(b), "agent"),
				Meet: func(ctx context.Context) ([]transport.Endpoint, collective.Layout, error) {
					ep, err := listeners[rank].Connect(ctx, transport.TCPOptions{Rank: rank, Addrs: addrs, Secret: []byte("the secret of a benchmark")})
					return []transport.Endpoint{ep}, l, err
				},
			}); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	b.ReportMetric(private(b), "private-MiB")
}

// private is the resident memory of this process that is not shared, MiB.
func private(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
			kib, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib / 1024
		}
	}
	b.Skip("the system does not say")
	return 0
}

func benchCalls(b *testing.B, rank, size, places int, c agent.Config) error {
	a, err := agent.Listen(c)
	if err != nil {
		return err
	}
	defer a.Close()
	w, err := worker.Dial(a.Socket, rank, c.World, 0)
	if err != nil {
		return err
	}
	if err := w.Hello(tensors("float32")); err != nil {
		return err
	}
	for i := range b.N + places {
		if i == places && rank == 0 {
			b.ResetTimer()
		}
		if i >= places {
			if _, err := w.Returned(); err != nil {
				return err
			}
		}
		if i < b.N {
			at := int64(i % places * size)
			call := protocol.Call{Kind: "all-reduce", Op: "sum", DType: "float32", At: at, Elements: int64(size / 4), From: int64(i * size / 4)}
			if _, err := w.Begin(call); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
	}
	if err := w.Goodbye(); err != nil {
		return err
	}
	<-a.Done()
	return a.Err()
}
