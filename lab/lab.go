// Package lab emulates a cluster on one machine: hosts, each a network namespace
// with an interface of its own to each switch that joins them, whose ports may have a rate.
//
// Namespaces have no name: they last as long as a process is in one, or the [Lab]
// holds it, and the kernel removes them with all that is in them, however that ends.
package lab

import (
	"fmt"
	"net/netip"
	"time"
)

// MaxHosts of a lab.
const MaxHosts = 250

// MaxRails of a lab: networks that join all hosts, each with a switch of its own.
const MaxRails = 8

// Interface is the name of every host's interface to a rail.
func Interface(rail int) string { return fmt.Sprint("eth", rail) }

// Config of a lab.
type Config struct {
	Hosts int
	// Rates at which each host sends and receives, at the same time, on each rail, bits a
	// second of whole Ethernet frames (without preamble and checksum); 0: as fast as it
	// goes. None: one rail, as fast as it goes.
	Rates []float64
}

// Rates that can be shaped. A slower one would hold a frame for more than a second,
// a faster one is beyond what one machine copies.
const (
	MinRate = 64e3
	MaxRate = 400e9
)

func (c Config) check() error {
	switch {
	case c.Hosts < 1 || c.Hosts > MaxHosts:
		return fmt.Errorf("%d hosts: a lab has 1 to %d", c.Hosts, MaxHosts)
	case len(c.Rates) > MaxRails:
		return fmt.Errorf("%d rails: a lab has 1 to %d", len(c.Rates), MaxRails)
	}
	for _, rate := range c.Rates {
		if rate != 0 && !(rate >= MinRate && rate <= MaxRate) {
			return fmt.Errorf("a rate of %v bit/s: a lab has %g to %g", rate, float64(MinRate), float64(MaxRate))
		}
	}
	return nil
}

// rates are those of all rails.
func (c Config) rates() []float64 {
	if len(c.Rates) == 0 {
		return []float64{0}
	}
	return c.Rates
}

// PermissionError says what the process lacks.
type PermissionError struct {
	Doing string
	Err   error
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("%s: %v: a lab needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN), or a kernel that lets users make namespaces of their own", e.Doing, e.Err)
}

func (e *PermissionError) Unwrap() error { return e.Err }

// Addr is the IPv4 address of a host on a rail, which is a network of 24 bits.
func Addr(rail, host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(rail), byte(host + 1)})
}

// Addr6 is the IPv6 address of a host on a rail, which is a network of 64 bits.
func Addr6(rail, host int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 'w', 'e', 'f', 't', 7: byte(rail), 15: byte(host + 1)})
}

// Ethernet over veth.
const (
	mtu   = 1500
	frame = mtu + 14
	// whole is the largest packet that TCP makes where an interface says that it cuts
	// them into frames itself (GSO). The queue takes or leaves the whole of it.
	whole = 64 << 10
)

// Payload is the share of the rate that is left to what TCP carries over IPv4, in
// full frames: 20 bytes of each are IP's, 32 TCP's, with time stamps.
const Payload = float64(mtu-20-32) / frame

// line is how a host and its port are shaped, each in what it sends, by a token
// bucket (tbf): tokens come in at the rate, as long as there is room; a packet takes
// as many as it has bytes, and waits for them.
type line struct {
	rate   float64 // bytes a second
	packet int     // bytes: what TCP hands over at once
	bucket int     // bytes: room for tokens
	queue  int     // bytes that may wait
}

const (
	// grain is the time of the longest packet, and how late the kernel may wake up to
	// the next one without a loss of tokens. The finer it is, the more processor time
	// shaping takes: at 0.1 ms and 1 Gbit/s, four times as much as at 0.5 ms, and a tenth
	// of the rate was lost when both directions were busy. The coarser, the larger is a
	// message that an idle line takes at once, twice the grain.
	grain = 500 * time.Microsecond
	// memory is how long a packet may wait before later ones are dropped, as they are
	// when the memory of a switch is full.
	memory = 10 * time.Millisecond
)

func newLine(rate float64) line {
	l := line{rate: rate / 8}
	most := int(l.rate * grain.Seconds())
	l.packet = min(max(2*frame, most), whole)
	l.bucket = l.packet + most
	l.queue = l.bucket + max(2*whole, int(l.rate*memory.Seconds()))
	return l
}
