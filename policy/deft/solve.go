package deft

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// problem is what the solver knows. Times are microseconds. Buckets are in
// dispatch order, N..1: the first becomes ready first. Links are in the order of
// their speed, the fastest first; at most four.
type problem struct {
	Forward, Backward float64
	Ready             []float64   // by bucket, from the start of the backward pass
	Cost              [][]float64 // by link, then bucket: time of its transfer
	// Taken is how long each link is busy, from the start of each forward and of
	// each backward pass, with what the job itself sends; nil: not at all.
	Taken [][2]float64
	// Capacity multiplies what the windows hold: 1 + kappa; 0 is 1. Above 1 some
	// communication may be exposed.
	Capacity float64
}

// rule is what bounds the queues.
type rule struct {
	// Delay is the largest: what a generation has not sent in the backward pass so
	// many iterations behind its last goes in that pass all the same, however far
	// it overruns. 0 is synchronous, and more than 32 is as 32.
	Delay int
	// Length is the least of a generation, iterations; 0 is 1.
	Length int
}

// send is the transfer of a bucket, in the window that the solver chose.
type send struct {
	Iteration  int
	Backward   bool // in the backward window of the iteration, else in the forward
	Link       int
	Generation int
	Bucket     int
}

// generation is a run of iterations whose gradients travel together.
type generation struct {
	First, Length int
	Applied       int // at the end of which iteration; not yet: -1
}

// last is the generation's last iteration.
func (g generation) last() int { return g.First + g.Length - 1 }

// solution is the run of the two queues from empty ones until their state
// repeats: iterations up to Prologue happen once, the Period iterations behind
// it for ever. The log ends with them.
type solution struct {
	Sends       []send // in the order of dispatch
	Generations []generation
	// Cases are 'A', 'B' and 'C' of section 13.4 by iteration; 'D': nothing is
	// left to send, but the next generation is not long enough yet.
	Cases    []byte
	Prologue int // iterations
	Period   int // K
	Updates  int // J: generations that begin to travel in a period
	// Time is the length of an iteration that the profile predicts, microseconds.
	Time float64
	// Overrun is by how much the windows of a period take longer than they hold.
	Overrun float64
	// Quantum is the unit of time, microseconds: costs are rounded up to it.
	Quantum float64
	// Inexact counts the windows that were not proved to be packed best, and Gap
	// is how far the worst of them may be from it, microseconds.
	Inexact int
	Gap     float64
	// Spans: some bucket fits no forward window, and may span several windows.
	Spans bool
	// Rested: no state had repeated for long, so that the queues were emptied.
	Rested bool
}

const (
	// restAfter bounds the period: when so many iterations have not repeated a
	// state, the queues are emptied at the next occasion, which is a state that does.
	restAfter = 24
	mostDelay = 32
)

// solver is a problem in quanta. Schedules of one problem under several rules
// share what it has packed.
type solver struct {
	problem problem
	quantum float64  // microseconds
	window  [2]int   // forward, backward
	taken   [][2]int // by link
	buckets []item   // ready in the backward window
	packer  *packer
	packed  map[string]packing
}

const (
	forward  = 0
	backward = 1
)

// newSolver returns an error that says what is wrong with the problem.
func newSolver(p problem, w *work) (*solver, error) {
	n, links := len(p.Ready), len(p.Cost)
	if n == 0 || links == 0 || links > maxLinks {
		return nil, fmt.Errorf("deft: %d buckets on %d links; need at least 1 on 1 to %d", n, links, maxLinks)
	}
	if p.Capacity == 0 {
		p.Capacity = 1
	}
	windows := [2]float64{p.Forward * p.Capacity, p.Backward * p.Capacity}
	longest := max(windows[forward], windows[backward])
	if !(longest > 0) || longest > math.MaxFloat64/4 {
		return nil, errors.New("deft: the job computes nothing that could hide a transfer")
	}
	s := &solver{
		problem: p, quantum: quantum(longest, n), buckets: make([]item, n), taken: make([][2]int, links),
		packer: &packer{work: w}, packed: map[string]packing{},
	}
	const rounding = 1e-6
	up := func(us float64) int { return int(min(math.Ceil(us/s.quantum-rounding), 1<<40)) }
	for w, us := range windows {
		s.window[w] = int(math.Floor(us/s.quantum + rounding))
		for l := range p.Taken {
			s.taken[l][w] = min(up(p.Taken[l][w]), s.window[w])
		}
	}
	for i := range s.buckets {
		b := &s.buckets[i]
		b.ready = up(p.Ready[i])
		for l := range links {
			b.weight = append(b.weight, up(p.Cost[l][i]))
		}
		b.value = b.weight[0]
	}
	return s, nil
}

