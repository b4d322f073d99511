package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weft/agent/protocol"
	"weft/cluster"
	"weft/collective"
	"weft/collective/kernel"
	"weft/engine"
	"weft/job"
	"weft/plan"
	"weft/profile"
	"weft/transport"
)

// session is what workers and agent have between one welcome and the next.
type session struct {
	*layout
	hello   protocol.Hello // of its workers
	engine  *engine.Engine
	inputs  []*region // by worker
	output  *region
	flights int // transfers and calls that use the memory

	moving map[int]Flight // by instance, transfers that workers run, and have not ended

	flushing int // the call

	measured *measured // nil: nobody reviews
	pace     *pace     // nil: it moves nothing
	marks    []mark    // by worker, the last one
	recorder *recorder // nil: nobody wants a timeline

	links    []Link                  // by program of the plan; nil: one host
	programs [][]*collective.Program // by link and transfer; nil: one host
	epoch    uint64                  // tells its transfers from those of other sessions
}

func (a *Agent) newSession(l *layout) (*session, error) {
	replay := l.replays()
	e, err := engine.New(engine.Config{Plan: l.plan, Job: l.job, Ranks: a.Ranks, SeesOps: replay, Workers: l.given.workersLink(), Timeout: a.Timeout})
	if err != nil {
		return nil, err
	}
	l.welcome.Ops = e.Ops()
	m := a.reviewing.begin(l)
	for b := range l.plan.Buckets {
		if g := e.Generations(b); len(g) < len(l.plan.Generations) {
			l.welcome.Buckets[b].Generations = g
		}
	}
	l.call(a.callBytes())
	size := l.welcome.InputBytes
	if err := enough(len(a.Ranks)+1, size); err != nil {
		return nil, err
	}
	s := &session{layout: l, engine: e, epoch: a.agreements, measured: m, moving: map[int]Flight{}, marks: slices.Repeat([]mark{{iteration: -1}}, len(a.Ranks))}
	if !a.alone() {
		if s.links, err = a.links(l); err != nil {
			return nil, err
		}
		if s.programs, err = a.programs(s); err != nil {
			return nil, err
		}
	}
	if s.output, err = newRegion("weft-output", size, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, err
	}
	for _, rank := range a.Ranks {
		r, err := newRegion(fmt.Sprint("weft-input-", rank), size, unix.PROT_READ)
		if err != nil {
			s.close()
			return nil, err
		}
		s.inputs = append(s.inputs, r)
	}
	if replay {
		for _, r := range append(slices.Clone(s.inputs), s.output) {
			Touch(r.bytes)
		}
	}
	return s, nil
}

func (s *session) close() {
	if s == nil {
		return
	}
	s.output.close()
	for _, r := range s.inputs {
		r.close()
	}
}

// sources are a part of all workers' input, by rank.
func (s *session) sources(r protocol.Region) [][]byte {
	out := make([][]byte, len(s.inputs))
	for w := range s.inputs {
		out[w] = s.inputs[w].bytes[r.Offset : r.Offset+r.Bytes]
	}
	return out
}

func (s *session) target(r protocol.Region) []byte {
	return s.output.bytes[r.Offset : r.Offset+r.Bytes]
}

// welcome begins a session, once all workers have said hello.
func (a *Agent) welcome() {
	first := a.workers[0].hello
	for _, x := range a.workers[1:] {
		if err := differ(first, x.hello); err != nil {
			a.failf(x.hello.Rank, "%w", err)
			return
		}
	}
	want := *first
	want.Rank, want.LocalRank, want.Pid, want.Torch = 0, 0, 0, ""
	a.agree(&want, func(host int, other []byte) error {
		theirs, mine := new(protocol.Hello), want
		if err := protocol.Decode(other, theirs); err != nil || theirs.Version == 0 {
			return fmt.Errorf("rank %d says hello, while rank %d makes a call: every rank must do the same", first.Rank, a.first(host))
		}
		mine.Rank, theirs.Rank = first.Rank, a.first(host)
		if theirs.Rank < mine.Rank {
			return differ(theirs, &mine)
		}
		return differ(&mine, theirs)
	}, func() {
		a.resume()
		a.agreePlan(func() { a.begin(first) })
	})
}

