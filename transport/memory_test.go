package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

func lostTo(t *testing.T, err error, rank int, cause error) {
	t.Helper()
	var lost *PeerLost
	if !errors.As(err, &lost) || lost.Rank != rank || !errors.Is(err, cause) {
		t.Errorf("got %v; want that rank %d is lost because: %v", err, rank, cause)
	}
}

func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		kind  FaultKind
		cause error
	}{{Disconnect, errReset}, {Truncate, io.ErrUnexpectedEOF}, {Corrupt, ErrChecksum}} {
		for _, recvFirst := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.kind, " receiver first ", recvFirst), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx := t.Context()
					m := NewMemory(3, MemoryOptions{Faults: []Fault{{From: 0, To: 1, After: 2, Kind: tc.kind}}})
					a, b, c := m.Endpoint(0), m.Endpoint(1), m.Endpoint(2)
					for i := range uint64(2) { // pass
						if err := a.Send(ctx, 1, Tag{Op: i}, []byte{1}); err != nil {
							t.Fatal(err)
						}
						if err := b.Recv(ctx, 0, Tag{Op: i}, make([]byte, 1)); err != nil {
							t.Fatal(err)
						}
					}
					pending := later(func() error { return a.Recv(ctx, 1, Tag{}, nil) })
					synctest.Wait()

					recv := func() error { return b.Recv(ctx, 0, Tag{Op: 2}, make([]byte, 8)) }
					var received <-chan error
					if recvFirst {
						received = later(recv)
						synctest.Wait()
					}
					err := a.Send(ctx, 1, Tag{Op: 2}, make([]byte, 8))
					if tc.kind == Disconnect {
						lostTo(t, err, 1, tc.cause)
					} else if err != nil {
						t.Errorf("the sender of a damaged message: %v", err)
					}
					if !recvFirst {
						received = later(recv)
					}
					lostTo(t, <-received, 0, tc.cause)
					lostTo(t, <-pending, 1, tc.cause)
					lostTo(t, a.Send(ctx, 1, Tag{Op: 3}, nil), 1, tc.cause)
					lostTo(t, b.Send(ctx, 0, Tag{Op: 3}, nil), 0, tc.cause)

					// The third peer is not concerned.
					if err := c.Send(ctx, 0, Tag{}, nil); err != nil {
						t.Error(err)
					}
					if err := a.Recv(ctx, 2, Tag{}, nil); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// A message that is late is overtaken, and arrives.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, start := t.Context(), time.Now()
		m := NewMemory(2, MemoryOptions{Faults: []Fault{{From: Any, To: 1, Tag: &Tag{Op: 1}, Kind: Delay, Delay: time.Second}}})
		first := later(func() error { return m.Endpoint(0).Send(ctx, 1, Tag{Op: 1}, []byte{1}) })
		synctest.Wait()
		for op := range uint64(2) {
			if op == 0 {
				if err := m.Endpoint(0).Send(ctx, 1, Tag{Op: 0}, []byte{0}); err != nil {
					t.Fatal(err)
				}
			}
			dst := []byte{9}
			if err := m.Endpoint(1).Recv(ctx, 0, Tag{Op: op}, dst); err != nil || dst[0] != byte(op) {
				t.Fatal(dst, err)
			}
			if got, want := time.Since(start), time.Duration(op)*time.Second; got != want {
				t.Errorf("op %d received after %v, want %v", op, got, want)
			}
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

func TestDelayEndsWithContextAndEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(2, MemoryOptions{Faults: []Fault{{From: 0, To: 1, Kind: Delay, Delay: time.Minute}}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := m.Endpoint(0).Send(ctx, 1, Tag{}, nil)
		var e *Error
		if !errors.As(err, &e) || e.Elapsed != time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		late := later(func() error { return m.Endpoint(0).Send(t.Context(), 1, Tag{}, nil) })
		synctest.Wait()
		m.Endpoint(0).Close()
		if err := <-late; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// A partition is silent: what passed before it can be received, the rest waits
// for its deadline.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(2, MemoryOptions{Faults: []Fault{{From: 0, To: 1, After: 1, Kind: Partition}}})
		a, b := m.Endpoint(0), m.Endpoint(1)
		for op := range uint64(2) {
			if err := a.Send(t.Context(), 1, Tag{Op: op}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Recv(t.Context(), 0, Tag{Op: 0}, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ends := map[string]<-chan error{
			"receive":               later(func() error { return b.Recv(ctx, 0, Tag{Op: 1}, nil) }),
			"receive of a large":    later(func() error { return b.Recv(ctx, 0, Tag{Op: 2}, make([]byte, Eager+1)) }),
			"send of a large":       later(func() error { return a.Send(ctx, 1, Tag{Op: 2}, make([]byte, Eager+1)) }),
			"receive the other way": later(func() error { return a.Recv(ctx, 1, Tag{}, nil) }),
		}
		if err := b.Send(ctx, 0, Tag{}, nil); err != nil { // the partition has one direction
			t.Error(err)
		}
		for name, done := range ends {
			err := <-done
			if name == "receive the other way" {
				if err != nil {
					t.Error(err)
				}
				continue
			}
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) || e.Elapsed != 10*time.Second {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("killed")
		m := NewMemory(3, MemoryOptions{})
		own := later(func() error { return m.Endpoint(1).Recv(t.Context(), 0, Tag{Op: 9}, nil) })
		send := later(func() error { return m.Endpoint(0).Send(t.Context(), 1, Tag{}, make([]byte, Eager+1)) })
		recv := later(func() error { return m.Endpoint(2).Recv(t.Context(), 1, Tag{}, nil) })
		if err := m.Endpoint(1).Send(t.Context(), 0, Tag{}, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		m.Kill(1, why)
		if err := <-own; !errors.Is(err, why) {
			t.Error(err)
		}
		lostTo(t, <-send, 1, why)
		lostTo(t, <-recv, 1, why)
		lostTo(t, m.Endpoint(0).Recv(t.Context(), 1, Tag{}, nil), 1, why) // it had sent this
	})
}

// With no window every Send waits for its Recv.
func TestNoWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(2, MemoryOptions{Window: -1})
		sent := later(func() error { return m.Endpoint(0).Send(t.Context(), 1, Tag{}, []byte{1}) })
		synctest.Wait()
		select {
		case err := <-sent:
			t.Fatalf("did not wait: %v", err)
		default:
		}
		if err := m.Endpoint(1).Recv(t.Context(), 0, Tag{}, make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if n, bytes := m.Sent(0, 1); n != 1 || bytes != 1 {
			t.Errorf("sent %d messages, %d bytes", n, bytes)
		}
	})
}
