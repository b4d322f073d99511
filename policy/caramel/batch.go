package caramel

import (
	"cmp"
	"math"
	"slices"
)

// pack is candidate A of section 12.2: loads in fluid order, cut into batches so
// that the latest is as little late as can be. A batch is ready with its last
// gradient and due with its first parameter. It is exact for that order.
func (m *model) pack(loads []load) ([]load, error) {
	loads, err := m.coarsen(loads, maxLoads)
	if err != nil {
		return nil, err
	}
	if m.crossing {
		loads = urgent(loads, onWire)
	} else {
		loads = byReady(loads)
	}
	p := newPacker(m, loads)
	due := make([]float64, len(loads))
	for i := range loads {
		due[i] = loads[i].due
	}
	ends, late := p.least(due)
	if m.depth {
		_, ends = p.shallowest(ends, late)
	}
	if p.err != nil {
		return nil, p.err
	}
	return m.joined(loads, ends)
}

// shallowest finds the smallest suffix of the tensors, by first use, such that no
// others need arrive after the next forward pass has begun and nothing is later
// than late; ends are the batches where all may.
func (p *packer) shallowest(ends []int, late float64) (depth int, _ []int) {
	n := len(p.model.use)
	due := make([]float64, len(p.loads))
	low, high := 0, n // a deeper suffix allows more
	for low < high {
		d := (low + high) / 2
		for i := range p.loads {
			due[i] = p.loads[i].due
			if p.loads[i].first < n-d {
				due[i] = min(due[i], p.model.end)
			}
		}
		if e := p.try(due, late+rounding/2); e != nil {
			ends, high = e, d
		} else {
			low = d + 1
		}
	}
	return low, ends
}

// joined makes batches of loads that end at the cuts.
func (m *model) joined(loads []load, cuts []int) ([]load, error) {
	var out []load
	from := 0
	for _, to := range cuts {
		b, err := m.join(loads[from:to])
		if err != nil {
			return nil, err
		}
		out = append(out, b)
		from = to
	}
	return out, nil
}

// packer cuts a row of loads into batches on a serial link.
type packer struct {
	model *model
	loads []load
	bytes []int64   // of the loads before each
	costs []float64 // of the batches of loads i to j-1, as they are found
	err   error     // of a cost
}

func newPacker(m *model, loads []load) *packer {
	n := len(loads) + 1
	p := &packer{model: m, loads: loads, bytes: make([]int64, n), costs: make([]float64, n*n)}
	for i := range loads {
		p.bytes[i+1] = p.bytes[i] + loads[i].bytes
	}
	return p
}

// cost is that of the batch of loads i to j-1.
func (p *packer) cost(i, j int) float64 {
	at := &p.costs[i*len(p.bytes)+j]
	if *at == 0 {
		b := load{bytes: p.bytes[j] - p.bytes[i]}
		if err := p.model.price(&b); err != nil {
			p.err = err
		}
		*at = b.cost()
	}
	return *at
}

// run gives, by number of loads, when they can be done at the earliest, if no
// batch is later than late beyond its due time, and where the last batch begins.
//
//	end[j] = min over i < j of e = max(end[i], ready(i..j)) + cost(i..j), where e <= due(i..j) + late
func (p *packer) run(due []float64, late float64) (end []float64, from []int) {
	n := len(p.loads)
	end, from = make([]float64, n+1), make([]int, n+1)
	for j := 1; j <= n; j++ {
		end[j] = math.Inf(1)
		ready, latest := math.Inf(-1), math.Inf(1)
		for i := j - 1; i >= 0 && p.loads[i].grad == p.loads[j-1].grad; i-- {
			ready, latest = max(ready, p.loads[i].ready), min(latest, due[i]+late)
			c := p.cost(i, j)
			if alone := ready + c; alone > latest || alone > end[j] {
				break // a longer batch is later, and due no later
			}
			if e := max(end[i], ready) + c; e <= latest && e <= end[j] {
				end[j], from[j] = e, i
			}
		}
	}
	return end, from
}

// cuts are the ends of the batches of the first j loads.
func cuts(from []int, j int) []int {
	var out []int
	for ; j > 0; j = from[j] {
		out = append(out, j)
	}
	slices.Reverse(out)
	return out
}

// try is run for all loads: the ends of their batches, or nil.
func (p *packer) try(due []float64, late float64) []int {
	end, from := p.run(due, late)
	if math.IsInf(end[len(p.loads)], 1) {
		return nil
	}
	return cuts(from, len(p.loads))
}

