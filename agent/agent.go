// Package agent is what runs on each host beside the workers: it holds the
// memory that they share, reduces what they write there as a plan says, and
// ends all of them when one is lost. docs/formats/client.md is how it talks to
// them.
//
// One lock guards all state. A goroutine a worker reads its messages, and one
// each transfer in flight does the reducing; both tell the engine what has
// happened, and do what it answers.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"weft/agent/protocol"
	"weft/collective"
	"weft/engine"
	"weft/job"
	"weft/plan"
	"weft/profile"
	"weft/transport"
)

// Config of an agent.
type Config struct {
	World int   // workers on all hosts
	Ranks []int // of this host
	// Socket is where workers connect: a path in a directory that only this user may
	// enter.
	Socket string
	// Explained says that [Agent.Ended] will tell how the processes of workers end.
	Explained bool
	// Meet connects the agents of all hosts, each with the number of workers that it
	// returns, ranks counted host by host; nil: all workers are of this host. There is an
	// endpoint for each rail that joins them, at least one. If its context
	// ends first, it may tell the other hosts the cause: a [*protocol.Failed], or
	// [context.Canceled] if all workers of this host have ended in order.
	Meet func(context.Context) ([]transport.Endpoint, collective.Layout, error)
	// Warn, if set, gets a line where somebody has waited for so long as Patience says; 0:
	// 10 seconds. It does not wait.
	Warn     func(string)
	Patience time.Duration
	// Timeout bounds how long workers may wait for another one, and a transfer
	// may take; 0: no bound.
	Timeout time.Duration
	// Schedule is what is executed; nil: plain buckets.
	Schedule *Schedule
	// Review, if set, has workers measure and report.
	Review *Review
	// Record keeps what happens in the last iterations, for [Agent.Timeline].
	Record bool
}

// Agent serves the workers of one host, from [Listen] to [Agent.Close].
type Agent struct {
	Config
	listener *net.UnixListener
	origin   time.Time
	running  sync.WaitGroup // goroutines
	done     chan struct{}  // closed when training has ended, well or not
	ctx      context.Context
	cancel   context.CancelFunc

	meeting    context.Context // of Meet
	stopMeet   context.CancelCauseFunc
	hasMet     chan struct{}  // closed when Meet has returned
	lastWords  sync.WaitGroup // to the other hosts
	agreements uint64         // among hosts so far

	mu     sync.Mutex
	net    transport.Endpoint   // to the other hosts; nil: not yet, or there are none
	rails  []transport.Endpoint // likewise, all; net is the first
	hosts  collective.Layout
	absent error  // why there will never be
	peers  []peer // by host; nothing is known of this one
	asked  string // what the others were last asked about
	long   bool   // it has taken so long that users are to know

	asking map[uint64]asked // agreements that are under way

	conns     map[*net.UnixConn]struct{} // all that are open
	workers   []worker                   // by place in Ranks
	session   *session                   // nil until all workers have said hello
	plan      *plan.Plan                 // of the schedule, as executed
	reviewing reviewing
	paces     []*pace         // of the plans that were executed, the last one last
	recorder  *recorder       // of the last session that is recorded; nil: none was
	recorded  *recorder       // of the last one before it that has had a whole iteration
	failure   *engine.Failure // why training has ended
	warned    map[int]bool    // ranks that have been warned of
	ended     bool
	closed    bool          // no connection may begin any more
	allTold   chan struct{} // closed once all workers have been told the failure, or are gone
}

// worker is what the agent knows of one worker.
type worker struct {
	out   *outbox // nil before its first hello
	pid   int     // likewise, as it says
	hello *protocol.Hello
	calls []*call       // made and not begun, in order
	since time.Duration // when it said either, and began to wait for the others
	bye   bool          // it has said goodbye
	gone  bool          // in order, or before anybody needed it
	told  bool          // that training cannot go on

	explained chan struct{} // closed when its process has ended, as cause says
	cause     error
}

// peer is what the agent knows of another host.
type peer struct {
	parted bool   // it has ended in order
	wanted bool   // it is gone while something of it was waited for
	news   uint64 // how many it has been told
	waits  *waits // what it has last asked about

	owes  int              // answers to what this host has asked it
	since time.Duration    // when it was asked, or has last answered
	late  *protocol.Failed // whom it waits for itself, as it has last answered; nil: nobody, or not yet
}

