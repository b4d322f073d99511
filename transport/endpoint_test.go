package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// networks are the implementations that keep the contract of Endpoint. A test
// of the contract runs over each of them.
var networks = []struct {
	name string
	open func(t *testing.T, world int) []Endpoint
}{
	{"memory", func(t *testing.T, world int) []Endpoint { return endpoints(NewMemory(world, MemoryOptions{}), world) }},
	{"tcp", func(t *testing.T, world int) []Endpoint { return connectAll(t, "127.0.0.1", world, TCPOptions{}) }},
	{"tcp, IPv6, three for bulk, checksums", func(t *testing.T, world int) []Endpoint {
		return connectAll(t, "::1", world, TCPOptions{Bulk: 3, Checksum: true})
	}},
	{"emulated", func(t *testing.T, world int) []Endpoint {
		es := endpoints(NewMemory(world, MemoryOptions{}), world)
		for i, e := range es {
			es[i] = Emulate(e, Link{Latency: 10 * time.Microsecond, Bandwidth: 100e9})
		}
		return es
	}},
}

func endpoints(m *Memory, world int) []Endpoint {
	var es []Endpoint
	for rank := range world {
		es = append(es, m.Endpoint(rank))
	}
	return es
}

func onEveryNetwork(t *testing.T, world int, test func(t *testing.T, ctx context.Context, es []Endpoint)) {
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a hang fails, and says where
			defer cancel()
			es := n.open(t, world)
			defer closeAll(t, es)
			test(t, ctx, es)
		})
	}
}

// closeAll closes all endpoints at once, as the processes of a job do.
func closeAll(t *testing.T, es []Endpoint) {
	t.Helper()
	var wg sync.WaitGroup
	for _, e := range es {
		wg.Go(func() {
			if err := e.Close(); err != nil {
				t.Errorf("close %d: %v", e.Rank(), err)
			}
		})
	}
	wg.Wait()
}

