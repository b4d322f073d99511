package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// TCPOptions is what an endpoint needs to know to connect to its peers. All but
// Rank and Local must be the same for all peers.
type TCPOptions struct {
	Rank int
	// Addrs are the addresses of the peers' listeners, host:port, by rank. The
	// rank's own is not looked at.
	Addrs []string
	// Epoch is the epoch of the job. Peers of different epochs do not connect.
	Epoch uint64
	// Secret is the job's, of at least MinSecret bytes.
	Secret Secret
	// Bulk is how many connections to each peer carry large messages, beside
	// the one that carries all else; 0: one. A network that is faster than one
	// connection needs more.
	Bulk int
	// Local is the address of this host to dial from; zero: the one that the system routes
	// by. Rails are to leave by their own interfaces.
	Local netip.Addr
	// Checksum adds a checksum to what this endpoint sends. Checksums of what it
	// receives are checked in any case.
	Checksum bool
}

// Listener accepts the connections of peers, for one epoch after the other.
type Listener struct{ l *net.TCPListener }

// Listen listens on an address of this host, IPv4 or IPv6, host:port; port 0
// is any that is free. The address must be one that peers can reach: not a
// wildcard.
func Listen(ctx context.Context, address string) (*Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return nil, fmt.Errorf("listen on %s: name one address of this host, so that the others of it stay closed", address)
	}
	lc := net.ListenConfig{KeepAliveConfig: KeepAlive}
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &Listener{l.(*net.TCPListener)}, nil
}

// Addr is where it listens.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr().(*net.TCPAddr).AddrPort() }

// Close stops listening. Endpoints that are connected stay so.
func (l *Listener) Close() error { return l.l.Close() }

// silence is after what time a peer is lost of which nothing is heard: no
// acknowledgement of what is sent to it, or, if that is nothing, no answer to
// four probes.
const silence = 8 * time.Second

// KeepAlive finds a peer that is silent for as long.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 8, Count: 4}

const (
	handshakeTime = 5 * time.Second // the most for one handshake
	closeTime     = 5 * time.Second // the most that Close waits for a peer
	strangers     = 64              // handshakes at once with who may be anybody
	dialing       = 64              // connections that are made at once
)

// tcp is an Endpoint over TCP connections.
type tcp struct {
	rank  int
	peers []*peer // nil: itself
	ends  sync.WaitGroup
	once  sync.Once // of Close

	closeTime time.Duration
}

// Connect connects to all peers: to those of lower rank it dials, those of
// higher rank it accepts. Peers may come in any order, as late as the context
// allows; until then it tries again whatever may be temporary. An agent that
// has the job's secret, but differs in what must be the same, is an error at
// once. One Connect at a time.
func (l *Listener) Connect(ctx context.Context, o TCPOptions) (Endpoint, error) {
	world, conns := len(o.Addrs), 1+max(o.Bulk, 1)
	switch {
	case o.Rank < 0 || o.Rank >= world:
		return nil, fmt.Errorf("connect: rank %d of %d peers", o.Rank, world)
	case len(o.Secret) < MinSecret && world > 1:
		return nil, fmt.Errorf("connect: the job's secret has %d bytes, it needs %d", len(o.Secret), MinSecret)
	case conns > 64:
		return nil, fmt.Errorf("connect: %d connections a peer, at most 64 make sense", conns)
	}
	m := meeting{o: o, conns: make([][]net.Conn, world), instances: make([][16]byte, world)}
	m.culprit = -1
	m.self = hello{world: uint32(world), from: uint32(o.Rank), conns: uint16(conns), epoch: o.Epoch}
	rand.Read(m.self.instance[:])
	for rank := range world {
		if rank != o.Rank {
			m.conns[rank] = make([]net.Conn, conns)
			m.missing += conns
		}
	}
	start := time.Now()
	if err := m.run(ctx, l.l); err != nil {
		return nil, &Error{Phase: Connecting, Peer: m.culprit, Elapsed: time.Since(start), Err: err}
	}
	t := &tcp{rank: o.Rank, closeTime: closeTime}
	for rank, conns := range m.conns {
		if rank == o.Rank {
			t.peers = append(t.peers, nil)
			continue
		}
		p := newPeer(rank, o.Epoch, o.Checksum, conns)
		p.start(&t.ends)
		t.peers = append(t.peers, p)
	}
	return t, nil
}

