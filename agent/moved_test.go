package agent_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/cluster"
	"weft/collective"
	"weft/collective/kernel"
	"weft/job"
	"weft/plan"
	"weft/transport"
)

// distributed is what torch.distributed does for the workers of a layout, in memory, by the
// order of additions that agents have.
type distributed struct {
	layout collective.Layout
	mu     sync.Mutex
	calls  map[int]*reduction // by how many came before
}

type reduction struct {
	inputs [][]byte // by rank
	came   int
	done   chan struct{}
}

// allReduce is a worker's call number n. All workers make the same ones, in one order: if
// not, what comes out is wrong, and nobody says so.
func (d *distributed) allReduce(n, rank int, input []byte, parts []plan.Slice) error {
	d.mu.Lock()
	c := d.calls[n]
	if c == nil {
		c = &reduction{inputs: make([][]byte, d.layout.Workers()), done: make(chan struct{})}
		d.calls[n] = c
	}
	c.inputs[rank] = slices.Clone(input)
	c.came++
	if c.came == d.layout.Workers() {
		close(c.done)
	}
	d.mu.Unlock()
	<-c.done
	r := collective.Reduction{DType: job.Float32, Op: kernel.Sum, Scale: 1 / float64(d.layout.Workers())}
	sum, err := collective.Reference(r, d.layout, parts, c.inputs)
	if err == nil && len(sum) != len(input) {
		err = errors.New("workers reduce different buckets")
	}
	copy(input, sum)
	return err
}

// reducing has a trainee reduce what it is told to, and returns what that was: buckets and
// iterations.
func (d *distributed) reducing(x *trainee) *[][2]int {
	x.moved = map[[2]int]bool{}
	var told [][2]int
	x.Reduce = func(b, i int) error {
		g := 0
		for x.last(g) < i {
			g++
		}
		var parts []plan.Slice
		for _, s := range x.parts(b, g) {
			parts = append(parts, plan.Slice(s))
		}
		told = append(told, [2]int{b, i})
		x.moved[[2]int{b, i}] = true
		return d.allReduce(len(told)-1, x.Rank, worker.Region(x.Input, x.Welcome.Place(b, i)), parts)
	}
	return &told
}

func throughWorkers(j *job.Job) protocol.Hello {
	h := does(j)
	h.C10D = "memory"
	return h
}

// c10d is a plan of two links, of which workers run one. In one generation buckets 1 and 2
// go over it, in the next 2 and 0.
func c10d(j *job.Job) *plan.Plan {
	p := plan.New(j, "test", "net", protocol.C10D)
	p.Period, p.Buffers = 2, 2
	p.Generations = []plan.Generation{{First: 0, Length: 1}, {First: 1, Length: 1}}
	p.Updates = []plan.Update{{Generation: 0, At: plan.AtStep}, {Generation: 1, At: plan.AtStep, Iteration: 1}}
	half := j.Tensors[3].Elements / 2
	p.AddBucket(plan.Bucket{Slices: []plan.Slice{{Tensor: 5, Length: j.Tensors[5].Elements}, {Tensor: 4, Length: j.Tensors[4].Elements}}})
	p.AddBucket(plan.Bucket{Slices: []plan.Slice{{Tensor: 3, Length: half}}})
	last := plan.Bucket{Slices: []plan.Slice{{Tensor: 3, Offset: half, Length: half}}}
	for k := range 3 {
		last.Slices = append(last.Slices, plan.Slice{Tensor: job.TensorID(k), Length: j.Tensors[k].Elements})
	}
	p.AddBucket(last)
	for g, links := range [][2][]int{{{0}, {1, 2}}, {{1}, {2, 0}}} {
		for l, buckets := range links {
			for _, b := range buckets {
				at := p.Add(l, cluster.AllReduce, b, plan.Gate{Kind: plan.GradientReady})
				p.Programs[l].Transfers[at].Generation = g
			}
		}
	}
	return p
}

// order is in which workers run transfers, of the generations that end before an iteration.
func order(p *plan.Plan, iterations int) (out [][2]int) {
	for n := range iterations {
		for _, x := range p.Programs[1].Transfers {
			g := n*len(p.Generations) + x.Generation
			if g >= 0 && p.LastIteration(g) < iterations {
				out = append(out, [2]int{x.Bucket, p.LastIteration(g)})
			}
		}
	}
	return out
}

