package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"weft/agent/protocol"
	"weft/transport"
)

// strangers are connections at once with who may be anybody.
const strangers = 64

// server is what the agent of rank 0 does for all: it gathers the members, and tells
// each what has become of it.
type server struct {
	*Config
	l       *net.TCPListener
	running sync.WaitGroup
	ended   chan struct{} // closed once nobody is waited for any more

	mu      sync.Mutex
	members table
	conns   map[net.Conn]*Member // that have said hello and are there
	ready   int                  // members that are connected to all others
	last    *protocol.Message    // what all are told in the end; nil: it goes on
	timers  []*time.Timer
	closed  bool // ended is
}

func newServer(ctx context.Context, c *Config) (*server, error) {
	at, err := c.masterAddress(ctx)
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{KeepAliveConfig: transport.KeepAlive}
	l, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	s := &server{Config: c, l: l.(*net.TCPListener), ended: make(chan struct{}), conns: map[net.Conn]*Member{}}
	s.after(patience, func() { s.warn("rank 0 waits for rank %s", s.members.missing(s.World)) })
	if c.Timeout > 0 {
		s.after(c.Timeout, func() {
			s.failf(-1, "rank %s has not come to %s within %v", s.members.missing(s.World), c.Master, c.Timeout)
		})
	}
	s.running.Go(s.accept)
	return s, nil
}

// masterAddress is where the agent of rank 0 listens: at one address of its host.
// Where a host's own name stands for loopback, as some systems have it, the others
// mean another address by it.
func (c *Config) masterAddress(ctx context.Context) (string, error) {
	host, port, err := net.SplitHostPort(c.Master)
	if err != nil {
		return "", err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() {
			return "", fmt.Errorf("name one address of this host, so that the others of it stay closed")
		}
		return c.Master, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", err
	}
	for _, ip := range found {
		if ip = ip.Unmap(); !ip.IsLoopback() || host == "localhost" {
			return net.JoinHostPort(ip.String(), port), nil
		}
	}
	have, err := transport.Interfaces()
	if err != nil {
		return "", err
	}
	local, err := transport.ChooseLocal(have, c.choices()[0], netip.Addr{}, true)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(local[0].Addr.String(), port), nil
}

// after does something under the lock later, if members are still gathering then.
func (s *server) after(d time.Duration, do func()) {
	s.timers = append(s.timers, time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.last == nil && s.members.missing(s.World) != "" {
			do()
		}
	}))
}

// wait waits until all members have been told the end, or nobody more is likely to
// come. With an error, the end is that this host has failed; which it may have
// said as a member.
func (s *server) wait(err error) {
	s.mu.Lock()
	if err != nil {
		s.failf(0, "%w", err)
	}
	s.mu.Unlock()
	<-s.ended
	s.l.Close()
	s.running.Wait()
}