// call is a call that a worker has made.
type call struct {
	protocol.Call // but for the report
	index         int
	bytes         int64
	report        *profile.Report
}

const (
	// stuck is how long a worker may take to make room for a message of a few bytes.
	stuck = 10 * time.Second
	// strangers is how many connections there may be beyond one a worker. How long one
	// is silent has no bound: between its connection and hello a worker loads its data.
	strangers = 64
	// ahead is how many calls a worker may make that the others have yet to make.
	ahead = 8
	// explanation is how long after its connection the end of a process may follow.
	explanation = 2 * time.Second
	tick        = time.Second
	breath      = 10 * time.Millisecond // after no connection could be taken
)

// Listen makes the socket. Agents run on Linux alone.
func Listen(c Config) (*Agent, error) {
	if unsupported != nil {
		return nil, unsupported
	}
	a := &Agent{
		Config: c, origin: time.Now(), done: make(chan struct{}),
		conns: map[*net.UnixConn]struct{}{}, workers: make([]worker, len(c.Ranks)), warned: map[int]bool{}, asking: map[uint64]asked{}, hasMet: make(chan struct{}), allTold: make(chan struct{}),
	}
	for w := range a.workers {
		a.workers[w].explained = make(chan struct{})
	}
	a.Patience = cmp.Or(a.Patience, 10*time.Second)
	var err error
	if a.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: c.Socket, Net: "unix"}); err == nil {
		err = os.Chmod(c.Socket, 0o600)
	}
	if errors.Is(err, syscall.EINVAL) { // all that is said of a path that the system has no room for
		err = fmt.Errorf("%s: longer than the path of a socket may be: set TMPDIR to a shorter directory", c.Socket)
	}
	if err != nil {
		return nil, fmt.Errorf("the agent's socket: %w", err)
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.meeting, a.stopMeet = context.WithCancelCause(context.Background())
	a.running.Go(a.accept)
	a.running.Go(a.watch)
	if !a.alone() {
		a.running.Go(a.meet)
	}
	return a, nil
}

// Done is closed when training has ended: all workers have said goodbye, or it
// cannot go on.
func (a *Agent) Done() <-chan struct{} { return a.done }

// Err is why training cannot go on, an [*engine.Failure]; nil if it can, or ended well.
func (a *Agent) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failure != nil {
		return a.failure
	}
	return nil
}

// Plan is that of the schedule as it is executed, or was last; nil: none yet.
func (a *Agent) Plan() *plan.Plan {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.plan
}

// Close ends all connections and gives everything back. The workers are not asked.
func (a *Agent) Close() error {
	a.mu.Lock()
	a.end()
	a.closed = true
	a.mu.Unlock()
	if a.failure != nil { // which is told before connections end
		for w := range a.workers {
			a.workers[w].out.wait()
		}
	}
	a.mu.Lock()
	for conn := range a.conns {
		conn.Close()
	}
	a.mu.Unlock()
	if !a.alone() {
		<-a.hasMet
	}
	a.lastWords.Wait()
	a.leaveHosts() // the last words are read; who is lost is no news any more
	a.cancel()
	err := a.listener.Close()
	a.running.Wait()
	a.session.close()
	a.session = nil
	return err
}

// Told is closed once a failure has been told to all workers that may still ask.
func (a *Agent) Told() <-chan struct{} { return a.allTold }

// Fail ends training, for a reason that the agent does not see.
func (a *Agent) Fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failf(-1, "%w", err)
}

// Ended tells the agent that the process of a worker has ended, as cause says; nil
// means in order. Once a rank.
func (a *Agent) Ended(rank int, cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := slices.Index(a.Ranks, rank)
	if w < 0 || a.closed {
		return
	}
	x := &a.workers[w]
	x.cause = cause
	close(x.explained)
	switch unwanted := !slices.ContainsFunc(a.workers, func(x worker) bool { return x.out != nil }); {
	case x.gone:
	case x.out == nil && a.Explained && (cause == nil || unwanted && a.alone()):
		a.leave(w, cause) // it never wanted anything, and nobody wanted it yet
	case x.out == nil:
		a.lost(w, cmp.Or(cause, errors.New("its process has ended")))
	default:
		// What it had said comes first: the end of its connection is what counts, or if
		// another process holds that open, time.
		a.running.Go(func() {
			a.patience(nil)
			a.part(w, errors.New("its process ended without goodbye"))
		})
	}
}

