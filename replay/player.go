package replay

import (
	"fmt"
	"sync"

	"weft/agent/worker"
	"weft/internal/heap"
	"weft/sim"
	"weft/timeline"
)

// player plays one worker: it computes by the clock, tells the agent what it has
// done, and waits for the agent's transfers where the job does.
//
// The ops of a lane follow each other in a fixed order, so when one ends depends
// only on when others do and when transfers are done. A player works that out as
// far ahead as it is known, and sleeps until the agent is to be told of something.
// So no op starts late because the one before it was noticed late: late is only
// what the agent is told, and what waits for its transfers.
type player struct {
	*run
	rank   int
	worker *worker.Worker
	late   []float64 // by telling, microseconds

	mu       sync.Mutex
	lanes    []lane
	states   map[int]*state // by iteration
	arrivals map[message]float64
	told     *heap.Heap[telling]
	tellings int
	due      chan struct{} // there is another first of told
	ended    int           // iterations
	spans    []timeline.Span
}

type lane struct {
	iteration, place int     // of the next op
	free             float64 // when the one before it ended
}

// state is the progress of an iteration on a worker.
type state struct {
	pending []int32             // by op: ops and transfers that it waits for
	ready   []float64           // by op: when the ops that it waited for had ended
	arrived []float64           // by op: likewise the transfers
	waiting map[message][]int32 // ops
	grads   []int32             // by tensor: contributions to come
	made    []float64           // by tensor: when the last came
	buckets []int               // by bucket: tensors to come
	left    int                 // ops
	end     float64
}

// message is what the agent says of a transfer: that a bucket is reduced, or if
// index lies behind the buckets a collective of the job's done.
type message struct{ index, iteration int }

// telling is something to tell the agent at a time.
type telling struct {
	at   float64
	turn int
	tell func() error
}

func newPlayer(r *run, rank int) *player {
	return &player{
		run: r, rank: rank, lanes: make([]lane, len(r.computation.Lanes)), states: map[int]*state{}, arrivals: map[message]float64{},
		told: heap.New(func(a, b telling) bool { return a.at < b.at || a.at == b.at && a.turn < b.turn }),
		due:  make(chan struct{}, 1),
	}
}

// begin computes what needs no transfer.
func (p *player) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.lanes {
		p.advance(int32(l))
	}
}

// enter returns the state of iteration i, made on first use.
func (p *player) enter(i int) *state {
	if s := p.states[i]; s != nil {
		return s
	}
	c := p.computation
	s := &state{
		pending: make([]int32, len(c.Ops)), ready: make([]float64, len(c.Ops)), arrived: make([]float64, len(c.Ops)),
		waiting: map[message][]int32{},
		grads:   append([]int32(nil), c.Producers...), made: make([]float64, len(c.Producers)), buckets: make([]int, len(p.tensors)),
	}
	for o := range c.Ops {
		s.pending[o] = c.Ops[o].Deps
		if i > 0 {
			s.pending[o] += c.Ops[o].Prev
		}
	}
	for _, l := range c.Lanes {
		s.left += len(l.Ops)
	}
	for b := range p.tensors {
		s.buckets[b] = len(p.tensors[b])
	}
	for _, w := range c.Waits[i%c.Period] {
		for _, r := range w.Transfers {
			m, ok := p.message(r, i)
			if !ok {
				continue
			}
			if at, ok := p.arrivals[m]; ok {
				s.arrived[w.Op] = max(s.arrived[w.Op], at)
				continue
			}
			s.pending[w.Op]++
			s.waiting[m] = append(s.waiting[m], w.Op)
		}
	}
	p.states[i] = s
	return s
}

// message is what tells that a transfer is done to which iteration i refers, if
// the run has it.
func (r *run) message(ref sim.TransferRef, i int) (m message, ok bool) {
	t := &r.plan.Programs[ref.Link].Transfers[ref.Index]
	period := i/r.plan.Period + ref.Shift
	if t.Bucket < 0 {
		m = message{len(r.plan.Buckets) + t.Collective, period*r.plan.Period + t.Iteration}
		return m, m.iteration >= 0 && m.iteration < r.iterations
	}
	g := period*len(r.plan.Generations) + t.Generation
	m = message{t.Bucket, r.plan.LastIteration(g)}
	return m, g >= 0 && m.iteration < r.iterations
}

// advance runs the ops of a lane, and of those that wait for them, as far as it is
// known when they end.
func (p *player) advance(l int32) {
	for free := []int32{l}; len(free) > 0; {
		l, free = free[len(free)-1], free[:len(free)-1]
		x, ops := &p.lanes[l], p.computation.Lanes[l].Ops
		for len(ops) > 0 && x.iteration < p.iterations {
			s := p.enter(x.iteration)
			if s.pending[ops[x.place]] > 0 {
				break
			}
			free = p.compute(l, s, free)
		}
	}
}

