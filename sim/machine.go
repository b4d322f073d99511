package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"weft/cluster"
	"weft/job"
)

// machine executes a program. Workers, iterations, lanes, ops, links and
// transfers are all addressed by index.
type machine struct {
	*program
	iterations int // to simulate
	seed       uint64
	workers    []worker
	state      []*iteration // by iteration; nil before its first op and after its last
	ends       []float64    // by iteration
	links      []linkState
	media      [][]int32 // links that share a medium, by group

	now    float64
	seq    uint64
	events heap // in real time
	work   heap // ends of slowed ops, in the time that the slowed lanes' clock shows
	clock  clock
	flying int // transfers in flight
	steady int // first iteration that counts in the result
	// Meters: the links', and the readings at the start and the end of what counts.
	sending   meter
	from, end []meter
	dirty     bool

	rec *recorder
}

// worker is one simulated rank, standing for all that behave alike.
type worker struct {
	rank   int
	stands []int
	scale  float64
	jitter float64
	lanes  []laneState
	meter  meter
}

type laneState struct {
	iteration int32
	place     int32   // position in lane.ops; the op there runs or is next
	running   bool    //
	started   float64 // of the running op
	blocked   float64 // when only transfers were left to wait for; < 0: not yet
	done      bool
}

// iteration is the progress of one iteration on all workers.
type iteration struct {
	pending  [][]int32 // by worker, op: deps not yet done
	waits    []int32   // by op: transfers not yet done
	grads    []int32   // by tensor: contributions not yet made, over all workers
	ops      map[int32]int32
	left     int // ops not yet done, over all workers
	backward int // workers yet to start their backward pass
	begun    []bool
}

type linkState struct {
	inst     []instance // all periods of the run, in program order
	head     int        // next to dispatch
	inFlight int
	bytes    int64
	wires    [2]wire // outgoing and incoming
}

// wire is one side of a link.
type wire struct {
	queue   []int32 // dispatched, time on this wire not over: FIFO
	left    float64 // time of queue[0] still to go at full rate, as of updated
	updated float64
	rate    float64
	token   uint64 // of the valid event
}

type instance struct {
	pending int32
	absent  bool
	done    bool
	wires   int8 // dispatched: on how many its time is not over
	ready   float64
	started float64
	waiters []waiter
	gradOp  int32 // span of the op whose completion released it; -1
}

// waiter is an op that waits for a transfer.
type waiter struct {
	iteration int32
	op        int32
}

// clock maps real time to the time of lanes slowed by communication.
type clock struct {
	slow       float64 // rate while a transfer is active
	real, lane float64 // a common point
	rate       float64
}

func (c *clock) at(real float64) float64 { return c.lane + float64((real-c.real)*c.rate) }
func (c *clock) to(lane float64) float64 { return c.real + float64((lane-c.lane)/c.rate) }
func (c *clock) set(real, rate float64) {
	c.lane, c.real, c.rate = c.at(real), real, rate
}

func newMachine(p *program, c *cluster.Cluster, workers []worker, iterations int) *machine {
	m := &machine{program: p, workers: workers, iterations: iterations, seed: c.Seed}
	// The first half is warm-up; what counts is a whole number of periods where
	// the run is long enough.
	m.steady = iterations - max(iterations/2/p.period*p.period, min(p.period, iterations))
	m.state = make([]*iteration, iterations)
	m.ends = make([]float64, iterations)
	m.clock = clock{slow: 1, rate: 1}
	if !p.recorded {
		m.clock.slow = 1 / (1 + c.Overlap)
	}
	m.links = make([]linkState, len(p.links))
	for l := range m.links {
		m.links[l] = m.newLink(l)
	}
	m.countGates()
	m.media = media(p.links)
	return m
}

// workers groups the ranks that behave alike: same scale, no jitter.
func workers(c *cluster.Cluster, lanes int, everyone bool) []worker {
	var out []worker
	alike := map[float64]int{}
	for r := range c.World() {
		scale, jitter := c.WorkerFactor(r)
		if at, ok := alike[scale]; ok && jitter == 0 && !everyone {
			out[at].stands = append(out[at].stands, r)
			continue
		}
		if jitter == 0 {
			alike[scale] = len(out)
		}
		out = append(out, worker{rank: r, stands: []int{r}, scale: scale, jitter: jitter, lanes: make([]laneState, lanes)})
	}
	return out
}

func (m *machine) newLink(l int) linkState {
	ts := m.program.links[l].transfers
	periods := m.periods(m.iterations)
	s := linkState{inst: make([]instance, 0, periods*len(ts))}
	for n := range periods {
		for i := range ts {
			first, last := n*m.period+ts[i].first, n*m.period+ts[i].last
			s.inst = append(s.inst, instance{absent: first < 0 || last >= m.iterations, gradOp: -1})
		}
	}
	return s
}

