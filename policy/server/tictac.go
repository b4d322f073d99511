package server

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// TIC and TAC order the pulls by what computation waits for them: TIC by the graph
// alone, TAC by measured times too (section 8). All pulls are there to be ordered
// when an iteration starts; pushes are first in, first out.
var (
	TIC = ordered("tictac-tic", "TicTac, by the graph: first the pulls that with the fewest others let computation go on", (*worker).ticOrder)
	TAC = ordered("tictac-tac", "TicTac, by measured times: first the pulls that computation hides most of", (*worker).tac)
)

// ordered is the policy that pulls in an order of the worker's receives. The order
// reports whether it is whole, or was broken off.
func ordered(name, title string, order func(*worker) (receives []int, whole bool)) policy.Policy {
	return policy.Policy{
		Name: name, Title: title, Paper: "TicTac (MLSys 2019, arXiv 1803.03288)", Class: policy.Servers,
		Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
			if err := policy.NeedServers(name, c); err != nil {
				return nil, err
			}
			p, err := policy.NewProfile(j, c, o.Copies)
			if err != nil {
				return nil, err
			}
			w, err := workerOf(j, c, p, o)
			if err != nil {
				return nil, err
			}
			receives, whole := order(w)
			pulls := make([]job.TensorID, len(receives))
			for i, r := range receives {
				pulls[i] = p.Use[r]
			}
			out, err := policy.Crossing(name, j, c, o)
			if err != nil {
				return nil, err
			}
			if !whole {
				out.Notes = append(out.Notes, fmt.Sprintf("its order was broken off after %d steps: the last pulls follow the order in which their parameters are read", maxWork))
			}
			return fill(out, j, alone(p.Order), alone(pulls), o)
		},
	}
}

// ticOrder is TIC's order; receives of the same priority keep theirs.
func (w *worker) ticOrder() (receives []int, whole bool) {
	priority := w.tic()
	for r := range priority {
		receives = append(receives, r)
	}
	slices.SortStableFunc(receives, func(a, b int) int { return cmp.Compare(priority[a], priority[b]) })
	return receives, true
}

// maxSets bounds the memory of the sets of receives, in words.
const maxSets = 1 << 23

// workerOf is a job as TicTac sees it. Receives are the pulls, by first read. An
// op depends on those that it reads and on those that the ops before it depend on,
// its own lane's included, because lanes run in order. Times are whole
// nanoseconds, so that sums are exact. Updates run elsewhere.
func workerOf(j *job.Job, c *cluster.Cluster, p *policy.Profile, o policy.Options) (*worker, error) {
	s, _ := j.Strip(o.Copies)
	sequence, err := s.Sequence()
	if err != nil {
		return nil, err
	}
	ns := func(us float64) float64 { return math.Round(us * 1000) }
	receives := make([]float64, len(p.Use))
	reads := make([][]int, len(s.Ops))
	for r, k := range p.Use {
		cost, err := c.Cost(0, cluster.Pull, j.Tensors[k].GradBytes())
		if err != nil {
			return nil, err
		}
		receives[r] = ns(cost.Total())
		for _, op := range s.Tensors[k].Readers {
			reads[op] = append(reads[op], r)
		}
	}
	w := newWorker(receives)
	of := make([]int32, len(s.Ops)) // by op: its need
	last := make([]int32, len(s.Lanes))
	for l := range last {
		last[l] = w.need(newSet(len(receives)))
	}
	for _, id := range sequence {
		op := &s.Ops[id]
		at := last[op.Lane]
		for _, d := range op.Deps {
			at = w.union(at, of[d])
		}
		if at = w.with(at, reads[id]); len(w.needs)*len(w.needs[at].on) > maxSets {
			return nil, fmt.Errorf("%w: tictac keeps for every op the pulls that it depends on, and the job's %d ops depend on more than %d different sets of its %d tensors",
				policy.ErrUnsuitable, len(s.Ops), len(w.needs), len(receives))
		}
		of[id], last[op.Lane] = at, at
		if op.Phase != job.Update {
			w.needs[at].time += ns(op.Time * p.Scale)
		}
	}
	return w, nil
}

// union is the need of what either of two needs.
func (w *worker) union(a, b int32) int32 {
	x, y := w.needs[a].on, w.needs[b].on
	if a == b || y.within(x) {
		return a
	}
	if x.within(y) {
		return b
	}
	on := slices.Clone(x)
	for i := range on {
		on[i] |= y[i]
	}
	return w.need(on)
}

// with is a need and some receives.
func (w *worker) with(a int32, receives []int) int32 {
	if len(receives) == 0 {
		return a
	}
	on := slices.Clone(w.needs[a].on)
	for _, r := range receives {
		on.add(r)
	}
	return w.need(on)
}
