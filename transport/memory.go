package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Memory is a network of peers inside one process, for tests. What goes wrong in
// it is decided beforehand, by a list of faults. It takes no time of its own and
// waits only on channels, contexts and timers: inside a bubble of
// [testing/synctest] delays and deadlines are exact and take no time either.
type Memory struct {
	window int
	faults []Fault

	mu    sync.Mutex
	peers []*memoryPeer
	pairs []memoryPair // [from*world + to]
}

// MemoryOptions is how a [Memory] differs from a sound network.
type MemoryOptions struct {
	// Window is used in place of the constant, if it is not 0. Negative: nothing
	// is held for a receiver, every Send waits for its Recv.
	Window int
	Faults []Fault
}

// Any, as the peer of a [Fault], is every peer.
const Any = -1

// Fault is something that goes wrong with messages from one peer to another.
type Fault struct {
	From, To int // or Any
	// After is how many messages of the pair pass unharmed, in the order of the
	// calls of Send. With Tag the fault waits for that message instead.
	After int
	Tag   *Tag
	Kind  FaultKind
	Delay time.Duration // of Delay
}

// FaultKind is what goes wrong.
type FaultKind uint8

const (
	// Disconnect breaks the connection between the two peers; the message is lost.
	Disconnect FaultKind = iota
	// Truncate breaks the connection in the middle of the message.
	Truncate
	// Corrupt flips a bit of the message; the receiver sees it by the checksum and
	// breaks the connection.
	Corrupt
	// Delay makes this message and all later ones of the pair late: each Send
	// waits before it does anything else. Messages that are sent meanwhile
	// overtake it. With Tag, only that message is late.
	Delay
	// Partition loses this message and all later ones of the pair, and nobody is
	// told: calls wait until their contexts end. With Tag, only that message is lost.
	Partition
)

var faultNames = []string{"disconnect", "truncate", "corrupt", "delay", "partition"}

func (k FaultKind) String() string { return faultNames[k] }

// memoryPair is what is under way from one peer to another.
type memoryPair struct {
	receivers map[Tag]*memoryCall // Recvs that wait for their message
	messages  map[Tag]*memoryCall // messages that wait for their Recv
	held      int                 // of the window, by messages whose Send has returned
	calls     int                 // of Send, so far
	count     int                 // messages so far
	bytes     int64               // their lengths
	lost      error               // why the receiver has lost the sender; a PeerLost
}

// memoryCall is a call that waits, or a message whose Send has returned.
type memoryCall struct {
	data []byte     // to send, or to receive into
	held bool       // of a message: data is a copy, nobody waits
	hurt error      // of a message: why it arrives damaged
	gone bool       // of a message: it never arrives
	done chan error // how the call ends, unless it has
}

type memoryPeer struct {
	m      *Memory
	rank   int
	closed error // what its own calls fail with; nil: it is open
}

var errReset = errors.New("connection reset by peer")

// NewMemory is a network of world peers.
func NewMemory(world int, o MemoryOptions) *Memory {
	m := &Memory{window: o.Window, faults: o.Faults, pairs: make([]memoryPair, world*world)}
	if m.window == 0 {
		m.window = Window
	}
	for i := range m.pairs {
		m.pairs[i].receivers = map[Tag]*memoryCall{}
		m.pairs[i].messages = map[Tag]*memoryCall{}
	}
	for rank := range world {
		m.peers = append(m.peers, &memoryPeer{m: m, rank: rank})
	}
	return m
}

// Endpoint is the view of one peer.
func (m *Memory) Endpoint(rank int) Endpoint { return m.peers[rank] }

// Sent is how many messages one peer has sent to another, and their bytes.
func (m *Memory) Sent(from, to int) (messages int, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pair(from, to)
	return p.count, p.bytes
}

// Kill ends a peer as if its process had died. Its own calls, and the calls of
// others that name it, fail because of cause.
func (m *Memory) Kill(rank int, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers[rank].closed = cause
	for other := range m.peers {
		if other != rank {
			m.end(rank, other, cause)
			m.disconnect(rank, other, cause)
		}
	}
}

