package transport

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Who waits for whom, over connections. A small message goes out at once, as
// long as the window has room; the receiver gives room back as messages are
// received. Any other message is announced, and waits until the receiver says
// that it is ready, which it says unasked when it expects a large one. So a
// message is read from a connection only into memory that is there for it, and
// a reader never waits for anything but its connection: whatever the order of
// calls, no message blocks another.

// pending bounds how many messages of a peer may be announced, and how many it
// may be ready for, that this side knows nothing of yet.
const pending = 1 << 16

// peer is what an endpoint knows of one other.
type peer struct {
	rank  int
	sum   bool    // frames carry checksums
	conns []*conn // the first carries everything but large messages
	turn  int     // which of the others the next large message takes

	mu        sync.Mutex
	recvs     map[Tag]*call    // Recvs whose message has not begun to arrive
	sends     map[Tag]*call    // Sends that wait for the receiver to be ready
	held      map[Tag]*message // small messages without a Recv
	announced map[Tag]uint64   // lengths of large ones without a Recv
	ready     map[Tag]uint64   // lengths of what the peer is ready for, without a Send

	window int // room for our messages at the peer, bytes
	taken  int // of our own window, by messages that are not received
	owed   int // room to give back to the peer

	byes   int   // connections on which the peer has said goodbye
	closed error // what calls of this side fail with; nil: it is open
	lost   error // a *PeerLost; nil: the peer is there
}

// call is a Send or a Recv. Whoever takes it out of the peer's maps or of a
// queue tells it, once, how it ends.
type call struct {
	data  []byte
	asked bool  // of a Recv: the sender knows that it is ready
	conn  *conn // of a Send: what it is announced on and its message takes, so that neither overtakes the other
	done  chan error
}

var calls = sync.Pool{New: func() any { return &call{done: make(chan error, 1)} }}

// conn is one connection to a peer.
type conn struct {
	p    *peer
	c    net.Conn
	s    stream // c
	r    frameReader
	ends atomic.Int32 // of its two goroutines, how many have ended

	// Under the peer's lock.
	queue   []outgoing
	bye     bool      // a goodbye is in the queue, or has been
	more    sync.Cond // there is something to write, or the peer is lost
	writing bool      // the writer is at it
	short   []byte    // for the frame of a try: a header, and data as far as there is room
	rest    []byte    // what the last one has left to write, before the queue

	// The writer's own.
	batch []outgoing
	heads [maxBatch][headerSize]byte
	parts [1 + 2*maxBatch][]byte
}

// stream is how bytes go through a connection.
type stream interface {
	io.Reader
	// writeAll writes what is in the buffers, one after the other.
	writeAll([][]byte) error
	// tryWrite is how many bytes of b the system has taken without waiting; 0 after an error too.
	tryWrite(b []byte) int
}

// plain is a connection as package net has it, which never tries.
type plain struct{ net.Conn }

func (p plain) writeAll(bufs [][]byte) error {
	all := net.Buffers(bufs)
	_, err := all.WriteTo(p.Conn)
	return err
}

func (plain) tryWrite([]byte) int { return 0 }

// outgoing is a frame to write.
type outgoing struct {
	f    frame
	data []byte
	call *call // to be told when it is written; nil: nobody
}

// A writer takes so many frames at once, and none more once they have so many bytes.
const (
	maxBatch      = 16
	maxBatchBytes = 256 << 10
)

// maxTry is the most data that is copied for the sake of not waking the writer.
const maxTry = 16 << 10