// part notes that a worker has ended, and how as far as is known.
func (a *Agent) part(w int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := &a.workers[w]
	switch {
	case x.gone:
	case x.bye && x.cause == nil:
		a.leave(w, nil)
	default:
		a.lost(w, cmp.Or(x.cause, err))
	}
}

// patience waits a while, or until something happens or training has ended.
func (a *Agent) patience(until <-chan struct{}) {
	select {
	case <-until:
	case <-a.done:
	case <-time.After(explanation):
	}
}

// end notes that training has ended. The first reason counts.
func (a *Agent) end() {
	if !a.ended {
		a.ended = true
		close(a.done)
		a.tellHosts()
	}
}

// fail ends training and tells all workers why.
func (a *Agent) fail(f *engine.Failure) {
	if a.ended {
		return
	}
	a.failure = f
	a.end()
	m, err := failed(f)
	if err != nil {
		return // of a text alone: cannot be
	}
	for w := range a.workers {
		a.workers[w].out.hurry()
		a.send(w, m)
		if x := &a.workers[w]; x.out != nil || x.gone {
			a.hasHeard(w)
		}
	}
}

// hasHeard notes that a worker knows that training cannot go on.
func (a *Agent) hasHeard(w int) {
	if w < 0 || a.workers[w].told {
		return
	}
	a.workers[w].told = true
	if !slices.ContainsFunc(a.workers, func(x worker) bool { return !x.told }) {
		close(a.allTold)
	}
}

// failf fails because of a rank; -1: it is not one's fault.
func (a *Agent) failf(rank int, format string, args ...any) {
	a.fail(&engine.Failure{Rank: rank, Bucket: -1, Err: fmt.Errorf(format, args...)})
}

func failed(f *engine.Failure) (protocol.Message, error) {
	return protocol.Message{Kind: protocol.KindFailed}.With(describe(f))
}

func describe(f *engine.Failure) protocol.Failed {
	x := protocol.Failed{Message: f.Error(), Tensor: f.Tensor, Phase: string(f.Phase)}
	if f.Rank >= 0 {
		x.Rank = &f.Rank
	}
	return x
}

// tell tells a process that is none of the workers, or not yet.
func tell(conn *net.UnixConn, f *engine.Failure) {
	if m, err := failed(f); err == nil {
		conn.SetWriteDeadline(time.Now().Add(stuck))
		conn.Write(m.Append(nil))
	}
}

// send writes a message to a worker, now or once it has read what came before. One whose
// connection takes no more is lost: it ends.
func (a *Agent) send(w int, m protocol.Message, fds ...int) {
	x := &a.workers[w]
	if x.out != nil && !x.gone && x.out.put(m.Append(nil), fds...) != nil {
		x.out.conn.Close()
	}
}

// watch lets time pass.
func (a *Agent) watch() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-a.done:
			return
		case <-t.C:
		}
		a.mu.Lock()
		a.step(engine.Event{Kind: engine.Deadline})
		a.overdue()
		a.askHosts()
		if !a.ended && a.session != nil {
			if late := a.session.engine.Late(a.now(), a.Patience); late != nil {
				a.warn(late)
			}
		}
		a.mu.Unlock()
	}
}

func (a *Agent) now() time.Duration { return time.Since(a.origin) }

func (a *Agent) accept() {
	for {
		conn, err := a.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors, say: those that are here go on
			a.mu.Lock()
			a.warn(&engine.Failure{Rank: -1, Bucket: -1, Err: fmt.Errorf("the agent takes no connections for now: %w", err)})
			a.mu.Unlock()
			time.Sleep(breath)
			continue
		}
		a.mu.Lock()
		switch {
		case a.closed:
			conn.Close()
		case len(a.conns) == len(a.workers)+strangers:
			tell(conn, &engine.Failure{Rank: -1, Bucket: -1, Err: fmt.Errorf("the agent has %d connections, for %d workers: it takes no more", len(a.conns), len(a.workers))})
			conn.Close()
		default:
			a.conns[conn] = struct{}{}
			a.running.Go(func() { a.serve(conn) })
		}
		a.mu.Unlock()
	}
}