// countGates counts, for each transfer, the events of the run that release it.
// What lies before the run has happened; for what lies behind, the run ends as
// with a flush: nothing waits for it.
func (m *machine) countGates() {
	count := func(r ref, n int) {
		if at, ok := m.position(r, n); ok {
			m.links[r.link].inst[at].pending++
		}
	}
	for i := range m.iterations {
		n, place := i/m.period, i%m.period
		for _, on := range []map[int32][]ref{m.onGradient[place], m.onOp[place]} {
			for _, refs := range on {
				for _, r := range refs {
					count(r, n)
				}
			}
		}
		for _, r := range m.onEnd[place] {
			count(r, n)
		}
		for _, t := range m.onBackward[place] {
			count(t.ref, n)
		}
	}
	for l := range m.links {
		ts := m.program.links[l].transfers
		for at := range m.links[l].inst {
			if !m.links[l].inst[at].absent {
				for _, r := range ts[at%len(ts)].onDone {
					count(r, at/len(ts))
				}
			}
		}
	}
}

// position is where on its link the transfer stands that r names, seen from
// period n, if the run has it.
func (m *machine) position(r ref, n int) (at int, ok bool) {
	at = (n+r.shift)*len(m.program.links[r.link].transfers) + int(r.index)
	return at, n+r.shift >= 0 && at < len(m.links[r.link].inst)
}

// enter returns the state of iteration i, made on first use.
func (m *machine) enter(i int) *iteration {
	if m.state[i] != nil {
		return m.state[i]
	}
	n, place := i/m.period, i%m.period
	s := &iteration{
		pending:  make([][]int32, len(m.workers)),
		waits:    make([]int32, len(m.ops)),
		grads:    make([]int32, len(m.producers)),
		ops:      map[int32]int32{},
		left:     m.placed() * len(m.workers),
		backward: len(m.workers),
		begun:    make([]bool, len(m.workers)),
	}
	flat := make([]int32, len(m.workers)*len(m.ops))
	for w := range s.pending {
		s.pending[w] = flat[w*len(m.ops) : (w+1)*len(m.ops)]
		for o := range m.ops {
			s.pending[w][o] = m.ops[o].deps
			if i > 0 {
				s.pending[w][o] += m.ops[o].prev
			}
		}
	}
	for k, c := range m.producers {
		s.grads[k] = c * int32(len(m.workers))
	}
	for o := range m.onOp[place] {
		s.ops[o] = int32(len(m.workers))
	}
	for _, x := range m.waits[place] {
		for _, r := range x.refs {
			at, ok := m.position(r, n)
			if !ok {
				continue
			}
			if t := &m.links[r.link].inst[at]; !t.absent && !t.done {
				t.waiters = append(t.waiters, waiter{int32(i), x.op})
				s.waits[x.op]++
			}
		}
	}
	m.state[i] = s
	return s
}

func (m *machine) run(ctx context.Context) error {
	if m.placed() == 0 {
		return errors.New("the job has no ops")
	}
	for w := range m.workers {
		for l := range m.lanes {
			m.workers[w].lanes[l] = laneState{blocked: -1}
			m.begin(int32(w), int32(l))
		}
	}
	m.dirty = true
	if m.steady == 0 {
		m.from = m.read()
	}
	for steps := 0; ; steps++ {
		if steps%(1<<16) == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e, ok := m.nextEvent()
		if m.dirty && (!ok || e.at > m.now) {
			m.dispatch()
			continue // what it started may come first
		}
		if !ok {
			break
		}
		m.take(e)
	}
	if m.unfinished() {
		return m.stuck()
	}
	return nil
}

// nextEvent peeks at the earliest event of both heaps, with its real time.
func (m *machine) nextEvent() (event, bool) {
	if len(m.work) == 0 {
		if len(m.events) == 0 {
			return event{}, false
		}
		return m.events[0], true
	}
	w := m.work[0]
	w.at = max(m.clock.to(w.at), m.now)
	if len(m.events) > 0 && m.events[0].before(w) {
		return m.events[0], true
	}
	return w, true
}

func (m *machine) take(e event) {
	m.now = e.at
	if e.slowed {
		m.work.pop()
	} else {
		m.events.pop()
	}
	switch e.kind {
	case opDone:
		m.finishOp(e.a, e.b)
	case timerDone:
		m.open(e.a, int(e.b))
	case wireDone:
		m.finishWire(e.a, e.b, e.token)
	case transferDone:
		m.finishTransfer(e.a, int(e.b))
	}
}

func (m *machine) push(e event) {
	m.seq++
	e.seq = m.seq
	if e.slowed {
		m.work.push(e)
	} else {
		m.events.push(e)
	}
}

