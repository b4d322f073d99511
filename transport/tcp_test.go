package transport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var secret = []byte("a secret of this test")

// listenAll opens a listener for each rank.
func listenAll(t testing.TB, host string, world int) (ls []*Listener, addrs []string) {
	t.Helper()
	for range world {
		l, err := Listen(t.Context(), net.JoinHostPort(host, "0"))
		if err != nil {
			t.Skipf("no such address here: %v", err)
		}
		t.Cleanup(func() { l.Close() })
		ls = append(ls, l)
		addrs = append(addrs, l.Addr().String())
	}
	return ls, addrs
}

// connectAll connects a world of TCP endpoints on one host.
func connectAll(t testing.TB, host string, world int, o TCPOptions) []Endpoint {
	t.Helper()
	ls, addrs := listenAll(t, host, world)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	es := make([]Endpoint, world)
	var wg sync.WaitGroup
	for rank, l := range ls {
		wg.Go(func() {
			o := o
			o.Rank, o.Addrs, o.Secret = rank, addrs, secret
			e, err := l.Connect(ctx, o)
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
				return
			}
			es[rank] = e
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return es
}

func TestListenRefuses(t *testing.T) {
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		if l, err := Listen(t.Context(), address); err == nil || !strings.Contains(err.Error(), "name one address") {
			t.Errorf("%s: %v", address, err)
			if err == nil {
				l.Close()
			}
		}
	}
	if _, err := Listen(t.Context(), "127.0.0.1"); err == nil {
		t.Error("an address without a port")
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		got := fmt.Sprintf(verb, TCPOptions{Secret: Secret(secret)})
		if !strings.Contains(got, "(secret)") || strings.Contains(got, string(secret)) || strings.Contains(got, "97") {
			t.Errorf("%s: %s", verb, got)
		}
	}
}

func TestConnectRefuses(t *testing.T) {
	ls, addrs := listenAll(t, "127.0.0.1", 1)
	for _, tc := range []struct {
		o    TCPOptions
		want string
	}{
		{TCPOptions{Rank: 1, Addrs: addrs, Secret: secret}, "rank 1 of 1 peers"},
		{TCPOptions{Rank: -1, Addrs: addrs, Secret: secret}, "rank -1 of 1 peers"},
		{TCPOptions{Addrs: []string{"", ""}, Secret: []byte("short")}, "the job's secret has 5 bytes, it needs 16"},
		{TCPOptions{Addrs: []string{"", ""}, Secret: secret, Bulk: 64}, "65 connections a peer"},
	} {
		if _, err := ls[0].Connect(t.Context(), tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %s", err, tc.want)
		}
	}
	alone, err := ls[0].Connect(t.Context(), TCPOptions{Addrs: addrs}) // one peer needs no secret
	if err != nil {
		t.Fatal(err)
	}
	alone.Close()
}

// Two agents of one job that differ do not connect, and both say why.
func TestHandshakeRefuses(t *testing.T) {
	for _, tc := range []struct {
		name      string
		change    func(o *TCPOptions) // of rank 1, which dials
		dialer    string
		acceptor  string
		patient   bool // the acceptor waits for a better one
		dialWaits bool
	}{{
		name:     "wrong secret",
		change:   func(o *TCPOptions) { o.Secret = []byte("another secret of this test") },
		dialer:   "connect, peer 0, after T: refused: it does not have the same secret",
		acceptor: "not connected: rank 1; sent away: A: refused: it does not have the same secret",
		patient:  true,
	}, {
		name:     "stale dialer",
		change:   func(o *TCPOptions) { o.Epoch = 4 },
		dialer:   "connect, peer 0, after T: refused: it is in epoch 5 of the job, this is in epoch 4",
		acceptor: "not connected: rank 1; sent away: A: refused: it is in epoch 4 of the job, this is in epoch 5",
		patient:  true,
	}, {
		name:      "stale acceptor",
		change:    func(o *TCPOptions) { o.Epoch = 6 },
		dialer:    "not connected: rank 0", // and why, if it has had the time
		acceptor:  "connect, peer 1, after T: refused: it is in epoch 6 of the job, this is in epoch 5",
		dialWaits: true,
	}, {
		name:     "world",
		change:   func(o *TCPOptions) { o.Addrs = append(o.Addrs[:2:2], "127.0.0.1:1") },
		dialer:   "connect, peer 0, after T: refused: it is of a job of 2 peers, this is of a job of 3",
		acceptor: "connect, peer 1, after T: refused: it is of a job of 3 peers, this is of a job of 2",
	}, {
		name:     "connections",
		change:   func(o *TCPOptions) { o.Bulk = 2 },
		dialer:   "connect, peer 0, after T: refused: it has 2 connections a peer, this has 3",
		acceptor: "connect, peer 1, after T: refused: it has 3 connections a peer, this has 2",
	}} {
		t.Run(tc.name, func(t *testing.T) {
			ls, addrs := listenAll(t, "127.0.0.1", 2)
			os := [2]TCPOptions{}
			for rank := range os {
				os[rank] = TCPOptions{Rank: rank, Addrs: addrs, Epoch: 5, Secret: secret}
			}
			tc.change(&os[1])
			// Who waits does so until the other has failed.
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ends := [2]context.Context{ctx, ctx}
			var enough [2]context.CancelFunc
			for rank := range ends {
				ends[rank], enough[rank] = context.WithCancel(ctx)
				defer enough[rank]()
			}
			var errs [2]error
			var wg sync.WaitGroup
			for rank, l := range ls {
				wg.Go(func() {
					_, errs[rank] = l.Connect(ends[rank], os[rank])
					if tc.patient && rank == 1 || tc.dialWaits && rank == 0 {
						enough[1-rank]()
					}
				})
			}
			wg.Wait()
			for rank, want := range [2]string{tc.acceptor, tc.dialer} {
				got := fmt.Sprint(errs[rank])
				got = regexp.MustCompile(`after [0-9.]+[mµ]?s`).ReplaceAllString(got, "after T")
				got = regexp.MustCompile(`127.0.0.1:[0-9]+: refused`).ReplaceAllString(got, "A: refused")
				if !strings.Contains(got, want) {
					t.Errorf("rank %d: got  %s\nwant ... %s ...", rank, got, want)
				}
			}
		})
	}
}

// Two agents with one rank: the second is refused, and the job fails at once.
func TestDuplicateRank(t *testing.T) {
	ls, addrs := listenAll(t, "127.0.0.1", 3) // the last is for the second of rank 1
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	// Rank 2 does not come, so that rank 0 is still connecting.
	world := []string{addrs[0], addrs[1], "127.0.0.1:1"}
	rank0 := later(func() error {
		_, err := ls[0].Connect(ctx, TCPOptions{Rank: 0, Addrs: world, Secret: secret})
		return err
	})
	var wg sync.WaitGroup
	ctx1, cancel1 := context.WithCancel(ctx)
	var dialers [2]error
	for i := range dialers {
		wg.Go(func() {
			_, dialers[i] = ls[1+i].Connect(ctx1, TCPOptions{Rank: 1, Addrs: world, Secret: secret})
		})
	}
	err := <-rank0
	cancel1()
	wg.Wait()
	var r *Refusal
	var e *Error
	if !errors.As(err, &r) || r.Why != DuplicateRank || !errors.As(err, &e) || e.Peer != 1 {
		t.Errorf("rank 0: %v", err)
	}
}

func TestNotAnAgent(t *testing.T) {
	// A dialer that finds something else.
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(strings.Repeat("220 mail.example ESMTP\r\n", 3)))
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	ls, addrs := listenAll(t, "127.0.0.1", 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = ls[1].Connect(ctx, TCPOptions{Rank: 1, Addrs: []string{other.Addr().String(), ""}, Secret: secret})
	if err == nil || !strings.Contains(err.Error(), "connect, peer 0") || !strings.Contains(err.Error(), "it does not speak weft's protocol") {
		t.Errorf("dialer: %v", err)
	}

	// An acceptor that is found by something else, and by nobody, and then by its peer.
	rank0 := later(func() error {
		e, err := ls[0].Connect(ctx, TCPOptions{Rank: 0, Addrs: addrs, Secret: secret})
		if err == nil {
			defer e.Close()
		}
		return err
	})
	for _, greeting := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat("x", 100), ""} {
		c, err := net.Dial("tcp", addrs[0])
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, greeting)
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
		c.Close()
	}
	e, err := ls[1].Connect(ctx, TCPOptions{Rank: 1, Addrs: addrs, Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	if err := <-rank0; err != nil {
		t.Error(err)
	}
}

// A proof is of no use on another connection: an eavesdropper repeats what the
// dialer of an earlier connection has said.
func TestReplay(t *testing.T) {
	self := hello{world: 2, from: 1, conns: 2, epoch: 5}
	accept := func(say func(c net.Conn)) error {
		a, b := net.Pipe()
		defer b.Close()
		go say(b)
		_, err := acceptHandshake(a, secret, hello{world: 2, conns: 2, epoch: 5}, func(*hello) Reason { return accepted })
		a.Close()
		return err
	}
	var said bytes.Buffer
	if err := accept(func(c net.Conn) { dialHandshake(recorder{c, &said}, secret, self) }); err != nil {
		t.Fatal(err)
	}
	err := accept(func(c net.Conn) {
		c.Write(said.Next(helloSize))
		io.ReadFull(c, make([]byte, helloSize))
		c.Write(said.Bytes())
		io.Copy(io.Discard, c)
	})
	var r *Refusal
	if !errors.As(err, &r) || r.Why != WrongSecret {
		t.Errorf("a repeated proof: %v", err)
	}
}

// recorder keeps what is written.
type recorder struct {
	net.Conn
	said io.Writer
}

func (r recorder) Write(b []byte) (int, error) {
	r.said.Write(b)
	return r.Conn.Write(b)
}

// An acceptor that does not know the secret is found out by the dialer.
func TestImpostor(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() {
		hello := hello{world: 2, to: 1, conns: 2}
		mine := hello.encode()
		io.ReadFull(a, make([]byte, helloSize))
		a.Write(mine[:])
		io.ReadFull(a, make([]byte, macSize))
		a.Write(make([]byte, verdictSize)) // accepted, it says
	}()
	_, err := dialHandshake(b, secret, hello{world: 2, from: 1, conns: 2})
	var r *Refusal
	if !errors.As(err, &r) || r.Why != WrongSecret {
		t.Error(err)
	}
}

// Rank 0 comes last, and only after its peers have found nobody there.
func TestLateRank0(t *testing.T) {
	ls, addrs := listenAll(t, "127.0.0.1", 2)
	ls[0].Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rank1 := later(func() error {
		e, err := ls[1].Connect(ctx, TCPOptions{Rank: 1, Addrs: addrs, Secret: secret})
		if err == nil {
			err = e.Close()
		}
		return err
	})
	for { // its peer is refused by the system meanwhile
		if c, err := net.Dial("tcp", addrs[0]); err != nil {
			break
		} else {
			c.Close()
		}
	}
	l, err := Listen(ctx, addrs[0])
	if err != nil {
		t.Skipf("somebody else has the port now: %v", err)
	}
	defer l.Close()
	e, err := l.Connect(ctx, TCPOptions{Rank: 0, Addrs: addrs, Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := <-rank1; err != nil {
		t.Error(err)
	}
}

// The same listeners serve the next epoch; who is still in the last is refused
// and disturbs nobody.
func TestNextEpoch(t *testing.T) {
	ls, addrs := listenAll(t, "127.0.0.1", 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	connect := func(rank int, epoch uint64) (Endpoint, error) {
		return ls[rank].Connect(ctx, TCPOptions{Rank: rank, Addrs: addrs, Secret: secret, Epoch: epoch})
	}
	for epoch := range uint64(3) {
		rank0 := later(func() error {
			e, err := connect(0, epoch)
			if err == nil {
				err = e.Close()
			}
			return err
		})
		if epoch > 0 {
			var r *Refusal
			if _, err := connect(1, epoch-1); !errors.As(err, &r) || r.Why != StaleEpoch {
				t.Errorf("epoch %d in epoch %d: %v", epoch-1, epoch, err)
			}
		}
		e, err := connect(1, epoch)
		if err != nil {
			t.Fatal(err)
		}
		e.Close()
		if err := <-rank0; err != nil {
			t.Fatal(err)
		}
	}
}

// A peer whose process ends is lost at once, to every call.
func TestDeadPeer(t *testing.T) {
	es := connectAll(t, "127.0.0.1", 3, TCPOptions{})
	defer closeAll(t, es[:2])
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	large := make([]byte, 1<<20)
	ends := []<-chan error{
		later(func() error { return es[0].Recv(ctx, 2, Tag{Op: 1}, large) }),
		later(func() error { return es[0].Recv(ctx, 2, Tag{Op: 2}, nil) }),
		later(func() error { return es[0].Send(ctx, 2, Tag{Op: 3}, make([]byte, 1<<20)) }),
		later(func() error { return es[1].Recv(ctx, 2, Tag{Op: 1}, nil) }),
	}
	for _, p := range es[2].(*tcp).peers[:2] { // what the system does when a process ends
		for _, c := range p.conns {
			c.c.Close()
		}
	}
	for i, end := range ends {
		var lost *PeerLost
		if err := <-end; !errors.As(err, &lost) || lost.Rank != 2 {
			t.Errorf("call %d: %v", i, err)
		}
	}
	es[2].Close()
	done := later(func() error { return es[0].Send(ctx, 1, Tag{}, large) })
	if err := es[1].Recv(ctx, 0, Tag{}, make([]byte, 1<<20)); err != nil {
		t.Errorf("the others: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Close sees that large messages that are on the way arrive.
func TestCloseDrains(t *testing.T) {
	const n = 256 << 10
	for range 10 {
		es := connectAll(t, "127.0.0.1", 2, TCPOptions{Bulk: 2})
		ctx := t.Context()
		var received []<-chan error
		dst := make([][]byte, 4)
		for i := range dst {
			dst[i] = make([]byte, n)
			received = append(received, later(func() error { return es[1].Recv(ctx, 0, Tag{Chunk: uint32(i)}, dst[i]) }))
		}
		for i := range dst {
			if err := es[0].Send(ctx, 1, Tag{Chunk: uint32(i)}, pattern(i, n)); err != nil {
				t.Fatal(err)
			}
		}
		if err := es[0].Close(); err != nil {
			t.Error(err)
		}
		for i := range dst {
			if err := <-received[i]; err != nil || !bytes.Equal(dst[i], pattern(i, n)) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		es[1].Close()
	}
}

// half is a peer of two connections whose other ends the test speaks for itself.
func half(t *testing.T) (p *peer, theirs [2]net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var ours [2]net.Conn
	for i := range ours {
		if theirs[i], err = net.Dial("tcp", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if ours[i], err = l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	p = newPeer(1, 9, false, ours[:])
	var ends sync.WaitGroup
	p.start(&ends)
	t.Cleanup(func() {
		theirs[0].Close()
		theirs[1].Close()
		ends.Wait()
	})
	return p, theirs
}

// What the system does not take at once follows in its order.
func TestFullSocket(t *testing.T) {
	p, theirs := half(t)
	p.conns[0].c.(*net.TCPConn).SetWriteBuffer(64 << 10)
	theirs[0].(*net.TCPConn).SetReadBuffer(64 << 10) // both are far less than what is sent
	const n, size = 60, maxTry
	sent := later(func() error {
		for op := range uint64(n) {
			if err := p.send(t.Context(), Tag{Op: op}, pattern(int(op), size)); err != nil {
				return err
			}
		}
		return nil
	})
	for { // until the socket is full, and the writer waits for it
		p.mu.Lock()
		full := p.conns[0].writing
		p.mu.Unlock()
		if full {
			break
		}
		if len(sent) > 0 {
			t.Fatal("the system takes everything")
		}
		runtime.Gosched()
	}
	r := frameReader{r: bufio.NewReader(theirs[0]), epoch: 9}
	data := make([]byte, size)
	for op := range uint64(n) {
		var f frame
		if err := r.next(&f); err != nil || f.tag.Op != op || f.length != size {
			t.Fatalf("frame %d: %+v, %v", op, f, err)
		}
		if err := r.data(&f, data); err != nil || !bytes.Equal(data, pattern(int(op), size)) {
			t.Fatalf("frame %d: wrong data, %v", op, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// A large message that comes in pieces of any size is there with its last byte:
// however many bytes the reader lets come before it looks.
func TestLargeMessageInPieces(t *testing.T) {
	p, theirs := half(t)
	for op, piece := range []int{1 << 10, 70_001, 300 << 10, 1 << 20} {
		data := pattern(op, 600_001)
		dst := make([]byte, len(data))
		tag := Tag{Op: uint64(op)}
		done := later(func() error { return p.recv(t.Context(), tag, dst) })
		io.ReadFull(theirs[0], make([]byte, headerSize)) // ready
		stream := encoded(frame{kind: frameData, tag: tag, length: uint64(len(data))}, 9, string(data))
		for len(stream) > 0 {
			n := min(piece, len(stream))
			theirs[1].Write(stream[:n])
			stream = stream[n:]
		}
		if err := <-done; err != nil || !bytes.Equal(dst, data) {
			t.Fatalf("pieces of %d: %v", piece, err)
		}
	}
}

func TestOtherVersion(t *testing.T) {
	later := hello{world: 2, from: 1, conns: 2}.encode()
	later[4] = 9
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		defer b.Close()
		b.Write(later[:])
		io.ReadFull(b, make([]byte, helloSize)) // it learns our version
	}()
	_, err := acceptHandshake(a, secret, hello{world: 2, conns: 2}, func(*hello) Reason { return accepted })
	if err == nil || err.Error() != "it speaks version 9 of weft's protocol, this program version 2" {
		t.Error(err)
	}
}

// Who does not know the secret is not accepted, whatever it says.
func FuzzHandshake(f *testing.F) {
	f.Fuzz(func(t *testing.T, said []byte) {
		for side, handshake := range map[string]func(c net.Conn) error{
			"acceptor": func(c net.Conn) error {
				_, err := acceptHandshake(c, secret, hello{world: 2, conns: 2, epoch: 5}, func(*hello) Reason { return accepted })
				return err
			},
			"dialer": func(c net.Conn) error {
				_, err := dialHandshake(c, secret, hello{world: 2, from: 1, conns: 2, epoch: 5})
				return err
			},
		} {
			a, b := net.Pipe()
			go io.Copy(io.Discard, b)
			go func() {
				b.Write(said)
				b.Close()
			}()
			if handshake(a) == nil {
				t.Errorf("the %s accepts", side)
			}
			a.Close()
		}
	})
}
