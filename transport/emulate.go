package transport

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"weft/internal/alarm"
)

// Link is what [Emulate] pretends an endpoint is attached to.
type Link struct {
	Latency   time.Duration // from the end of a Send to the end of its Recv
	Bandwidth float64       // of the port, each way, bits per second; 0: no limit
	// Clock wakes calls when their time has come; nil: timers of Go, which may be a
	// millisecond late.
	Clock *alarm.Clock
	// Ahead is how long before its message has left a Send returns, as if the rest lay
	// in a socket's buffer: the next one is then there in time, though its caller wakes
	// late. 0: 200 us, which is more than a timer is late on a machine that has time.
	Ahead time.Duration
}

// EmulatedChannels is the number of channels of an emulated endpoint; the
// channels above are its own.
const EmulatedChannels = 1 << 15

// Emulate makes an endpoint as slow as a link, in real time. Both sides of a
// connection must be emulated, in one process: they compare times.
//
// The port is full duplex. Each way it serves one message at a time, in the
// order of calls, at its bandwidth: a token bucket that holds no more than the
// message in front. A Send takes the wire when it is called, even if its
// receiver is not ready. A Recv ends a latency after the last byte has left.
// Messages move at once over the endpoint underneath, and calls return when
// their time has come.
func Emulate(e Endpoint, l Link) Endpoint {
	m := &emulated{Endpoint: e, link: l, closed: make(chan struct{})}
	m.timers.New = func() any { return time.NewTimer(time.Hour) }
	return m
}

type emulated struct {
	Endpoint
	link   Link
	closed chan struct{}
	once   sync.Once
	timers sync.Pool // not shared: a timer stays in its test's bubble

	mu      sync.Mutex
	out, in time.Time // until when the port is busy, each way
}

// early is Link.Ahead if that is not given.
const early = 200 * time.Microsecond

// began is what stamps count from. A date would not do: the machine's clock may be set
// while a message is under way, which would then arrive too late, or at once.
var began = time.Now()

// stamp is a time as a message says it, and stamped that of a stamp.
func stamp(t time.Time) uint64   { return uint64(t.Sub(began)) }
func stamped(x uint64) time.Time { return began.Add(time.Duration(x)) }

// stampTag is the tag of the message that follows one of tag, and says when that
// arrives: 8 bytes, a stamp.
func stampTag(tag Tag) Tag {
	tag.Channel += EmulatedChannels
	return tag
}

// wire is how long n bytes take.
func (l Link) wire(n int) time.Duration {
	if l.Bandwidth <= 0 {
		return 0
	}
	return time.Duration(float64(n) * 8 / l.Bandwidth * float64(time.Second))
}

// occupy takes one way of the port for a message that cannot end before first,
// and says when it ends.
func (m *emulated) occupy(busy *time.Time, first time.Time, n int) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := busy.Add(m.link.wire(n))
	if end.Before(first) {
		end = first
	}
	*busy = end
	return end
}

func (m *emulated) Send(ctx context.Context, to int, tag Tag, data []byte) error {
	start := time.Now()
	err := errChannel
	if tag.Channel < EmulatedChannels {
		left := m.occupy(&m.out, start.Add(m.link.wire(len(data))), len(data))
		err = m.Endpoint.Send(ctx, to, tag, data)
		if err == nil {
			arrival := newMessage(8)
			binary.LittleEndian.PutUint64(arrival.data, stamp(left.Add(m.link.Latency)))
			err = m.Endpoint.Send(ctx, to, stampTag(tag), arrival.data)
			arrival.free()
		}
		if err == nil {
			err = m.sleep(ctx, left.Add(-cmp.Or(m.link.Ahead, early)))
		}
	}
	return asOf(err, Sending, to, tag, start)
}

func (m *emulated) Recv(ctx context.Context, from int, tag Tag, dst []byte) error {
	start := time.Now()
	err := errChannel
	if tag.Channel < EmulatedChannels {
		arrival := newMessage(8)
		defer arrival.free()
		err = m.Endpoint.Recv(ctx, from, tag, dst)
		if err == nil {
			err = m.Endpoint.Recv(ctx, from, stampTag(tag), arrival.data)
		}
		if err == nil {
			err = m.sleep(ctx, m.occupy(&m.in, stamped(binary.LittleEndian.Uint64(arrival.data)), len(dst)))
		}
	}
	return asOf(err, Receiving, from, tag, start)
}

var errChannel = fmt.Errorf("an emulated link has channels 0 to %d", EmulatedChannels-1)

// asOf is an error as that of a call.
func asOf(err error, phase Phase, peer int, tag Tag, start time.Time) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		err = e.Err
	}
	return &Error{phase, peer, tag, time.Since(start), err}
}

// sleep waits for a time. The message has moved by then: a context or a Close
// ends only the pretence.
func (m *emulated) sleep(ctx context.Context, until time.Time) error {
	d := time.Until(until)
	if d <= 0 {
		return nil
	}
	if m.link.Clock != nil {
		select {
		case <-m.link.Clock.At(until):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.closed:
			return ErrClosed
		}
	}
	timer := m.timers.Get().(*time.Timer)
	defer m.timers.Put(timer)
	timer.Reset(d)
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		timer.Stop()
		return context.Cause(ctx)
	case <-m.closed:
		timer.Stop()
		return ErrClosed
	}
}

func (m *emulated) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Endpoint.Close()
}