// A window has at most so many units for each bucket: the mean error of rounding
// up is half a unit each.
const (
	unitsEach  = 128
	leastUnits = 512
	mostUnits  = 1<<unitBits - 1
	nsPerUs    = 1000
)

// quantum is the least of 1, 2, 5, 10, 20, ... nanoseconds in which no window is
// longer than the units for so many buckets; in microseconds.
func quantum(window float64, buckets int) float64 {
	units := float64(min(max(unitsEach*buckets, leastUnits), mostUnits))
	for q := 1.0; ; q *= 10 {
		for _, f := range []float64{1, 2, 5} {
			if window*nsPerUs <= q*f*units {
				return q * f / nsPerUs
			}
		}
	}
}

// oversized: the bucket fits the forward window of no link.
func (s *solver) oversized(b *item) bool {
	for l, w := range b.weight {
		if w <= s.window[forward]-s.taken[l][forward] {
			return false
		}
	}
	return true
}

// solve runs the two queues of section 13.4, within the bounds of a rule, until
// their state repeats. The error is that of ctx.
func (s *solver) solve(ctx context.Context, r rule) (*solution, error) {
	links := len(s.problem.Cost)
	r.Delay = min(r.Delay, mostDelay)
	m := &machine{solver: s, rule: r, current: none, free: make([]int, links)}
	m.Quantum = s.quantum
	for i := range s.buckets {
		m.Spans = m.Spans || s.oversized(&s.buckets[i])
	}
	seen := map[string]int{}
	overrun := []int{0} // by iteration: before it
	for t := 0; ; t++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m.iteration(t)
		overrun = append(overrun, m.overrun)
		key := m.key(t)
		if at, ok := seen[key]; ok {
			m.Prologue, m.Period = at+1, t-at
			m.Overrun = float64(overrun[t+1]-overrun[at+1]) * s.quantum
			for _, g := range m.Generations {
				if g.last() > at {
					m.Updates++
				}
			}
			out := m.complete()
			out.Time = out.predict(&s.problem)
			return out, nil
		}
		seen[key] = t
	}
}

// machine is the state of the two queues. Times are quanta.
type machine struct {
	solution
	*solver
	rule rule

	current int   // CUR: the generation that is being sent; -1 before the first
	unsent  []int // its buckets that wait
	future  int   // FUT: iterations accumulated, not yet being sent
	free    []int // by link: when it is free, from the start of the window
	sent    []int // generations sent, not yet applied
	end     []int // by generation: when its transfers are through, from the start of the window
	rested  int   // iterations since the queues were last empty
	overrun int
}

// complete tells of the generations that are under way when the log ends when
// they will be applied.
func (m *machine) complete() *solution {
	s := m.solution
	s.Generations = slices.Clone(s.Generations)
	for n, t := len(s.Generations), len(s.Cases); slices.ContainsFunc(m.Generations[:n], func(g generation) bool { return g.Applied == none }); t++ {
		m.iteration(t)
	}
	copy(s.Generations, m.Generations)
	return &s
}

// key is the state of the queues at the end of iteration t, generations counted
// from the current one.
func (m *machine) key(t int) string {
	var underway []int
	add := func(g int) {
		x := &m.Generations[g]
		underway = append(underway, m.current-g, t-x.last(), m.end[g])
	}
	for _, g := range m.sent {
		add(g)
	}
	if len(m.unsent) > 0 {
		add(m.current)
		underway = append(underway, m.Generations[m.current].Length)
	}
	return fmt.Sprint(m.unsent, m.future, m.free, underway)
}

func (m *machine) iteration(t int) {
	m.open(forward)
	m.send(t, forward, false)
	m.elapse(m.window[forward])

	m.open(backward)
	c := byte('A')
	if len(m.unsent) > 0 {
		c = 'B'
		m.send(t, backward, false)
	}
	rest := false
	m.rested++
	switch {
	case len(m.unsent) > 0:
		c = 'C'
		m.future++
	case m.future+1 < m.rule.Length:
		c = 'D'
		m.future++
	default:
		m.promote(t)
		if rest = m.rested > max(restAfter, 2*m.rule.Length); rest {
			m.rested, m.Rested = 0, true
		}
		if !rest || m.rule.Delay == 0 {
			m.send(t, backward, true)
		}
	}
	m.Cases = append(m.Cases, c)
	m.elapse(m.window[backward])

	// Computation waits where something is due, and when the queues rest.
	wait := 0
	for _, g := range m.sent {
		if rest || m.due(g, t) {
			wait = max(wait, m.end[g])
		}
	}
	m.overrun += wait
	m.elapse(wait)
	for len(m.sent) > 0 && m.end[m.sent[0]] == 0 {
		m.Generations[m.sent[0]].Applied = t
		m.sent = m.sent[1:]
	}
}

