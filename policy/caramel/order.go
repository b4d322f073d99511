package caramel

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/internal/heap"
	"weft/job"
)

// Bounds on the work of the compute order, in counted steps, so that its outcome
// does not depend on the machine.
const (
	maxOrdered = 1 << 19 // ops
	maxScanned = 1 << 14 // tensors: the rule's work is their square
	maxSteps   = 1 << 21 // of the local search: classes visited and loads played
)

// orders lists compute orders that promise to end the transfers of the recorded one
// earlier, each by lane (nil: as recorded) in ids of the stripped job. Transfers are
// taken at their whole cost and, because batches share start-ups, at that of their
// wire alone.
func (b *builder) orders(t *timing) ([][][]job.OpID, error) {
	j := b.stripped
	if len(j.Ops) > maxOrdered || len(j.Tensors) > maxScanned {
		b.note("compute order: as recorded; %d ops and %d tensors are too many to order", len(j.Ops), len(j.Tensors))
		return nil, nil
	}
	g := newGraph(j)
	if g == nil {
		b.note("compute order: as recorded; %s", fixed(j))
		return nil, nil
	}
	ready := j.ReadyOps()
	c := newClasses(g, ready)
	if c == nil {
		b.note("compute order: as recorded; too many of the %d ops are needed by different gradients", len(j.Ops))
		return nil, nil
	}
	whole, wire := make([]float64, len(j.Tensors)), make([]float64, len(j.Tensors))
	for k := range j.Tensors {
		cost, err := b.cluster.Cost(0, cluster.AllReduce, j.Tensors[k].GradBytes())
		if err != nil {
			return nil, err
		}
		whole[k], wire[k] = cost.Total(), cost.Wire
	}
	recorded := slices.Clone(t.use)
	slices.Reverse(recorded)
	slices.SortStableFunc(recorded, func(a, b job.TensorID) int { return cmp.Compare(t.ready[a], t.ready[b]) })

	var out [][][]job.OpID
	spent := false
	for _, cost := range [][]float64{whole, wire} {
		s := newSearch(c, ready, t, cost)
		if order := s.search(recorded); order != nil {
			lanes := g.lanes(ready, order)
			if lanes != nil && !slices.ContainsFunc(out, func(x [][]job.OpID) bool { return slices.EqualFunc(x, lanes, slices.Equal) }) {
				out = append(out, lanes)
			}
		}
		spent = spent || s.steps > maxSteps
	}
	if spent {
		b.note("compute order: the local search stopped after %d steps", maxSteps)
	}
	return out, nil
}

func (b *builder) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
}

// fixed says why no op of the backward pass may move.
func fixed(j *job.Job) string {
	if j.Recorded != nil {
		return "the recording does not say which ops of a lane need each other, and a device runs what its host launches"
	}
	return "no two ops of the backward pass may change places"
}

// search looks for an order of the tensors in which their gradients are to be made.
// The model: the ops that move run on one lane, a tensor's ops when its turn comes,
// and transfers are preemptive, due first first.
type search struct {
	classes *classes
	own     [][]int32 // by tensor: the classes of the ops after which its gradient may travel
	use     []job.TensorID
	rank    []int     // by tensor: position in use
	due     []float64 // by tensor
	cost    []float64 // by tensor
	steps   int

	done  []bool // scratch, by class
	stack []int32
	left  []float64       // by rank
	queue *heap.Heap[int] // ranks
}

func newSearch(c *classes, ready [][]job.OpID, t *timing, cost []float64) *search {
	n := len(ready)
	s := &search{
		classes: c, own: make([][]int32, n), use: t.use, rank: make([]int, n), due: t.due, cost: cost,
		done: make([]bool, len(c.sets)), left: make([]float64, n), queue: heap.New(cmp.Less[int]),
	}
	for k, ops := range ready {
		for _, o := range ops {
			s.own[k] = append(s.own[k], c.of[o])
		}
	}
	for i, k := range t.use {
		s.rank[k] = i
	}
	return s
}

// search returns an order better than the recorded one, or nil.
func (s *search) search(recorded []job.TensorID) []job.TensorID {
	floor := s.lateness(recorded)
	order := s.rule()
	best := s.lateness(order)
	if floor <= best {
		order, best = slices.Clone(recorded), floor
	}
	best = s.improve(order, best)
	if best >= floor-rounding {
		return nil
	}
	s.restore(order, best, recorded)
	return order
}