// serve reads what comes on a connection, until it ends.
func (a *Agent) serve(conn *net.UnixConn) {
	who := -1 // worker
	err := a.read(conn, &who)
	if who >= 0 && a.Explained {
		a.patience(a.workers[who].explained)
	}
	a.mu.Lock()
	delete(a.conns, conn)
	a.mu.Unlock()
	if who >= 0 {
		a.workers[who].out.hurry()
		a.workers[who].out.wait()
	}
	conn.Close()
	if who >= 0 {
		a.part(who, err)
	}
}

func (a *Agent) read(conn *net.UnixConn, who *int) error {
	if err := sameUser(conn); err != nil {
		return err
	}
	r := protocol.NewReader(conn)
	for {
		m, err := r.Next()
		if err != nil {
			return fmt.Errorf("its connection ended (%w)", err)
		}
		a.mu.Lock()
		err = a.take(conn, who, m)
		a.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// take does what a message asks for. An error ends the connection.
func (a *Agent) take(conn *net.UnixConn, who *int, m protocol.Message) error {
	if a.ended {
		if *who < 0 && a.failure != nil { // it comes too late to have been told
			tell(conn, a.failure)
			h := new(protocol.Hello)
			if m.Kind == protocol.KindHello && m.Decode(h) == nil {
				a.hasHeard(slices.Index(a.Ranks, h.Rank))
			}
		}
		return errors.New("training has ended")
	}
	if m.Kind == protocol.KindHello {
		w, err := a.hello(conn, *who, m)
		if err != nil {
			f := &engine.Failure{Rank: -1, Bucket: -1, Err: err}
			tell(conn, f)
			a.fail(f)
			return err
		}
		*who = w
		a.gather(hellos)
		a.cross()
		return nil
	}
	if *who < 0 {
		return fmt.Errorf("%v before hello", m.Kind)
	}
	w := *who
	rank := a.Ranks[w]
	switch m.Kind {
	case protocol.KindReady:
		if a.session == nil || a.workers[w].hello != nil {
			a.failf(rank, "rank %d declared bucket %d ready before it was welcome", rank, m.Index)
			return nil
		}
		now := a.now()
		if err := a.session.passes(w, m, now); err != nil {
			a.failf(rank, "rank %d: %w", rank, err)
			return nil
		}
		if err := a.session.recorder.hears(w, m, now); err != nil {
			a.failf(rank, "rank %d: %w", rank, err)
			return nil
		}
		a.session.measured.declared(m.Iteration, now)
		a.step(engine.Event{Kind: engine.Ready, Rank: rank, Bucket: m.Index, Iteration: m.Iteration})
		a.cross()
	case protocol.KindBoundary, protocol.KindOp, protocol.KindMoved:
		if a.session == nil || a.workers[w].hello != nil {
			a.failf(rank, "rank %d ended %v %d before it was welcome", rank, m.Kind, m.Index)
			return nil
		}
		if err := a.session.recorder.hears(w, m, a.now()); err != nil {
			a.failf(rank, "rank %d: %w", rank, err)
			return nil
		}
		a.step(engine.Event{Kind: progress[m.Kind], Rank: rank, Op: job.OpID(m.Index), Bucket: m.Index, Iteration: m.Iteration})
	case protocol.KindCall:
		if err := a.called(w, m); err != nil {
			a.failf(rank, "rank %d: call %d: %w", rank, m.Index, err)
			return nil
		}
		a.gather(calls)
		a.cross()
	case protocol.KindGoodbye:
		a.workers[w].bye = true
		return errors.New("it said goodbye") // an exit code may yet say otherwise
	default:
		a.failf(rank, "rank %d sent a message that only agents send: %v", rank, m.Kind)
	}
	return nil
}

// progress are the messages about it.
var progress = map[protocol.Kind]engine.EventKind{protocol.KindBoundary: engine.Boundary, protocol.KindOp: engine.OpDone, protocol.KindMoved: engine.Moved}

// hello notes who a worker is and what it has, and returns its place.
func (a *Agent) hello(conn *net.UnixConn, who int, m protocol.Message) (int, error) {
	h := new(protocol.Hello)
	if err := m.Decode(h); err != nil {
		return -1, err
	}
	w := slices.Index(a.Ranks, h.Rank)
	switch {
	case h.Version != protocol.Version:
		return -1, fmt.Errorf("rank %d speaks version %d of the client protocol, this weft version %d: use the client that comes with it", h.Rank, h.Version, protocol.Version)
	case h.World != a.World:
		return -1, fmt.Errorf("rank %d counts %d workers (WORLD_SIZE), the launcher %d", h.Rank, h.World, a.World)
	case w < 0:
		return -1, fmt.Errorf("rank %d is not of this host, which has %v: set RANK as the launcher does", h.Rank, a.Ranks)
	case who >= 0 && who != w:
		return -1, fmt.Errorf("rank %d says that it is rank %d now", a.Ranks[who], h.Rank)
	case who < 0 && a.workers[w].out != nil:
		return -1, fmt.Errorf("two workers say that they are rank %d (processes %d and %d)", h.Rank, a.workers[w].pid, h.Pid)
	case a.workers[w].hello != nil:
		return -1, fmt.Errorf("rank %d said hello twice", h.Rank)
	}
	if _, err := mode(h); err != nil {
		return -1, fmt.Errorf("rank %d: %w", h.Rank, err)
	}
	x := &a.workers[w]
	if x.out == nil {
		x.out = &outbox{conn: conn}
	}
	x.pid, x.hello, x.since = h.Pid, h, a.now()
	return w, nil
}

// called notes a call.
func (a *Agent) called(w int, m protocol.Message) error {
	x := &a.workers[w]
	if a.session == nil || x.hello != nil {
		return errors.New("it was made before hello was answered")
	}
	if len(x.calls) == ahead {
		return fmt.Errorf("call %d has not returned, and there may be %d at a time", x.calls[0].index, ahead)
	}
	c := &call{index: m.Index}
	if err := m.Decode(&c.Call); err != nil {
		return err
	}
	c.report, c.Report = c.Report, nil
	var err error
	if c.bytes, err = a.check(&c.Call); err != nil {
		return err
	}
	if (c.report != nil) != (c.Kind == protocol.Review) {
		return fmt.Errorf("%v: reviews have a report, and no other calls", c)
	}
	if len(x.calls) == 0 {
		x.since = a.now()
	}
	x.calls = append(x.calls, c)
	return nil
}

// leave notes that a worker has ended in order, or before anybody needed it.
func (a *Agent) leave(w int, cause error) {
	a.workers[w].gone, a.workers[w].cause = true, cause
	a.step(engine.Event{Kind: engine.Left, Rank: a.Ranks[w]})
	a.gather(hellos)
	a.gather(calls)
	if !slices.ContainsFunc(a.workers, func(x worker) bool { return !x.gone }) {
		a.end()
	}
}

// lost ends training because of a worker.
func (a *Agent) lost(w int, cause error) {
	rank := a.Ranks[w]
	if a.session != nil {
		for i := range a.workers {
			if what, phase := a.workers[i].gathers(); what != "" && i != w {
				a.lostDuring(phase, rank, cause, fmt.Sprintf("rank %d %s", a.Ranks[i], what))
				return
			}
		}
		if len(a.asking) > 0 {
			_, x := a.oldest()
			a.lostDuring(x.phase, rank, cause, x.what)
			return
		}
		for h := range a.peers {
			if x := a.peers[h].waits; x != nil && x.Agreement != nil && *x.Agreement >= a.agreements {
				a.lostDuring(x.Phase, rank, cause, x.What)
				return
			}
		}
		a.step(engine.Event{Kind: engine.PeerLost, Rank: rank, Err: cause})
		return
	}
	a.failf(rank, "rank %d is lost: %w, before all workers had said hello", rank, cause)
}

// lostDuring ends training because of a rank that is gone while others are not done with
// something that all do.
func (a *Agent) lostDuring(phase engine.Phase, rank int, cause error, what string) {
	a.fail(&engine.Failure{Rank: rank, Bucket: -1, Phase: phase, Err: fmt.Errorf("rank %d is lost: %w, while %s", rank, cause, what)})
}

// gathers is what a worker waits for all to do, and its phase; "": nothing.
func (x *worker) gathers() (what string, phase engine.Phase) {
	switch {
	case x.hello != nil:
		return saysHello, helloPhase
	case len(x.calls) > 0:
		return x.calls[0].makes()
	}
	return "", ""
}

const (
	saysHello               = "says hello"
	helloPhase engine.Phase = "hello"
)

// makes is how one tells that a worker makes a call, and its phase.
func (c *call) makes() (string, engine.Phase) {
	return fmt.Sprintf("makes call %d (%v)", c.index, c), engine.Phase(c.Kind)
}

// gathering is something that all workers do together, each when it comes to it.
type gathering struct {
	what string
	here func(*worker) bool
	do   func(*Agent)
}

var (
	hellos = gathering{saysHello, func(x *worker) bool { return x.hello != nil }, (*Agent).welcome}
	calls  = gathering{"makes a call", func(x *worker) bool { return len(x.calls) > 0 }, (*Agent).call}
)

// gather does what workers do together once all have come. One that has left, or
// does the other thing, never comes.
func (a *Agent) gather(g gathering) {
	first := slices.IndexFunc(a.workers, func(x worker) bool { return g.here(&x) })
	switch {
	case a.ended || first < 0:
		return
	case a.absent != nil:
		a.failf(-1, "rank %d %s, and %w", a.Ranks[first], g.what, a.absent)
		return
	}
	all := true
	for w := range a.workers {
		x := &a.workers[w]
		switch {
		case g.here(x):
		case x.gone:
			how := ""
			if x.cause != nil {
				how = fmt.Sprintf(" (%v)", x.cause)
			}
			a.failf(a.Ranks[w], "rank %d %s, and rank %d has ended%s", a.Ranks[first], g.what, a.Ranks[w], how)
			return
		case x.hello != nil || len(x.calls) > 0:
			other, _ := x.gathers()
			a.failf(a.Ranks[w], "rank %d %s, while rank %d %s: every rank must do the same", a.Ranks[first], g.what, a.Ranks[w], other)
			return
		default:
			all = false
		}
	}
	if all && (a.alone() || a.net != nil) {
		g.do(a)
	}
}

// cross ends training where a worker gathers for what another one does later or never:
// that one waits for gradients, which the first has yet to send. Both would for ever.
func (a *Agent) cross() {
	if a.ended || a.session == nil {
		return
	}
	for _, g := range []gathering{hellos, calls} {
		for w := range a.workers {
			if !g.here(&a.workers[w]) {
				continue
			}
			if f := a.crossed(fmt.Sprintf("rank %d %s", a.Ranks[w], g.what), a.Ranks[w], a.session.engine.Declared(w)); f != nil {
				a.fail(f)
				return
			}
		}
	}
	for host := range a.peers {
		w := a.peers[host].waits
		if w == nil || w.Agreement == nil || *w.Agreement < a.agreements || w.Session != a.session.epoch {
			continue
		}
		rank := a.first(host)
		if f := a.crossed(fmt.Sprintf("rank %d says hello or makes a call", rank), rank, w.Declared); f != nil {
			a.fail(f)
			return
		}
	}
}

// crossed is how somebody who gathers, and has declared so many generations before, can
// wait for ever for a worker of this host; nil: it cannot.
func (a *Agent) crossed(what string, rank, declared int) *engine.Failure {
	for w := range a.workers {
		x := &a.workers[w]
		if hellos.here(x) || calls.here(x) || a.session.engine.Declared(w) <= declared {
			continue
		}
		return &engine.Failure{Rank: rank, Bucket: -1, Err: fmt.Errorf("%s, while rank %d waits for its gradients: every rank must do the same in the same order", what, a.Ranks[w])}
	}
	return nil
}

// overdue ends training when workers have gathered for too long, and warns before
// that.
func (a *Agent) overdue() {
	for _, g := range []gathering{hellos, calls} {
		for w := range a.workers {
			waited := a.now() - a.workers[w].since
			at := slices.IndexFunc(a.workers, func(x worker) bool { return !g.here(&x) })
			if a.ended || !g.here(&a.workers[w]) || at < 0 {
				continue
			}
			late := &engine.Failure{Rank: a.Ranks[at], Bucket: -1, Err: fmt.Errorf("rank %d %s and has waited %v for rank %d", a.Ranks[w], g.what, waited.Round(time.Millisecond), a.Ranks[at])}
			switch {
			case a.Timeout > 0 && waited > a.Timeout:
				a.fail(late)
			case waited > a.Patience:
				a.warn(late)
			}
		}
	}
}

// warn tells the user of somebody who is waited for, once.
func (a *Agent) warn(f *engine.Failure) {
	if a.Warn != nil && !a.warned[f.Rank] {
		a.warned[f.Rank] = true
		a.Warn(f.Error())
	}
}