// Cut ends the connection between two peers, as if their cable had been cut.
func (m *Memory) Cut(a, b int, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.disconnect(a, b, cause)
}

func (m *Memory) pair(from, to int) *memoryPair { return &m.pairs[from*len(m.peers)+to] }

// disconnect makes two peers lose each other. What they had sent each other
// and not received is gone.
func (m *Memory) disconnect(a, b int, cause error) {
	for _, d := range [2][2]int{{a, b}, {b, a}} {
		from, to := d[0], d[1]
		p := m.pair(from, to)
		if p.lost != nil {
			continue
		}
		p.lost = &PeerLost{from, cause}
		for _, r := range p.receivers {
			r.done <- p.lost
		}
		for _, s := range p.messages {
			if !s.held {
				s.done <- &PeerLost{to, cause}
			}
		}
		clear(p.receivers)
		clear(p.messages)
	}
}

// end fails what one peer still waits for at another.
func (m *Memory) end(rank, other int, err error) {
	in, out := m.pair(other, rank), m.pair(rank, other)
	for tag, r := range in.receivers {
		r.done <- err
		delete(in.receivers, tag)
	}
	for tag, s := range out.messages {
		if !s.held {
			s.done <- err
			delete(out.messages, tag)
		}
	}
}

// strike makes the faults that apply to a message from p strike it. Delays come
// first; the lock is not held meanwhile.
func (p *memoryPeer) strike(ctx context.Context, to int, tag Tag, s *memoryCall) error {
	pair := p.m.pair(p.rank, to)
	number := pair.calls
	pair.calls++
	var late time.Duration
	var rest []FaultKind
	for _, f := range p.m.faults {
		switch {
		case f.From != Any && f.From != p.rank, f.To != Any && f.To != to:
		case f.Tag != nil && *f.Tag != tag, f.Tag == nil && number < f.After:
		case f.Kind == Delay:
			late += f.Delay
		default:
			rest = append(rest, f.Kind)
		}
	}
	if late > 0 {
		if err := p.sleep(ctx, to, late); err != nil {
			return err
		}
	}
	for _, kind := range rest {
		switch kind {
		case Disconnect:
			p.m.disconnect(p.rank, to, errReset)
		case Truncate:
			s.hurt = fmt.Errorf("message ends early: %w", io.ErrUnexpectedEOF)
		case Corrupt:
			s.hurt = ErrChecksum
		case Partition:
			s.gone = true
		}
	}
	return nil
}

// sleep waits for a time, or until a call to a peer may go on no longer.
func (p *memoryPeer) sleep(ctx context.Context, to int, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	p.m.mu.Unlock()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	p.m.mu.Lock()
	return p.check(ctx, to)
}

func (p *memoryPeer) Rank() int  { return p.rank }
func (p *memoryPeer) World() int { return len(p.m.peers) }

func (p *memoryPeer) Send(ctx context.Context, to int, tag Tag, data []byte) error {
	start := time.Now()
	if err := p.send(ctx, to, tag, data); err != nil {
		return &Error{Sending, to, tag, time.Since(start), err}
	}
	return nil
}

func (p *memoryPeer) Recv(ctx context.Context, from int, tag Tag, dst []byte) error {
	start := time.Now()
	if err := p.recv(ctx, from, tag, dst); err != nil {
		return &Error{Receiving, from, tag, time.Since(start), err}
	}
	return nil
}

// check says why a call that names a peer cannot even begin.
func (p *memoryPeer) check(ctx context.Context, peer int) error {
	switch {
	case peer < 0 || peer >= len(p.m.peers) || peer == p.rank:
		return ErrNoPeer
	case p.closed != nil:
		return p.closed
	}
	return context.Cause(ctx)
}

