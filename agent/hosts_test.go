package agent_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/rendezvous"
	"weft/agent/worker"
	"weft/collective"
	"weft/job"
	"weft/plan"
	"weft/transport"
)

// meets is [agent.Config.Meet].
type meets = func(context.Context) ([]transport.Endpoint, collective.Layout, error)

// met has host h connected already, over each of some networks.
func met(h int, l collective.Layout, nets ...*transport.Memory) meets {
	return func(context.Context) (rails []transport.Endpoint, _ collective.Layout, _ error) {
		for _, net := range nets {
			rails = append(rails, net.Endpoint(h))
		}
		return rails, l, nil
	}
}

// network is how the hosts of a layout meet, and how one of them is cut off; nil: it
// cannot be.
type network func(t *testing.T, l collective.Layout) (meet func(h int) meets, kill func(h int, why error))

var networks = map[string]network{
	"memory": func(_ *testing.T, l collective.Layout) (func(int) meets, func(int, error)) {
		net := transport.NewMemory(len(l), transport.MemoryOptions{})
		return func(h int) meets { return met(h, l, net) }, net.Kill
	},
	"tcp": func(t *testing.T, l collective.Layout) (func(int) meets, func(int, error)) {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		free.Close()
		return func(h int) meets {
			c := rendezvous.Config{
				Member: rendezvous.Member{World: l.Workers(), First: l[:h].Workers(), Workers: l[h]},
				Master: free.Addr().String(), Secret: []byte("a secret of this test"), Timeout: time.Minute,
			}
			return func(ctx context.Context) ([]transport.Endpoint, collective.Layout, error) {
				return rendezvous.Meet(ctx, c)
			}
		}, nil
	},
}

// newHosts starts the agents of several hosts and their workers.
func newHosts(t *testing.T, l collective.Layout, n network, o agent.Config) ([]*host, func(h int, why error)) {
	t.Helper()
	meet, kill := n(t, l)
	var all []*host
	for h := range l {
		c := o
		c.World, c.Meet = l.Workers(), meet(h)
		for r := range l[h] {
			c.Ranks = append(c.Ranks, l[:h].Workers()+r)
		}
		all = append(all, newHost(t, c))
	}
	return all, kill
}