// Workers run the transfers of one of two links, all in the program's order, whatever the
// agents reduce meanwhile.
func TestMoved(t *testing.T) {
	j := trained()
	p := c10d(j)
	for _, l := range []collective.Layout{{2}, {1, 1}, {2, 1}} {
		t.Run(fmt.Sprint(l), func(t *testing.T) {
			var mu sync.Mutex
			var warned []string
			hosts := given(t, l, agent.Schedule{Plan: p, Limits: plan.AnyLimits}, func(s string) {
				mu.Lock()
				defer mu.Unlock()
				warned = append(warned, s)
			})
			d := &distributed{layout: l, calls: map[int]*reduction{}}
			sum := means(t, j, l)
			n := 3*p.Period + 2
			must(t, hosts, func(w *worker.Worker) error {
				if err := w.Hello(throughWorkers(j)); err != nil {
					return err
				}
				if !w.Welcome.C10D {
					return errors.New("it is not told that it will reduce")
				}
				y := &trainee{w, j, sum, map[[2]int]bool{}, nil}
				told := d.reducing(y)
				for i := range n {
					if err := y.iterate(i); err != nil {
						return err
					}
				}
				if err := y.flush(n); err != nil {
					return err
				}
				if want := order(p, n); !slices.Equal(*told, want) {
					return fmt.Errorf("told to reduce %v, want %v", *told, want)
				}
				return w.Goodbye()
			})
			for _, h := range hosts {
				<-h.agent.Done()
				if err := h.agent.Err(); err != nil {
					t.Error(err)
				}
			}
			if len(warned) != 1 || !strings.Contains(warned[0], "torch.distributed (memory) adds in an order of its own") {
				t.Errorf("warned of %q", warned)
			}
		})
	}
}

// Link c10d is no rail, where there are several.
func TestMovedBesideRails(t *testing.T) {
	j := trained()
	hosts := overRails(t, agent.Schedule{Plan: c10d(j), Limits: plan.AnyLimits}, transport.NewMemory(2, transport.MemoryOptions{}), transport.NewMemory(2, transport.MemoryOptions{}))
	must(t, hosts, func(w *worker.Worker) error {
		return cmp.Or(w.Hello(throughWorkers(j)), w.Goodbye())
	})
}

// A worker that is lost while it reduces is named, and so is the tensor.
func TestMovingLost(t *testing.T) {
	j := trained()
	p := c10d(j)
	l := collective.Layout{2, 1}
	hosts := given(t, l, agent.Schedule{Plan: p, Limits: plan.AnyLimits}, nil)
	lost := make(chan struct{})
	for rank, err := range everywhere(hosts, func(w *worker.Worker) error {
		if err := w.Hello(throughWorkers(j)); err != nil {
			return err
		}
		y := &trainee{w, j, nil, map[[2]int]bool{}, nil}
		w.Reduce = func(b, i int) error {
			if w.Rank == 1 {
				defer close(lost)
				return errors.Join(w.Close(), errors.New("killed"))
			}
			<-lost
			return nil
		}
		for g := range 2 {
			if err := y.declare(g); err != nil {
				return err
			}
		}
		for {
			if _, _, err := w.Done(); err != nil {
				return err
			}
		}
	}) {
		if rank == 1 {
			continue
		}
		if want := "rank 1 is lost: its connection ended"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "while reducing tensor") {
			t.Errorf("rank %d is told %v, want %s", rank, err, want)
		}
	}
}

// What must not be, and who is told so.
func TestMovedRefused(t *testing.T) {
	j := trained()
	halves := built(t, j, "dear", plan.DefaultLimits, cluster.Link{Name: protocol.C10D, Latency: 20, Bandwidth: 1e9})
	for _, x := range []struct {
		plan *plan.Plan
		does func(w *worker.Worker) error
		want string
	}{
		{c10d(j), func(w *worker.Worker) error { return w.Hello(does(j)) }, `wrap(model, optimizer, c10d="gloo")`},
		{halves, func(w *worker.Worker) error { return w.Hello(throughWorkers(j)) }, "link c10d, transfer 0 (reduce-scatter of bucket 0): workers run all-reduces alone"},
		{c10d(j), func(w *worker.Worker) error {
			h := throughWorkers(j)
			h.C10D = map[int]string{0: "gloo", 1: "mpi"}[w.Rank]
			return w.Hello(h)
		}, "c10d is gloo on rank 0, mpi on rank 1"},
		{c10d(j), func(w *worker.Worker) error {
			if err := w.Hello(throughWorkers(j)); err != nil {
				return err
			}
			if w.Rank == 1 {
				if err := w.Moved(0, 7); err != nil {
					return err
				}
			}
			_, _, err := w.Done()
			return err
		}, "rank 1 moved bucket 0 of iteration 7, which it was not told to"},
	} {
		for _, l := range []collective.Layout{{2}, {1, 1}} {
			hosts := given(t, l, agent.Schedule{Plan: x.plan, Limits: plan.AnyLimits}, nil)
			for rank, err := range everywhere(hosts, x.does) {
				if err == nil || !strings.Contains(err.Error(), x.want) {
					t.Errorf("%v, rank %d: %v, want %s", l, rank, err, x.want)
				}
			}
		}
	}
}