func newPeer(rank int, epoch uint64, sum bool, conns []net.Conn) *peer {
	p := &peer{
		rank: rank, sum: sum, window: Window,
		recvs: map[Tag]*call{}, sends: map[Tag]*call{}, held: map[Tag]*message{},
		announced: map[Tag]uint64{}, ready: map[Tag]uint64{},
	}
	for i, c := range conns {
		size := 4 << 10 // what it holds of a message is copied
		if i == 0 {
			size = 8 << 10 // saves calls of read, where messages are small
		}
		s := newStream(c)
		cn := &conn{p: p, c: c, s: s, r: frameReader{r: bufio.NewReaderSize(s, size), epoch: epoch}}
		cn.more.L = &p.mu
		if i > 0 {
			cn.r.wake = newWake(c)
			cn.short = make([]byte, headerSize)
		} else {
			cn.short = make([]byte, headerSize+maxTry)
		}
		p.conns = append(p.conns, cn)
	}
	return p
}

// start runs the connections' readers and writers.
func (p *peer) start(wg *sync.WaitGroup) {
	for _, c := range p.conns {
		wg.Go(c.read)
		wg.Go(c.write)
	}
}

// bulk is the connection for the next message of n bytes.
func (p *peer) bulk(n int) *conn {
	if n <= Eager || len(p.conns) == 1 {
		return p.conns[0]
	}
	p.turn = (p.turn + 1) % (len(p.conns) - 1)
	return p.conns[1+p.turn]
}

// enqueue hands a frame to the writer of c.
func (c *conn) enqueue(o outgoing) {
	if c.bye { // nothing follows a goodbye
		if o.call != nil {
			o.call.done <- &PeerLost{c.p.rank, ErrLeft}
		}
		return
	}
	o.f.sum = c.p.sum
	c.bye = o.f.kind == frameBye
	if c.try(&o) {
		return
	}
	c.queue = append(c.queue, o)
	c.more.Signal()
}

// try writes a short frame here and now, if nothing is before it and the system
// takes it without waiting: that saves waking the writer. What the system takes
// only a part of, the writer ends. Errors are left to the writer to find.
func (c *conn) try(o *outgoing) bool {
	if c.writing || len(c.rest) > 0 || len(c.queue) > 0 || c.bye || headerSize+len(o.data) > len(c.short) {
		return false
	}
	o.f.room = uint32(c.p.owed)
	o.f.encode((*[headerSize]byte)(c.short), c.r.epoch, o.data)
	whole := c.short[:headerSize+copy(c.short[headerSize:], o.data)]
	n := c.s.tryWrite(whole)
	if n == 0 {
		return false
	}
	c.p.owed = 0
	if c.rest = whole[n:]; len(c.rest) > 0 {
		c.more.Signal()
	}
	if o.call != nil {
		o.call.done <- nil
	}
	return true
}

// control sends a frame that has no data.
func (c *conn) control(kind frameKind, tag Tag, length int) {
	c.enqueue(outgoing{f: frame{kind: kind, tag: tag, length: uint64(length)}})
}

// message sends one, and tells its Send when it is written.
func (c *call) message(kind frameKind, tag Tag) {
	c.conn.enqueue(outgoing{frame{kind: kind, tag: tag, length: uint64(len(c.data))}, c.data, c})
}

func (p *peer) send(ctx context.Context, tag Tag, data []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.mu.Lock()
	if p.closed != nil || p.lost != nil {
		defer p.mu.Unlock()
		return cmp.Or(p.closed, p.lost)
	}
	c := calls.Get().(*call)
	c.data, c.conn = data, p.bulk(len(data))
	expected, ready := p.ready[tag]
	cost := len(data) + Overhead
	switch {
	case ready && expected == uint64(len(data)):
		delete(p.ready, tag)
		c.message(frameData, tag)
	case ready:
		delete(p.ready, tag)
		c.conn.control(frameAnnounce, tag, len(data)) // for the receiver to see the length
		c.done <- &LengthError{uint64(len(data)), expected}
	case p.sends[tag] != nil:
		c.done <- ErrTagInUse
	case len(data) <= Eager && cost <= p.window:
		p.window -= cost
		c.message(frameEager, tag)
	default:
		p.sends[tag] = c
		c.conn.control(frameAnnounce, tag, len(data))
	}
	p.mu.Unlock()
	return p.wait(ctx, c, func() bool { return p.retractSend(tag, c) })
}

