package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/agent/protocol"
	"weft/collective"
	"weft/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = transport.Secret("a secret of this test")

// free is an address that nobody listens at now.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// hosts is one Config for each host, of so many workers.
func hosts(t *testing.T, workers ...int) (out []Config) {
	master := free(t)
	l := collective.Layout(workers)
	for h, n := range workers {
		out = append(out, Config{
			Member: Member{Weft: "0.1.0", World: l.Workers(), First: l[:h].Workers(), Workers: n},
			Master: master, Secret: secret, Timeout: 20 * time.Second, Hopeless: 2 * time.Second,
		})
	}
	return out
}

// meet lets all hosts meet, and returns how each fares. Those that have met part
// again.
func meet(ctx context.Context, hosts []Config) []error {
	errs := make([]error, len(hosts))
	var wg sync.WaitGroup
	for h, c := range hosts {
		wg.Go(func() {
			rails, l, err := Meet(ctx, c)
			if errs[h] = err; err != nil {
				return
			}
			defer closeAll(rails)
			if len(rails) != max(1, len(c.Interfaces)) && !c.Auto {
				errs[h] = fmt.Errorf("%d rails", len(rails))
			}
			e := rails[len(rails)-1]
			if e.World() != len(hosts) || l.Workers() != c.World || l[e.Rank()] != c.Workers || l[:e.Rank()].Workers() != c.First {
				errs[h] = fmt.Errorf("peer %d of %d, layout %v", e.Rank(), e.World(), l)
				return
			}
			// To the next, from the one before.
			n := e.World()
			got := make([]byte, 1)
			errs[h] = errors.Join(
				e.Send(ctx, (e.Rank()+1)%n, transport.Tag{}, []byte{byte(e.Rank())}),
				e.Recv(ctx, (e.Rank()+n-1)%n, transport.Tag{}, got))
			if errs[h] == nil && int(got[0]) != (e.Rank()+n-1)%n {
				errs[h] = fmt.Errorf("peer %d hears from %d", e.Rank(), got[0])
			}
		})
	}
	wg.Wait()
	return errs
}

func TestMeet(t *testing.T) {
	for _, workers := range [][]int{{1, 1}, {2, 1, 4}, {1, 1, 1, 1, 1, 1, 1, 1}} {
		for host, err := range meet(t.Context(), hosts(t, workers...)) {
			if err != nil {
				t.Errorf("%v: host %d: %v", workers, host, err)
			}
		}
	}
}

// twoRails are interfaces of a host, in subnets of loopback.
func twoRails(host int) func() ([]transport.Interface, error) {
	return func() ([]transport.Interface, error) {
		var out []transport.Interface
		for i, name := range []string{"lo", "eth0", "docker0", "eth1"} {
			at := []byte{127, byte(i), 0, byte(1 + host)}
			if i == 0 || name == "docker0" {
				at[3] = 1 // every host's
			}
			addr, _ := netip.AddrFromSlice(at)
			out = append(out, transport.Interface{Name: name, Up: true, Addrs: []netip.Prefix{netip.PrefixFrom(addr, 24)}})
		}
		return out, nil
	}
}