// begin looks at the op that is next on a lane, and starts it if nothing holds
// it back.
func (m *machine) begin(w, l int32) {
	s := &m.workers[w].lanes[l]
	ops := m.lanes[l].ops
	if s.running || s.done || len(ops) == 0 {
		s.done = s.done || len(ops) == 0
		return
	}
	o := ops[s.place]
	it := m.enter(int(s.iteration))
	if it.pending[w][o] > 0 {
		return
	}
	if it.waits[o] > 0 {
		if s.blocked < 0 {
			s.blocked = m.now
			if m.lanes[l].computes {
				m.workers[w].meter.until(m.now)
				m.workers[w].meter.waiting++
			}
		}
		return
	}
	if s.blocked >= 0 {
		m.rec.wait(w, l, o, s.iteration, s.blocked, m.now)
		s.blocked = -1
		if m.lanes[l].computes {
			m.workers[w].meter.until(m.now)
			m.workers[w].meter.waiting--
		}
	}
	s.running, s.started = true, m.now
	if m.lanes[l].computes {
		m.workers[w].meter.until(m.now)
		m.workers[w].meter.running++
	}
	if m.ops[o].phase == job.Backward && !it.begun[w] {
		it.begun[w] = true
		m.startBackward(int(s.iteration), it)
	}
	t := m.duration(&m.workers[w], int(s.iteration), o)
	e := event{at: m.now + t, kind: opDone, a: w, b: l}
	if m.clock.slow < 1 && m.lanes[l].computes {
		e.at, e.slowed = m.clock.at(m.now)+t, true
	}
	m.push(e)
}

func (m *machine) startBackward(i int, it *iteration) {
	if it.backward--; it.backward > 0 {
		return
	}
	for _, t := range m.onBackward[i%m.period] {
		if at, ok := m.position(t.ref, i/m.period); ok {
			m.push(event{at: m.now + t.after, kind: timerDone, a: t.link, b: int32(at)})
		}
	}
}

// duration is the time of an op on a worker, in nanoseconds.
func (m *machine) duration(w *worker, i int, o int32) float64 {
	return duration(m.times[i%m.period][o], w.scale, w.jitter, m.seed, w.rank, i, o)
}

func (m *machine) finishOp(w, l int32) {
	s := &m.workers[w].lanes[l]
	o, i := m.lanes[l].ops[s.place], int(s.iteration)
	it := m.state[i]
	span := m.rec.compute(w, l, o, s.iteration, s.started, m.now)
	s.running = false
	if m.lanes[l].computes {
		m.workers[w].meter.until(m.now)
		m.workers[w].meter.running--
	}

	for _, d := range m.succ[o] {
		m.satisfy(w, d, i)
	}
	if i+1 < m.iterations {
		for _, d := range m.next[o] {
			m.enter(i + 1)
			m.satisfy(w, d, i+1)
		}
	}
	for _, k := range m.grads[o] {
		if it.grads[k]--; it.grads[k] == 0 {
			m.releaseAll(m.onGradient[i%m.period][k], i, span)
		}
	}
	if left, ok := it.ops[o]; ok {
		it.ops[o] = left - 1
		if left == 1 {
			m.releaseAll(m.onOp[i%m.period][o], i, span)
		}
	}
	if s.place++; int(s.place) == len(m.lanes[l].ops) {
		s.place, s.iteration = 0, s.iteration+1
		s.done = int(s.iteration) == m.iterations
	}
	if it.left--; it.left == 0 {
		m.ends[i] = m.now
		switch i {
		case m.steady - 1:
			m.from = m.read()
		case m.iterations - 1:
			m.end = m.read()
		}
		m.state[i] = nil
		m.releaseAll(m.onEnd[i%m.period], i, -1)
	}
	m.begin(w, l)
}

// satisfy counts one dep of op o in iteration i as done.
func (m *machine) satisfy(w, o int32, i int) {
	it := m.state[i]
	it.pending[w][o]--
	if it.pending[w][o] == 0 {
		m.beginIfNext(w, o, i)
	}
}

func (m *machine) beginIfNext(w, o int32, i int) {
	l := m.ops[o].lane
	s := &m.workers[w].lanes[l]
	if !s.done && int(s.iteration) == i && m.lanes[l].ops[s.place] == o {
		m.begin(w, l)
	}
}

// unfinished reports whether a lane still has ops to run.
func (m *machine) unfinished() bool {
	for w := range m.workers {
		for l := range m.lanes {
			if s := &m.workers[w].lanes[l]; !s.done {
				return true
			}
		}
	}
	return false
}

// stuck says what waits for what when nothing moves any more.
func (m *machine) stuck() error {
	var what []string
	for w := range m.workers {
		for l := range m.lanes {
			s := &m.workers[w].lanes[l]
			if s.done || len(m.lanes[l].ops) == 0 {
				continue
			}
			o := m.lanes[l].ops[s.place]
			it := m.state[s.iteration]
			what = append(what, fmt.Sprintf("rank %d, lane %s: op %q of iteration %d waits for %d ops and %d transfers",
				m.workers[w].rank, m.lanes[l].name, m.ops[o].name, s.iteration, it.pending[w][o], it.waits[o]))
		}
		if len(what) > 0 {
			break // the others are no wiser
		}
	}
	for l := range m.links {
		s := &m.links[l]
		if s.head < len(s.inst) {
			n := len(m.program.links[l].transfers)
			what = append(what, fmt.Sprintf("link %s: %s of period %d waits for %d gates", m.program.links[l].name,
				m.program.links[l].transfers[s.head%n].name, s.head/n, s.inst[s.head].pending))
		}
	}
	return fmt.Errorf("nothing moves at %.3f us: %s; `weft plan check` names the circular wait", m.now/nsPerUs, strings.Join(what, "; "))
}
