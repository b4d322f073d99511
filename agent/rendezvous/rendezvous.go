// Package rendezvous lets the agents of a job find each other. They know where
// that of rank 0 listens, and come in any order; when they part, each is connected to
// all others. What goes wrong on one host until then ends all, with the same message.
// docs/formats/frames.md has what they say.
package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"weft/agent/protocol"
	"weft/collective"
	"weft/transport"
)

// Config is one host's part in a rendezvous.
type Config struct {
	Member // but for Rails, which Meet chooses
	// Master is where the agent of rank 0 listens, host:port. It must be an address of
	// that host, or a name of one.
	Master string
	Secret transport.Secret
	// Interfaces chooses among those of this host, one for each rail, see
	// [transport.ChooseLocal]; none: one rail, by the interface that leads to rank 0.
	// With Auto the first is of the first rail, and the others are among all of this host.
	Interfaces []string
	// Timeout is how long hosts may be late; 0: no bound.
	Timeout time.Duration
	// Warn, if set, gets a line about what is waited for, once.
	Warn func(string)
	// Hopeless is how long to try what is likely to stay as it is, such as a name that
	// does not resolve. Half of it, a rank may take to mend a wrong secret, and rank 0
	// stays after a failure to tell who comes late. 0: Hopeless of this package.
	Hopeless time.Duration

	interfaces func() ([]transport.Interface, error) // nil: of this host
}

const (
	Hopeless = 10 * time.Second // what Config takes for 0

	patience      = 10 * time.Second // before a warning
	handshakeTime = 5 * time.Second
	connectTime   = 8 * time.Second // the hosts are all there: it takes a moment, or for ever
	partingTime   = 2 * time.Second
)

// welcome is the answer to all members' hello.
type welcome struct {
	Epoch uint64 `json:"epoch"`
	Hosts table  `json:"hosts"`
}

// Ended says that a host has ended in order before all had met.
type Ended struct{ Rank int } // the first of the host

func (e *Ended) Error() string {
	return fmt.Sprintf("rank %d has ended before all had come", e.Rank)
}

// Meet returns once all hosts' agents are connected, by an endpoint a rail. What another host has failed of
// is a [*protocol.Failed]. If ctx ends first, its cause is what the others are told;
// [context.Canceled] means that this host has ended in order, of which they hear
// as [*Ended].
func Meet(ctx context.Context, c Config) ([]transport.Endpoint, collective.Layout, error) {
	c.Hopeless = cmp.Or(c.Hopeless, Hopeless)
	if c.First != 0 {
		return c.join(ctx, c.Master)
	}
	s, err := newServer(ctx, &c)
	if err != nil {
		return nil, nil, c.taken(ctx, err)
	}
	e, l, err := c.join(ctx, s.l.Addr().String())
	s.wait(err)
	return e, l, err
}