// due: generation g has to be applied at the end of iteration t.
func (m *machine) due(g, t int) bool { return t >= m.Generations[g].last()+m.rule.Delay }

// open begins a window: what the job itself sends goes first.
func (m *machine) open(window int) {
	for l := range m.free {
		m.free[l] += m.taken[l][window]
	}
}

// elapse lets time pass.
func (m *machine) elapse(time int) {
	for l := range m.free {
		m.free[l] = max(0, m.free[l]-time)
	}
	for _, g := range m.sent {
		m.end[g] = max(0, m.end[g]-time)
	}
	if len(m.unsent) > 0 {
		m.end[m.current] = max(0, m.end[m.current]-time)
	}
}

// promote makes FUT and iteration t the generation that is being sent.
func (m *machine) promote(t int) {
	m.current = len(m.Generations)
	m.Generations = append(m.Generations, generation{First: t - m.future, Length: m.future + 1, Applied: none})
	m.end = append(m.end, 0)
	m.future = 0
	for i := range m.buckets {
		m.unsent = append(m.unsent, i)
	}
}

// send fills what is left of a window with unsent buckets. fresh: they become
// ready in this very window.
func (m *machine) send(t, window int, fresh bool) {
	if len(m.unsent) == 0 {
		return
	}
	got := m.pack(window, fresh)
	if !got.exact {
		m.Inexact++
		m.Gap = max(m.Gap, float64(got.gap)*m.quantum)
	}
	link := slices.Clone(got.link)
	due := window == backward && m.due(m.current, t)
	if due && slices.Contains(link, none) { // what does not fit goes too: then in order
		link = slices.Repeat([]int{none}, len(link))
	}
	for k, i := range m.unsent {
		m.put(t, window, link[k], i, fresh)
	}
	// Behind what fits goes what is due, and what fits no window.
	for k, i := range m.unsent {
		if b := &m.buckets[i]; link[k] == none && (due || m.oversized(b)) {
			l, start := m.soonest(b, fresh)
			if due || start < m.window[window] {
				link[k] = l
				m.put(t, window, l, i, fresh)
			}
		}
	}
	rest := m.unsent[:0]
	for k, i := range m.unsent {
		if link[k] == none {
			rest = append(rest, i)
		}
	}
	if m.unsent = rest; len(rest) == 0 {
		m.sent = append(m.sent, m.current)
	}
}

// pack chooses the unsent buckets that go in what is left of a window.
func (m *machine) pack(window int, fresh bool) packing {
	key := fmt.Sprint(window, fresh, m.free, m.unsent)
	if got, ok := m.packed[key]; ok {
		return got
	}
	items := make([]item, len(m.unsent))
	for k, i := range m.unsent {
		items[k] = m.buckets[i]
		if !fresh {
			items[k].ready = 0
		}
	}
	got := m.packer.pack(items, m.free, m.window[window])
	m.packed[key] = got
	return got
}

// put sends bucket i over link l, unless that is none.
func (m *machine) put(t, window, l, i int, fresh bool) {
	if l == none {
		return
	}
	b := &m.buckets[i]
	m.free[l] = b.start(m.free[l], fresh) + b.weight[l]
	m.end[m.current] = max(m.end[m.current], m.free[l])
	m.Sends = append(m.Sends, send{t, window == backward, l, m.current, i})
}

// start is when the bucket can be sent on a link that is free at a time.
func (b *item) start(free int, fresh bool) int {
	if fresh {
		return max(free, b.ready)
	}
	return free
}

// soonest is the link on which the bucket ends first, waiting for a fast link
// rather than beginning on a slow one, and when it begins there.
func (m *machine) soonest(b *item, fresh bool) (link, start int) {
	least := math.MaxInt
	for l, free := range m.free {
		at := b.start(free, fresh)
		if end := at + b.weight[l]; end < least {
			link, start, least = l, at, end
		}
	}
	return link, start
}