// compute runs the next op of a lane, and adds the lanes to free that may go on.
func (p *player) compute(l int32, s *state, free []int32) []int32 {
	x, c := &p.lanes[l], p.computation
	i, o := x.iteration, c.Lanes[l].Ops[x.place]
	op := &c.Ops[o]
	blocked := max(x.free, s.ready[o])
	start := max(blocked, s.arrived[o])
	end := start + c.Duration(p.cluster, p.rank, i, o)
	span := timeline.Span{Rank: int32(p.rank), Lane: l, Phase: uint8(op.Phase), Iteration: int32(i), Bucket: -1}
	if start > blocked {
		span.Kind, span.Name, span.Start, span.End = timeline.Wait, "wait: "+op.Name, blocked, start
		p.spans = append(p.spans, span)
	}
	span.Kind, span.Name, span.Start, span.End = timeline.Compute, op.Name, start, end
	p.spans = append(p.spans, span)

	follow := func(s *state, ops []int32) {
		for _, d := range ops {
			s.ready[d] = max(s.ready[d], end)
			if s.pending[d]--; s.pending[d] == 0 {
				free = append(free, c.Ops[d].Lane)
			}
		}
	}
	follow(s, op.Next)
	if i+1 < p.iterations && len(op.Later) > 0 {
		follow(p.enter(i+1), op.Later)
	}
	for _, k := range op.Gradients {
		s.made[k] = max(s.made[k], end)
		if s.grads[k]--; s.grads[k] == 0 {
			p.made(s, k, i)
		}
	}
	if op.ID >= 0 && p.gates[op.ID] {
		p.tell(end, func() error { return p.worker.OpDone(op.ID, i) })
	}
	s.end = max(s.end, end)
	if s.left--; s.left == 0 {
		delete(p.states, i)
		p.ended++
		p.ends[i][p.rank] = s.end
		p.tell(s.end, func() error {
			p.passed(p.rank, i)
			return p.worker.Boundary(i)
		})
	}
	x.free = end
	if x.place++; x.place == len(c.Lanes[l].Ops) {
		x.place, x.iteration = 0, i+1
	}
	return free
}

// made notes that the gradient of tensor k is there, and declares the buckets that
// are complete with it.
func (p *player) made(s *state, k int32, i int) {
	for _, b := range p.carriers[k] {
		if s.buckets[b]--; s.buckets[b] > 0 || !p.declared[b][i%p.plan.Period] {
			continue
		}
		at := 0.0
		for _, k := range p.tensors[b] {
			at = max(at, s.made[k])
		}
		p.tell(at, func() error {
			p.content.mark(p.worker.Input, p.worker.Welcome.Place(b, i), b, i, p.rank)
			return p.worker.Ready(b, i)
		})
	}
}

func (p *player) tell(at float64, tell func() error) {
	p.tellings++
	p.told.Push(telling{at, p.tellings, tell})
	select {
	case p.due <- struct{}{}:
	default:
	}
}

// next is what is told next; all is told if there is none and training has ended.
func (p *player) next() (t telling, ok, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told.Len() == 0 {
		return t, false, p.ended == p.iterations
	}
	t = p.told.First()
	if p.now() < t.at {
		return t, false, false
	}
	return p.told.Pop(), true, false
}

// talk tells the agent what is due, until all is told or stop is closed.
func (p *player) talk(stop <-chan struct{}) error {
	for {
		t, ok, all := p.next()
		switch {
		case all:
			return nil
		case ok:
			if err := t.tell(); err != nil {
				return err
			}
			p.late = append(p.late, p.now()-t.at)
			continue
		}
		var due <-chan struct{}
		if t.tell != nil {
			due = p.clock.At(p.time(t.at))
		}
		select {
		case <-due:
		case <-p.due:
		case <-stop:
			return nil
		}
	}
}

// listen takes the agent's messages, until all are there.
func (p *player) listen() error {
	for len(p.arrivals) < p.expect.messages {
		index, iteration, err := p.worker.Done()
		if err != nil {
			return err
		}
		m, at := message{index, iteration}, p.now()
		if index < len(p.tensors) {
			if err := p.content.marked(p.worker.Output, p.worker.Welcome.Place(index, iteration), index, iteration); err != nil {
				return fmt.Errorf("rank %d: %w", p.rank, err)
			}
		}
		p.arrive(m, at)
	}
	return nil
}

func (p *player) arrive(m message, at float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals[m] = at
	var free []int32
	for _, s := range p.states {
		for _, o := range s.waiting[m] {
			s.arrived[o] = max(s.arrived[o], at)
			if s.pending[o]--; s.pending[o] == 0 {
				free = append(free, p.computation.Ops[o].Lane)
			}
		}
		delete(s.waiting, m)
	}
	for _, l := range free {
		p.advance(l)
	}
}