// retractSend takes a Send back, if nothing of its message has moved.
func (p *peer) retractSend(tag Tag, c *call) bool {
	if p.sends[tag] == c {
		delete(p.sends, tag)
		return true
	}
	for _, cn := range p.conns {
		for i, o := range cn.queue {
			if o.call != c {
				continue
			}
			if o.f.kind == frameEager {
				p.window += len(c.data) + Overhead
			} else {
				p.ready[tag] = uint64(len(c.data))
			}
			cn.queue = slices.Delete(cn.queue, i, i+1)
			return true
		}
	}
	return false
}

func (p *peer) recv(ctx context.Context, tag Tag, dst []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.mu.Lock()
	if p.closed != nil {
		defer p.mu.Unlock()
		return p.closed
	}
	if m := p.held[tag]; m != nil {
		delete(p.held, tag)
		p.release(len(m.data))
		p.mu.Unlock()
		err := m.copyTo(dst)
		m.free()
		return err
	}
	if p.lost != nil {
		defer p.mu.Unlock()
		return p.lost
	}
	if p.recvs[tag] != nil {
		p.mu.Unlock()
		return ErrTagInUse
	}
	c := calls.Get().(*call)
	c.data, c.asked = dst, false
	p.recvs[tag] = c
	if length, ok := p.announced[tag]; ok {
		delete(p.announced, tag)
		p.match(tag, c, length)
	} else if len(dst) > Eager {
		p.ask(tag, c)
	}
	p.mu.Unlock()
	return p.wait(ctx, c, func() bool {
		if p.recvs[tag] != c || c.asked {
			return false
		}
		delete(p.recvs, tag)
		return true
	})
}

// ask tells the sender that a Recv is ready.
func (p *peer) ask(tag Tag, c *call) {
	if !c.asked {
		c.asked = true
		p.conns[0].control(frameReady, tag, len(c.data))
	}
}

// match brings a Recv and the announced length of its message together. The
// sender learns the receiver's length in any case.
func (p *peer) match(tag Tag, c *call, length uint64) {
	p.ask(tag, c)
	if length != uint64(len(c.data)) {
		delete(p.recvs, tag)
		c.done <- &LengthError{length, uint64(len(c.data))}
	}
}

// wait waits for the end of a call. If its context ends first, retract takes
// the call back; where it cannot, the connections have to go, because they are
// in the middle of the message.
func (p *peer) wait(ctx context.Context, c *call, retract func() bool) error {
	select {
	case err := <-c.done:
		c.free()
		return err
	case <-ctx.Done():
	}
	p.mu.Lock()
	if len(c.done) == 0 && !retract() {
		p.lose(fmt.Errorf("a call ended while its message was on the way: %w", context.Cause(ctx)))
		p.mu.Unlock()
		<-c.done
		c.free()
		return context.Cause(ctx)
	}
	p.mu.Unlock()
	select {
	case err := <-c.done:
		c.free()
		return err
	default:
	}
	c.free()
	return context.Cause(ctx)
}

func (c *call) free() {
	c.data, c.conn = nil, nil
	calls.Put(c)
}

// release gives the room of a message that has been received back to the peer,
// with the next frame that is written, or with one of its own once it is much.
func (p *peer) release(length int) {
	p.taken -= length + Overhead
	p.owed += length + Overhead
	if c := p.conns[0]; p.owed >= Window/2 && len(c.queue) == 0 {
		c.control(frameWindow, Tag{}, 0)
	}
}

// lose ends the connections and all calls.
func (p *peer) lose(cause error) {
	if p.lost == nil {
		p.fail(&PeerLost{p.rank, cause})
		clear(p.held)
	}
	for _, c := range p.conns {
		c.c.Close()
	}
}

