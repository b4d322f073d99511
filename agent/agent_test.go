package agent_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is an agent and the workers of its host, which the test plays.
type host struct {
	*testing.T
	agent   *agent.Agent
	workers []*worker.Worker
}

// local is one host with n workers.
func local(t *testing.T, n int, timeout time.Duration) *host {
	t.Helper()
	c := agent.Config{World: n, Timeout: timeout}
	for r := range n {
		c.Ranks = append(c.Ranks, r)
	}
	return newHost(t, c)
}

func newHost(t *testing.T, c agent.Config) *host {
	t.Helper()
	c.Socket = filepath.Join(shortDir(t), "agent")
	a, err := agent.Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{T: t, agent: a}
	t.Cleanup(func() {
		for _, w := range h.workers {
			w.Close()
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(a.Socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	for _, rank := range c.Ranks {
		h.workers = append(h.workers, h.dial(rank))
	}
	return h
}

// shortDir is a new directory whose path is short enough for sockets.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "weft-agent-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (h *host) dial(rank int) *worker.Worker {
	h.Helper()
	w, err := worker.Dial(h.agent.Socket, rank, h.agent.World, rank-h.agent.Ranks[0])
	if err != nil {
		h.Fatal(err)
	}
	return w
}

// all runs f for all workers at once and returns their errors.
func (h *host) all(f func(w *worker.Worker) error) []error {
	errs := make([]error, len(h.workers))
	var wg sync.WaitGroup
	for i, w := range h.workers {
		wg.Go(func() { errs[i] = f(w) })
	}
	wg.Wait()
	return errs
}

// must is all, and no error.
func (h *host) must(f func(w *worker.Worker) error) {
	h.Helper()
	for rank, err := range h.all(f) {
		if err != nil {
			h.Fatalf("rank %d: %v", rank, err)
		}
	}
}

// fails expects every given worker to be told text, by the agent.
func (h *host) fails(text string, errs ...error) {
	h.Helper()
	for i, err := range errs {
		var f *worker.Error
		if !errors.As(err, &f) || !strings.Contains(err.Error(), text) {
			h.Errorf("worker %d of those told: %v, want %q", i, err, text)
		}
	}
	var f *engine.Failure
	<-h.agent.Done()
	if err := h.agent.Err(); !errors.As(err, &f) || !strings.Contains(err.Error(), text) {
		h.Errorf("the agent ended with %v, want %q", err, text)
	}
}

func tensors(dtype string, elements ...int64) protocol.Hello {
	h := protocol.Hello{Tensors: []protocol.Tensor{}}
	for k, n := range elements {
		h.Tensors = append(h.Tensors, protocol.Tensor{Name: fmt.Sprint("t", k), Elements: n, DType: dtype})
	}
	return h
}

func put32(b []byte, v ...float32) {
	for i, x := range v {
		binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
}

func get32(b []byte) (out []float32) {
	for ; len(b) > 0; b = b[4:] {
		out = append(out, math.Float32frombits(binary.NativeEndian.Uint32(b)))
	}
	return out
}

// Three workers, buckets of one and of two tensors, three iterations: the output
// is the mean.
func TestTrain(t *testing.T) {
	h := local(t, 3, 0)
	hello := tensors("float32", 2, 1, 3)
	hello.FirstBucket, hello.BucketBytes = 12, 12 // {t2} is 12 bytes, then {t1, t0} is 4 + 8
	h.must(func(w *worker.Worker) error { return w.Hello(hello) })
	for _, w := range h.workers {
		if got := w.Welcome.Buckets; len(got) != 2 || !slices.Equal(got[0].Tensors, []int32{2}) || !slices.Equal(got[1].Tensors, []int32{1, 0}) {
			t.Fatalf("buckets %+v", got)
		}
		if x, y := w.Welcome.Tensors[1], w.Welcome.Tensors[0]; x.Offset+x.Bytes != y.Offset {
			t.Fatalf("t1 at %+v, t0 at %+v", x, y)
		}
	}
	for i := range 3 {
		h.must(func(w *worker.Worker) error {
			for b := range w.Welcome.Buckets {
				at := worker.Region(w.Input, w.Welcome.Buckets[b].Region)
				for k := 0; k < len(at); k += 4 { // rank, iteration, bucket and place
					put32(at[k:], float32(3*(w.Rank+10*i+100*b)+k))
				}
				if err := w.Ready(b, i); err != nil {
					return err
				}
			}
			for range w.Welcome.Buckets {
				b, of, err := w.Done()
				if err != nil {
					return err
				}
				// The ranks' mean is 1, so 3 in place of 3 * rank. The workers divide before
				// they add: 1/3 is rounded.
				for k, v := range get32(worker.Region(w.Output, w.Welcome.Buckets[b].Region)) {
					if want := float64(3*(1+10*i+100*b) + 4*k); of != i || math.Abs(float64(v)-want) > want*1e-6 {
						return fmt.Errorf("bucket %d of iteration %d is %v at %d, want %v", b, of, v, k, want)
					}
				}
			}
			return nil
		})
	}
	h.must((*worker.Worker).Goodbye)
	<-h.agent.Done()
	if err := h.agent.Err(); err != nil {
		t.Error(err)
	}
}

// Every type, more elements than one piece, and one worker alone.
func TestTypes(t *testing.T) {
	for _, n := range []int{1, 2} {
		for _, d := range []string{"float32", "float64", "int32", "int64"} {
			h := local(t, n, 0)
			h.must(func(w *worker.Worker) error { return w.Hello(tensors(d, 300_001)) })
			h.must(func(w *worker.Worker) error {
				in := worker.Region(w.Input, w.Welcome.Tensors[0])
				size := len(in) / 300_001
				for i := range 300_001 {
					switch v := i + w.Rank; d {
					case "float32":
						put32(in[i*size:], float32(v))
					case "float64":
						binary.NativeEndian.PutUint64(in[i*size:], math.Float64bits(float64(v)))
					case "int32":
						binary.NativeEndian.PutUint32(in[i*size:], uint32(v))
					case "int64":
						binary.NativeEndian.PutUint64(in[i*size:], uint64(v))
					}
				}
				if err := w.Ready(0, 0); err != nil {
					return err
				}
				if _, _, err := w.Done(); err != nil {
					return err
				}
				out := worker.Region(w.Output, w.Welcome.Tensors[0])
				for i := range 300_001 {
					sum := float64(n*i + n*(n-1)/2) // of i + rank
					var got float64
					switch d {
					case "float32":
						got, sum = float64(get32(out[i*size:][:4])[0]), sum/float64(n)
					case "float64":
						got, sum = math.Float64frombits(binary.NativeEndian.Uint64(out[i*size:])), sum/float64(n)
					case "int32":
						got = float64(binary.NativeEndian.Uint32(out[i*size:]))
					case "int64":
						got = float64(binary.NativeEndian.Uint64(out[i*size:]))
					}
					if got != sum {
						return fmt.Errorf("%s element %d is %v, want %v", d, i, got, sum)
					}
				}
				return nil
			})
			h.must((*worker.Worker).Goodbye)
		}
	}
}

func TestCalls(t *testing.T) {
	h := local(t, 2, 0)
	h.must(func(w *worker.Worker) error { return w.Hello(tensors("float32")) })
	call := func(c protocol.Call, in []float32, want ...float32) {
		t.Helper()
		h.must(func(w *worker.Worker) error {
			at := protocol.Region{Offset: w.Welcome.CallOffset, Bytes: int64(4 * len(want))}
			if len(in) > 0 {
				put32(worker.Region(w.Input, at), in[w.Rank*len(want):(w.Rank+1)*len(want)]...)
			}
			if err := w.Call(c); err != nil {
				return err
			}
			if got := get32(worker.Region(w.Output, at)); !slices.Equal(got, want) {
				return fmt.Errorf("%v: %v, want %v", c, got, want)
			}
			return nil
		})
	}
	call(protocol.Call{Kind: "barrier"}, nil)
	in := []float32{1, 8, -3, 4} // of rank 0, of rank 1
	for op, want := range map[string][]float32{"sum": {-2, 12}, "mean": {-1, 6}, "min": {-3, 4}, "max": {1, 8}} {
		call(protocol.Call{Kind: "all-reduce", Op: op, DType: "float32", Elements: 2}, in, want...)
	}
	call(protocol.Call{Kind: "broadcast", Root: 1, Bytes: 8}, in, -3, 4)

	// Then there is a model.
	h.must(func(w *worker.Worker) error { return w.Hello(tensors("float32", 1)) })
	h.must(func(w *worker.Worker) error {
		put32(worker.Region(w.Input, w.Welcome.Tensors[0]), float32(w.Rank))
		return w.Ready(0, 0)
	})
	h.must(func(w *worker.Worker) error {
		_, _, err := w.Done()
		if got := get32(worker.Region(w.Output, w.Welcome.Tensors[0])); got[0] != 0.5 {
			t.Errorf("mean %v, want 0.5", got)
		}
		return err
	})
	call(protocol.Call{Kind: "barrier"}, nil)
}

func hello(t ...protocol.Tensor) func(*worker.Worker) error {
	return func(w *worker.Worker) error { return w.Hello(protocol.Hello{Tensors: t}) }
}

// What one worker may not say ends all of them.
func TestRefused(t *testing.T) {
	one := protocol.Tensor{Name: "w", Elements: 4, DType: "float32"}
	model := hello(one)
	barrier := func(w *worker.Worker) error { return w.Call(protocol.Call{Kind: "barrier"}) }
	done := func(w *worker.Worker) error { _, _, err := w.Done(); return err }
	for _, x := range []struct {
		name, want string
		first      func(*worker.Worker) error // by both; nil: nothing
		zero, one  func(*worker.Worker) error
	}{
		{"other tensors", "tensor 0 is w (4 elements of float32) on rank 0, w (5 elements of float32) on rank 1",
			nil, model, hello(protocol.Tensor{Name: "w", Elements: 5, DType: "float32"})},
		{"more tensors", "tensor 1 is missing on rank 0, v (1 elements of float32) on rank 1",
			nil, model, hello(one, protocol.Tensor{Name: "v", Elements: 1, DType: "float32"})},
		{"more parameters", "tensor 2 is missing on rank 0, v (1 elements of float32) on rank 1",
			nil, hello(protocol.Tensor{Name: "weft.used", Elements: 3, DType: "float32"}, one), hello(protocol.Tensor{Name: "weft.used", Elements: 4, DType: "float32"}, one, protocol.Tensor{Name: "v", Elements: 1, DType: "float32"})},
		{"other tensors of the client", "tensor 0 is weft.used (3 elements of float32) on rank 0, weft.used (4 elements of float32) on rank 1",
			nil, hello(protocol.Tensor{Name: "weft.used", Elements: 3, DType: "float32"}, one), hello(protocol.Tensor{Name: "weft.used", Elements: 4, DType: "float32"}, one)},
		{"other versions", "weft is 0.1.0 on rank 0, 0.2.0 on rank 1",
			nil, func(w *worker.Worker) error { return w.Hello(protocol.Hello{Weft: "0.1.0"}) }, func(w *worker.Worker) error { return w.Hello(protocol.Hello{Weft: "0.2.0"}) }},
		{"another world", "rank 1 counts 3 workers (WORLD_SIZE), the launcher 2",
			nil, model, func(w *worker.Worker) error { w.World = 3; return model(w) }},
		{"no such rank", "rank 7 is not of this host", nil, model, func(w *worker.Worker) error { w.Rank = 7; return model(w) }},
		{"one rank twice", "two workers say that they are rank 0", nil, model, func(w *worker.Worker) error { w.Rank = 0; return model(w) }},
		{"a type", "tensor w: kernel: sum of complex64 is not supported", nil, hello(protocol.Tensor{Name: "w", Elements: 4, DType: "complex64"}), hello(protocol.Tensor{Name: "w", Elements: 4, DType: "complex64"})},
		{"no elements", `"w" has 0 elements`, nil, hello(protocol.Tensor{Name: "w", DType: "float32"}), hello(protocol.Tensor{Name: "w", DType: "float32"})},
		{"no memory", "are free", nil, hello(protocol.Tensor{Name: "w", Elements: 1 << 43, DType: "float32"}), hello(protocol.Tensor{Name: "w", Elements: 1 << 43, DType: "float32"})},
		{"ready without a bucket", "rank 1 declared bucket 3 of iteration 0: the plan has 1 buckets",
			model, done, func(w *worker.Worker) error { w.Ready(3, 0); return done(w) }},
		{"ready too early", "rank 1 declared bucket 0 of iteration 1: it is in flight still",
			model, done, func(w *worker.Worker) error { w.Ready(0, 0); w.Ready(0, 1); return done(w) }},
		{"different calls", "rank 0 makes call 0 (barrier), rank 1 call 0 (broadcast of 4 bytes from rank 0)",
			model, barrier, func(w *worker.Worker) error { return w.Call(protocol.Call{Kind: "broadcast", Bytes: 4}) }},
		{"no such call", `rank 1: call 0: no call "sing"`, model, barrier, func(w *worker.Worker) error { return w.Call(protocol.Call{Kind: "sing"}) }},
		{"no such operation", `no operation "xor"`, model, barrier, func(w *worker.Worker) error {
			return w.Call(protocol.Call{Kind: "all-reduce", Op: "xor", DType: "int32", Elements: 1})
		}},
		{"too large a call", "calls carry at most 8388608 bytes, and this one's begin at 0", model, barrier, func(w *worker.Worker) error {
			return w.Call(protocol.Call{Kind: "all-reduce", Op: "sum", DType: "float32", Elements: math.MaxInt64})
		}},
		{"a negative call", "calls carry at most", model, barrier, func(w *worker.Worker) error { return w.Call(protocol.Call{Kind: "broadcast", Bytes: -1}) }},
		{"a call past the end", "calls carry at most 8388608 bytes, and this one's begin at 8388608", model, barrier, func(w *worker.Worker) error {
			return w.Call(protocol.Call{Kind: "broadcast", At: 8 << 20, Bytes: 1})
		}},
		{"a call in between", "and this one's begin at 4", model, barrier, func(w *worker.Worker) error { return w.Call(protocol.Call{Kind: "broadcast", At: 4, Bytes: 4}) }},
		{"too many calls", "rank 1: call 8: call 0 has not returned, and there may be 8 at a time", model, func(w *worker.Worker) error { _, err := w.Returned(); return err }, func(w *worker.Worker) error {
			for range 9 {
				w.Begin(protocol.Call{Kind: "barrier"})
			}
			_, err := w.Returned()
			return err
		}},
		{"no such root", "there are 2 ranks", model, barrier, func(w *worker.Worker) error { return w.Call(protocol.Call{Kind: "broadcast", Root: 2}) }},
		{"the agent's part", "rank 1 sent a message that only agents send: done", model, barrier, func(w *worker.Worker) error {
			w.Send(protocol.Message{Kind: protocol.KindDone})
			return barrier(w)
		}},
		{"a call beside hello", "every rank must do the same", model, barrier, model},
		{"a call in place of a step", "rank 1 makes a call, while rank 0 waits for its gradients", model, func(w *worker.Worker) error { w.Ready(0, 0); return done(w) }, barrier},
		{"hello in place of a step", "rank 1 says hello, while rank 0 waits for its gradients", model, func(w *worker.Worker) error { w.Ready(0, 0); return done(w) }, model},
		{"a call after the end", "rank 0 makes a call, and rank 1 has ended", model, barrier, func(w *worker.Worker) error { w.Goodbye(); return nil }},
		{"a step after the end", "rank 1 has ended its training and rank 0 goes on", model, func(w *worker.Worker) error { w.Ready(0, 0); return done(w) }, func(w *worker.Worker) error { w.Goodbye(); return nil }},
	} {
		t.Run(x.name, func(t *testing.T) {
			h := local(t, 2, 0)
			if x.first != nil {
				h.must(x.first)
			}
			errs := h.all(func(w *worker.Worker) error {
				if w == h.workers[0] {
					return x.zero(w)
				}
				return x.one(w)
			})
			told := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
			if len(told) == 0 {
				t.Error("nobody was told")
			}
			h.fails(x.want, told...)
		})
	}
}

// A worker whose connection ends is named, with what it owed.
func TestLost(t *testing.T) {
	h := local(t, 3, 0)
	h.must(func(w *worker.Worker) error { return w.Hello(tensors("float32", 1, 1)) })
	var errs []error
	h.all(func(w *worker.Worker) error {
		if w.Rank == 1 {
			return w.Close()
		}
		return w.Ready(0, 0)
	})
	for _, w := range []*worker.Worker{h.workers[0], h.workers[2]} {
		_, _, err := w.Done()
		errs = append(errs, err)
		var f *worker.Error
		if errors.As(err, &f) && (*f.Rank != 1 || f.Tensor != "t1" || f.Phase != "gradient") {
			t.Errorf("%+v", f)
		}
	}
	h.fails("rank 1 is lost: its connection ended (EOF), while waiting for its gradient of tensor t1 (bucket 0) of iteration 0", errs...)
}

// A worker that computes reads nothing: what it is told of buckets by the thousand, more
// than its socket holds, keeps nobody waiting, and a failure comes behind it.
func TestUnread(t *testing.T) {
	const buckets = 3000
	h := local(t, 2, 0)
	hello := tensors("float32", slices.Repeat([]int64{1}, buckets)...)
	hello.FirstBucket, hello.BucketBytes = 4, 4
	h.must(func(w *worker.Worker) error { return w.Hello(hello) })
	ready := func(w *worker.Worker, iteration int) error {
		for b := range w.Welcome.Buckets {
			if err := w.Ready(b, iteration); err != nil {
				return err
			}
		}
		return nil
	}
	read := func(w *worker.Worker, iteration int) error {
		for b := range w.Welcome.Buckets {
			if got, of, err := w.Done(); got != b || of != iteration || err != nil {
				return fmt.Errorf("bucket %d of iteration %d, want %d of %d (%v)", got, of, b, iteration, err)
			}
		}
		return nil
	}
	busy, quick := h.workers[0], h.workers[1]
	for i := range 2 {
		h.must(func(w *worker.Worker) error { return ready(w, i) })
		if err := read(quick, i); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := read(busy, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	quick.Close()
	<-h.agent.Done()
	if err := read(busy, 1); err != nil {
		t.Fatal(err)
	}
	_, _, err := busy.Done()
	h.fails("rank 1 is lost", err)
}

// So is one that ends before others have said hello, or never wanted to.
func TestLostEarly(t *testing.T) {
	for _, x := range []struct {
		cause error
		want  string
	}{
		{errors.New("signal: killed"), "signal: killed"},
		{nil, "rank 0 says hello, and rank 1 has ended"},
	} {
		h := newHost(t, agent.Config{World: 2, Ranks: []int{0, 1}, Explained: true})
		told := make(chan error, 1)
		go func() { told <- h.workers[0].Hello(tensors("float32", 1)) }()
		h.agent.Ended(1, x.cause)
		h.fails(x.want, <-told)
	}
}

// Nobody waits for ever.
func TestTimeout(t *testing.T) {
	h := local(t, 2, time.Millisecond)
	err := h.workers[0].Hello(tensors("float32", 1))
	h.fails("rank 0 says hello and has waited", err)

	h = local(t, 2, time.Millisecond)
	h.must(func(w *worker.Worker) error { return w.Hello(tensors("float32", 1)) })
	h.workers[0].Ready(0, 0)
	_, _, err = h.workers[0].Done()
	h.fails("rank 1 is too slow", err)
}

// The agent hangs up on what is no worker, and nobody else minds.
func TestNoise(t *testing.T) {
	h := local(t, 1, 0)
	for _, noise := range []string{
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		string(protocol.Message{Kind: protocol.KindReady}.Append(nil)), // before hello
	} {
		conn, err := net.Dial("unix", h.agent.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(noise)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("an answer of %d bytes, %v", n, err)
		}
	}
	h.must(func(w *worker.Worker) error { return w.Hello(tensors("float32", 1)) })
}

// Only its user may connect.
func TestMode(t *testing.T) {
	h := local(t, 1, 0)
	if info, err := os.Stat(h.agent.Socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// An iteration of one bucket, two workers in this process.
// Calls under way at once, in places of their own; one worker is ahead of the other.
func TestCallsAtOnce(t *testing.T) {
	const calls, elements = 7, 100_000
	h := local(t, 2, 0)
	h.must(func(w *worker.Worker) error { return w.Hello(tensors("float32")) })
	place := func(w *worker.Worker, k int) protocol.Region {
		return protocol.Region{Offset: w.Welcome.CallOffset + int64(k)*4*elements, Bytes: 4 * elements}
	}
	h.must(func(w *worker.Worker) error {
		returned := map[int]bool{}
		for k := range calls {
			in := worker.Region(w.Input, place(w, k))
			put32(in, float32(w.Rank), float32(k))
			put32(in[len(in)-4:], float32(k))
			if w.Rank == 0 && k == 5 { // rank 1 cannot have had more than five
				for range 3 {
					c, err := w.Returned()
					if err != nil {
						return err
					}
					returned[c] = true
				}
			}
			c := protocol.Call{Kind: "all-reduce", Op: "sum", DType: "float32", At: int64(k) * 4 * elements, Elements: elements, From: int64(k) * elements}
			if _, err := w.Begin(c); err != nil {
				return err
			}
		}
		for len(returned) < calls {
			c, err := w.Returned()
			if err != nil {
				return err
			}
			returned[c] = true
		}
		for k := range calls {
			out := get32(worker.Region(w.Output, place(w, k)))
			if got := []float32{out[0], out[1], out[elements-1]}; !returned[k] || !slices.Equal(got, []float32{1, float32(2 * k), float32(2 * k)}) {
				return fmt.Errorf("call %d: %v", k, got)
			}
		}
		return nil
	})
}

func BenchmarkBucket(b *testing.B) {
	for _, bytes := range []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprint(bytes>>10, "KiB"), func(b *testing.B) {
			a, err := agent.Listen(agent.Config{World: 2, Ranks: []int{0, 1}, Socket: filepath.Join(shortDir(b), "agent")})
			if err != nil {
				b.Fatal(err)
			}
			defer a.Close()
			var wg sync.WaitGroup
			b.SetBytes(bytes)
			for r := range 2 {
				wg.Go(func() {
					w, err := worker.Dial(a.Socket, r, 2, r)
					if err != nil {
						b.Error(err)
						return
					}
					defer w.Goodbye()
					if err := w.Hello(tensors("float32", bytes/4)); err != nil {
						b.Error(err)
						return
					}
					for i := range b.N {
						if i == 1 && r == 0 {
							b.ResetTimer()
						}
						w.Ready(0, i)
						if _, _, err := w.Done(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// Connections that say nothing take no place from workers, and there may be so many of
// them; who comes then is told why it is not served.
func TestStrangers(t *testing.T) {
	h := local(t, 2, 0)
	var silent []*worker.Worker
	for range 65 {
		silent = append(silent, h.dial(0))
	}
	var told *worker.Error
	if err := silent[64].Hello(tensors("float32")); !errors.As(err, &told) || told.Message != "the agent has 66 connections, for 2 workers: it takes no more" {
		t.Errorf("the last was told: %v", err)
	}
	h.must(func(w *worker.Worker) error { return w.Hello(tensors("float32")) })
	for _, w := range silent {
		w.Close()
	}
	h.must((*worker.Worker).Goodbye)
	<-h.agent.Done()
	if err := h.agent.Err(); err != nil {
		t.Error(err)
	}
}

// Where no descriptor is left for a connection, the agent goes on, and takes it when
// there is.
func TestNoDescriptors(t *testing.T) {
	warned := make(chan string, 1)
	a, err := agent.Listen(agent.Config{World: 1, Ranks: []int{0}, Socket: filepath.Join(shortDir(t), "agent"), Warn: func(s string) { warned <- s }})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	w, err := worker.Dial(a.Socket, 0, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Hello(tensors("float32", 1)); err != nil {
		t.Fatal(err)
	}

	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	late, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(late)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	var taken []int
	giveBack := func() {
		for _, fd := range taken {
			unix.Close(fd)
		}
		taken = nil
	}
	defer giveBack()
	for err == nil {
		var fd int
		if fd, err = unix.FcntlInt(uintptr(late), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			taken = append(taken, fd)
		}
	}
	if err := unix.Connect(late, &unix.SockaddrUnix{Name: a.Socket}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.Done():
		t.Fatalf("training has ended: %v", a.Err())
	case s := <-warned:
		if !strings.Contains(s, "takes no connections for now") || !strings.Contains(s, "too many open files") {
			t.Errorf("warned: %s", s)
		}
	}
	giveBack()
	m, err := protocol.Message{Kind: protocol.KindHello}.With(protocol.Hello{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(late, m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(late, make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("nobody answered: %d, %v", n, err) // of a hello that is none
	}
}

// A path that a socket cannot have is told as what it is.
func TestLongSocket(t *testing.T) {
	socket := filepath.Join(shortDir(t), strings.Repeat("x", 120))
	_, err := agent.Listen(agent.Config{World: 1, Ranks: []int{0}, Socket: socket})
	if err == nil || !strings.HasPrefix(err.Error(), "the agent's socket: "+socket+": longer than the path of a socket may be: set TMPDIR") {
		t.Error(err)
	}
}