// taken finds out whether another agent is rank 0 already.
func (c *Config) taken(ctx context.Context, err error) error {
	short, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	var told *protocol.Failed
	if _, _, e := c.join(short, c.Master); errors.As(e, &told) {
		return told
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("rank 0: the port of %s, where agents meet, is taken: choose another WEFT_PORT, on all hosts: %w", c.Master, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("rank 0: %s, where agents meet, is not an address of the host of rank 0: set MASTER_ADDR to one that is: %w", c.Master, err)
	}
	return fmt.Errorf("rank 0: listening at %s, where agents meet: %w", c.Master, err)
}

// join takes part as a member, of the server at an address.
func (c *Config) join(ctx context.Context, address string) ([]transport.Endpoint, collective.Layout, error) {
	conn, err := c.dial(ctx, address)
	if err != nil {
		c.lastWords(ctx, address)
		return nil, nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	s := &membership{Config: c, conn: conn, in: protocol.NewReader(conn)}
	e, l, err := s.meet(ctx)
	if err != nil && !s.told {
		part(conn, err)
	}
	return e, l, err
}

// membership is a member's connection to the server.
type membership struct {
	*Config
	conn net.Conn
	in   *protocol.Reader
	told bool // by the server how it ends
}

// next is what the server says, which has to be of a kind.
func (s *membership) next(ctx context.Context, kind protocol.Kind) (protocol.Message, error) {
	m, err := s.in.Next()
	switch {
	case err != nil && ctx.Err() != nil:
		return m, context.Cause(ctx)
	case err != nil:
		return m, fmt.Errorf("rank 0 is lost: its connection ended (%w), before all hosts were connected", err)
	case m.Kind == protocol.KindGoodbye:
		s.told = true
		return m, &Ended{m.Index}
	case m.Kind == protocol.KindFailed:
		s.told = true
		f := new(protocol.Failed)
		return m, cmp.Or[error](m.Decode(f), f)
	case m.Kind != kind:
		return m, fmt.Errorf("rank 0 says %v, while rank %d waits for %v", m.Kind, s.First, kind)
	}
	return m, nil
}

// meet tells the server where this host listens, hears where all do, and connects.
func (s *membership) meet(ctx context.Context) ([]transport.Endpoint, collective.Layout, error) {
	peers, err := s.listen(ctx, s.conn)
	defer func() {
		for _, l := range peers {
			l.Close()
		}
	}()
	if err != nil {
		return nil, nil, err
	}
	member := s.Member
	for _, l := range peers {
		member.Rails = append(member.Rails, Rail{l.Addr().String(), l.subnet})
	}
	if err := say(s.conn, protocol.KindHello, &member); err != nil {
		return nil, nil, err
	}
	m, err := s.next(ctx, protocol.KindWelcome)
	if err != nil {
		return nil, nil, err
	}
	var w welcome
	if err := m.Decode(&w); err != nil {
		return nil, nil, err
	}
	e, err := s.together(ctx, &w, peers)
	return e, w.Hosts.layout(), err
}

// together connects, and waits until all hosts have. While this one connects, another
// may fail to.
func (s *membership) together(ctx context.Context, w *welcome, peers []listener) ([]transport.Endpoint, error) {
	connecting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() {
		_, err := s.next(ctx, protocol.KindDone)
		if err != nil {
			cancel(err)
		}
		ended <- err
	}()
	e, err := w.connect(connecting, s.Config, peers)
	if err == nil {
		err = say(s.conn, protocol.KindReady, nil)
	}
	if err == nil {
		err = <-ended
		if err != nil && err == context.Cause(ctx) {
			err = s.withdraw(err)
		}
	} else {
		err = cmp.Or(context.Cause(connecting), err)
		s.conn.SetReadDeadline(time.Unix(1, 0))
		<-ended
	}
	if err != nil {
		closeAll(e)
		e = nil
	}
	return e, err
}

func closeAll(rails []transport.Endpoint) {
	for _, e := range rails {
		e.Close()
	}
}

// withdraw takes back that this host is ready, because of a cause, which it returns. The
// others may have been told already that all are: then all have met, and hear the cause
// of this host as of any other.
func (s *membership) withdraw(cause error) error {
	lastWord(s.conn, cause)
	s.conn.SetReadDeadline(time.Now().Add(partingTime))
	_, err := s.next(context.Background(), protocol.KindDone)
	s.told = true
	if err == nil {
		return nil
	}
	return cause
}

// lastWords tells the others of a failure before this host has met them, if rank 0 is
// there soon.
func (c *Config) lastWords(ctx context.Context, address string) {
	var f *protocol.Failed
	if !errors.As(context.Cause(ctx), &f) {
		return
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Hopeless/2)
	defer cancel()
	conn, err := c.dial(short, address)
	if err != nil {
		return
	}
	defer conn.Close()
	if say(conn, protocol.KindHello, &c.Member) == nil {
		part(conn, f)
	}
}

// connect connects the hosts, who are all there, over one rail after the other.
func (w *welcome) connect(ctx context.Context, c *Config, peers []listener) (out []transport.Endpoint, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	me := slices.IndexFunc(w.Hosts, func(m Member) bool { return m.First == c.First })
	rails := w.Hosts.rails()
	if me < 0 || len(rails) == 0 {
		return nil, fmt.Errorf("rank 0 does not know of rank %d", c.First)
	}
	for r, addresses := range rails {
		o := transport.TCPOptions{Rank: me, Addrs: addresses, Epoch: w.Epoch, Secret: c.Secret}
		at := slices.IndexFunc(peers, func(l listener) bool { return l.Addr().String() == addresses[me] })
		if at < 0 {
			return out, fmt.Errorf("rank 0 does not know where rank %d listens", c.First)
		}
		on := ""
		if len(rails) > 1 {
			o.Local = peers[at].Addr().Addr()
			on = fmt.Sprintf(" on rail %s, by interface %s of rank %d", transport.RailName(r), peers[at].name, c.First)
		}
		e, err := peers[at].Connect(ctx, o)
		if failed, ok := errors.AsType[*transport.Error](err); ok && failed.Peer >= 0 && failed.Peer < len(w.Hosts) {
			err = fmt.Errorf("rank %d and rank %d (%s) cannot connect%s: %w", c.First, w.Hosts[failed.Peer].First, addresses[failed.Peer], on, failed.Err)
		}
		if err != nil {
			return out, err
		}
		out = append(out, e)
	}
	return out, nil
}

// listener is where this host takes its peers' connections on a rail.
type listener struct {
	*transport.Listener
	name   string // of the interface
	subnet netip.Prefix
}

// choices are the choices of interfaces, one for each rail; with Auto, of the first and
// of all others.
func (c *Config) choices() []string {
	first := c.Interfaces
	if len(first) == 0 {
		first = []string{""}
	}
	if c.Auto {
		return []string{first[0], ""}
	}
	return first
}

// listen opens a port for this host's peers on each rail: at the address that leads
// to rank 0, or that the user has chosen. What it has opened the caller closes, even after
// an error.
func (c *Config) listen(ctx context.Context, conn net.Conn) (out []listener, err error) {
	interfaces := c.interfaces
	if interfaces == nil {
		interfaces = transport.Interfaces
	}
	have, err := interfaces()
	if err != nil {
		return nil, err
	}
	chosen, err := c.choose(have, address(conn.LocalAddr()), !address(conn.RemoteAddr()).IsLoopback())
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", c.First, err)
	}
	for _, x := range chosen {
		l, err := transport.Listen(ctx, netip.AddrPortFrom(x.Addr, 0).String())
		if err != nil {
			return out, fmt.Errorf("rank %d: interface %s: %w", c.First, x.Interface, err)
		}
		out = append(out, listener{l, x.Interface, x.Subnet})
	}
	return out, nil
}

// choose chooses an address for each rail: with Auto, of each subnet of this host.
func (c *Config) choose(have []transport.Interface, route netip.Addr, remote bool) (out []transport.Local, err error) {
	for r, names := range c.choices() {
		local, err := transport.ChooseLocal(have, names, route, remote)
		if err != nil {
			return nil, err
		}
		if !c.Auto || r == 0 {
			local = local[:1]
		}
		for _, x := range local {
			switch {
			case !c.Auto && slices.ContainsFunc(out, func(o transport.Local) bool { return o.Interface == x.Interface }):
				return nil, fmt.Errorf("rails %q: number %d is interface %s, as is another (\"=%s\" is that one alone)", c.Interfaces, r, x.Interface, x.Interface)
			case c.Auto && slices.ContainsFunc(out, func(o transport.Local) bool { return o.Subnet == x.Subnet || o.Addr.Is4() != x.Addr.Is4() }):
			default:
				out = append(out, x)
			}
		}
	}
	return out, nil
}

func address(a net.Addr) netip.Addr { return a.(*net.TCPAddr).AddrPort().Addr().Unmap() }

// dial connects to the agent of rank 0, which may come late.
func (c *Config) dial(ctx context.Context, address string) (net.Conn, error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, errLate)
		defer cancel()
	}
	start, hopeless, warned := time.Now(), time.Time{}, false
	var last error
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		conn, err := c.try(ctx, address)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			if cause := context.Cause(ctx); cause != errLate {
				return nil, cause
			}
			return nil, fmt.Errorf("rank 0 has not come to %s within %v: %w", address, c.Timeout, cmp.Or(last, err))
		}
		last = err
		hope := promising(err)
		if hope {
			hopeless = time.Time{}
		} else if hopeless.IsZero() {
			hopeless = time.Now()
		}
		if final(err) || !hope && time.Since(hopeless) >= c.Hopeless {
			return nil, fmt.Errorf("rank %d cannot meet rank 0 at %s (MASTER_ADDR, WEFT_PORT): %w", c.First, address, err)
		}
		if !warned && time.Since(start) >= patience {
			warned = true
			c.warn("rank %d waits for rank 0 at %s: %v", c.First, address, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

var errLate = errors.New("time is up")

func (c *Config) warn(format string, args ...any) {
	if c.Warn != nil {
		c.Warn(fmt.Sprintf(format, args...))
	}
}

func (c *Config) try(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: handshakeTime, KeepAliveConfig: transport.KeepAlive}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(handshakeTime))
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = transport.Introduce(conn, c.Secret, c.First)
	if !stop() || err != nil {
		conn.Close()
		return nil, cmp.Or(err, context.Cause(ctx))
	}
	conn.SetDeadline(time.Time{})
	return conn, nil
}