// fail ends all calls because the peer is lost. Calls whose message is being
// read or written end with that.
func (p *peer) fail(lost *PeerLost) {
	p.lost = lost
	p.end(lost)
	for _, c := range p.conns {
		for _, o := range c.queue {
			if o.call != nil {
				o.call.done <- lost
			}
		}
		c.queue = slices.DeleteFunc(c.queue, func(o outgoing) bool { return o.f.kind != frameBye })
		c.more.Signal()
	}
}

// end ends the calls that wait for the peer.
func (p *peer) end(err error) {
	for _, calls := range []map[Tag]*call{p.recvs, p.sends} {
		for _, c := range calls {
			c.done <- err
		}
		clear(calls)
	}
}

// goodbye says that this side will send nothing more.
func (p *peer) goodbye() {
	for _, c := range p.conns {
		if !c.bye {
			c.enqueue(outgoing{f: frame{kind: frameBye}})
		}
	}
}

// close says goodbye, and tells whether the peer is there to hear it; the
// readers and writers end when it has answered, or at the deadline.
func (p *peer) close(deadline time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = ErrClosed
	p.end(ErrClosed)
	p.goodbye()
	for _, c := range p.conns {
		c.c.SetDeadline(deadline)
	}
	return p.lost == nil
}

// write is the writer of a connection.
func (c *conn) write() {
	defer c.ended()
	for c.take() {
		bufs := append(c.parts[:0], c.rest)
		for i := range c.batch {
			o := &c.batch[i]
			o.f.encode(&c.heads[i], c.r.epoch, o.data)
			bufs = append(bufs, c.heads[i][:], o.data)
		}
		err := c.s.writeAll(bufs)
		clear(bufs)
		if err != nil {
			c.p.mu.Lock()
			c.p.lose(err)
			err = c.p.lost
			c.p.mu.Unlock()
		}
		bye := false
		for i := range c.batch {
			if o := &c.batch[i]; o.call != nil {
				o.call.done <- err
			}
			bye = bye || c.batch[i].f.kind == frameBye
		}
		clear(c.batch)
		if bye || err != nil {
			return
		}
	}
}

// take takes the next frames of the queue; false: there will be none.
func (c *conn) take() bool {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.writing { // and has written that
		c.writing, c.rest = false, nil
	}
	for len(c.queue) == 0 && len(c.rest) == 0 {
		if p.lost != nil {
			return false
		}
		c.more.Wait()
	}
	c.writing = true
	n, bytes := 0, 0
	for n < min(len(c.queue), maxBatch) && bytes < maxBatchBytes {
		bytes += len(c.queue[n].data)
		n++
	}
	c.batch = append(c.batch[:0], c.queue[:n]...)
	c.queue = slices.Delete(c.queue, 0, n)
	if n > 0 {
		c.batch[0].f.room = uint32(p.owed)
		p.owed = 0
	}
	return true
}

// ended closes the connection when both its goroutines have ended.
func (c *conn) ended() {
	if c.ends.Add(1) == 2 {
		c.c.Close()
	}
}

// read is the reader of a connection.
func (c *conn) read() {
	defer c.ended()
	var f frame
	for {
		err := c.r.next(&f)
		if err == nil {
			if f.kind == frameBye {
				c.left()
				return
			}
			err = c.handle(&f)
		}
		if err != nil {
			if err == io.EOF {
				err = errors.New("it has closed the connection, without a goodbye")
			}
			c.p.mu.Lock()
			c.p.lose(err)
			c.p.mu.Unlock()
			return
		}
	}
}

// left notes the peer's goodbye, and answers it. With the one on its last
// connection it has left; what it had sent before remains to be received.
func (c *conn) left() {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.bye {
		c.enqueue(outgoing{f: frame{kind: frameBye}})
	}
	p.byes++
	if p.byes == len(p.conns) && p.lost == nil {
		p.fail(&PeerLost{p.rank, ErrLeft})
	}
}