func (t *tcp) Rank() int  { return t.rank }
func (t *tcp) World() int { return len(t.peers) }

func (t *tcp) Send(ctx context.Context, to int, tag Tag, data []byte) error {
	start := time.Now()
	p, err := t.peer(to)
	if err == nil {
		err = p.send(ctx, tag, data)
	}
	if err != nil {
		return &Error{Sending, to, tag, time.Since(start), err}
	}
	return nil
}

func (t *tcp) Recv(ctx context.Context, from int, tag Tag, dst []byte) error {
	start := time.Now()
	p, err := t.peer(from)
	if err == nil {
		err = p.recv(ctx, tag, dst)
	}
	if err != nil {
		return &Error{Receiving, from, tag, time.Since(start), err}
	}
	return nil
}

func (t *tcp) peer(rank int) (*peer, error) {
	if rank < 0 || rank >= len(t.peers) || rank == t.rank {
		return nil, ErrNoPeer
	}
	return t.peers[rank], nil
}

// Close waits until every peer has read what was sent and has said goodbye too,
// or is lost, or has had closeTime.
func (t *tcp) Close() (err error) {
	t.once.Do(func() {
		start := time.Now()
		var there []*peer
		for _, p := range t.peers {
			if p != nil && p.close(start.Add(t.closeTime)) {
				there = append(there, p)
			}
		}
		t.ends.Wait()
		for _, p := range there {
			if !errors.Is(p.lost, ErrLeft) {
				err = errors.Join(err, &Error{Phase: Closing, Peer: p.rank, Elapsed: time.Since(start), Err: p.lost})
			}
		}
	})
	return err
}

// meeting is one Connect.
type meeting struct {
	o    TCPOptions
	self hello

	mu        sync.Mutex
	conns     [][]net.Conn // by rank and number; nil: not there yet
	instances [][16]byte   // of the peers that have been accepted, by rank
	missing   int          // connections
	complete  context.CancelCauseFunc
	tries     map[int]error // by rank, why the last try to dial it failed
	stranger  error         // why the last one was sent away
	culprit   int           // the peer that run's error is about
}

var errComplete = errors.New("all peers are connected")

// run returns when all connections are there, or with the reason why they cannot be.
func (m *meeting) run(ctx context.Context, l *net.TCPListener) error {
	if m.missing == 0 {
		return nil
	}
	ctx, m.complete = context.WithCancelCause(ctx)
	m.tries = map[int]error{}
	var wg sync.WaitGroup
	if m.o.Rank+1 < len(m.o.Addrs) {
		l.SetDeadline(time.Time{})
		wg.Go(func() { m.accept(ctx, l) })
	}
	slots := make(chan struct{}, dialing)
	for rank := range m.o.Rank {
		for i := range m.conns[rank] {
			wg.Go(func() { m.dial(ctx, rank, i, slots) })
		}
	}
	<-ctx.Done()
	l.SetDeadline(time.Unix(1, 0))
	wg.Wait()
	err := context.Cause(ctx)
	if err == errComplete {
		return nil
	}
	for _, conns := range m.conns {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}
	if _, fatal := errors.AsType[*Refusal](err); fatal {
		return err
	}
	return m.absent(err)
}

// absent says who is missing when the time is up, and what is known of why.
func (m *meeting) absent(err error) error {
	var ranks []string
	for rank, conns := range slices.Backward(m.conns) {
		if slices.Contains(conns, nil) {
			m.culprit = rank
			ranks = append(ranks, fmt.Sprint(rank))
		}
	}
	slices.Reverse(ranks)
	err = fmt.Errorf("%w; not connected: rank %s", err, strings.Join(ranks, ", "))
	if try := m.tries[m.culprit]; try != nil {
		err = fmt.Errorf("%w; last try: %w", err, try)
	}
	if m.stranger != nil {
		err = fmt.Errorf("%w; sent away: %w", err, m.stranger)
	}
	return err
}

// add counts a connection that is ready for frames.
func (m *meeting) add(rank, i int, c net.Conn) {
	c.SetDeadline(time.Time{})
	tune(c.(*net.TCPConn))
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.conns[rank][i]; old != nil { // its dialer has tried again
		old.Close()
	} else {
		m.missing--
	}
	m.conns[rank][i] = c
	if m.missing == 0 {
		m.complete(errComplete)
	}
}