// final tells of an error that no other try can mend.
func final(err error) bool {
	r, ok := errors.AsType[*transport.Refusal](err)
	return ok && r.Why == transport.WrongSecret
}

// promising tells of an error that may well pass when rank 0 comes.
func promising(err error) bool {
	if errors.As(err, new(*net.DNSError)) || errors.As(err, new(*transport.Refusal)) {
		return false
	}
	var system syscall.Errno
	return !errors.As(err, &system) || slices.Contains(passing, system)
}

var passing = []syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT}

// part tells the other side why this one leaves, and waits until it has read it.
func part(conn net.Conn, err error) {
	lastWord(conn, err)
	drain(conn)
}

// lastWord tells the server that this host leaves, as err says.
func lastWord(conn net.Conn, err error) {
	var f *protocol.Failed
	switch {
	case errors.Is(err, context.Canceled):
		say(conn, protocol.KindGoodbye, nil)
	case errors.As(err, &f):
		say(conn, protocol.KindFailed, f)
	default:
		say(conn, protocol.KindFailed, &protocol.Failed{Message: err.Error()})
	}
	conn.(*net.TCPConn).CloseWrite()
}

// drain reads until the other side ends, so that nothing that was written is lost.
func drain(conn net.Conn) {
	conn.SetReadDeadline(time.Now().Add(partingTime))
	for in := protocol.NewReader(conn); ; {
		if _, err := in.Next(); err != nil {
			return
		}
	}
}

func say(conn net.Conn, kind protocol.Kind, what any) error {
	m := protocol.Message{Kind: kind}
	if what != nil {
		var err error
		if m, err = m.With(what); err != nil {
			return err
		}
	}
	return write(conn, m)
}

func write(conn net.Conn, m protocol.Message) error {
	conn.SetWriteDeadline(time.Now().Add(partingTime))
	_, err := conn.Write(m.Append(nil))
	return err
}
