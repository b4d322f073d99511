package deft

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Problem is what the solver knows. Times are microseconds. Buckets are in
// dispatch order, N..1: the first becomes ready first. Links are in the order of
// their speed, the fastest first; at most four.
type Problem struct {
	Forward, Backward float64
	Ready             []float64   // by bucket, from the start of the backward pass
	Cost              [][]float64 // by link, then bucket: time of its transfer
	// Capacity multiplies what the windows hold: 1 + kappa; 0 is 1. Above 1 some
	// communication may be exposed.
	Capacity float64
}

// Send is the transfer of a bucket, in the window that the solver chose.
type Send struct {
	Iteration  int
	Backward   bool // in the backward window of the iteration, else in the forward
	Link       int
	Generation int
	Bucket     int
}

// Generation is a run of iterations whose gradients travel together.
type Generation struct {
	First, Length int
	Applied       int // at the end of which iteration; not yet: -1
}

// Last is the generation's last iteration.
func (g Generation) Last() int { return g.First + g.Length - 1 }

// Solution is the run of the two queues from empty ones until their state
// repeats: iterations up to Prologue happen once, the Period iterations behind
// it for ever. The log ends with them.
type Solution struct {
	Sends       []Send // in the order of dispatch
	Generations []Generation
	Cases       []byte // by iteration: 'A', 'B' or 'C' of section 13.4
	Prologue    int    // iterations
	Period      int    // K
	Updates     int    // J: generations that begin to travel in a period
	// Quantum is the unit of time, microseconds: costs are rounded up to it.
	Quantum float64
	// Inexact counts the windows that were not proved to be packed best, and Gap
	// is how far the worst of them may be from it, microseconds.
	Inexact int
	Gap     float64
	// Spans: some bucket fits no forward window, and may span several windows.
	Spans bool
	// Settled: no state had repeated for long, so that from then on generations
	// begin to travel only in the iteration after their last, and a transfer that
	// spans windows keeps its link for all of the last.
	Settled bool
}

const (
	settleAfter = 128 // iterations
	giveUp      = 512 // iterations
)

// ErrNoPeriod says that the state of the queues did not repeat in time: buckets
// span very many windows. Larger windows help.
var ErrNoPeriod = errors.New("deft: the schedule does not become periodic")

// Solve runs the two queues of section 13.4. The error is [ErrNoPeriod], or says
// what is wrong with the problem.
func Solve(p Problem) (*Solution, error) {
	m, err := newMachine(p)
	if err != nil {
		return nil, err
	}
	seen := map[string]int{}
	for t := 0; t < giveUp; t++ {
		if t == settleAfter {
			m.Settled = true
			clear(seen) // the same state goes on differently now
		}
		m.iteration(t)
		key := m.key()
		if at, ok := seen[key]; ok {
			m.Prologue, m.Period = at+1, t-at
			for _, g := range m.Generations {
				if g.Last() > at {
					m.Updates++
				}
			}
			return m.complete(), nil
		}
		seen[key] = t
	}
	return nil, ErrNoPeriod
}

// machine is the state of the two queues. Times are quanta.
type machine struct {
	Solution
	forward, backward int
	buckets           []item
	packer            packer

	current int   // CUR: the generation that is being sent; -1 before the first
	unsent  []int // its buckets that wait
	future  int   // FUT: iterations accumulated, not yet being sent
	// When each link is free, from the start of the window, and which generation
	// it sent last: a transfer that spans windows keeps it into the next.
	free  []int
	owner []int
	sent  []int // generations sent, not yet applied
}

func newMachine(p Problem) (*machine, error) {
	n, links := len(p.Ready), len(p.Cost)
	if n == 0 || links == 0 || links > maxLinks {
		return nil, fmt.Errorf("deft: %d buckets on %d links; need at least 1 on 1 to %d", n, links, maxLinks)
	}
	if p.Capacity == 0 {
		p.Capacity = 1
	}
	forward, backward := p.Forward*p.Capacity, p.Backward*p.Capacity
	if !(forward+backward > 0) || forward+backward > math.MaxFloat64/4 {
		return nil, errors.New("deft: the job computes nothing that could hide a transfer")
	}
	q := quantum(max(forward, backward))
	up := func(us float64) int { return int(min(math.Ceil(us*nsPerUs/q-1e-6), 1<<40)) }
	down := func(us float64) int { return int(math.Floor(us*nsPerUs/q + 1e-6)) }
	m := &machine{
		forward: down(forward), backward: down(backward), current: none,
		buckets: make([]item, n), free: make([]int, links), owner: make([]int, links),
	}
	m.Quantum = q / nsPerUs
	for i := range m.buckets {
		b := &m.buckets[i]
		b.ready = up(p.Ready[i])
		for l := range links {
			b.weight = append(b.weight, up(p.Cost[l][i]))
		}
		b.value = b.weight[0]
		m.Spans = m.Spans || m.oversized(b)
	}
	return m, nil
}

const nsPerUs = 1000

