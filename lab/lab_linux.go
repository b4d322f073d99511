package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Lab is a cluster that has been built.
type Lab struct {
	Config
	hosts   []netns.NsHandle
	bridged netns.NsHandle // where the switches are: the machine's own namespace is not touched
}

// New builds a lab. It needs CAP_SYS_ADMIN and CAP_NET_ADMIN; an error without them is
// a [*PermissionError].
func New(c Config) (*Lab, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	l := &Lab{Config: c, bridged: netns.None()}
	if err := apart(l.build); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close gives the namespaces up. Those with processes in them last until these end.
func (l *Lab) Close() error {
	var errs []error
	for _, ns := range append(l.hosts, l.bridged) {
		if ns.IsOpen() {
			errs = append(errs, ns.Close())
		}
	}
	l.hosts, l.bridged = nil, netns.None()
	return errors.Join(errs...)
}

// Enter moves the calling thread to a host: sockets that it makes and processes that
// it starts are there. The goroutine has locked it, and must not unlock it: the thread
// is to end with the goroutine, because nothing else may run there.
func (l *Lab) Enter(host int) error {
	if err := netns.Set(l.hosts[host]); err != nil {
		return fmt.Errorf("entering host %d: %w", host, err)
	}
	return nil
}

// Do calls f on a thread at a host.
func (l *Lab) Do(host int, f func() error) error {
	return apart(func() error {
		if err := l.Enter(host); err != nil {
			return err
		}
		return f()
	})
}

// apart calls f on a thread that ends afterwards.
func apart(f func() error) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		ended <- f()
	}()
	return <-ended
}

func (l *Lab) build() (err error) {
	if l.bridged, err = netns.New(); err != nil {
		return denied("making a network namespace", err)
	}
	at, err := netlink.NewHandleAt(l.bridged, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer at.Close()
	for range l.Hosts {
		ns, err := netns.New()
		if err != nil {
			return denied("making a network namespace", err)
		}
		l.hosts = append(l.hosts, ns)
	}
	for rail, rate := range l.rates() {
		if err := l.join(at, rail, rate); err != nil {
			return fmt.Errorf("rail %d: %w", rail, err)
		}
	}
	return nil
}

// join makes the switch of a rail, and cables to all hosts.
func (l *Lab) join(at *netlink.Handle, rail int, rate float64) error {
	flood := false // a switch that learns who listens to which group takes its time
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("switch", rail)}, MulticastSnooping: &flood}
	if err := at.LinkAdd(bridge); err != nil {
		return denied("making the switch", err)
	}
	if err := at.LinkSetUp(bridge); err != nil {
		return err
	}
	for host := range l.Hosts {
		if err := l.plug(at, bridge, rail, host, rate); err != nil {
			return fmt.Errorf("host %d: %w", host, err)
		}
	}
	return nil
}

// plug makes a cable from a host to the switch of a rail.
func (l *Lab) plug(at *netlink.Handle, bridge *netlink.Bridge, rail, host int, rate float64) error {
	ns := l.hosts[host]
	there, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer there.Close()
	port := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("port%d-%d", rail, host), MTU: mtu, MasterIndex: bridge.Index},
		PeerName:  Interface(rail), PeerNamespace: netlink.NsFd(ns), PeerMTU: mtu,
	}
	if err := at.LinkAdd(port); err != nil {
		return fmt.Errorf("its cable to the switch: %w", err)
	}
	end, err := there.LinkByName(Interface(rail))
	if err != nil {
		return err
	}
	lo, err := there.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, a := range []netip.Prefix{netip.PrefixFrom(Addr(rail, host), 24), netip.PrefixFrom(Addr6(rail, host), 64)} {
		ip := &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
		// Nobody else has the address: it need not be asked for a second first.
		if err := there.AddrAdd(end, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	if rate > 0 {
		if err := newLine(rate).shape(there, end, at, port); err != nil {
			return err
		}
	}
	return errors.Join(there.LinkSetUp(lo), there.LinkSetUp(end), at.LinkSetUp(port))
}

// shape limits what a host sends and what its port sends to it.
func (x line) shape(there *netlink.Handle, end netlink.Link, at *netlink.Handle, port netlink.Link) error {
	if err := there.LinkSetGSOMaxSize(end, x.packet); err != nil {
		return fmt.Errorf("the size of its packets: %w", err)
	}
	// What comes to a port from one host comes at the rate. Only what comes from several
	// is to wait: a larger bucket does not make the first wait again for the kernel.
	for _, q := range []struct {
		at     *netlink.Handle
		link   netlink.Link
		bucket int
	}{{there, end, x.bucket}, {at, port, 2 * x.bucket}} {
		err := q.at.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: q.link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       uint64(x.rate),
			Limit:      uint32(x.queue),
			Buffer:     uint32(float64(q.bucket) / x.rate * 1e6 * netlink.TickInUsec()),
		})
		if err != nil {
			return fmt.Errorf("its rate (needs the kernel's tbf): %w", err)
		}
	}
	return nil
}

func denied(doing string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return &PermissionError{doing, err}
	}
	return fmt.Errorf("%s: %w", doing, err)
}
