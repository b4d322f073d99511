package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// build needs rights that not everybody has who runs the tests; WEFT_TEST_LAB says that
// they are there.
func build(t testing.TB, c Config) *Lab {
	l, err := New(c)
	if errors.As(err, new(*PermissionError)) && os.Getenv("WEFT_TEST_LAB") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// connect makes a TCP connection from one host to another.
func connect(t testing.TB, l *Lab, from, to int, addr func(rail, host int) netip.Addr, rail int) (a, b net.Conn) {
	var listener net.Listener
	err := l.Do(to, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(addr(rail, to), 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := l.Do(from, func() (err error) {
		a, err = net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if b, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// Every host reaches every other by either kind of address, and sees nothing but its
// own interfaces.
func TestHosts(t *testing.T) {
	l := build(t, Config{Hosts: 3, Rates: []float64{10e9, 1e9}})
	for from := range l.Hosts {
		for to := range l.Hosts {
			for _, addr := range []func(rail, host int) netip.Addr{Addr, Addr6} {
				for rail := range l.Rates {
					a, b := connect(t, l, from, to, addr, rail)
					if got := a.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(); got != addr(rail, to) {
						t.Errorf("host %d has address %v, want %v", to, got, addr(rail, to))
					}
					if got := b.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(); got != addr(rail, from) {
						t.Errorf("host %d comes from address %v, want %v", from, got, addr(rail, from))
					}
					fmt.Fprintln(a, "hello")
					if _, err := io.ReadFull(b, make([]byte, 6)); err != nil {
						t.Errorf("from %d to %d: %v", from, to, err)
					}
				}
			}
		}
		var names []string
		if err := l.Do(from, func() error {
			interfaces, err := net.Interfaces()
			for _, i := range interfaces {
				names = append(names, i.Name)
			}
			return err
		}); err != nil || strings.Join(names, " ") != "lo eth0 eth1" {
			t.Errorf("host %d has interfaces %v (%v)", from, names, err)
		}
	}
}

// Both ends of each cable have the rate, and room for the packets that come.
func TestShape(t *testing.T) {
	for rate, want := range map[float64]line{
		0:    {},
		1e6:  {rate: 125e3, packet: 2 * frame},
		1e9:  {rate: 125e6, packet: 62500},
		40e9: {rate: 5e9, packet: whole},
	} {
		l := build(t, Config{Hosts: 2, Rates: []float64{rate}})
		var queues []netlink.Qdisc
		var packet int
		for _, ns := range append(l.hosts, l.bridged) {
			at, err := netlink.NewHandleAt(ns)
			if err != nil {
				t.Fatal(err)
			}
			defer at.Close()
			all, err := at.QdiscList(nil)
			if err != nil {
				t.Fatal(err)
			}
			queues = append(queues, all...)
			if ns != l.bridged {
				end, err := at.LinkByName(Interface(0))
				if err != nil {
					t.Fatal(err)
				}
				packet = int(end.Attrs().GSOMaxSize)
			}
		}
		shaped := 0
		for _, q := range queues {
			if x, ok := q.(*netlink.Tbf); ok {
				shaped++
				if float64(x.Rate) != want.rate {
					t.Errorf("%v bit/s: a queue of %v byte/s", rate, x.Rate)
				}
				room := float64(x.Buffer) / netlink.TickInUsec() / 1e6 * want.rate
				if room < float64(want.packet) || room > 2*float64(want.packet)+4*want.rate*grain.Seconds() || float64(x.Limit) < room {
					t.Errorf("%v bit/s: a bucket of %v bytes before a queue of %v, for packets of %v", rate, room, x.Limit, want.packet)
				}
			}
		}
		switch {
		case rate == 0 && shaped > 0:
			t.Errorf("%d queues are shaped, none should be", shaped)
		case rate > 0 && (shaped != 4 || packet != want.packet):
			t.Errorf("%v bit/s: %d queues are shaped, for packets of %d bytes; want 4, %d", rate, shaped, packet, want.packet)
		}
	}
}

// A line never carries more than its rate and what its bucket holds, in both
// directions at once; how much less depends on how busy this machine is.
func TestRate(t *testing.T) {
	const rate, bytes = 100e6, 2 << 20
	l := build(t, Config{Hosts: 2, Rates: []float64{rate}})
	a, b := connect(t, l, 0, 1, Addr, 0)
	var all sync.WaitGroup
	errs := make(chan error, 4)
	start := time.Now()
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		all.Go(func() {
			_, err := pair[0].Write(make([]byte, bytes))
			errs <- err
		})
		all.Go(func() {
			_, err := io.ReadFull(pair[1], make([]byte, bytes))
			errs <- err
		})
	}
	all.Wait()
	took := time.Since(start).Seconds()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	share := bytes * 8 / took / rate / Payload
	t.Logf("payload at %.3f of what the rate leaves to it", share)
	if share > 1.02 || share < 0.05 {
		t.Errorf("payload at %.3f of what the rate leaves to it", share)
	}
}

// The namespaces go with the lab.
func TestClose(t *testing.T) {
	l := build(t, Config{Hosts: 2})
	was, err := os.Readlink(fmt.Sprint("/proc/self/fd/", int(l.hosts[0])))
	if err != nil || !strings.HasPrefix(was, "net:[") {
		t.Fatal(was, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	all, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range all {
		if now, _ := os.Readlink("/proc/self/fd/" + fd.Name()); now == was {
			t.Errorf("descriptor %s still holds %s", fd.Name(), now)
		}
	}
	if err := l.Close(); err != nil {
		t.Error("again:", err)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []Config{{}, {Hosts: -1}, {Hosts: MaxHosts + 1}, {Hosts: 2, Rates: []float64{-1}}, {Hosts: 2, Rates: []float64{1e9, 1}}, {Hosts: 2, Rates: []float64{1e15}}, {Hosts: 2, Rates: make([]float64, MaxRails+1)}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v", c)
		}
	}
}