// Hosts connect over all rails, each from its address there: those named, or the subnets
// that they share.
func TestRails(t *testing.T) {
	for _, x := range []struct {
		interfaces []string
		auto       bool
		want       []string
	}{
		{[]string{"eth0", "eth1"}, false, []string{"127.1.0.", "127.3.0."}},
		{[]string{"=eth1", "=eth0"}, false, []string{"127.3.0.", "127.1.0."}},
		{nil, true, []string{"127.0.0.", "127.1.0.", "127.3.0."}},
		{[]string{"eth1"}, true, []string{"127.3.0.", "127.1.0."}},
	} {
		all := hosts(t, 1, 2, 1)
		var members table
		for h := range all {
			c := &all[h]
			c.Interfaces, c.Auto, c.interfaces = x.interfaces, x.auto, twoRails(h)
			have, _ := c.interfaces()
			chosen, err := c.choose(have, netip.MustParseAddr("127.0.0.1"), false)
			if err != nil {
				t.Fatal(err)
			}
			m := c.Member
			for _, l := range chosen {
				m.Rails = append(m.Rails, Rail{netip.AddrPortFrom(l.Addr, 1).String(), l.Subnet})
			}
			if err := members.add(m); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, rail := range members.rails() {
			got = append(got, strings.TrimSuffix(rail[0], "1:1"))
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%q, auto %v: rails %v, want %v", x.interfaces, x.auto, got, x.want)
		}
		for host, err := range meet(t.Context(), all) {
			if err != nil {
				t.Errorf("%q, auto %v: host %d: %v", x.interfaces, x.auto, host, err)
			}
		}
	}
	c := hosts(t, 1)[0]
	c.Interfaces = []string{"=eth1", "eth1"}
	have, _ := twoRails(0)()
	if _, err := c.choose(have, netip.Addr{}, false); err == nil || !strings.Contains(err.Error(), "number 1 is interface eth1, as is another") {
		t.Error(err)
	}
}

// Rank 0 comes last: the others have tried by then.
func TestLateMaster(t *testing.T) {
	all := hosts(t, 1, 1, 1)
	tried := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range all[1:] {
		wg.Go(func() {
			e, _, err := Meet(ctx, c)
			if err != nil {
				t.Errorf("rank %d: %v", c.First, err)
				return
			}
			closeAll(e)
		})
	}
	go func() {
		defer close(tried)
		for range 2 {
			if _, err := all[1].try(ctx, all[1].Master); err == nil {
				t.Error("somebody is there")
			}
		}
	}()
	<-tried
	e, _, err := Meet(ctx, all[0])
	if err != nil {
		t.Error(err)
	} else {
		closeAll(e)
	}
	wg.Wait()
}

// What one host has wrong, all hear of in the same words, and soon. Which of the others it
// is held against depends on who has come.
func TestDifferent(t *testing.T) {
	for _, x := range []struct {
		name, want string
		change     func(c []Config)
	}{
		{"world", "(WORLD_SIZE), rank ", func(c []Config) { c[1].World = 5 }},
		{"version", "0.2.0 on rank 2", func(c []Config) { c[1].Weft = "0.2.0" }},
		{"duplicate", "rank 2 is on two hosts", func(c []Config) { c[2].First = 2 }},
		{"cyclic", "numbered host by host (Slurm: --distribution=block)", func(c []Config) { c[1].First = 1 }},
		{"rank", "of 4 workers: RANK", func(c []Config) { c[2].First = 4 }},
		{"rails", "2 rails", func(c []Config) {
			c[1].Interfaces, c[1].interfaces = []string{"eth0", "eth1"}, twoRails(2)
		}},
		{"some choose rails", " has one rail, rank 3 auto: give all hosts as many (--rails, WEFT_RAILS)", func(c []Config) { c[2].Auto = true }},
		{"no workers", "of 4 workers: RANK", func(c []Config) { c[2].Workers = 0 }},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			all := hosts(t, 2, 1, 1)
			x.change(all)
			start := time.Now()
			errs := meet(t.Context(), all)
			for host, err := range errs {
				var told *protocol.Failed
				if !errors.As(err, &told) || !strings.Contains(err.Error(), x.want) || err.Error() != errs[0].Error() {
					t.Errorf("host %d: %v, want %q", host, err, x.want)
				}
			}
			if d := time.Since(start); d > 9*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// A host with another secret does not get in, and the others hear of it.
func TestSecret(t *testing.T) {
	t.Parallel()
	all := hosts(t, 1, 1, 1)
	all[2].Secret = transport.Secret("another secret of this test")
	errs := meet(t.Context(), all)
	for host, want := range []string{
		"does not have the same secret as rank 0 (WEFT_SECRET_FILE)", "rank 2, at 127.0.0.1:", "it does not have the same secret",
	} {
		if errs[host] == nil || !strings.Contains(errs[host].Error(), want) {
			t.Errorf("host %d: %v, want %q", host, errs[host], want)
		}
	}
}

// Who is missing when the time is up is named on all hosts.
func TestMissing(t *testing.T) {
	t.Parallel()
	all := hosts(t, 1, 2, 1, 3)
	for i := range all {
		all[i].Timeout = 100 * time.Millisecond
	}
	for host, err := range meet(t.Context(), all[:1]) {
		if want := "rank 1 to 6 has not come to " + all[0].Master + " within 100ms"; err == nil || err.Error() != want {
			t.Errorf("host %d: %v, want %s", host, err, want)
		}
	}
	if _, _, err := Meet(t.Context(), all[2]); err == nil || !strings.HasPrefix(err.Error(), "rank 0 has not come to "+all[0].Master+" within 100ms: dial tcp") {
		t.Errorf("without rank 0: %v", err)
	}
}

// Another rank 0 is told, and what it is told is told to all.
func TestTwoMasters(t *testing.T) {
	t.Parallel()
	all := hosts(t, 1, 1, 1)
	s, err := newServer(t.Context(), &all[0])
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() {
		_, _, err := all[0].join(t.Context(), s.l.Addr().String())
		s.wait(err)
		first <- err
	}()
	for !func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.members.has(0) }() {
		time.Sleep(time.Millisecond)
	}
	_, _, err = Meet(t.Context(), all[0])
	for i, err := range []error{err, <-first} {
		if err == nil || !strings.Contains(err.Error(), "rank 0 is on two hosts") {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(strings.Repeat("SSH-2.0", 20)))
			c.Close()
		}
	}()
	all := hosts(t, 1, 1)
	for host, want := range []string{"is taken: choose another WEFT_PORT", "rank 1 cannot meet rank 0 at "} {
		all[host].Master = l.Addr().String()
		if _, _, err := Meet(t.Context(), all[host]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("host %d: %v, want %q", host, err, want)
		}
	}
}

func TestNoWay(t *testing.T) {
	t.Parallel()
	for master, want := range map[string]string{
		"no.such.host.invalid:1": "rank 1 cannot meet rank 0 at no.such.host.invalid:1 (MASTER_ADDR, WEFT_PORT): dial tcp: lookup",
		"[fe80::1]:1":            "rank 1 cannot meet rank 0",
		"0.0.0.0:1":              "",
	} {
		c := hosts(t, 1, 1)
		for i := range c {
			c[i].Master = master
		}
		if want != "" {
			if _, _, err := Meet(t.Context(), c[1]); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", master, err, want)
			}
		}
		if _, _, err := Meet(t.Context(), c[0]); err == nil || !strings.HasPrefix(err.Error(), "rank 0: ") {
			t.Errorf("%s, as rank 0: %v", master, err)
		}
	}
}

