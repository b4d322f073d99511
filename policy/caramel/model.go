package caramel

import (
	"cmp"
	"math"
	"slices"

	"weft/cluster"
	"weft/internal/heap"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// load is what travels together: a tensor, a slice of one, or a batch. Times are
// microseconds from the start of the backward pass.
type load struct {
	slices      []plan.Slice
	grad        job.DType
	bytes       int64
	first       int // least position, in the order of first use, of its tensors
	ready, due  float64
	alpha, wire float64
}

func (l *load) cost() float64 { return l.alpha + l.wire }
func onWire(l *load) float64  { return l.wire }

// model is one compute order on one lane and the first link.
type model struct {
	*timing
	job     *job.Job
	cluster *cluster.Cluster

	batching, depth, slicing, crossing bool
}

// schedule is loads in dispatch order.
type schedule struct {
	loads  []load
	window plan.Window

	time  float64 // of an iteration
	early int     // loads dispatched before the next forward pass begins
	// deferred is the depth: the smallest suffix of tensors, by first use, with all
	// that arrive when the next forward pass, if it waited only once, would run.
	deferred int
}

// Bounds on the work of a build.
const (
	maxLoads   = 512     // that are batched: the work is their square
	maxSplit   = 256     // of which a split point is sought: the work is their cube
	maxSplits  = 48      // split points tried where none builds on another
	maxUnitary = 1 << 12 // transfers, about, of an iteration whose slices are not batched
)

// schedules lists what to choose from, the plainest first: whole gradients, in the
// order in which they become ready.
func (m *model) schedules() ([]*schedule, error) {
	whole, err := m.cut(math.MaxInt64)
	if err != nil {
		return nil, err
	}
	serial := plan.Window{Transfers: 1}
	out := []*schedule{m.play(byReady(whole), serial)}
	if m.crossing {
		out = append(out, m.play(urgent(whole, (*load).cost), serial))
	}
	if m.batching {
		if err := m.batched(&out, whole, m.split); err != nil {
			return nil, err
		}
		if err := m.batched(&out, whole, m.pack); err != nil {
			return nil, err
		}
	}
	if !m.slicing {
		return out, nil
	}
	sizes, err := m.sizes()
	if err != nil {
		return nil, err
	}
	for _, size := range sizes {
		cut, err := m.cut(size)
		if err != nil {
			return nil, err
		}
		if len(cut) > 2*maxUnitary {
			continue
		}
		if m.batching {
			if err := m.batched(&out, cut, m.pack); err != nil {
				return nil, err
			}
		}
		s, err := m.stream(cut)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// batched adds the schedule of a way to batch, of loads not too many.
func (m *model) batched(out *[]*schedule, loads []load, how func([]load) ([]load, error)) error {
	b, err := how(loads)
	if err == nil && b != nil {
		*out = append(*out, m.play(b, plan.Window{Transfers: 1}))
	}
	return err
}

// sizes of slices, in bytes, smallest first: those whose wire takes half, twice
// and eight times the start-up of a slice, but not so small that there are too
// many.
func (m *model) sizes() ([]int64, error) {
	total := m.job.Bytes()
	alpha, beta, err := m.cluster.AlphaBeta(0, cluster.AllReduce)
	if err != nil {
		return nil, err
	}
	least := (total + maxUnitary - 1) / maxUnitary
	var out []int64
	for _, factor := range []float64{0.5, 2, 8} {
		size := float64(least)
		if beta > 0 {
			size = max(size, math.Floor(factor*alpha/beta))
		}
		if n := int64(min(size, float64(total))); len(out) == 0 || n > out[len(out)-1] {
			out = append(out, max(1, n))
		}
	}
	return out, nil
}

// cut makes loads of at most so many bytes, or an element, in the order of first
// use.
func (m *model) cut(size int64) ([]load, error) {
	var out []load
	for rank, k := range m.use {
		t := &m.job.Tensors[k]
		each := max(1, size/t.Grad.Bytes())
		for at := int64(0); at < t.Elements; at += min(each, t.Elements-at) {
			l := load{
				slices: []plan.Slice{{Tensor: k, Offset: at, Length: min(each, t.Elements-at)}},
				grad:   t.Grad, first: rank, ready: m.ready[k], due: m.due[k],
			}
			l.bytes = l.slices[0].Length * t.Grad.Bytes()
			if err := m.price(&l); err != nil {
				return nil, err
			}
			out = append(out, l)
		}
	}
	return out, nil
}

func (m *model) price(l *load) error {
	c, err := m.cluster.Cost(0, cluster.AllReduce, l.bytes)
	l.alpha, l.wire = c.Alpha, c.Wire
	return err
}

// join is the batch of loads of one element type; slices that continue each other
// become one.
func (m *model) join(loads []load) (load, error) {
	b := load{grad: loads[0].grad, first: math.MaxInt, due: math.Inf(1)}
	for i := range loads {
		l := &loads[i]
		b.bytes += l.bytes
		b.first = min(b.first, l.first)
		b.ready, b.due = max(b.ready, l.ready), min(b.due, l.due)
		for _, s := range l.slices {
			if n := len(b.slices); n > 0 && b.slices[n-1].Tensor == s.Tensor && b.slices[n-1].Offset+b.slices[n-1].Length == s.Offset {
				b.slices[n-1].Length += s.Length
			} else {
				b.slices = append(b.slices, s)
			}
		}
	}
	return b, m.price(&b)
}

// coarsen joins neighbours until there are at most so many loads, about.
func (m *model) coarsen(loads []load, most int) ([]load, error) {
	if len(loads) <= most {
		return loads, nil
	}
	size := m.job.Bytes()/int64(most/2) + 1
	var cuts []int
	for to := 0; to < len(loads); cuts = append(cuts, to) {
		grad, bytes := loads[to].grad, loads[to].bytes
		for to++; to < len(loads) && loads[to].grad == grad && bytes+loads[to].bytes <= size; to++ {
			bytes += loads[to].bytes
		}
	}
	return m.joined(loads, cuts)
}

func byReady(loads []load) []load {
	out := slices.Clone(loads)
	slices.Reverse(out) // of equals the later in use first, as a backward pass meets them
	slices.SortStableFunc(out, func(a, b load) int { return cmp.Compare(a.ready, b.ready) })
	return out
}

// urgent is the order in which a link that is free takes the load, of those that
// are ready, that is due first. It is taken by each for some time; by slices on
// the wire this is the fluid order. Loads are in the order of first use, and so are
// equals.
func urgent(loads []load, time func(*load) float64) []load {
	ready := make([]int, len(loads))
	for i := range ready {
		ready[i] = i
	}
	slices.SortStableFunc(ready, func(a, b int) int { return cmp.Compare(loads[a].ready, loads[b].ready) })
	var (
		out []load
		q   = heap.New(cmp.Less[int])
		now float64
	)
	for at := 0; at < len(ready) || q.Len() > 0; {
		if q.Len() == 0 {
			now = max(now, loads[ready[at]].ready)
		}
		for at < len(ready) && loads[ready[at]].ready <= now {
			q.Push(ready[at])
			at++
		}
		i := q.Pop()
		now += time(&loads[i])
		out = append(out, loads[i])
	}
	return out
}

// stream sends slices in fluid order without batches, so many at once that the
// wire stays busy and no more: the credit law of section 7.1. A window of c bytes
// holds c rounded up to whole slices; the wire needs a slice and what travels in a
// start-up.
func (m *model) stream(loads []load) (*schedule, error) {
	var largest load
	for i := range loads {
		if loads[i].bytes > largest.bytes {
			largest = loads[i]
		}
	}
	credit := largest.bytes
	if largest.wire > 0 {
		credit += int64(math.Ceil(largest.alpha / largest.wire * float64(largest.bytes)))
	}
	return m.play(urgent(loads, onWire), plan.Window{Bytes: credit}), nil
}

// play runs loads in the given order: the wire model of the simulator.
func (m *model) play(loads []load, w plan.Window) *schedule {
	s := &schedule{loads: loads, window: w}
	flights := policy.NewFlights(w, &m.cluster.Links[0])
	var (
		now, wire float64
		late      float64
		done      = make([]float64, len(loads))
	)
	for i := range loads {
		l := &loads[i]
		now = flights.Next(max(now, l.ready))
		if now < m.end {
			s.early++
		}
		wire = max(wire, now) + l.wire
		done[i] = wire + l.alpha
		flights.Send(l.bytes, done[i])
		late = max(late, done[i]-l.due)
	}
	s.time = m.compute + late
	first := len(m.use)
	for i := range loads {
		if done[i] > m.end+late+rounding {
			first = min(first, loads[i].first)
		}
	}
	s.deferred = len(m.use) - first
	return s
}
