package sim_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"
	"weft/timeline"

	"pgregory.net/rapid"
)

// Every policy trains as one process would that knows nothing of its plan but
// which iterations make a generation and after which it is applied. The weights
// are integers, so that the order of additions does not matter, and a gradient is
// a hash of the weights that were read for it: one stale read, one gradient lost,
// sent twice or too early, and all later weights differ.
func TestWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "layers")
		fwd, bwd, bytes := make([]float64, n), make([]float64, n), make([]int64, n)
		for i := range n {
			fwd[i], bwd[i] = float64(rapid.IntRange(1, 9).Draw(t, "forward")), float64(rapid.IntRange(1, 9).Draw(t, "backward"))
			bytes[i] = 4 * rapid.Int64Range(1, 6).Draw(t, "elements")
		}
		j := job.Chain("chain", fwd, bwd, bytes)
		c := cluster.Uniform(rapid.IntRange(2, 3).Draw(t, "workers"), 1, cluster.Link{
			Name: "net", Latency: float64(rapid.IntRange(0, 3).Draw(t, "latency")), Bandwidth: 8e6 / float64(rapid.IntRange(1, 4).Draw(t, "us a byte")),
		}).WithServers()
		c.Workers = []cluster.Worker{{Rank: 0, Scale: 1.5}}
		if rapid.Bool().Draw(t, "second link") {
			second := c.Links[0]
			second.Name, second.Bandwidth = "second", second.Bandwidth/2
			c.Links = append(c.Links, second)
		}
		o := policy.Options{
			FirstBucket: rapid.Int64Range(1, 9).Draw(t, "first bucket"), Bucket: rapid.Int64Range(1, 30).Draw(t, "bucket"),
			Slice: rapid.Int64Range(1, 6).Draw(t, "slice"), InFlight: rapid.IntRange(1, 3).Draw(t, "in flight"),
			Limits: rapid.SampledFrom([]plan.Limits{plan.DefaultLimits, plan.DelayLimits(1), plan.DelayLimits(3)}).Draw(t, "limits"),
		}
		for _, pol := range policies() {
			p, err := pol.Build(context.Background(), j, c, o)
			if errors.Is(err, policy.ErrUnsuitable) {
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", pol.Name, err)
			}
			plans := []*plan.Plan{p}
			if spread, err := policy.Spread(j, c, p); err != nil {
				t.Fatal(err)
			} else if spread != nil {
				plans = append(plans, spread)
			}
			for _, p := range plans {
				if err := trains(j, c, p); err != nil {
					t.Fatalf("%s: %v", pol.Name, err)
				}
			}
		}
	})
}

// element is an element of a tensor.
type element struct {
	tensor job.TensorID
	at     int64
}

// training replays a simulated run with weights.
type training struct {
	job     *job.Job
	plan    *plan.Plan
	workers int
	weights []map[element]int64          // by worker
	applied []map[element]int            // by worker: updates applied so far
	read    map[[3]int]map[element]int64 // by worker, iteration, tensor
	grads   map[[2]int]map[element]int64 // by worker, iteration
	half    map[int]map[element]int64    // by generation: reduced, but not yet everywhere
	reduced map[int]map[element]int64    // by generation
}

// trains replays a run of p, and compares what each iteration read with what one
// process would have.
func trains(j *job.Job, c *cluster.Cluster, p *plan.Plan) error {
	iterations := 4*p.Period + 4
	r, err := sim.Run(context.Background(), j, c, p, sim.Options{Iterations: iterations, Timeline: true, Everyone: true})
	if err != nil {
		return err
	}
	x := &training{
		job: j, plan: p, workers: c.World(),
		read: map[[3]int]map[element]int64{}, grads: map[[2]int]map[element]int64{},
		half: map[int]map[element]int64{}, reduced: map[int]map[element]int64{},
	}
	for range x.workers {
		x.weights = append(x.weights, map[element]int64{})
		x.applied = append(x.applied, map[element]int{})
	}
	if err := x.replay(r.Timeline); err != nil {
		return err
	}
	want := oracle(j, p, x.workers, iterations)
	for i := range iterations {
		for w := range x.workers {
			for k := range j.Tensors {
				for e := range x.elements(job.TensorID(k)) {
					if got := x.read[[3]int{w, i, k}][e]; got != want[i][e] {
						return fmt.Errorf("rank %d in iteration %d reads %d at %v, one process %d", w, i, got, e, want[i][e])
					}
				}
			}
		}
	}
	return nil
}

// replay takes the starts and ends of ops and the ends of transfers in the order
// of time; at one time ends come first, in the order of the simulator's spans.
func (x *training) replay(t *timeline.Timeline) error {
	id := map[string]job.OpID{}
	for o := range x.job.Ops {
		id[x.job.Ops[o].Name] = job.OpID(o)
	}
	type event struct {
		time  float64
		order int
		do    func() error
	}
	var events []event
	for _, s := range t.Spans {
		rank, i := int(t.Ranks[s.Rank].Rank), int(s.Iteration)
		switch s.Kind {
		case timeline.Compute:
			o, ok := id[s.Name]
			if !ok {
				continue // an update that the plan has moved
			}
			events = append(events,
				event{s.Start, 2, func() error { return x.start(rank, i, o) }},
				event{s.End, 0, func() error { return x.end(rank, i, o) }})
		case timeline.Transfer:
			if s.Rank == 0 {
				kind, _, _ := strings.Cut(s.Name, " ")
				events = append(events, event{s.End, 1, func() error { return x.transfer(kind, i, int(s.Bucket)) }})
			}
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.order, b.order))
	})
	for _, e := range events {
		if err := e.do(); err != nil {
			return err
		}
	}
	return nil
}

