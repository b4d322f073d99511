package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// single is a peer of one connection whose other end the test speaks for itself.
type single struct {
	*peer
	other net.Conn
	ends  sync.WaitGroup
}

func newSingle(t testing.TB) *single {
	a, b := net.Pipe()
	s := &single{peer: newPeer(1, 9, false, []net.Conn{a}), other: b}
	s.start(&s.ends)
	t.Cleanup(func() {
		b.Close()
		s.ends.Wait()
	})
	return s
}

// What a peer may not say costs the connection, and every call says why.
func TestViolations(t *testing.T) {
	tag := Tag{1, 2, 3}
	full := bytes.Repeat(encoded(frame{kind: frameEager, tag: tag}, 9, ""), 1)
	var flood []byte
	for i := range uint32(Window/Overhead + 1) {
		flood = append(flood, encoded(frame{kind: frameEager, tag: Tag{Chunk: i}}, 9, "")...)
	}
	eager := func(sum bool, data string) []byte {
		return encoded(frame{kind: frameEager, sum: sum, tag: tag, length: uint64(len(data))}, 9, data)
	}
	flipped := eager(true, "hello")
	flipped[headerSize] ^= 1
	for _, tc := range []struct {
		name  string
		bytes []byte
		cause string
	}{
		{"nothing", nil, "it has closed the connection, without a goodbye"},
		{"noise", []byte(strings.Repeat("noise", 20)), `not a frame: it begins with "nois"`},
		{"half a header", eager(false, "")[:20], "unexpected EOF"},
		{"half a message", eager(false, "hello")[:50], "unexpected EOF"},
		{"a flipped bit", flipped, "checksum does not match"},
		{"another epoch", encoded(frame{kind: frameEager, tag: tag}, 8, ""), "a frame of job epoch 8 in epoch 9"},
		{"the same tag twice", append(full, full...), "the tag is in use"},
		{"more than the window", flood, "it sends more than the window holds"},
		{"a large message that nobody asked for", encoded(frame{kind: frameData, tag: tag, length: 1 << 40}, 9, ""), "a message of 1099511627776 bytes that nobody has asked for, channel 1 op 2 chunk 3"},
		{"room that nobody took", encoded(frame{kind: frameWindow, room: 1}, 9, ""), "it gives back more room than was taken"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSingle(t)
			pending := later(func() error { return s.recv(t.Context(), Tag{Op: 99}, nil) })
			go func() {
				s.other.Write(tc.bytes)
				s.other.Close()
			}()
			err := <-pending
			var lost *PeerLost
			if !errors.As(err, &lost) || lost.Rank != 1 || !strings.Contains(err.Error(), tc.cause) {
				t.Errorf("pending: got %v, want %s", err, tc.cause)
			}
			if again := s.send(t.Context(), Tag{}, nil); again != err {
				t.Errorf("a later call: got %v, want %v", again, err)
			}
		})
	}
}

func TestTooManyAnnounced(t *testing.T) {
	for _, kind := range []frameKind{frameAnnounce, frameReady} {
		s := newSingle(t)
		pendingRecv := later(func() error { return s.recv(t.Context(), Tag{Op: 1}, nil) })
		go func() {
			for i := range uint32(pending + 1) {
				if _, err := s.other.Write(encoded(frame{kind: kind, tag: Tag{Chunk: i}, length: Eager + 1}, 9, "")); err != nil {
					return
				}
			}
		}()
		if err := <-pendingRecv; err == nil || !strings.Contains(err.Error(), "more than 65536 messages without a call") {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

// A message in the middle of which its call ends costs the connection: the call
// does not return before its memory is out of use.
func TestCallEndsInMessage(t *testing.T) {
	large := make([]byte, Eager+1)
	head := func(kind frameKind) []byte {
		return encoded(frame{kind: kind, length: uint64(len(large))}, 9, "")
	}
	for name, call := range map[string]func(s *single, ctx context.Context, half func()) error{
		"receive": func(s *single, ctx context.Context, half func()) error {
			go func() {
				io.ReadFull(s.other, make([]byte, headerSize)) // ready
				s.other.Write(head(frameData))
				s.other.Write(large[:1000])
				half()
			}()
			return s.recv(ctx, Tag{}, large)
		},
		"send": func(s *single, ctx context.Context, half func()) error {
			go func() {
				io.ReadFull(s.other, make([]byte, headerSize)) // announced
				s.other.Write(head(frameReady))
				io.ReadFull(s.other, make([]byte, headerSize+1000))
				half()
			}()
			return s.send(ctx, Tag{}, large)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSingle(t)
			why := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			if err := call(s, ctx, func() { cancel(why) }); err != why {
				t.Errorf("the call: %v", err)
			}
			var lost *PeerLost
			if err := s.send(t.Context(), Tag{Op: 1}, nil); !errors.As(err, &lost) || !errors.Is(err, why) {
				t.Errorf("a later call: %v", err)
			}
		})
	}
}

// Close does not wait for ever for a peer that does not answer.
func TestCloseGivesUp(t *testing.T) {
	s := newSingle(t)
	e := &tcp{rank: 0, peers: []*peer{nil, s.peer}, closeTime: 10 * time.Millisecond}
	e.ends.Go(s.ends.Wait)
	err := e.Close()
	var failed *Error
	var lost *PeerLost
	if !errors.As(err, &failed) || failed.Phase != Closing || failed.Peer != 1 || !errors.As(err, &lost) {
		t.Error(err)
	}
}

// Whatever a peer sends, this side ends, and its memory for it is bounded.
func FuzzPeer(f *testing.F) {
	f.Fuzz(func(t *testing.T, stream []byte) {
		s := newSingle(t)
		small, large := make([]byte, 5), make([]byte, Eager+1)
		calls := []<-chan error{
			later(func() error { return s.recv(t.Context(), Tag{1, 2, 3}, small) }),
			later(func() error { return s.recv(t.Context(), Tag{1, 2, 4}, large) }),
			later(func() error { return s.send(t.Context(), Tag{1, 2, 5}, large) }),
		}
		var answers sync.WaitGroup
		answers.Go(func() { io.Copy(io.Discard, s.other) })
		s.other.Write(stream)
		s.other.Close()
		answers.Wait()
		s.ends.Wait()
		for _, end := range calls {
			<-end
		}
		held := 0
		for _, m := range s.held {
			held += len(m.data) + Overhead
		}
		if held > Window {
			t.Errorf("%d bytes held", held)
		}
	})
}