// fail ends the meeting because of a peer.
func (m *meeting) fail(rank int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.culprit < 0 {
		m.culprit = rank
	}
	m.complete(err)
}

// guard lets a handshake end with its time, or with the context.
func guard(ctx context.Context, c net.Conn) (stop func() bool) {
	c.SetDeadline(time.Now().Add(handshakeTime))
	return context.AfterFunc(ctx, func() { c.Close() })
}

func (m *meeting) accept(ctx context.Context, l *net.TCPListener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, strangers)
	for {
		slots <- struct{}{} // each is given back within handshakeTime
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return
		case errors.Is(err, net.ErrClosed):
			m.fail(m.o.Rank, err)
			return
		case err != nil: // no descriptors, say
			<-slots
			pause(ctx, 10*time.Millisecond)
			continue
		}
		wg.Go(func() {
			m.welcome(ctx, c)
			<-slots
		})
	}
}

// welcome handshakes with one that has dialed.
func (m *meeting) welcome(ctx context.Context, c net.Conn) {
	stop := guard(ctx, c)
	other, err := acceptHandshake(c, m.o.Secret, m.self, m.judge)
	if inTime := stop(); inTime && err == nil {
		m.add(int(other.from), int(other.conn), c)
		return
	}
	c.Close()
	if err == nil { // the meeting is over
		return
	}
	r, _ := errors.AsType[*Refusal](err)
	if r != nil && r.Why != WrongSecret && r.Why != WrongProtocol && !(r.Why == StaleEpoch && other.epoch < m.self.epoch) {
		m.fail(int(other.from), err) // it has the secret: one of us is mistaken
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stranger = telling(m.stranger, fmt.Errorf("%v: %w", c.RemoteAddr(), err))
}

// telling is the later of two failures, unless only the earlier one says what
// somebody answered.
func telling(earlier, later error) error {
	_, answered := errors.AsType[*Refusal](earlier)
	if _, again := errors.AsType[*Refusal](later); answered && !again {
		return earlier
	}
	return later
}

// judge decides about a dialer that has the secret.
func (m *meeting) judge(other *hello) Reason {
	switch {
	case other.epoch != m.self.epoch:
		return StaleEpoch
	case other.world != m.self.world:
		return WrongWorld
	case other.to != m.self.from, other.from <= m.self.from, other.from >= m.self.world:
		return WrongRank
	case other.conns != m.self.conns, other.conn >= other.conns:
		return WrongConns
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := &m.instances[other.from]
	if *known != [16]byte{} && *known != other.instance {
		return DuplicateRank
	}
	*known = other.instance
	return accepted
}

// dial makes one connection to a peer, and tries until it has it.
func (m *meeting) dial(ctx context.Context, rank, i int, slots chan struct{}) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		slots <- struct{}{}
		err := m.call(ctx, rank, i)
		<-slots
		if err == nil || ctx.Err() != nil {
			return
		}
		r, refused := errors.AsType[*Refusal](err)
		if refused && !r.temporary {
			m.fail(rank, err)
			return
		}
		m.mu.Lock()
		m.tries[rank] = telling(m.tries[rank], err)
		m.mu.Unlock()
		pause(ctx, wait)
	}
}

// call is one try. An error may be temporary, unless it is a Refusal that is not.
func (m *meeting) call(ctx context.Context, rank, i int) error {
	d := net.Dialer{Timeout: handshakeTime, KeepAliveConfig: KeepAlive}
	if m.o.Local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(m.o.Local, 0))
	}
	c, err := d.DialContext(ctx, "tcp", m.o.Addrs[rank])
	if err != nil {
		return err
	}
	stop := guard(ctx, c)
	self := m.self
	self.to, self.conn = uint32(rank), uint16(i)
	other, err := dialHandshake(c, m.o.Secret, self)
	if !stop() {
		return context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		if r, ok := errors.AsType[*Refusal](err); ok {
			r.temporary = r.Why == StaleEpoch && other.epoch < m.self.epoch // it will follow
		}
		return err
	}
	m.add(rank, i, c)
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
