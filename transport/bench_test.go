package transport

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// BenchmarkExchange sends a message from one of two to the other and back, over
// loopback. "conn" is the same over a plain net.Conn, for comparison: one
// connection, no frames, the receiver knows the length.
func BenchmarkExchange(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		name := fmt.Sprintf("%dKiB", size>>10)
		for _, bulk := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/weft-%d", name, bulk), func(b *testing.B) { benchmarkEndpoints(b, size, TCPOptions{Bulk: bulk}) })
		}
		b.Run(name+"/weft-checksum", func(b *testing.B) { benchmarkEndpoints(b, size, TCPOptions{Checksum: true}) })
		b.Run(name+"/conn", func(b *testing.B) { benchmarkConn(b, size) })
	}
}

func benchmarkEndpoints(b *testing.B, size int, o TCPOptions) {
	es := connectAll(b, "127.0.0.1", 2, o)
	ctx := context.Background()
	there, back := make([]byte, size), make([]byte, size)
	b.SetBytes(2 * int64(size))
	b.ReportAllocs()
	defer reportCPU(b)()
	b.ResetTimer()
	done := make(chan error, 1)
	go func() {
		for i := range b.N {
			tag := Tag{Op: uint64(i)}
			if err := es[1].Recv(ctx, 0, tag, back); err != nil {
				done <- err
				return
			}
			if err := es[1].Send(ctx, 0, tag, back); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range b.N {
		tag := Tag{Op: uint64(i)}
		if err := es[0].Send(ctx, 1, tag, there); err != nil {
			b.Fatal(err)
		}
		if err := es[0].Recv(ctx, 1, tag, there); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	go es[1].Close()
	es[0].Close()
}

// reportCPU reports the processor time that the process takes, user and system,
// for each operation.
func reportCPU(b *testing.B) func() {
	used := func() time.Duration {
		var r syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &r)
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	start := used()
	return func() { b.ReportMetric(float64(used()-start)/float64(b.N), "cpu-ns/op") }
}

func benchmarkConn(b *testing.B, size int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	there, back := make([]byte, size), make([]byte, size)
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		for range b.N {
			if _, err := io.ReadFull(c, back); err != nil {
				done <- err
				return
			}
			if _, err := c.Write(back); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.SetBytes(2 * int64(size))
	b.ReportAllocs()
	defer reportCPU(b)()
	b.ResetTimer()
	for range b.N {
		if _, err := c.Write(there); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, there); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