// begin begins a session, once all workers of all hosts have said the same.
func (a *Agent) begin(first *protocol.Hello) {
	if a.ended {
		return
	}
	if a.session != nil {
		if a.session.flights > 0 {
			a.failf(-1, "all workers said hello again while gradients were being reduced")
			return
		}
		a.session.close()
		a.session = nil
	}
	var l *layout
	var err error
	if a.Schedule != nil && (len(first.Tensors) > 0 || a.Schedule.Replay) {
		var note string
		l, note, err = a.Schedule.layout(first, a.alone())
		if errors.Is(err, errNoDelay) {
			note = err.Error() + ": plain buckets instead"
			l, err = newLayout(first)
		}
		if note != "" && a.Ranks[0] == 0 && a.Warn != nil {
			a.Warn(note)
		}
	} else {
		l, err = newLayout(first)
	}
	if err != nil {
		a.failf(first.Rank, "%w", err)
		return
	}
	if a.session, err = a.newSession(l); err != nil {
		a.failf(-1, "%w", err)
		return
	}
	a.session.hello = *first
	a.session.pace = a.pace(l)
	a.session.recorder = a.record(l)
	if l.given != nil {
		a.plan = l.plan
	}
	m, err := protocol.Message{Kind: protocol.KindWelcome}.With(&l.welcome)
	if err != nil {
		a.failf(-1, "%w", err)
		return
	}
	for w := range a.workers {
		a.workers[w].hello = nil
		a.send(w, m, a.session.inputs[w].fd, a.session.output.fd)
		a.session.inputs[w].handedOut()
	}
	a.session.output.handedOut()
}

// step tells the engine what has happened, and does what it answers.
func (a *Agent) step(v engine.Event) {
	if a.ended || a.session == nil {
		return
	}
	s := a.session
	for _, x := range s.engine.Step(a.now(), v) {
		switch x.Kind {
		case engine.Start:
			f := Flight{Action: x, Start: time.Now(), Ready: a.origin.Add(s.recorder.ready(&x))}
			if s.workersRun(x.Link) {
				s.flights++
				s.moving[x.Instance] = f
				a.all(protocol.Message{Kind: protocol.KindStart, Index: x.Bucket, Iteration: x.Iteration})
				continue
			}
			a.fly(s, func() error { return a.transfer(s, x) }, func() {
				a.transferred(s, f)
				a.step(engine.Event{Kind: engine.TransferDone, Link: x.Link, Instance: x.Instance})
			})
		case engine.Complete:
			if s.workersRun(x.Link) {
				s.flights--
				a.transferred(s, s.moving[x.Instance])
				delete(s.moving, x.Instance)
			}
			m := protocol.Message{Kind: protocol.KindDone, Index: x.Bucket, Iteration: x.Iteration}
			if x.Bucket < 0 {
				m.Index = len(s.plan.Buckets) + x.Transfer.Collective
			}
			a.all(m)
		case engine.Flushed:
			a.all(protocol.Message{Kind: protocol.KindReturned, Index: s.flushing})
		case engine.Abort:
			a.fail(a.blame(x.Failure))
			return
		}
	}
}

// transferred notes that a transfer is done.
func (a *Agent) transferred(s *session, f Flight) {
	f.End = time.Now()
	s.recorder.transferred(&f, a.origin)
	s.measured.transferred(&f, a.origin)
	if s.given != nil && s.given.Watch != nil {
		s.given.Watch(f)
	}
}

