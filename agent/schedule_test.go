package agent_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"
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
	"weft/internal/splitmix"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/transport"
)

// scheduled is a job of two tensors, of 3000 and 5 elements, that have no ops, and a
// plan that cuts the first, sends over two links, and has two buffers.
func scheduled() (*job.Job, *plan.Plan) {
	j := job.Chain("chain", []float64{1, 1}, []float64{1, 1}, []int64{12_000, 20})
	p := plan.New(j, "test", "a", "b")
	p.Buffers = 2
	scatter := p.Add(0, cluster.ReduceScatter, p.AddBucket(plan.Bucket{Slices: []plan.Slice{{Tensor: 0, Length: 1000}, {Tensor: 1, Length: 5}}}), plan.Gate{Kind: plan.GradientReady})
	p.AllReduce(0, plan.Bucket{Slices: []plan.Slice{{Tensor: 0, Offset: 1000, Length: 2000}}})
	p.Add(1, cluster.AllGather, 0, plan.Gate{Kind: plan.TransferDone, Transfer: scatter})
	return j, p
}

func newScheduled(t *testing.T, l collective.Layout, schedule func(h int) *agent.Schedule) []*host {
	t.Helper()
	net := transport.NewMemory(len(l), transport.MemoryOptions{})
	var links []*transport.Memory
	for range 2 {
		links = append(links, transport.NewMemory(len(l), transport.MemoryOptions{}))
	}
	var all []*host
	for h := range l {
		c := agent.Config{World: l.Workers(), Meet: met(h, l, net), Schedule: schedule(h)}
		for _, m := range links {
			c.Schedule.Links = append(c.Schedule.Links, agent.Link{Net: m.Endpoint(h), Cost: cluster.Link{Latency: 25, Bandwidth: 1e9}})
		}
		for r := range l[h] {
			c.Ranks = append(c.Ranks, l[:h].Workers()+r)
		}
		all = append(all, newHost(t, c))
	}
	return all
}

func says(j *job.Job) protocol.Hello {
	h := protocol.Hello{Tensors: []protocol.Tensor{}}
	for i := range j.Tensors {
		h.Tensors = append(h.Tensors, protocol.Tensor{Name: j.Tensors[i].Name, Elements: j.Tensors[i].Elements, DType: j.Tensors[i].Grad.String()})
	}
	return h
}

// does says that a worker executes every plan.
func does(j *job.Job) protocol.Hello {
	h := says(j)
	h.Mode, h.Boundaries = "per-tensor", true
	return h
}

// A given plan, with parts of tensors, halves of a reduction, two links and two buffers.
func TestSchedule(t *testing.T) {
	for _, l := range []collective.Layout{{1, 1}, {2, 1, 1}} {
		j, p := scheduled()
		hosts := newScheduled(t, l, func(int) *agent.Schedule { return &agent.Schedule{Plan: p, Job: j, Replay: true} })
		must(t, hosts, func(w *worker.Worker) error { return w.Hello(says(j)) })
		n := l.Workers()
		must(t, hosts, func(w *worker.Worker) error {
			declare := func(i int) error {
				for b := range w.Welcome.Buckets {
					at := worker.Region(w.Input, w.Welcome.Place(b, i))
					for k := 0; k < len(at); k += 4 {
						put32(at[k:], float32(w.Rank+k+i))
					}
					if err := w.Ready(b, i); err != nil {
						return err
					}
				}
				return nil
			}
			if got := len(w.Welcome.Buckets[0].Slices); got != 2 {
				return fmt.Errorf("bucket 0 has %d slices, want 2", got)
			}
			for i := range 6 {
				if err := declare(i); err != nil {
					return err
				}
				for range w.Welcome.Buckets {
					b, it, err := w.Done()
					if err != nil {
						return err
					}
					for k, v := range get32(worker.Region(w.Output, w.Welcome.Place(b, it))) {
						if want := float32(n*(n-1)/2 + n*(4*k+i)); v != want {
							return fmt.Errorf("element %d of bucket %d is %v, want %v", k, b, v, want)
						}
					}
				}
			}
			return nil
		})
		must(t, hosts, func(w *worker.Worker) error { return w.Goodbye() })
	}
}

