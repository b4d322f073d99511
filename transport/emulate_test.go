package transport

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// emulatedAll is a world at links of 1 Gbit/s, 1 ms: 125,000 bytes are 1 ms of wire.
func emulatedAll(world int) []Endpoint {
	es := endpoints(NewMemory(world, MemoryOptions{}), world)
	for i, e := range es {
		es[i] = Emulate(e, Link{Latency: time.Millisecond, Bandwidth: 1e9})
	}
	return es
}

const msOfWire = 125_000 // bytes

// ended is how long after the beginning a call ended.
type ended struct {
	after time.Duration
	err   error
}

func timed(call func() error) <-chan ended {
	start, done := time.Now(), make(chan ended, 1)
	go func() {
		err := call()
		done <- ended{time.Since(start), err}
	}()
	return done
}

func (e ended) want(t *testing.T, what string, after time.Duration) {
	t.Helper()
	if e.err != nil || e.after != after {
		t.Errorf("%s ended after %v, %v; want %v", what, e.after, e.err, after)
	}
}

// Three messages of 2 ms of wire each, sent one after the other: they arrive at
// 2, 4, 6 ms, and the latency of 1 ms later.
func TestEmulatedPipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := emulatedAll(2)
		defer closeAll(t, es)
		data := make([]byte, 2*msOfWire)
		sender := timed(func() (err error) {
			for i := range uint32(3) {
				err = errors.Join(err, es[0].Send(t.Context(), 1, Tag{Chunk: i}, data))
			}
			return err
		})
		var received [3]<-chan ended
		for i := range received {
			received[i] = timed(func() error { return es[1].Recv(t.Context(), 0, Tag{Chunk: uint32(i)}, make([]byte, len(data))) })
		}
		for i, r := range received {
			(<-r).want(t, "receive", time.Duration(2*(i+1)+1)*time.Millisecond)
		}
		(<-sender).want(t, "the last send", 6*time.Millisecond-early)
	})
}

// The two ways of a port do not disturb each other; two senders share the way
// into one receiver.
func TestEmulatedPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := emulatedAll(3)
		defer closeAll(t, es)
		buf := func() []byte { return make([]byte, 4*msOfWire) }
		var sent []<-chan ended
		for _, d := range [][2]int{{0, 1}, {1, 0}, {2, 1}} {
			sent = append(sent, timed(func() error { return es[d[0]].Send(t.Context(), d[1], Tag{}, buf()) }))
		}
		back := timed(func() error { return es[0].Recv(t.Context(), 1, Tag{}, buf()) })
		first := timed(func() error { return es[1].Recv(t.Context(), 0, Tag{}, buf()) })
		synctest.Wait()
		second := timed(func() error { return es[1].Recv(t.Context(), 2, Tag{}, buf()) })
		(<-back).want(t, "receive the other way", 5*time.Millisecond)
		(<-first).want(t, "the first receive", 5*time.Millisecond)
		(<-second).want(t, "the second receive", 9*time.Millisecond)
		for _, s := range sent {
			(<-s).want(t, "send", 4*time.Millisecond-early)
		}
	})
}

// A message that has arrived long ago is there at once.
func TestEmulatedLateReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := emulatedAll(2)
		defer closeAll(t, es)
		(<-timed(func() error { return es[0].Send(t.Context(), 1, Tag{}, make([]byte, msOfWire/10)) })).want(t, "send", 0)
		time.Sleep(time.Second)
		(<-timed(func() error { return es[1].Recv(t.Context(), 0, Tag{}, make([]byte, msOfWire/10)) })).want(t, "receive", 0)
	})
}

// The time of a stamp is no date: it counts as the process does, whatever the machine's clock is set to.
func TestStamp(t *testing.T) {
	now := time.Now()
	got := stamped(stamp(now))
	if got.Sub(now) != 0 || !strings.Contains(got.String(), " m=") {
		t.Errorf("%v, want %v", got, now)
	}
}

func TestEmulatedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := emulatedAll(2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		data := make([]byte, Eager)
		var e *Error
		for op := range uint64(3) { // the first two leave in 1.05 ms, less what is early
			err := es[0].Send(ctx, 1, Tag{Op: op}, data)
			if op < 2 && err != nil || op == 2 && (!errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) || e.Tag.Op != 2) {
				t.Errorf("send %d: %v", op, err)
			}
		}
		closed := later(func() error { return es[0].Send(t.Context(), 1, Tag{Op: 3}, data) })
		synctest.Wait()
		closeAll(t, es)
		if err := <-closed; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := es[0].Send(t.Context(), 1, Tag{Channel: EmulatedChannels}, nil); !errors.Is(err, errChannel) {
			t.Error(err)
		}
	})
}