// quantum is the least of 1, 2, 5, 10, 20, ... nanoseconds in which no window is
// longer than the packer's largest.
func quantum(window float64) float64 {
	for q := 1.0; ; q *= 10 {
		for _, f := range []float64{1, 2, 5} {
			if window*nsPerUs/(q*f) < 1<<unitBits-1 {
				return q * f
			}
		}
	}
}

// oversized: the bucket fits the forward window of no link.
func (m *machine) oversized(b *item) bool { return slices.Min(b.weight) > m.forward }

// complete tells of the generations that are under way when the log ends when
// they will be applied.
func (m *machine) complete() *Solution {
	s := m.Solution
	s.Generations = slices.Clone(s.Generations)
	for n, t := len(s.Generations), len(s.Cases); slices.ContainsFunc(m.Generations[:n], func(g Generation) bool { return g.Applied == none }); t++ {
		m.iteration(t)
	}
	copy(s.Generations, m.Generations)
	return &s
}

// key is the state of the queues, generations counted from the current one.
func (m *machine) key() string {
	k := 0
	if len(m.unsent) > 0 {
		k = m.Generations[m.current].Length
	}
	var busy, pending []int
	for l, x := range m.free {
		if x > 0 {
			busy = append(busy, l, m.current-m.owner[l])
		}
	}
	for _, g := range m.sent {
		pending = append(pending, m.current-g)
	}
	return fmt.Sprint(m.unsent, k, m.future, m.free, busy, pending)
}

func (m *machine) iteration(t int) {
	m.send(t, false, false)
	m.pass(m.forward, m.backward)

	c := byte('A')
	if len(m.unsent) > 0 {
		c = 'B'
		m.send(t, true, false)
	}
	if len(m.unsent) > 0 {
		c = 'C'
		m.future++
	} else {
		m.promote(t)
		if !m.Settled {
			m.send(t, true, true)
		}
	}
	m.Cases = append(m.Cases, c)
	m.pass(m.backward, m.forward)

	for len(m.sent) > 0 && !m.owes(m.sent[0]) {
		m.Generations[m.sent[0]].Applied = t
		m.sent = m.sent[1:]
	}
}

// pass ends a window, before one of capacity next. Where a transfer that spans
// windows ends shifts from one to the next, and may take long to repeat: once
// settled, it keeps its link to the end of the window.
func (m *machine) pass(capacity, next int) {
	for l := range m.free {
		m.free[l] = max(0, m.free[l]-capacity)
		if m.Settled && m.free[l] > 0 {
			m.free[l] = max(m.free[l], next)
		}
	}
}

// owes: a transfer of generation g or an older one is not through.
func (m *machine) owes(g int) bool {
	for l, x := range m.free {
		if x > 0 && m.owner[l] <= g {
			return true
		}
	}
	return false
}

// promote makes FUT and iteration t the generation that is being sent.
func (m *machine) promote(t int) {
	m.current = len(m.Generations)
	m.Generations = append(m.Generations, Generation{First: t - m.future, Length: m.future + 1, Applied: none})
	m.future = 0
	for i := range m.buckets {
		m.unsent = append(m.unsent, i)
	}
}

// send fills what is left of a window with unsent buckets. fresh: they become
// ready in this very window.
func (m *machine) send(t int, backward, fresh bool) {
	if len(m.unsent) == 0 {
		return
	}
	capacity := m.forward
	if backward {
		capacity = m.backward
	}
	items := make([]item, len(m.unsent))
	for k, i := range m.unsent {
		items[k] = m.buckets[i]
		if !fresh {
			items[k].ready = 0
		}
	}
	got := m.packer.pack(items, m.free, capacity)
	if !got.exact {
		m.Inexact++
		m.Gap = max(m.Gap, float64(got.gap)*m.Quantum)
	}
	for k, l := range got.link {
		m.put(t, backward, k, l, &items[k], capacity)
	}
	for k, l := range got.link { // behind what fits
		if l == none && m.oversized(&items[k]) {
			got.link[k] = m.span(&items[k], capacity)
			m.put(t, backward, k, got.link[k], &items[k], capacity)
		}
	}
	rest := m.unsent[:0]
	for k, i := range m.unsent {
		if got.link[k] == none {
			rest = append(rest, i)
		}
	}
	if m.unsent = rest; len(rest) == 0 {
		m.sent = append(m.sent, m.current)
	}
}

// put sends the k-th unsent bucket over link l, unless that is none.
func (m *machine) put(t int, backward bool, k, l int, it *item, capacity int) {
	if l == none {
		return
	}
	if m.free[l] <= capacity { // else the older one is still to come
		m.owner[l] = m.current
	}
	m.free[l] = max(it.ready, m.free[l]) + it.weight[l]
	m.Sends = append(m.Sends, Send{t, backward, l, m.current, m.unsent[k]})
}

// span is the link on which a bucket that fits no window ends first; none if it
// cannot begin there in this window: waiting for a fast link beats a slow one.
func (m *machine) span(it *item, capacity int) int {
	best, least := none, 0
	for l, x := range m.free {
		if end := max(x, it.ready) + it.weight[l]; best == none || end < least {
			best, least = l, end
		}
	}
	if max(m.free[best], it.ready) >= capacity {
		return none
	}
	return best
}