func (p *memoryPeer) send(ctx context.Context, to int, tag Tag, data []byte) error {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.check(ctx, to); err != nil {
		return err
	}
	s := &memoryCall{data: data, done: make(chan error, 1)}
	if err := p.strike(ctx, to, tag, s); err != nil {
		return err
	}
	pair, back := m.pair(p.rank, to), m.pair(to, p.rank)
	if back.lost != nil {
		return back.lost
	}
	pair.count++
	pair.bytes += int64(len(data))

	if _, ok := pair.messages[tag]; ok {
		return ErrTagInUse
	}
	if r, ok := pair.receivers[tag]; ok && !s.gone {
		delete(pair.receivers, tag)
		err := m.deliver(p.rank, to, s, r.data)
		r.done <- err
		return sendersView(err)
	}
	pair.messages[tag] = s
	if cost := len(data) + Overhead; len(data) <= Eager && pair.held+cost <= m.window {
		pair.held += cost
		s.held, s.data = true, bytes.Clone(data)
		return nil
	}
	return m.wait(ctx, s, pair.messages, tag)
}

func (p *memoryPeer) recv(ctx context.Context, from int, tag Tag, dst []byte) error {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.check(ctx, from); err != nil {
		return err
	}
	pair := m.pair(from, p.rank)
	if s, ok := pair.messages[tag]; ok && !s.gone {
		delete(pair.messages, tag)
		err := m.deliver(from, p.rank, s, dst)
		if s.held {
			pair.held -= len(s.data) + Overhead
		} else {
			s.done <- sendersView(err)
		}
		return err
	}
	if pair.lost != nil {
		return pair.lost
	}
	if _, ok := pair.receivers[tag]; ok {
		return ErrTagInUse
	}
	r := &memoryCall{data: dst, done: make(chan error, 1)}
	pair.receivers[tag] = r
	return m.wait(ctx, r, pair.receivers, tag)
}

// deliver moves a message, and returns what its receiver is told.
func (m *Memory) deliver(from, to int, s *memoryCall, dst []byte) error {
	if s.hurt != nil {
		copy(dst, s.data[:len(s.data)/2])
		m.disconnect(from, to, s.hurt)
		return m.pair(from, to).lost
	}
	if len(s.data) != len(dst) {
		return &LengthError{uint64(len(s.data)), uint64(len(dst))}
	}
	copy(dst, s.data)
	return nil
}

// sendersView is what the sender of a message is told, which its receiver is
// told err: the sender of a damaged message takes it for sent.
func sendersView(err error) error {
	if _, ok := errors.AsType[*LengthError](err); ok {
		return err
	}
	return nil
}

// wait lets a call wait for its end among the calls of its kind. The lock is
// held before and after, not meanwhile.
func (m *Memory) wait(ctx context.Context, c *memoryCall, among map[Tag]*memoryCall, tag Tag) error {
	m.mu.Unlock()
	defer m.mu.Lock()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if among[tag] == c {
		delete(among, tag)
		return context.Cause(ctx)
	}
	return <-c.done // it ended just before its context did
}

// Close leaves the network. What this peer has sent can still be received.
func (p *memoryPeer) Close() error {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.closed != nil {
		return nil
	}
	p.closed = ErrClosed
	for other := range m.peers {
		if other != p.rank {
			m.end(p.rank, other, ErrClosed)
			m.leave(p.rank, other)
		}
	}
	return nil
}

// leave makes a peer lose another that has closed its endpoint, except for the
// messages that it has sent.
func (m *Memory) leave(rank, other int) {
	in, out := m.pair(other, rank), m.pair(rank, other)
	if out.lost == nil {
		out.lost = &PeerLost{rank, ErrLeft}
		for tag, r := range out.receivers {
			r.done <- out.lost
			delete(out.receivers, tag)
		}
	}
	for tag, s := range in.messages {
		if !s.held {
			s.done <- &PeerLost{rank, ErrLeft}
			delete(in.messages, tag)
		}
	}
}