// A host that ends before all have met says why; in order or not.
func TestCancelled(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		cause error
		want  string
	}{
		{&protocol.Failed{Message: "rank 1 is lost: signal: killed"}, "rank 1 is lost: signal: killed"},
		{context.Canceled, "rank 1 has ended before all had come"},
	} {
		for who := range 2 {
			all := hosts(t, 1, 1, 1)
			for i := range all {
				all[i].First = (all[i].First + who) % 2 // who of the two is rank 0
			}
			all = all[:2]
			ctx, cancel := context.WithCancelCause(t.Context())
			told := make(chan error, 1)
			master := 0
			if all[1].First == 0 {
				master = 1
			}
			s, err := newServer(t.Context(), &all[master])
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _, err := all[0].join(t.Context(), s.l.Addr().String()); told <- err }()
			left := make(chan error, 1)
			go func() { _, _, err := all[1].join(ctx, s.l.Addr().String()); left <- err }()
			for !func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.members) == 2 }() {
				time.Sleep(time.Millisecond)
			}
			cancel(x.cause)
			if err := <-left; err != x.cause {
				t.Errorf("%v: who leaves gets %v", x.cause, err)
			}
			want := strings.Replace(x.want, "rank 1 has ended", fmt.Sprintf("rank %d has ended", all[1].First), 1)
			if err := <-told; err == nil || err.Error() != want {
				t.Errorf("%v: the other gets %v, want %s", x.cause, err, want)
			}
			s.mu.Lock()
			s.close()
			s.mu.Unlock()
			s.wait(nil)
		}
	}
}

// Who fails when all are ready, and the others have been told so, has met them.
func TestCancelledReady(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := hosts(t, 1)[0]
	ctx, cancel := context.WithCancelCause(t.Context())
	met := make(chan error, 1)
	go func() {
		e, _, err := c.join(ctx, l.Addr().String())
		if err == nil {
			closeAll(e)
		}
		met <- err
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := transport.Admit(conn, secret); err != nil {
		t.Fatal(err)
	}
	in := protocol.NewReader(conn)
	next := func(kind protocol.Kind) (m protocol.Message) {
		t.Helper()
		if m, err = in.Next(); err != nil || m.Kind != kind {
			t.Fatalf("%v, %v, want %v", m.Kind, err, kind)
		}
		return m
	}
	var member Member
	if err := next(protocol.KindHello).Decode(&member); err != nil {
		t.Fatal(err)
	}
	if err := say(conn, protocol.KindWelcome, &welcome{Epoch: 1, Hosts: table{member}}); err != nil {
		t.Fatal(err)
	}
	next(protocol.KindReady)
	cancel(&protocol.Failed{Message: "rank 0 is lost"})
	next(protocol.KindFailed)
	if err := say(conn, protocol.KindDone, nil); err != nil { // which crossed it
		t.Fatal(err)
	}
	if err := <-met; err != nil {
		t.Error(err)
	}
}

// Noise on the port ends nothing.
func TestNoise(t *testing.T) {
	t.Parallel()
	all := hosts(t, 1, 1)
	stop := make(chan struct{})
	var noise sync.WaitGroup
	for _, b := range [][]byte{nil, []byte("GET / HTTP/1.1\r\n\r\n"), bytes.Repeat([]byte{0xff}, 1000)} {
		noise.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if c, err := net.Dial("tcp", all[0].Master); err == nil {
					c.Write(b)
					c.Close()
				}
			}
		})
	}
	for host, err := range meet(t.Context(), all) {
		if err != nil {
			t.Errorf("host %d: %v", host, err)
		}
	}
	close(stop)
	noise.Wait()
}

func TestMissingRanks(t *testing.T) {
	for _, x := range []struct {
		come []int // first ranks, of hosts of two
		want string
	}{{nil, "0 to 6"}, {[]int{0}, "2 to 6"}, {[]int{1}, "0, 3 to 6"}, {[]int{0, 3}, "2, 5 to 6"}, {[]int{4, 1}, "0, 3, 6"}, {[]int{5, 0, 2}, "4"}} {
		var m table
		for _, first := range x.come {
			if err := m.add(Member{World: 7, First: first, Workers: 2}); err != nil {
				t.Fatal(err)
			}
		}
		if got := m.missing(7); got != x.want {
			t.Errorf("%v: %q, want %q", x.come, got, x.want)
		}
	}
}