// fly does work beside all else, which uses the session's memory unless that is
// nil, and then what follows from it.
func (a *Agent) fly(s *session, work func() error, then func()) {
	if s != nil {
		s.flights++
	}
	a.running.Go(func() {
		err := work()
		a.mu.Lock()
		defer a.mu.Unlock()
		if s != nil {
			s.flights--
		}
		a.landed(err, then)
	})
}

// landed does what follows from work that has ended with err.
func (a *Agent) landed(err error, then func()) {
	var lost *transport.PeerLost
	switch {
	case errors.As(err, &lost):
		a.missHost(lost.Rank, lost)
	case err != nil:
		a.failf(-1, "%w", err)
	default:
		then()
	}
}

// all sends a message to all workers.
func (a *Agent) all(m protocol.Message) {
	for w := range a.workers {
		a.send(w, m)
	}
}

// numbered is a call as hosts compare it.
type numbered struct {
	Index int           `json:"index"`
	Call  protocol.Call `json:"call"`
	Host  *profile.Host `json:"host,omitzero"` // of a review: what its host knows
	// Declared, of a flush, is how many generations its workers have.
	Declared int `json:"declared,omitzero"`
}

// call does what all workers have called for.
func (a *Agent) call() {
	first := a.workers[0].calls[0]
	var reports []profile.Report
	for w := range a.workers {
		x := a.workers[w].calls[0]
		if x.report != nil {
			reports = append(reports, *x.report)
		}
		if x.index != first.index || x.Call != first.Call {
			a.failf(a.Ranks[w], "rank %d makes call %d (%v), rank %d call %d (%v): every rank must make the same calls in the same order",
				a.Ranks[0], first.index, first, a.Ranks[w], x.index, x)
			return
		}
		a.workers[w].calls, a.workers[w].since = slices.Delete(a.workers[w].calls, 0, 1), a.now()
	}
	if first.Kind == protocol.Review {
		a.review(first, reports)
		return
	}
	if first.Kind == protocol.Flush {
		a.flush(first)
		return
	}
	s, op := a.session, a.agreements
	work := func() error { return a.collective(s, op, &first.Call) }
	returned := func() { a.all(protocol.Message{Kind: protocol.KindReturned, Index: first.index}) }
	switch {
	case a.alone() && first.bytes <= pieceBytes:
		a.landed(work(), returned)
		return
	case a.alone():
		a.fly(s, work, returned)
		return
	}
	ask := a.ask(numbered{Index: first.index, Call: first.Call}, func(host int, other []byte) error {
		return a.otherCall(first, host, other, new(numbered))
	})
	a.fly(s, func() error {
		worked := make(chan error, 1)
		a.running.Go(func() { worked <- work() }) // meanwhile; if the calls differ, it ends with the agent
		if err := ask(); err != nil {
			return err
		}
		return <-worked
	}, returned)
}

// flush has all reduced that workers have declared, and returns the call after that.
func (a *Agent) flush(c *call) {
	mine := numbered{Index: c.index, Call: c.Call, Declared: a.session.engine.Declared(0)}
	a.agree(mine, func(host int, other []byte) error {
		var theirs numbered
		if err := a.otherCall(c, host, other, &theirs); err != nil {
			return err
		}
		return fmt.Errorf("rank %d asks for a flush after %d generations, rank %d after %d: flush after the same iteration", a.Ranks[0], mine.Declared, a.first(host), theirs.Declared)
	}, func() {
		if a.session != nil {
			a.session.flushing = c.index
			a.step(engine.Event{Kind: engine.Flush})
		}
	})
}

// otherCall reads what another host does in place of a call, and tells how it differs;
// nil: it makes the same call.
func (a *Agent) otherCall(c *call, host int, other []byte, theirs *numbered) error {
	if err := protocol.Decode(other, theirs); err != nil || theirs.Call.Kind == "" {
		return fmt.Errorf("rank %d makes call %d (%v), while rank %d says hello: every rank must do the same", a.Ranks[0], c.index, c, a.first(host))
	}
	if theirs.Index == c.index && theirs.Call == c.Call {
		return nil
	}
	return fmt.Errorf("rank %d makes call %d (%v), rank %d call %d (%v): every rank must make the same calls in the same order",
		a.Ranks[0], c.index, c, a.first(host), theirs.Index, theirs.Call)
}