// rule is Johnson's, recomputed (section 12.2): of two tensors i and k, i goes first
// if min(P_i, M_k) < min(P_k, M_i), P being what remains to be computed for the
// gradient and M its transfer. It is optimal if no ops are shared.
func (s *search) rule() []job.TensorID {
	c := s.classes
	p := make([]int64, len(s.own)) // nanoseconds
	for i, t := range c.time {
		if t > 0 {
			c.tensors(int32(i), func(k job.TensorID) { p[k] += t })
		}
	}
	clear(s.done)
	rest := slices.Clone(s.use)
	var order []job.TensorID
	for len(rest) > 0 {
		at := 0
		for i := 1; i < len(rest); i++ {
			a, b := rest[i], rest[at]
			if min(float64(p[a])/1000, s.cost[b]) < min(float64(p[b])/1000, s.cost[a]) {
				at = i
			}
		}
		k := rest[at]
		rest = slices.Delete(rest, at, at+1)
		order = append(order, k)
		s.stack = ancestors(&c.preds, s.own[k], s.done, s.stack, func(i int32) {
			if t := c.time[i]; t > 0 {
				c.tensors(i, func(k job.TensorID) { p[k] -= t })
			}
		})
	}
	return order
}

// lateness is by how much the latest tensor misses its due time; negative if none
// does.
func (s *search) lateness(order []job.TensorID) float64 {
	clear(s.done)
	s.queue.Clear()
	late, now := math.Inf(-1), 0.0
	var computed int64
	visit := func(i int32) {
		s.steps++
		computed += s.classes.time[i]
	}
	for _, k := range order {
		s.stack = ancestors(&s.classes.preds, s.own[k], s.done, s.stack, visit)
		late = max(late, s.transfer(&now, float64(computed)/1000))
		s.steps++
		s.left[s.rank[k]] = s.cost[k]
		s.queue.Push(s.rank[k])
	}
	return max(late, s.transfer(&now, math.Inf(1)))
}

// transfer lets the network work until a time.
func (s *search) transfer(now *float64, until float64) float64 {
	late := math.Inf(-1)
	for s.queue.Len() > 0 && *now < until {
		r := s.queue.First()
		if rest := *now + s.left[r]; rest > until {
			s.left[r] = rest - until
			*now = until
			break
		} else {
			*now = rest
		}
		s.queue.Pop()
		late = max(late, *now-s.due[s.use[r]])
	}
	if !math.IsInf(until, 1) {
		*now = max(*now, until)
	}
	return late
}

// exhaustive is the number of tensors up to which the local search tries every
// insertion; beyond, those over distances of powers of two.
const exhaustive = 32

// improve moves one tensor at a time to another place while that is better, and
// returns the lateness of the order that it leaves.
func (s *search) improve(order []job.TensorID, best float64) float64 {
	trial := make([]job.TensorID, len(order))
	for better := true; better; {
		better = false
		for from := range order {
			for to := range order {
				d := max(to-from, from-to)
				if d == 0 || len(order) > exhaustive && d&(d-1) != 0 {
					continue
				}
				if s.steps > maxSteps {
					return best
				}
				copy(trial, order)
				insert(trial, from, to)
				if t := s.lateness(trial); t < best-rounding {
					copy(order, trial)
					best, better = t, true
				}
			}
		}
	}
	return best
}

// insert moves the element at from to the place to.
func insert(order []job.TensorID, from, to int) {
	k := order[from]
	if from < to {
		copy(order[from:to], order[from+1:to+1])
	} else {
		copy(order[to+1:from+1], order[to:from])
	}
	order[to] = k
}

// restore undoes exchanges of neighbours that do not pay: what is deferred keeps
// activations in memory.
func (s *search) restore(order []job.TensorID, best float64, recorded []job.TensorID) {
	place := make([]int, len(order))
	for i, k := range recorded {
		place[k] = i
	}
	for changed := true; changed; {
		changed = false
		for i := 1; i < len(order); i++ {
			if place[order[i-1]] < place[order[i]] {
				continue
			}
			if s.steps > 2*maxSteps {
				return
			}
			order[i-1], order[i] = order[i], order[i-1]
			if s.lateness(order) > best {
				order[i-1], order[i] = order[i], order[i-1]
			} else {
				changed = true
			}
		}
	}
}