// overEach runs a test over each network.
func overEach(t *testing.T, test func(t *testing.T, n network)) {
	for name, n := range networks {
		t.Run(name, func(t *testing.T) { test(t, n) })
	}
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
func TestHosts(t *testing.T) { overEach(t, testHosts) }

func testHosts(t *testing.T, net network) {
	for _, l := range []collective.Layout{{1, 1}, {2, 1}, {1, 2, 1}} {
		t.Run(fmt.Sprint(l), func(t *testing.T) {
			hosts, _ := newHosts(t, l, net, agent.Config{})
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
func TestHostsFail(t *testing.T) { overEach(t, testHostsFail) }

func testHostsFail(t *testing.T, network network) {
	for _, x := range []struct {
		name, want string
		do         func(w *worker.Worker) error
	}{
		{"other models", "tensor 0 is w (4 elements of float32) on rank 0, w (5 elements of float32) on rank 2", func(w *worker.Worker) error {
			if w.Rank == 2 {
				return w.Hello(protocol.Hello{Tensors: []protocol.Tensor{{Name: "w", Elements: 5, DType: "float32"}}})
			}
			return oneTensor(w)
		}},
		{"other calls", "every rank must make the same calls in the same order", func(w *worker.Worker) error {
			if err := oneTensor(w); err != nil {
				return err
			}
			return w.Call(protocol.Call{Kind: []string{"barrier", "barrier", "broadcast"}[w.Rank]})
		}},
		{"a call beside hello", "every rank must do the same", func(w *worker.Worker) error {
			if err := oneTensor(w); err != nil {
				return err
			}
			if w.Rank == 2 {
				return oneTensor(w)
			}
			return w.Call(protocol.Call{Kind: "barrier"})
		}},
		{"a lost worker", "rank 2 is lost: its connection ended (EOF), while waiting for its gradient of tensor w (bucket 0) of iteration 0", func(w *worker.Worker) error {
			if err := oneTensor(w); err != nil {
				return err
			}
			if w.Rank == 2 {
				w.Close()
				return nil
			}
			return oneStep(w)
		}},
		{"an end in order", "rank 2 has ended its training and rank 0 goes on: give every rank the same number of iterations", func(w *worker.Worker) error {
			if err := oneTensor(w); err != nil {
				return err
			}
			if w.Rank == 2 {
				return w.Goodbye()
			}
			return oneStep(w)
		}},
		{"a worker lost early", "rank 2 is lost: its connection ended (", func(w *worker.Worker) error {
			if w.Rank == 2 {
				m, err := protocol.Message{Kind: protocol.KindHello}.With(protocol.Hello{Version: protocol.Version, Rank: 2, World: 3, Tensors: []protocol.Tensor{{Name: "w", Elements: 4, DType: "float32"}}})
				return errors.Join(err, w.Send(m), w.Close())
			}
			if err := oneTensor(w); err != nil {
				return err
			}
			return oneStep(w)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			hosts, _ := newHosts(t, collective.Layout{2, 1}, network, agent.Config{})
			mustFail(t, everywhere(hosts, x.do)[:2], x.want)
		})
	}
}

// A host that is cut off is named.
func TestLostHost(t *testing.T) {
	hosts, kill := newHosts(t, collective.Layout{2, 1}, networks["memory"], agent.Config{})
	errs := everywhere(hosts, func(w *worker.Worker) error {
		if err := oneTensor(w); err != nil {
			return err
		}
		if w.Rank == 2 {
			kill(1, errors.New("no power"))
			return nil
		}
		return oneStep(w)
	})
	mustFail(t, errs[:2], "rank 2 is lost: no power")
}

// oneTensor says hello with a model of one tensor, oneStep takes a step of it.
var oneTensor = hello(protocol.Tensor{Name: "w", Elements: 4, DType: "float32"})

func oneStep(w *worker.Worker) error {
	w.Ready(0, 0)
	_, _, err := w.Done()
	return err
}

func mustFail(t *testing.T, errs []error, want string) {
	t.Helper()
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: %v, want %q", rank, err, want)
		}
	}
}

// Who is waited for is named on all hosts, while they wait.
func TestLate(t *testing.T) {
	for _, x := range []struct {
		name, want string
		layout     collective.Layout
		wait       func(w *worker.Worker) error // of rank 0
		then       func(w *worker.Worker) error // of the other
	}{
		{"gradient", "rank 1 is too slow, while waiting for its gradient of tensor t0 (bucket 0) of iteration 0", collective.Layout{2}, ready, ready},
		{"gradient of another host", "rank 1 is too slow, while waiting for its gradient of tensor t0 (bucket 0) of iteration 0", collective.Layout{1, 1}, ready, ready},
		{"call", "rank 0 makes a call and has waited ", collective.Layout{2}, barrier, barrier},
		{"call of another host", "rank 1 is too slow: other hosts wait for its hello or its next call", collective.Layout{1, 1}, barrier, barrier},
	} {
		t.Run(x.name, func(t *testing.T) {
			warnings := make(chan string, 10)
			o := agent.Config{Patience: time.Millisecond, Warn: func(s string) { warnings <- s }}
			meet := networks["memory"]
			if len(x.layout) == 1 {
				meet = func(*testing.T, collective.Layout) (func(int) meets, func(int, error)) {
					return func(int) meets { return nil }, nil
				}
			}
			hosts, _ := newHosts(t, x.layout, meet, o)
			must(t, hosts, func(w *worker.Worker) error { return w.Hello(tensors("float32", 4)) })
			heard := make(chan struct{})
			go func() {
				for range x.layout { // one a host
					for got := range warnings {
						if strings.HasPrefix(got, x.want) {
							break
						}
					}
				}
				close(heard)
			}()
			must(t, hosts, func(w *worker.Worker) error {
				if w.Rank == 0 {
					return x.wait(w)
				}
				<-heard
				return x.then(w)
			})
		})
	}
}

// A call that one host makes, and the other does not before it waits for gradients.
func TestCrossed(t *testing.T) {
	hosts, _ := newHosts(t, collective.Layout{1, 1}, networks["memory"], agent.Config{Patience: time.Hour})
	must(t, hosts, func(w *worker.Worker) error { return w.Hello(tensors("float32", 4)) })
	must(t, hosts, ready)
	want := "rank 1 says hello or makes a call, while rank 0 waits for its gradients"
	for rank, err := range everywhere(hosts, func(w *worker.Worker) error {
		if w.Rank == 1 {
			return barrier(w)
		}
		if err := w.Ready(0, 1); err != nil {
			return err
		}
		_, _, err := w.Done()
		return err
	}) {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: %v, want %q", rank, err, want)
		}
	}
}

func ready(w *worker.Worker) error {
	if err := w.Ready(0, 0); err != nil {
		return err
	}
	_, _, err := w.Done()
	return err
}

func barrier(w *worker.Worker) error { return w.Call(protocol.Call{Kind: "barrier"}) }
