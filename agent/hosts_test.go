package agent_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/collective"
	"weft/job"
	"weft/plan"
	"weft/transport"
)

// met has host h connected already.
func met(net *transport.Memory, h int, l collective.Layout) func(context.Context) (transport.Endpoint, collective.Layout, error) {
	return func(context.Context) (transport.Endpoint, collective.Layout, error) { return net.Endpoint(h), l, nil }
}

// newHosts starts the agents of several hosts and their workers.
func newHosts(t *testing.T, l collective.Layout) (*transport.Memory, []*host) {
	t.Helper()
	net := transport.NewMemory(len(l), transport.MemoryOptions{})
	var all []*host
	for h := range l {
		c := agent.Config{World: l.Workers(), Meet: met(net, h, l)}
		for r := range l[h] {
			c.Ranks = append(c.Ranks, l[:h].Workers()+r)
		}
		all = append(all, newHost(t, c))
	}
	return net, all
}

// everywhere runs f for the workers of all hosts at once, and returns their errors.
func everywhere(hosts []*host, f func(w *worker.Worker) error) []error {
	all := make([][]error, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { all[i] = h.all(f) })
	}
	wg.Wait()
	var out []error
	for _, errs := range all {
		out = append(out, errs...)
	}
	return out
}

func must(t *testing.T, hosts []*host, f func(w *worker.Worker) error) {
	t.Helper()
	for rank, err := range everywhere(hosts, f) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
}