// pattern is data that differs by seed, length and position; its period is not a
// power of two.
func pattern(seed, n int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + uint32(n) + 1
	for i := range min(n, 1021) {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	for i := 1021; i < n; i *= 2 {
		copy(b[i:], b[:i])
	}
	return b
}

// later is how a call ends that runs meanwhile.
func later(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

// sizes are around what an implementation may treat differently.
var sizes = []int{0, 1, 47, 48, 4096, Eager - 1, Eager, Eager + 1, 300<<10 + 5}

// Every pair exchanges messages of every size, each way at the same time,
// received in the order of sending, in the opposite order, and at once.
func TestEveryPairEverySize(t *testing.T) {
	const world = 3
	onEveryNetwork(t, world, func(t *testing.T, ctx context.Context, es []Endpoint) {
		for round, order := range []func(i int) int{
			func(i int) int { return i },
			func(i int) int { return len(sizes) - 1 - i },
			nil,
		} {
			var wg sync.WaitGroup
			for from := range world {
				for to := range world {
					if from == to {
						continue
					}
					channel := uint16(from*world + to)
					tag := func(i int) Tag { return Tag{channel, uint64(round), uint32(i)} }
					for i, n := range sizes {
						wg.Go(func() {
							if err := es[from].Send(ctx, to, tag(i), pattern(i+int(channel), n)); err != nil {
								t.Error(err)
							}
						})
					}
					recv := func(i int) {
						dst := make([]byte, sizes[i])
						if err := es[to].Recv(ctx, from, tag(i), dst); err != nil {
							t.Error(err)
						} else if !bytes.Equal(dst, pattern(i+int(channel), sizes[i])) {
							t.Errorf("%d to %d, %v, %d bytes: wrong data", from, to, tag(i), sizes[i])
						}
					}
					if order == nil {
						for i := range sizes {
							wg.Go(func() { recv(i) })
						}
						continue
					}
					wg.Go(func() {
						for i := range sizes {
							recv(order(i))
						}
					})
				}
			}
			wg.Wait()
		}
	})
}

// A tag may be used again as soon as its message has been received, by a message of any
// size: nothing that was said about the earlier one comes after it.
func TestTagsAgain(t *testing.T) {
	const lanes, rounds = 8, 60
	onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
		var wg sync.WaitGroup
		for lane := range lanes {
			tag := Tag{Op: uint64(lane)}
			for rank := range 2 {
				wg.Go(func() {
					random, pause := rand.New(rand.NewPCG(1, uint64(lane))), rand.New(rand.NewPCG(2, uint64(2*lane+rank)))
					for round := range rounds {
						n := sizes[random.IntN(len(sizes))]
						for range pause.IntN(20) {
							runtime.Gosched()
						}
						var err error
						if dst := make([]byte, n); round%2 == rank { // an answer says that the last message has been received
							err = es[rank].Send(ctx, 1-rank, tag, pattern(round, n))
						} else if err = es[rank].Recv(ctx, 1-rank, tag, dst); err == nil && !bytes.Equal(dst, pattern(round, n)) {
							err = errors.New("wrong data")
						}
						if err != nil {
							t.Errorf("lane %d, rank %d, round %d, %d bytes: %v", lane, rank, round, n, err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

// A Send of a small message does not wait for its Recv; data may be reused at once.
func TestEagerSend(t *testing.T) {
	onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
		const n = 8
		data := make([]byte, Eager)
		for i := range uint32(n) {
			copy(data, pattern(int(i), Eager))
			if err := es[0].Send(ctx, 1, Tag{Chunk: i}, data); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uint32(n) {
			if err := es[1].Recv(ctx, 0, Tag{Chunk: n - 1 - i}, data); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(data, pattern(int(n-1-i), Eager)) {
				t.Errorf("chunk %d: wrong data", n-1-i)
			}
		}
	})
}

// A Send beyond what the network holds waits for its Recv, and ends with its context.
func TestSendWaits(t *testing.T) {
	onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
		// The window is full after this many, and has room again for those received.
		const room = Window / (Eager + Overhead)
		small := make([]byte, Eager)
		for i := range uint32(room) {
			if err := es[0].Send(ctx, 1, Tag{Chunk: i}, small); err != nil {
				t.Fatal(err)
			}
		}
		for name, n := range map[string]int{"a message more than the window holds": Eager, "a large message": Eager + 1} {
			tag := Tag{Op: uint64(n)}
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			err := es[0].Send(short, 1, tag, make([]byte, n))
			cancel()
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%s: %v", name, err)
			}
			if e.Phase != Sending || e.Peer != 1 || e.Tag != tag || e.Elapsed <= 0 {
				t.Errorf("%s: %+v", name, e)
			}
		}
		for i := range uint32(room) {
			if err := es[1].Recv(ctx, 0, Tag{Chunk: i}, small); err != nil {
				t.Fatal(err)
			}
		}
		if err := es[0].Send(ctx, 1, Tag{Channel: 1}, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := es[1].Recv(ctx, 0, Tag{Channel: 1}, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	})
}

// Many more small messages than the window holds, received in the opposite order.
func TestMoreThanTheWindow(t *testing.T) {
	onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
		const n, size = 200, 16 << 10
		var wg sync.WaitGroup
		for i := range uint32(n) {
			wg.Go(func() {
				if err := es[0].Send(ctx, 1, Tag{Chunk: i}, pattern(int(i), size)); err != nil {
					t.Error(err)
				}
			})
		}
		dst := make([]byte, size)
		for i := range uint32(n) {
			if err := es[1].Recv(ctx, 0, Tag{Chunk: n - 1 - i}, dst); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(dst, pattern(int(n-1-i), size)) {
				t.Errorf("chunk %d: wrong data", n-1-i)
			}
		}
		wg.Wait()
	})
}

// When a context ends in the middle of everything, every call returns, and its
// memory is its caller's again (the race detector watches).
func TestContextEndsInTheMiddle(t *testing.T) {
	for _, after := range []int{1, 5, 9} { // messages
		onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
			why := errors.New("enough")
			short, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			received := make(chan error)
			var wg sync.WaitGroup
			for i := range uint32(10) {
				size := (1 + int(i)%3) * Eager
				for to := range 2 {
					wg.Go(func() {
						data := make([]byte, size)
						es[1-to].Send(short, to, Tag{Chunk: i}, data)
						clear(data)
					})
					wg.Go(func() {
						dst := make([]byte, size)
						err := es[to].Recv(short, 1-to, Tag{Chunk: i}, dst)
						clear(dst)
						received <- err
					})
				}
			}
			for i := range 20 {
				if i == after {
					cancel(why)
				}
				var lost *PeerLost
				if err := <-received; err != nil && !errors.Is(err, why) && !errors.As(err, &lost) {
					t.Error(err)
				}
			}
			wg.Wait()
			for _, e := range es {
				e.Close() // some of them find the other gone
			}
		})
	}
}

// A Recv whose message does not come ends with its context, and says why.
func TestRecvEndsWithContext(t *testing.T) {
	onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
		why := errors.New("another rank has failed")
		short, cancel := context.WithCancelCause(ctx)
		done := later(func() error { return es[1].Recv(short, 0, Tag{3, 4, 5}, make([]byte, 8)) })
		cancel(why)
		err := <-done
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, why) || e.Phase != Receiving || e.Peer != 0 || e.Tag != (Tag{3, 4, 5}) {
			t.Fatal(err)
		}
		if err := es[1].Recv(short, 0, Tag{}, nil); !errors.Is(err, why) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

func TestLengthMismatch(t *testing.T) {
	for _, tc := range []struct {
		sent, expected int
		recvFirst      bool
		senderKnows    bool
	}{
		{8, 9, false, false}, {9, 8, true, false}, {0, 1, true, false},
		{Eager + 1, 8, false, true}, {Eager + 1, 8, true, true},
		{Eager + 1, Eager + 2, false, true}, {Eager + 1, Eager + 2, true, true},
		{8, Eager + 1, false, false}, {8, Eager + 1, true, false},
	} {
		t.Run(fmt.Sprintf("%d instead of %d, receiver first %v", tc.sent, tc.expected, tc.recvFirst), func(t *testing.T) {
			onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
				send := func() error { return es[0].Send(ctx, 1, Tag{Op: 7}, make([]byte, tc.sent)) }
				recv := func() error { return es[1].Recv(ctx, 0, Tag{Op: 7}, make([]byte, tc.expected)) }
				want := LengthError{uint64(tc.sent), uint64(tc.expected)}
				first, second := send, recv
				if tc.recvFirst {
					first, second = recv, send
				}
				firstErr, secondErr := later(first), later(second)
				sendErr, recvErr := <-firstErr, <-secondErr
				if tc.recvFirst {
					sendErr, recvErr = recvErr, sendErr
				}
				var e *LengthError
				if !errors.As(recvErr, &e) || *e != want {
					t.Errorf("receiver: %v", recvErr)
				}
				if tc.senderKnows {
					if !errors.As(sendErr, &e) || *e != want {
						t.Errorf("sender: %v", sendErr)
					}
				}
				// The connection is as good as before.
				done := later(func() error { return es[0].Send(ctx, 1, Tag{Op: 8}, []byte("abc")) })
				dst := make([]byte, 3)
				if err := es[1].Recv(ctx, 0, Tag{Op: 8}, dst); err != nil || string(dst) != "abc" {
					t.Errorf("the next message: %q, %v", dst, err)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestNoSuchPeer(t *testing.T) {
	onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
		for _, peer := range []int{-1, 0, 2} {
			if err := es[0].Send(ctx, peer, Tag{}, nil); !errors.Is(err, ErrNoPeer) {
				t.Errorf("send to %d: %v", peer, err)
			}
			if err := es[0].Recv(ctx, peer, Tag{}, nil); !errors.Is(err, ErrNoPeer) {
				t.Errorf("receive from %d: %v", peer, err)
			}
		}
	})
}

// What was sent before Close arrives; what waits ends, on both sides.
func TestClose(t *testing.T) {
	onEveryNetwork(t, 3, func(t *testing.T, ctx context.Context, es []Endpoint) {
		large := make([]byte, Eager+1)
		if err := es[0].Send(ctx, 1, Tag{Op: 1}, []byte("last words")); err != nil {
			t.Fatal(err)
		}
		own := []<-chan error{
			later(func() error { return es[0].Send(ctx, 1, Tag{Op: 2}, large) }),
			later(func() error { return es[0].Recv(ctx, 1, Tag{Op: 2}, large) }),
		}
		others := []<-chan error{
			later(func() error { return es[1].Send(ctx, 0, Tag{Op: 3}, large) }),
			later(func() error { return es[1].Recv(ctx, 0, Tag{Op: 3}, large) }),
			later(func() error { return es[2].Recv(ctx, 0, Tag{Op: 3}, nil) }),
		}
		if err := es[0].Close(); err != nil {
			t.Fatal(err)
		}
		for i, done := range own {
			if err := <-done; !errors.Is(err, ErrClosed) {
				t.Errorf("own call %d: %v", i, err)
			}
		}
		var lost *PeerLost
		for i, done := range others {
			if err := <-done; !errors.As(err, &lost) || lost.Rank != 0 || !errors.Is(err, ErrLeft) {
				t.Errorf("call %d of others: %v", i, err)
			}
		}
		dst := make([]byte, 10)
		if err := es[1].Recv(ctx, 0, Tag{Op: 1}, dst); err != nil || string(dst) != "last words" {
			t.Errorf("%q, %v", dst, err)
		}
		if err := es[1].Recv(ctx, 0, Tag{Op: 4}, nil); !errors.As(err, &lost) {
			t.Errorf("a later receive: %v", err)
		}
		if err := es[1].Send(ctx, 0, Tag{Op: 4}, nil); !errors.As(err, &lost) {
			t.Errorf("a later send: %v", err)
		}
		if err := es[0].Recv(ctx, 1, Tag{Op: 4}, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("a later receive of the closed one: %v", err)
		}
		if err := es[0].Close(); err != nil {
			t.Errorf("a second Close: %v", err)
		}
		done := later(func() error { return es[1].Send(ctx, 2, Tag{}, large) })
		if err := es[2].Recv(ctx, 1, Tag{}, large); err != nil {
			t.Errorf("the others still have each other: %v", err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTagInUse(t *testing.T) {
	onEveryNetwork(t, 2, func(t *testing.T, ctx context.Context, es []Endpoint) {
		dst := [2][1]byte{}
		both := make(chan error, 2)
		for i := range dst {
			go func() { both <- es[1].Recv(ctx, 0, Tag{}, dst[i][:]) }()
		}
		if err := <-both; !errors.Is(err, ErrTagInUse) {
			t.Errorf("two receives of one tag: %v", err)
		}
		if err := es[0].Send(ctx, 1, Tag{}, []byte{1}); err != nil {
			t.Fatal(err)
		}
		if err := <-both; err != nil {
			t.Error(err)
		}
	})
}