// What agents cannot execute they refuse, by transfer; what is for another model, by
// tensor; and hosts that were given different plans. All ranks are told the same.
func TestScheduleRefused(t *testing.T) {
	for want, change := range map[string]func(h int, j *job.Job, s *agent.Schedule, said *protocol.Hello){
		"link a, transfer 0 (push of bucket 0): agents reduce among workers, and have no parameter servers": func(_ int, _ *job.Job, s *agent.Schedule, _ *protocol.Hello) {
			s.Plan.Programs[0].Transfers[0].Kind = cluster.Push
		},
		"link a, transfer 1 (all-reduce of bucket 1): it waits for op 0, and workers do not tell when ops end": func(_ int, _ *job.Job, s *agent.Schedule, _ *protocol.Hello) {
			s.Plan.Programs[0].Transfers[1].Gates = []plan.Gate{{Kind: plan.OpDone}}
		},
		"the plan has programs for 3 links, this host 2 links": func(_ int, _ *job.Job, s *agent.Schedule, _ *protocol.Hello) {
			s.Plan.Programs = append(s.Plan.Programs, plan.Program{Link: "c"})
		},
		"bucket 1: no transfer waits for its gradients": func(_ int, _ *job.Job, s *agent.Schedule, _ *protocol.Hello) {
			s.Plan.Programs[0].Transfers[1].Gates = nil
		},
		"give every host the same plan": func(h int, _ *job.Job, s *agent.Schedule, _ *protocol.Hello) { s.Plan.Policy = fmt.Sprint(h) },
		"its gradients are of different types: t1 of float32, t2 of int32": func(_ int, j *job.Job, s *agent.Schedule, said *protocol.Hello) {
			j.Tensors[1].Grad, j.Tensors[1].Param = job.Int32, job.Int32
			s.Plan.Tensors = j.TensorsFingerprint()
			said.Tensors[1].DType = "int32"
		},
		"the plan is for another model: tensor 1 is t2 (5 elements of float32) in its job, bias (5 elements of float32) in the training; make it from a job": func(_ int, _ *job.Job, _ *agent.Schedule, said *protocol.Hello) {
			said.Tensors[1].Name = "bias"
		},
		"the plan is for another model: tensor 1 has 5 elements in the plan, and is t2 (6 elements of float32) in the training; make": func(_ int, _ *job.Job, s *agent.Schedule, said *protocol.Hello) {
			s.Job, said.Tensors[1].Elements = nil, 6
		},
		"the plan is for another model: tensor 0 has 3000 elements in the plan, and is t1 (2999 elements of float32) in the training; make": func(_ int, _ *job.Job, s *agent.Schedule, said *protocol.Hello) {
			s.Job, said.Tensors[0].Elements, said.Tensors[1].Elements = nil, 2999, 6
		},
		"the plan is for 2999 workers, and the training has 3": func(_ int, _ *job.Job, s *agent.Schedule, said *protocol.Hello) {
			s.Job, said.Tensors[0].Name, said.Tensors[0].Elements = nil, "weft.used", 4
		},
		"the plan is for another model: it moves 2 tensors, and the training has 1; make": func(_ int, _ *job.Job, s *agent.Schedule, said *protocol.Hello) {
			s.Job, said.Tensors = nil, said.Tensors[:1]
		},
		"the plan is for another model: its tensors have the sizes of those in the training, and other names or types": func(_ int, _ *job.Job, s *agent.Schedule, said *protocol.Hello) {
			s.Job, said.Tensors[1].DType = nil, "int32"
		},
		"plan rule 1 (each gradient is reduced exactly once) does not hold": func(_ int, _ *job.Job, s *agent.Schedule, _ *protocol.Hello) {
			s.Plan.Programs[0].Transfers = append(s.Plan.Programs[0].Transfers, s.Plan.Programs[0].Transfers[1])
		},
		"plan rule 5 (delay, staleness, update rate and memory are allowed) does not hold": func(_ int, _ *job.Job, s *agent.Schedule, _ *protocol.Hello) {
			s.Plan.Updates[0].Iteration, s.Plan.MaxDelay, s.Plan.MaxStaleness = 1, 1, 1
		},
		`unknown update mode "none"`: func(_ int, _ *job.Job, _ *agent.Schedule, said *protocol.Hello) { said.Mode = "none" },
	} {
		j, _ := scheduled()
		said := says(j)
		hosts := newScheduled(t, collective.Layout{1, 1}, func(h int) *agent.Schedule {
			j, p := scheduled()
			s := &agent.Schedule{Plan: p, Job: j, Limits: plan.DefaultLimits}
			change(h, j, s, &said)
			return s
		})
		for _, err := range everywhere(hosts, func(w *worker.Worker) error { return w.Hello(said) }) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}

// trained is a job of six tensors, of which the first is what a client says of
// itself; its times make policies cut, scatter and delay.
func trained() *job.Job {
	fwd, bwd := []float64{0, 300, 200, 400, 100, 300}, []float64{0, 600, 400, 800, 200, 600}
	j := job.Chain("trained", fwd, bwd, []int64{32, 280_000, 4, 400_000, 120_004, 20_000})
	j.Tensors[0].Name, j.Tensors[0].Readers = "weft.used", []job.OpID{5}
	return j
}

// built is the plan of a policy for two workers on a network that takes longer than the
// computation.
func built(t *testing.T, j *job.Job, name string, limits plan.Limits, links ...cluster.Link) *plan.Plan {
	t.Helper()
	p, err := all.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	if links == nil {
		links = []cluster.Link{{Name: "net", Latency: 20, Bandwidth: 1.5e9}}
	}
	out, err := p.Build(t.Context(), j, &cluster.Cluster{Nodes: 2, PerNode: 1, Links: links, Scale: 1}, policy.Options{Slice: 40_000, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// gradient is what a worker has of a tensor in a generation.
func gradient(rank, generation, tensor int, elements int64) []byte {
	seed := splitmix.Mix(uint64(rank)<<40 | uint64(generation)<<20 | uint64(tensor))
	out := make([]byte, 0, 4*elements)
	for k := range elements {
		out = binary.NativeEndian.AppendUint32(out, math.Float32bits(float32(splitmix.Float(splitmix.Mix(seed+uint64(k)))-0.5)))
	}
	return out
}

// trainee is a worker that executes a plan, as docs/formats/client.md tells it.
type trainee struct {
	*worker.Worker
	job   *job.Job
	means func(generation, tensor int) []byte
	done  map[[2]int]bool // bucket and iteration
	moved map[[2]int]bool // likewise, of those that workers have reduced
}

// last is the iteration that ends a generation.
func (x *trainee) last(generation int) int {
	n := len(x.Welcome.Ends)
	return generation/n*x.Welcome.Period + x.Welcome.Ends[generation%n]
}

// parts are the slices of a bucket, or nil if it is not of the generation.
func (x *trainee) parts(bucket, generation int) (out []protocol.Slice) {
	b := &x.Welcome.Buckets[bucket]
	if b.Generations != nil && !slices.Contains(b.Generations, generation%len(x.Welcome.Ends)) {
		return nil
	}
	if out = b.Slices; out == nil {
		for _, k := range b.Tensors {
			out = append(out, protocol.Slice{Tensor: k, Length: x.job.Tensors[k].Elements})
		}
	}
	return out
}

func (x *trainee) declare(generation int) error {
	for b := range x.Welcome.Buckets {
		parts := x.parts(b, generation)
		if parts == nil {
			continue
		}
		if before := generation - max(1, x.Welcome.Buffers); before >= 0 && x.parts(b, before) != nil {
			if err := x.wait(b, x.last(before)); err != nil {
				return err
			}
		}
		at := worker.Region(x.Input, x.Welcome.Place(b, x.last(generation)))
		for _, s := range parts {
			at = at[copy(at, gradient(x.Rank, generation, int(s.Tensor), x.job.Tensors[s.Tensor].Elements)[4*s.Offset:4*(s.Offset+s.Length)]):]
		}
		if err := x.Ready(b, x.last(generation)); err != nil {
			return err
		}
	}
	return nil
}

func (x *trainee) wait(bucket, iteration int) error {
	for !x.done[[2]int{bucket, iteration}] {
		b, i, err := x.Done()
		if err != nil {
			return err
		}
		x.done[[2]int{b, i}] = true
	}
	return nil
}

// apply looks at what a generation brings to a tensor, whose all slices it waits for.
func (x *trainee) apply(generation, tensor int) error {
	want, left := x.means(generation, tensor), x.job.Tensors[tensor].Elements
	for b := range x.Welcome.Buckets {
		parts := x.parts(b, generation)
		if !slices.ContainsFunc(parts, func(s protocol.Slice) bool { return int(s.Tensor) == tensor }) {
			continue
		}
		if err := x.wait(b, x.last(generation)); err != nil {
			return err
		}
		from := x.Output
		if x.moved[[2]int{b, x.last(generation)}] {
			from = x.Input
		}
		at := worker.Region(from, x.Welcome.Place(b, x.last(generation)))
		for _, s := range parts {
			if int(s.Tensor) == tensor {
				left -= s.Length
				if !bytes.Equal(at[:4*s.Length], want[4*s.Offset:4*(s.Offset+s.Length)]) {
					return fmt.Errorf("generation %d of tensor %d has other bits from element %d on", generation, tensor, s.Offset)
				}
			}
			at = at[4*s.Length:]
		}
	}
	if left != 0 {
		return fmt.Errorf("%d elements of tensor %d did not come", left, tensor)
	}
	return nil
}

// updates applies what the table has for a point of an iteration.
func (x *trainee) updates(iteration int, at string) error {
	for _, u := range x.Welcome.Updates {
		periods := (iteration - u.Iteration) / x.Welcome.Period
		if u.At != at || iteration < u.Iteration || (iteration-u.Iteration)%x.Welcome.Period != 0 {
			continue
		}
		of := u.Tensors
		if of == nil {
			for k := range x.job.Tensors {
				of = append(of, int32(k))
			}
		}
		for _, k := range of {
			if err := x.apply(periods*len(x.Welcome.Ends)+u.Generation, int(k)); err != nil {
				return fmt.Errorf("iteration %d: %w", iteration, err)
			}
		}
	}
	return nil
}

func (x *trainee) iterate(i int) error {
	for g := 0; x.last(g) <= i; g++ {
		if x.last(g) == i {
			if err := x.declare(g); err != nil {
				return err
			}
		}
	}
	if err := x.updates(i, "step"); err != nil {
		return err
	}
	if err := x.Boundary(i); err != nil {
		return err
	}
	return x.updates(i, "read")
}

// flush ends after n iterations: all that has been declared comes.
func (x *trainee) flush(n int) error {
	call, err := x.Begin(protocol.Call{Kind: protocol.Flush})
	if err != nil {
		return err
	}
	last := -1
	for x.last(last+1) < n {
		last++
	}
	for g := max(0, last+1-max(1, x.Welcome.Buffers)); g <= last; g++ { // older ones are overwritten
		for k := range x.job.Tensors {
			if err := x.apply(g, k); err != nil {
				return fmt.Errorf("flush: %w", err)
			}
		}
	}
	if returned, err := x.Returned(); err != nil || returned != call {
		return fmt.Errorf("call %d returned, %v", returned, err)
	}
	return nil
}

// means are those of all workers, computed in one place.
func means(t *testing.T, j *job.Job, l collective.Layout) func(generation, tensor int) []byte {
	var mu sync.Mutex
	known := map[[2]int][]byte{}
	return func(generation, tensor int) []byte {
		mu.Lock()
		defer mu.Unlock()
		k := [2]int{generation, tensor}
		if known[k] == nil {
			n := j.Tensors[tensor].Elements
			var contributions [][]byte
			for r := range l.Workers() {
				contributions = append(contributions, gradient(r, generation, tensor, n))
			}
			r := collective.Reduction{DType: job.Float32, Op: kernel.Sum, Scale: 1 / float64(l.Workers())}
			var err error
			if known[k], err = collective.Reference(r, l, []plan.Slice{{Length: n}}, contributions); err != nil {
				t.Error(err)
			}
		}
		return known[k]
	}
}

// given starts agents that are given a plan, and no links of their own.
func given(t *testing.T, l collective.Layout, s agent.Schedule, warn func(string)) []*host {
	t.Helper()
	hosts, _ := newHosts(t, l, networks["memory"], agent.Config{Schedule: &s, Warn: warn})
	return hosts
}

// Plans of policies that cut tensors, that scatter and gather, and that delay updates
// over generations, buffers and two links: every update is there at its point, and has
// the bits of one addition in one place.
func TestPlans(t *testing.T) {
	j := trained()
	two := []cluster.Link{{Name: "a", Latency: 20, Bandwidth: 1e9}, {Name: "b", Latency: 20, Bandwidth: 0.5e9}}
	for _, x := range []struct {
		plan *plan.Plan
		is   func(w *protocol.Welcome) bool
	}{
		{built(t, j, "p3", plan.DefaultLimits), func(w *protocol.Welcome) bool { return w.Buckets[0].Slices != nil && w.Updates[0].At == "read" }},
		{built(t, j, "dear", plan.DefaultLimits), func(w *protocol.Welcome) bool { return w.Buckets[0].Slices == nil && w.Updates[0].At == "read" }},
		{built(t, j, "deft", plan.DelayLimits(1), two...), func(w *protocol.Welcome) bool { return w.Period > 1 && w.Buffers > 1 && len(w.Ends) < w.Period }},
	} {
		for _, l := range []collective.Layout{{2}, {1, 1}, {2, 1}} {
			t.Run(fmt.Sprint(x.plan.Policy, l), func(t *testing.T) {
				hosts := given(t, l, agent.Schedule{Plan: x.plan, Limits: plan.AnyLimits}, func(s string) {
					if len(x.plan.Programs) < 2 || !strings.Contains(s, "sends over 2 links, and one network joins the hosts") {
						t.Error(s)
					}
				})
				sum := means(t, j, l)
				must(t, hosts, func(w *worker.Worker) error {
					if err := w.Hello(protocol.Hello{Tensors: []protocol.Tensor{}}); err != nil { // before it has a model
						return err
					}
					if err := w.Hello(does(j)); err != nil {
						return err
					}
					if !x.is(&w.Welcome) || w.Welcome.Policy != x.plan.Policy || w.Welcome.Digest != x.plan.Digest() {
						return fmt.Errorf("welcome %+v", w.Welcome)
					}
					y := &trainee{w, j, sum, map[[2]int]bool{}, nil}
					for _, n := range []int{3*x.plan.Period + 2, 2} { // then all say hello again
						y.done = map[[2]int]bool{}
						for i := range n {
							if err := y.iterate(i); err != nil {
								return err
							}
						}
						if err := y.flush(n); err != nil {
							return err
						}
						if err := w.Hello(does(j)); err != nil {
							return err
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
}

// Workers are told the order of ops of a job that the agent does not know.
func TestPlanOrder(t *testing.T) {
	j := trained()
	p := built(t, j, "wfbp", plan.DefaultLimits)
	p.Order, p.Ops = [][]job.OpID{{0, 2, 1}, nil}, strings.Repeat("5", 32)
	warned := make(chan string, 2)
	hosts := given(t, collective.Layout{1, 1}, agent.Schedule{Plan: p, Limits: plan.AnyLimits}, func(s string) { warned <- s })
	must(t, hosts, func(w *worker.Worker) error {
		if err := w.Hello(does(j)); err != nil {
			return err
		}
		o := w.Welcome.Order
		if len(o) != 2 || !slices.Equal(o[0], p.Order[0]) || len(o[1]) != 0 || w.Welcome.OrderOf != p.Ops {
			return fmt.Errorf("order %v of %q", o, w.Welcome.OrderOf)
		}
		return w.Goodbye()
	})
	if s := <-warned; !strings.Contains(s, "weft.torch.backend run them so") {
		t.Error(s)
	}
}

// Workers that update all tensors at once execute the transfers of a plan that updates
// them one by one, behind a barrier. Plans that delay updates they do not.
func TestPlanBehindBarrier(t *testing.T) {
	j := trained()
	waits := built(t, j, "dear", plan.DefaultLimits)
	for i := range waits.Programs[0].Transfers {
		if x := &waits.Programs[0].Transfers[i]; x.Kind == cluster.AllGather {
			x.Gates = append(x.Gates, plan.Gate{Kind: plan.Boundary})
		}
	}
	l := collective.Layout{1, 1}
	sum := means(t, j, l)
	for _, x := range []struct {
		plan *plan.Plan
		says func(*protocol.Hello)
	}{
		{built(t, j, "p3", plan.DefaultLimits), func(h *protocol.Hello) { h.Mode = "global" }},
		{waits, func(h *protocol.Hello) { h.Mode = "global" }},
		{waits, func(h *protocol.Hello) { h.Boundaries = false }},
	} {
		var warned []string
		hosts := given(t, l, agent.Schedule{Plan: x.plan, Limits: plan.DefaultLimits}, func(s string) { warned = append(warned, s) })
		must(t, hosts, func(w *worker.Worker) error {
			h := does(j)
			x.says(&h)
			if err := w.Hello(h); err != nil {
				return err
			}
			if u := w.Welcome.Updates; len(u) != 1 || u[0].At != "step" || u[0].Iteration != 0 || u[0].Tensors != nil {
				return fmt.Errorf("updates %+v", u)
			}
			y := &trainee{w, j, sum, map[[2]int]bool{}, nil}
			for i := range 3 {
				if err := y.iterate(i); err != nil {
					return err
				}
			}
			return w.Goodbye()
		})
		if len(warned) != 1 || !strings.Contains(warned[0], "optimizer.step() waits for all") {
			t.Errorf("warned of %q", warned)
		}
	}
}

// A worker that is killed in the middle of a plan ends all, with what they waited for.
func TestPlanLost(t *testing.T) {
	j := trained()
	for _, p := range []*plan.Plan{built(t, j, "p3", plan.DefaultLimits), built(t, j, "deft", plan.DelayLimits(1))} {
		l := collective.Layout{2, 1}
		sum := means(t, j, l)
		hosts := given(t, l, agent.Schedule{Plan: p, Limits: plan.AnyLimits}, nil)
		for rank, err := range everywhere(hosts, func(w *worker.Worker) error {
			if err := w.Hello(does(j)); err != nil {
				return err
			}
			y := &trainee{w, j, sum, map[[2]int]bool{}, nil}
			for i := range 1000 {
				if w.Rank == 2 && i == 4 {
					return w.Close()
				}
				if err := y.iterate(i); err != nil {
					return err
				}
			}
			return nil
		}) {
			if rank == 2 {
				continue // it has closed
			}
			for _, want := range []string{"rank 2 is lost: its connection ended (", ", while waiting for its gradient of tensor "} { // EOF, or reset
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: rank %d: %v, want %s", p.Policy, rank, err, want)
				}
			}
		}
	}
}

// Hosts that flush after different iterations end all.
func TestFlushRefused(t *testing.T) {
	j := trained()
	l := collective.Layout{1, 1}
	sum := means(t, j, l)
	hosts := given(t, l, agent.Schedule{Plan: built(t, j, "deft", plan.DelayLimits(1)), Limits: plan.AnyLimits}, nil)
	for rank, err := range everywhere(hosts, func(w *worker.Worker) error {
		if err := w.Hello(does(j)); err != nil {
			return err
		}
		y := &trainee{w, j, sum, map[[2]int]bool{}, nil}
		if w.Rank == 0 {
			if err := y.declare(0); err != nil {
				return err
			}
		}
		return y.flush(0)
	}) {
		const some, none = "rank 0 asks for a flush after 1 generations, rank 1 after 0", "rank 1 asks for a flush after 0 generations, rank 0 after 1"
		const late = "while rank 0 waits for its gradients" // where one of them came a second later
		if err == nil || !strings.Contains(err.Error(), some) && !strings.Contains(err.Error(), none) && !strings.Contains(err.Error(), late) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// overRails starts agents that are given a plan, and rails of their own memory.
func overRails(t *testing.T, s agent.Schedule, rails ...*transport.Memory) (hosts []*host) {
	t.Helper()
	l := collective.Layout{1, 1}
	for h := range l {
		hosts = append(hosts, newHost(t, agent.Config{World: 2, Ranks: []int{h}, Meet: met(h, l, rails...), Schedule: &s}))
	}
	return hosts
}

// trainOver runs a plan for some iterations, after which transfers may be under way.
func trainOver(t *testing.T, hosts []*host, j *job.Job, p *plan.Plan, iterations int, each func(w *worker.Worker, i int)) []error {
	sum := means(t, j, collective.Layout{1, 1})
	return everywhere(hosts, func(w *worker.Worker) error {
		if err := w.Hello(does(j)); err != nil {
			return err
		}
		y := &trainee{w, j, sum, map[[2]int]bool{}, nil}
		for i := range iterations {
			if each != nil {
				each(w, i)
			}
			if err := y.iterate(i); err != nil {
				return err
			}
		}
		return nil
	})
}

var rails = []cluster.Link{{Name: "net", Latency: 20, Bandwidth: 1e9}, {Name: "rail1", Latency: 20, Bandwidth: 0.5e9}}

// counted is an endpoint that counts what it sends for programs of a plan.
type counted struct {
	transport.Endpoint
	mu    sync.Mutex
	bytes map[uint16]int64 // by channel
}

func (c *counted) Send(ctx context.Context, to int, tag transport.Tag, data []byte) error {
	c.mu.Lock()
	c.bytes[tag.Channel] += int64(len(data))
	c.mu.Unlock()
	return c.Endpoint.Send(ctx, to, tag, data)
}

// Each program of a plan goes over the rail that has the name of its link: of two hosts,
// each sends all bytes of a transfer once.
func TestRails(t *testing.T) {
	j := trained()
	p := built(t, j, "deft", plan.DelayLimits(1), rails...)
	const first = 3 // channel of the first program
	want, periods := [2]int64{}, 3
	for x := range p.Programs {
		for _, y := range p.Programs[x].Transfers {
			want[x] += int64(periods) * p.Buckets[y.Bucket].Bytes(j)
		}
	}
	if len(p.Programs) != 2 || want[0] == 0 || want[1] == 0 || want[0] == want[1] {
		t.Fatal("the plan does not tell rails apart:", want)
	}
	l := collective.Layout{1, 1}
	nets := []*transport.Memory{transport.NewMemory(2, transport.MemoryOptions{}), transport.NewMemory(2, transport.MemoryOptions{})}
	var hosts []*host
	var all [][]*counted
	var mu sync.Mutex
	for h := range l {
		meet := met(h, l, nets...)
		hosts = append(hosts, newHost(t, agent.Config{World: 2, Ranks: []int{h}, Schedule: &agent.Schedule{Plan: p, Limits: plan.AnyLimits},
			Meet: func(ctx context.Context) ([]transport.Endpoint, collective.Layout, error) {
				rails, l, err := meet(ctx)
				var mine []*counted
				for i := range rails {
					mine = append(mine, &counted{Endpoint: rails[i], bytes: map[uint16]int64{}})
					rails[i] = mine[i]
				}
				mu.Lock()
				all = append(all, mine)
				mu.Unlock()
				return rails, l, err
			}}))
	}
	for rank, err := range trainOver(t, hosts, j, p, periods*p.Period, nil) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	for _, mine := range all {
		for r, c := range mine {
			for x := range p.Programs {
				c.mu.Lock()
				got := c.bytes[uint16(first+x)]
				c.mu.Unlock()
				// What the last iterations have declared may be under way still.
				if r != x && got > 0 || r == x && (got > want[x] || got < want[x]*2/3) {
					t.Errorf("rail %d has carried %d bytes of program %d, which moves %d", r, got, x, want[x])
				}
			}
		}
	}
}

// A rail that is cut ends the training, with its name and a rank beyond it.
func TestRailCut(t *testing.T) {
	j := trained()
	p := built(t, j, "deft", plan.DelayLimits(1), rails...)
	for r, name := range []string{"net", "rail1"} {
		nets := []*transport.Memory{transport.NewMemory(2, transport.MemoryOptions{}), transport.NewMemory(2, transport.MemoryOptions{})}
		hosts := overRails(t, agent.Schedule{Plan: p, Limits: plan.AnyLimits}, nets...)
		for rank, err := range trainOver(t, hosts, j, p, 1000, func(w *worker.Worker, i int) {
			if w.Rank == 1 && i == 3 {
				nets[r].Cut(0, 1, errors.New("no carrier"))
			}
		}) {
			want := regexp.MustCompile(`rank [01] is lost: (no carrier|on rail ` + name + `: no carrier)`)
			if err == nil || !want.MatchString(err.Error()) || r == 1 && !strings.Contains(err.Error(), "on rail rail1") {
				t.Errorf("%s: rank %d: %v", name, rank, err)
			}
		}
	}
}

// A plan for links that no rail is.
func TestRailNames(t *testing.T) {
	j := trained()
	p := built(t, j, "deft", plan.DelayLimits(1), cluster.Link{Name: "net", Latency: 20, Bandwidth: 1e9}, cluster.Link{Name: "ib0", Latency: 20, Bandwidth: 0.5e9})
	nets := []*transport.Memory{transport.NewMemory(2, transport.MemoryOptions{}), transport.NewMemory(2, transport.MemoryOptions{})}
	hosts := overRails(t, agent.Schedule{Plan: p, Limits: plan.AnyLimits}, nets...)
	mustFail(t, trainOver(t, hosts, j, p, 1, nil), "the plan has a program for link ib0, and the rails between hosts are net, rail1")
}

// A host that was given a plan, or is to make one, and one that is not end with one message.
func TestPlanOfOneHost(t *testing.T) {
	j := trained()
	l := collective.Layout{1, 1}
	for want, c := range map[string]agent.Config{
		"plan sha256:": {Schedule: &agent.Schedule{Plan: built(t, j, "p3", plan.DefaultLimits), Limits: plan.DefaultLimits}},
		"plan none until a review after 26 iterations": {Review: &agent.Review{After: 26, Profile: 20}},
	} {
		net := transport.NewMemory(len(l), transport.MemoryOptions{})
		var hosts []*host
		for h := range l {
			c.World, c.Ranks, c.Meet = 2, []int{h}, met(h, l, net)
			hosts = append(hosts, newHost(t, c))
			c = agent.Config{}
		}
		for _, err := range everywhere(hosts, func(w *worker.Worker) error { return w.Hello(does(j)) }) {
			for _, part := range []string{want, "plan none", "give every host the same plan"} {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want %s", err, part)
				}
			}
		}
	}
}

// Workers that cannot delay updates are given plain buckets in place of a plan that does.
func TestNoDelay(t *testing.T) {
	j := trained()
	l := collective.Layout{1, 1}
	var warned []string
	limits := plan.DelayLimits(1)
	hosts := given(t, l, agent.Schedule{Plan: built(t, j, "deft", limits), Limits: limits}, func(s string) { warned = append(warned, s) })
	must(t, hosts, func(w *worker.Worker) error {
		h := does(j)
		h.Mode, h.Boundaries = "global", false
		if err := w.Hello(h); err != nil {
			return err
		}
		if w.Welcome.Policy != "ddp" || w.Welcome.Updates != nil {
			return fmt.Errorf("policy %s, updates %+v", w.Welcome.Policy, w.Welcome.Updates)
		}
		return w.Goodbye()
	})
	if len(warned) != 1 || !strings.Contains(warned[0], "plain buckets instead") {
		t.Errorf("warned of %q", warned)
	}
}