// Workers on several hosts, buckets for both algorithms, and calls.
func TestHosts(t *testing.T) {
	for _, l := range []collective.Layout{{1, 1}, {2, 1}, {1, 2, 1}} {
		t.Run(fmt.Sprint(l), func(t *testing.T) {
			_, hosts := newHosts(t, l)
			n := l.Workers()
			must(t, hosts, func(w *worker.Worker) error { return w.Hello(tensors("float32", 100_000, 3)) })
			must(t, hosts, func(w *worker.Worker) error {
				for i := range 3 {
					for b, x := range w.Welcome.Buckets {
						at := worker.Region(w.Input, x.Region)
						for k := 0; k < len(at); k += 4 {
							put32(at[k:], float32(w.Rank*n+i))
						}
						if err := w.Ready(b, i); err != nil {
							return err
						}
					}
					for range w.Welcome.Buckets {
						b, _, err := w.Done()
						if err != nil {
							return err
						}
						// The mean of rank·n + i is n(n-1)/2 + i, but for 1/n rounded.
						want := float64(n*(n-1))/2 + float64(i)
						for k, v := range get32(worker.Region(w.Output, w.Welcome.Buckets[b].Region)) {
							if math.Abs(float64(v)-want) > 1e-5 {
								return fmt.Errorf("element %d of bucket %d is %v, want %v", k, b, v, want)
							}
						}
					}
				}
				return nil
			})
			must(t, hosts, func(w *worker.Worker) error {
				at := protocol.Region{Offset: w.Welcome.CallOffset, Bytes: 8}
				for _, x := range []struct {
					call protocol.Call
					want float32
				}{
					{protocol.Call{Kind: "barrier"}, 0},
					{protocol.Call{Kind: "broadcast", Root: n - 1, Bytes: 8}, float32(n - 1)},
					{protocol.Call{Kind: "broadcast", Root: 0, Bytes: 8}, 0},
					{protocol.Call{Kind: "all-reduce", Op: "max", DType: "float32", Elements: 2}, float32(n - 1)},
					{protocol.Call{Kind: "all-reduce", Op: "sum", DType: "float32", Elements: 2}, float32(n * (n - 1) / 2)},
				} {
					put32(worker.Region(w.Input, at), float32(w.Rank), float32(w.Rank))
					if err := w.Call(x.call); err != nil {
						return err
					}
					if got := get32(worker.Region(w.Output, at)); x.call.Kind != "barrier" && (got[0] != x.want || got[1] != x.want) {
						return fmt.Errorf("%v: %v, want %v", x.call, got, x.want)
					}
				}
				return nil
			})
			// A call for a part of a tensor has the bits of that part.
			whole := []plan.Slice{{Length: 9000}}
			contributions := make([][]byte, n)
			for r := range contributions {
				for i := range 9000 {
					contributions[r] = binary.NativeEndian.AppendUint32(contributions[r], math.Float32bits(1/float32(1+i+9000*r)))
				}
			}
			sum, err := collective.Reference(collective.Reduction{DType: job.Float32}, l, whole, contributions)
			if err != nil {
				t.Fatal(err)
			}
			must(t, hosts, func(w *worker.Worker) error {
				for _, part := range [][2]int64{{0, 1500}, {1500, 9000}} {
					from, to := part[0], part[1]
					at := protocol.Region{Offset: w.Welcome.CallOffset + 4096, Bytes: 4 * (to - from)}
					copy(worker.Region(w.Input, at), contributions[w.Rank][4*from:])
					if err := w.Call(protocol.Call{Kind: "all-reduce", Op: "sum", DType: "float32", At: 4096, From: from, Elements: to - from}); err != nil {
						return err
					}
					if !bytes.Equal(worker.Region(w.Output, at), sum[4*from:4*to]) {
						return fmt.Errorf("elements %d to %d have other bits", from, to)
					}
				}
				return w.Goodbye()
			})
			for _, h := range hosts {
				<-h.agent.Done()
				if err := h.agent.Err(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// What is wrong between hosts ends all, with one message.
func TestHostsFail(t *testing.T) {
	model := hello(protocol.Tensor{Name: "w", Elements: 4, DType: "float32"})
	step := func(w *worker.Worker) error {
		w.Ready(0, 0)
		_, _, err := w.Done()
		return err
	}
	for _, x := range []struct {
		name, want string
		do         func(net *transport.Memory, w *worker.Worker) error
	}{
		{"other models", "tensor 0 is w (4 elements of float32) on rank 0, w (5 elements of float32) on rank 2", func(_ *transport.Memory, w *worker.Worker) error {
			if w.Rank == 2 {
				return w.Hello(protocol.Hello{Tensors: []protocol.Tensor{{Name: "w", Elements: 5, DType: "float32"}}})
			}
			return model(w)
		}},
		{"other calls", "every rank must make the same calls in the same order", func(_ *transport.Memory, w *worker.Worker) error {
			if err := model(w); err != nil {
				return err
			}
			return w.Call(protocol.Call{Kind: []string{"barrier", "barrier", "broadcast"}[w.Rank]})
		}},
		{"a call beside hello", "every rank must do the same", func(_ *transport.Memory, w *worker.Worker) error {
			if err := model(w); err != nil {
				return err
			}
			if w.Rank == 2 {
				return model(w)
			}
			return w.Call(protocol.Call{Kind: "barrier"})
		}},
		{"a lost worker", "rank 2 is lost: its connection ended (EOF), while waiting for its gradient of tensor w (bucket 0) of iteration 0", func(_ *transport.Memory, w *worker.Worker) error {
			if err := model(w); err != nil {
				return err
			}
			if w.Rank == 2 {
				w.Close()
				return nil
			}
			return step(w)
		}},
		{"a lost host", "rank 2 is lost: no power", func(net *transport.Memory, w *worker.Worker) error {
			if err := model(w); err != nil {
				return err
			}
			if w.Rank == 2 {
				net.Kill(1, errors.New("no power"))
				return nil
			}
			return step(w)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			net, hosts := newHosts(t, collective.Layout{2, 1})
			errs := everywhere(hosts, func(w *worker.Worker) error { return x.do(net, w) })
			for rank, err := range errs[:2] {
				if err == nil || !strings.Contains(err.Error(), x.want) {
					t.Errorf("rank %d: %v, want %q", rank, err, x.want)
				}
			}
		})
	}
}