// handle does what a frame asks for. An error costs the connection.
func (c *conn) handle(f *frame) error {
	p := c.p
	p.mu.Lock()
	p.window += int(f.room)
	if p.window > Window {
		p.mu.Unlock()
		return errors.New("it gives back more room than was taken")
	}
	switch f.kind {
	case frameEager:
		return c.eager(f)
	case frameData:
		return c.large(f)
	}
	defer p.mu.Unlock()
	switch f.kind {
	case frameAnnounce:
		if r := p.recvs[f.tag]; r != nil {
			p.match(f.tag, r, f.length)
		} else if p.closed == nil {
			p.announced[f.tag] = f.length
		}
	case frameReady:
		if s := p.sends[f.tag]; s == nil {
			p.ready[f.tag] = f.length
		} else {
			delete(p.sends, f.tag)
			if n := uint64(len(s.data)); n == f.length {
				s.message(frameData, f.tag)
			} else {
				s.done <- &LengthError{n, f.length}
			}
		}
	}
	if len(p.announced) > pending || len(p.ready) > pending {
		return fmt.Errorf("more than %d messages without a call for them", pending)
	}
	return nil
}

// large reads a message for which the Recv is there. The lock is held before.
func (c *conn) large(f *frame) error {
	p := c.p
	r := p.recvs[f.tag]
	switch {
	case r != nil && r.asked && uint64(len(r.data)) == f.length:
		delete(p.recvs, f.tag)
		p.mu.Unlock()
		return c.into(r, f)
	case p.closed != nil: // and its Recv has ended with that
		p.mu.Unlock()
		return c.r.discard(f)
	}
	p.mu.Unlock()
	return fmt.Errorf("a message of %d bytes that nobody has asked for, %v", f.length, f.tag)
}

// eager reads a message that may be before its Recv. The lock is held before.
func (c *conn) eager(f *frame) error {
	p := c.p
	n := int(f.length)
	if p.taken += n + Overhead; p.taken > Window {
		p.mu.Unlock()
		return errors.New("it sends more than the window holds")
	}
	if r := p.recvs[f.tag]; r != nil && len(r.data) == n {
		delete(p.recvs, f.tag)
		p.release(n)
		p.mu.Unlock()
		return c.into(r, f)
	}
	p.mu.Unlock()
	m := newMessage(n)
	if err := c.r.data(f, m.data); err != nil {
		m.free()
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.recvs[f.tag]; r != nil {
		delete(p.recvs, f.tag)
		p.release(n)
		r.done <- m.copyTo(r.data)
		m.free()
		return nil
	}
	if p.held[f.tag] != nil {
		return fmt.Errorf("%w: %v", ErrTagInUse, f.tag)
	}
	p.held[f.tag] = m
	return nil
}

// into reads a message into the memory of its Recv, and tells it.
func (c *conn) into(r *call, f *frame) error {
	err := c.r.data(f, r.data)
	if err != nil {
		c.p.mu.Lock()
		c.p.lose(err)
		r.done <- c.p.lost
		c.p.mu.Unlock()
		return err
	}
	r.done <- nil
	return nil
}

// message is a small message without a Recv.
type message struct{ data []byte }

// messages keeps their memory, by powers of two of its size: from 1 KiB to Eager.
var messages [7]sync.Pool

const smallest = 10 // binary logarithm

func class(n int) int { return max(bits.Len(uint(max(n, 1)-1)), smallest) - smallest }

func newMessage(n int) *message {
	i := class(n)
	m, ok := messages[i].Get().(*message)
	if !ok {
		m = &message{make([]byte, 1<<(smallest+i))}
	}
	m.data = m.data[:n]
	return m
}

func (m *message) free() { messages[class(cap(m.data))].Put(m) }

func (m *message) copyTo(dst []byte) error {
	if len(dst) != len(m.data) {
		return &LengthError{uint64(len(m.data)), uint64(len(dst))}
	}
	copy(dst, m.data)
	return nil
}