func (x *training) elements(k job.TensorID) func(func(element) bool) {
	return func(yield func(element) bool) {
		for at := range x.job.Tensors[k].Elements {
			if !yield(element{k, at}) {
				return
			}
		}
	}
}

// start is an op's start: what it reads has been updated by all generations that
// were to be applied by then.
func (x *training) start(rank, i int, o job.OpID) error {
	for k := range x.job.Tensors {
		if !slices.Contains(x.job.Tensors[k].Readers, o) {
			continue
		}
		seen := map[element]int64{}
		for e := range x.elements(job.TensorID(k)) {
			for due := updates(x.plan, e.tensor, i); x.applied[rank][e] < len(due); x.applied[rank][e]++ {
				generation := due[x.applied[rank][e]]
				g, ok := x.reduced[generation][e]
				if !ok {
					return fmt.Errorf("rank %d reads %v in iteration %d before generation %d is reduced", rank, e, i, generation)
				}
				x.weights[rank][e] -= g
			}
			seen[e] = x.weights[rank][e]
		}
		at := [3]int{rank, i, k}
		if before, ok := x.read[at]; ok {
			for e, v := range before {
				if seen[e] != v {
					return fmt.Errorf("rank %d reads two versions of %v in iteration %d", rank, e, i)
				}
			}
		}
		x.read[at] = seen
	}
	return nil
}

// end is an op's end: the gradients that it is the last to contribute to are ready.
func (x *training) end(rank, i int, o job.OpID) error {
	for k := range x.job.Tensors {
		if p := x.job.Tensors[k].Producers; len(p) == 0 || slices.Max(p) != o {
			continue
		}
		at := [2]int{rank, i}
		if x.grads[at] == nil {
			x.grads[at] = map[element]int64{}
		}
		for e := range x.elements(job.TensorID(k)) {
			x.grads[at][e] = gradient(rank, i, e, x.read[[3]int{rank, i, k}][e])
		}
	}
	return nil
}

// transfer is the end of the transfer of a bucket of the generation that ends
// with iteration last.
func (x *training) transfer(kind string, last, bucket int) error {
	generation := slices.IndexFunc(x.plan.Generations, func(g plan.Generation) bool { return g.Last() == last%x.plan.Period })
	g := x.plan.Generations[generation]
	generation += last / x.plan.Period * len(x.plan.Generations)
	for _, s := range x.plan.Buckets[bucket].Slices {
		for at := s.Offset; at < s.Offset+s.Length; at++ {
			e := element{s.Tensor, at}
			if kind != "all-gather" && kind != "pull" {
				sum := int64(0)
				for w := range x.workers {
					for i := last - g.Length + 1; i <= last; i++ {
						v, ok := x.grads[[2]int{w, i}][e]
						if !ok {
							return fmt.Errorf("%s of %v of generation %d before rank %d has its gradient", kind, e, generation, w)
						}
						sum += v
					}
				}
				if err := put(x.half, generation, e, sum); err != nil {
					return err
				}
			}
			if kind != "reduce-scatter" && kind != "push" {
				v, ok := x.half[generation][e]
				if !ok {
					return fmt.Errorf("%s of %v of generation %d before it is reduced", kind, e, generation)
				}
				if err := put(x.reduced, generation, e, v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func put(to map[int]map[element]int64, generation int, e element, v int64) error {
	if to[generation] == nil {
		to[generation] = map[element]int64{}
	}
	if _, twice := to[generation][e]; twice {
		return fmt.Errorf("%v of generation %d is reduced twice", e, generation)
	}
	to[generation][e] = v
	return nil
}

// updates lists the generations that are applied to a tensor before iteration i,
// oldest first.
func updates(p *plan.Plan, k job.TensorID, i int) []int {
	var out []int
	for period := 0; period*p.Period < i; period++ {
		for _, u := range p.Updates {
			if (u.Tensors == nil || slices.Contains(u.Tensors, k)) && period*p.Period+u.Iteration < i {
				out = append(out, period*len(p.Generations)+u.Generation)
			}
		}
	}
	slices.Sort(out)
	return out
}

// oracle trains in one process: by iteration, the weights that it reads.
func oracle(j *job.Job, p *plan.Plan, workers, iterations int) []map[element]int64 {
	var out []map[element]int64
	weights := map[element]int64{}
	sums := map[int]map[element]int64{} // by generation
	for i := range iterations {
		for k := range j.Tensors {
			before := []int(nil)
			if i > 0 {
				before = updates(p, job.TensorID(k), i-1)
			}
			for _, g := range updates(p, job.TensorID(k), i) {
				if slices.Contains(before, g) {
					continue
				}
				for at := range j.Tensors[k].Elements {
					e := element{job.TensorID(k), at}
					weights[e] -= sums[g][e]
				}
			}
		}
		now := map[element]int64{}
		g := slices.IndexFunc(p.Generations, func(g plan.Generation) bool { return i%p.Period <= g.Last() })
		g += i / p.Period * len(p.Generations)
		if sums[g] == nil {
			sums[g] = map[element]int64{}
		}
		for k := range j.Tensors {
			for at := range j.Tensors[k].Elements {
				e := element{job.TensorID(k), at}
				now[e] = weights[e]
				for w := range workers {
					sums[g][e] += gradient(w, i, e, weights[e])
				}
			}
		}
		out = append(out, now)
	}
	return out
}

// gradient is a hash (splitmix64's mixing) of all that it depends on.
func gradient(rank, iteration int, e element, weight int64) int64 {
	h := uint64(weight)
	for _, x := range []uint64{uint64(rank), uint64(iteration), uint64(e.tensor), uint64(e.at)} {
		h += x + 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return int64(h)
}