func (s *server) accept() {
	slots := make(chan struct{}, strangers)
	for {
		slots <- struct{}{} // each is given back within twice handshakeTime
		conn, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors, say
			<-slots
			select {
			case <-s.ended:
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		s.running.Go(func() {
			defer conn.Close()
			m, in := s.admit(conn)
			<-slots
			if m != nil {
				s.serve(conn, m, in)
			}
		})
	}
}

// admit lets a member in that has the secret; nil: it has not, or is none.
func (s *server) admit(conn net.Conn) (*Member, *protocol.Reader) {
	stop := s.endWith(conn)
	defer stop()
	conn.SetDeadline(time.Now().Add(handshakeTime))
	rank, err := transport.Admit(conn, s.Secret)
	if err != nil {
		if r, ok := errors.AsType[*transport.Refusal](err); ok && r.Why == transport.WrongSecret && rank >= 0 && rank < s.World {
			s.stranger(conn, rank)
		}
		return nil, nil
	}
	in := protocol.NewReader(conn)
	x, err := in.Next()
	member := new(Member)
	if err == nil {
		err = x.Decode(member)
	}
	if err != nil || x.Kind != protocol.KindHello {
		return nil, nil
	}
	conn.SetDeadline(time.Time{})
	return member, in
}

// endWith lets a connection end soon after the server has.
func (s *server) endWith(conn net.Conn) (stop func()) {
	gone := make(chan struct{})
	s.running.Go(func() {
		select {
		case <-gone:
		case <-s.ended:
			conn.SetReadDeadline(time.Now().Add(partingTime))
		}
	})
	return func() { close(gone) }
}

// stranger notes that somebody who claims a rank has not the secret.
func (s *server) stranger(conn net.Conn, rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Who has no secret may be anybody; but an agent of the job that was given a wrong
	// one will not come again, and the others must hear why.
	s.after(s.Hopeless/2, func() {
		if !s.members.has(rank) {
			s.failf(rank, "rank %d, at %v, does not have the same secret as rank 0 (WEFT_SECRET_FILE)", rank, conn.RemoteAddr())
		}
	})
}

// serve takes what a member says, until it leaves.
func (s *server) serve(conn net.Conn, member *Member, in *protocol.Reader) {
	stop := s.endWith(conn)
	defer stop()
	s.join(conn, member)
	for {
		m, err := in.Next()
		s.mu.Lock()
		if s.last == nil {
			s.take(member, m, err)
		}
		if err != nil {
			delete(s.conns, conn)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

func (s *server) join(conn net.Conn, m *Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[conn] = m
	if s.last != nil {
		write(conn, *s.last)
		s.members.add(*m)
		s.settle()
		return
	}
	if err := s.members.add(*m); err != nil {
		s.failf(m.First, "%w", err)
		return
	}
	if s.members.missing(s.World) == "" {
		x, err := protocol.Message{Kind: protocol.KindWelcome}.With(&welcome{Epoch: uint64(time.Now().UnixNano()), Hosts: s.members})
		if err != nil {
			s.failf(-1, "%w", err)
			return
		}
		s.tell(x)
	}
}

// take does what a member's message asks for, or its absence.
func (s *server) take(member *Member, m protocol.Message, err error) {
	switch {
	case err != nil:
		s.failf(member.First, "rank %d (%s) is lost: its connection ended (%w), before all hosts were connected", member.First, member.address(), err)
	case m.Kind == protocol.KindReady:
		if s.ready++; s.ready == len(s.members) {
			s.end(protocol.Message{Kind: protocol.KindDone})
		}
	case m.Kind == protocol.KindFailed:
		s.end(m)
	case m.Kind == protocol.KindGoodbye:
		s.end(protocol.Message{Kind: protocol.KindGoodbye, Index: member.First})
	default:
		s.failf(member.First, "rank %d says %v, which is none of its messages", member.First, m.Kind)
	}
}

// failf ends the rendezvous because of a rank; -1: it is not one's fault.
func (s *server) failf(rank int, format string, args ...any) {
	f := protocol.Failed{Message: fmt.Errorf(format, args...).Error()}
	if rank >= 0 {
		f.Rank = &rank
	}
	if m, err := (protocol.Message{Kind: protocol.KindFailed}).With(&f); err == nil {
		s.end(m)
	}
}

// end tells all members how the rendezvous ends. The first end counts.
func (s *server) end(m protocol.Message) {
	if s.last != nil {
		return
	}
	s.last = &m
	s.tell(m)
	if m.Kind != protocol.KindFailed {
		s.close()
		return
	}
	s.timers = append(s.timers, time.AfterFunc(s.Hopeless/2, func() { // who comes late still hears of it
		s.mu.Lock()
		defer s.mu.Unlock()
		s.close()
	}))
	s.settle()
}

func (s *server) tell(m protocol.Message) {
	for conn := range s.conns {
		write(conn, m) // who does not hear it will see
	}
}

// settle ends the server once all members have been told how it ends.
func (s *server) settle() {
	if s.members.missing(s.World) == "" {
		s.close()
	}
}

func (s *server) close() {
	if s.closed {
		return
	}
	s.closed = true
	for _, t := range s.timers {
		t.Stop()
	}
	close(s.ended)
}