// lateness of the batches with these ends; not negative.
func (p *packer) lateness(due []float64, ends []int) float64 {
	t, late, from := 0.0, 0.0, 0
	for _, to := range ends {
		ready, latest := math.Inf(-1), math.Inf(1)
		for i := from; i < to; i++ {
			ready, latest = max(ready, p.loads[i].ready), min(latest, due[i])
		}
		t = max(t, ready) + p.cost(from, to)
		late = max(late, t-latest)
		from = to
	}
	return late
}

// least finds by bisection how little late all can be, to a nanosecond.
func (p *packer) least(due []float64) (ends []int, late float64) {
	if ends = p.try(due, 0); ends != nil {
		return ends, 0
	}
	ends = p.try(due, math.Inf(1))
	late = p.lateness(due, ends)
	const halvings = 100 // enough for any time, and an end where floating point is coarser than a nanosecond
	low := 0.0
	for n := 0; n < halvings && late-low > rounding; n++ {
		mid := low + (late-low)/2
		if c := p.try(due, mid); c != nil {
			ends, late = c, min(mid, p.lateness(due, c)) // halves at least, whatever is lost by rounding
		} else {
			low = mid
		}
	}
	return ends, late
}

// split is candidate B of section 12.2: from a point on in the order of first use,
// gradients travel while the backward pass runs, in the order in which they become
// ready; those before it follow, in the order of first use. Both parts are batched
// exactly. The point is that with the least delay of the next forward pass, which
// begins when both the backward pass and the transfers that run with it are done.
func (m *model) split(loads []load) ([]load, error) {
	if !m.crossing {
		return nil, nil
	}
	loads, err := m.coarsen(loads, maxSplit)
	if err != nil {
		return nil, err
	}
	x := newSplitter(m, loads)
	best := math.Inf(1)
	var out []load
	for k := len(loads); k >= 0; k -= x.step {
		delay, back, front := x.at(k)
		if delay >= best {
			continue
		}
		best = delay
		behind, err := m.joined(x.behind.loads, back)
		if err != nil {
			return nil, err
		}
		before, err := m.joined(loads, front)
		if err != nil {
			return nil, err
		}
		out = append(behind, before...)
	}
	return out, cmp.Or(x.front.err, x.behind.err)
}

// splitter tries split points.
type splitter struct {
	front  *packer // all loads, in the order of first use
	ready  []load  // in the order in which they become ready
	behind *packer // those behind the point
	end    []float64
	from   []int
	// nested: gradients become ready in the order of use, reversed. Then the loads
	// behind any point are the first of all, and one run serves all points.
	nested bool
	step   int // between points
}

func newSplitter(m *model, loads []load) *splitter {
	n := len(loads)
	x := &splitter{front: newPacker(m, loads), ready: byReady(loads), nested: true, step: 1}
	for i := range loads {
		x.nested = x.nested && x.ready[i].first == loads[n-1-i].first
	}
	if x.nested {
		x.serve(x.ready)
	} else {
		x.step = max(1, n/maxSplits)
	}
	return x
}

func (x *splitter) serve(behind []load) {
	x.behind = newPacker(x.front.model, behind)
	x.end, x.from = x.behind.run(slices.Repeat([]float64{math.Inf(1)}, len(behind)), 0)
}

// at is how much the first k loads, and those behind, delay the forward pass, and
// the ends of the batches behind and of the first k.
func (x *splitter) at(k int) (delay float64, back, front []int) {
	loads, end := x.front.loads, x.front.model.end
	n := len(loads)
	if !x.nested {
		x.serve(slices.DeleteFunc(slices.Clone(x.ready), func(l load) bool { return k == n || l.first < loads[k].first }))
	}
	start := max(end, x.end[n-k])
	late, front := x.front.delay(k, start)
	return max(late, start-end), cuts(x.from, n-k), front
}

// delay is how little late the first k loads, due one after the other and ready
// before start, can be from there on, and the ends of their batches.
//
//	late[i] = min over j > i of cost(i..j) + max(-due[i], late[j])
func (p *packer) delay(k int, start float64) (late float64, ends []int) {
	if k == 0 {
		return 0, nil
	}
	least, to := make([]float64, k+1), make([]int, k)
	least[k] = math.Inf(-1)
	for i := k - 1; i >= 0; i-- {
		least[i] = math.Inf(1)
		for j := i + 1; j <= k && p.loads[j-1].grad == p.loads[i].grad; j++ {
			c := p.cost(i, j)
			if c-p.loads[i].due > least[i] {
				break
			}
			if t := c + max(-p.loads[i].due, least[j]); t <= least[i] {
				least[i], to[i] = t, j
			}
		}
	}
	for i := 0; i < k; i = to[i] {
		ends = append(ends, to[i])
	}
	return start + least[0], ends
}