// check returns how many bytes a call carries, and refuses one that cannot be done.
func (a *Agent) check(c *protocol.Call) (bytes int64, err error) {
	_, bytes, err = a.reduction(c)
	most := a.callBytes()
	if err == nil && (bytes < 0 || c.At < 0 || c.From < 0 || c.At%bucketAlign != 0 || c.At > most-bytes) {
		err = fmt.Errorf("%v: calls carry at most %d bytes, and this one's begin at %d", c, most, c.At)
	}
	if c.Kind == protocol.Broadcast && (c.Root < 0 || c.Root >= a.World) {
		err = fmt.Errorf("%v: there are %d ranks", c, a.World)
	}
	return bytes, err
}

// reduction is what a call computes, and of how many bytes.
func (a *Agent) reduction(c *protocol.Call) (r collective.Reduction, bytes int64, err error) {
	switch c.Kind {
	case protocol.Barrier, protocol.Review, protocol.Flush:
		return r, 0, nil
	case protocol.Broadcast:
		return r, c.Bytes, nil
	case protocol.AllReduce:
	default:
		return r, 0, fmt.Errorf("no call %q; there are barrier, broadcast, all-reduce, review and flush", c.Kind)
	}
	d, err := job.ParseDType(c.DType)
	if err != nil {
		return r, 0, err
	}
	switch r.DType = d; c.Op {
	case "sum":
		r.Op = kernel.Sum
	case "min":
		r.Op = kernel.Min
	case "max":
		r.Op = kernel.Max
	case "mean":
		if r = mean(d, a.World); r.Scale == 0 {
			return r, 0, fmt.Errorf("the mean of %v is not one: ask for the sum", d)
		}
	default:
		return r, 0, fmt.Errorf("no operation %q; there are sum, mean, min and max", c.Op)
	}
	return r, min(c.Elements, a.callBytes()+1) * d.Bytes(), reducible(d)
}

// collective does a call in the part of the regions that is for calls. op is the
// same on all hosts.
func (a *Agent) collective(s *session, op uint64, c *protocol.Call) error {
	r, bytes, err := a.reduction(c)
	if err != nil {
		return err
	}
	at := protocol.Region{Offset: s.layout.welcome.CallOffset + c.At, Bytes: bytes}
	t := &collective.Transfer{Reduction: r, Channel: callChannel, Op: op}
	switch {
	case c.Kind == protocol.Broadcast:
		return a.broadcast(t, c.Root, s.target(at), s.sources(at))
	case c.Kind == protocol.AllReduce && !a.alone():
		if t.Program, err = a.program(collective.Spec{Kind: cluster.AllReduce, Slices: []plan.Slice{{Offset: c.From, Length: c.Elements}}}, r.DType); err != nil {
			return err
		}
		fallthrough
	case c.Kind == protocol.AllReduce:
		return a.reduce(t, a.net, s.target(at), s.sources(at))
	}
	return nil // a barrier: all have come
}

// broadcast copies what the worker of a rank has to all.
func (a *Agent) broadcast(t *collective.Transfer, root int, dst []byte, sources [][]byte) error {
	if w := slices.Index(a.Ranks, root); w >= 0 {
		copy(dst, sources[w])
	}
	if a.alone() {
		return nil
	}
	spec := collective.Spec{Kind: cluster.Broadcast, Root: a.hostOf(root), Slices: []plan.Slice{{Length: int64(len(dst))}}}
	var err error
	if t.Program, err = a.program(spec, job.Uint8); err != nil {
		return err
	}
	t.DType, t.Result = job.Uint8, dst
	return t.Run(a.ctx, a.net)
}
