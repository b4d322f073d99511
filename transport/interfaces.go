package transport

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Interface is a network interface of this host, as far as the choice of an
// address needs it.
type Interface struct {
	Name     string
	Up       bool
	Loopback bool
	Addrs    []netip.Prefix // each with its subnet
}

// Local is an address of this host at which peers can reach it.
type Local struct {
	Interface string
	Addr      netip.Addr
	Subnet    netip.Prefix // of Addr
}

// RailName is the name of the link that a rail is: of the networks that join all hosts,
// which are numbered from 0.
func RailName(rail int) string {
	if rail == 0 {
		return "net"
	}
	return fmt.Sprint("rail", rail)
}

// Names is the choice of interfaces that the environment makes, in the syntax
// of NCCL_SOCKET_IFNAME, which comes first; GLOO_SOCKET_IFNAME has exact names.
// Empty: none. getenv is [os.Getenv].
func Names(getenv func(string) string) string {
	if v := getenv("NCCL_SOCKET_IFNAME"); v != "" {
		return v
	}
	if v := getenv("GLOO_SOCKET_IFNAME"); v != "" {
		return "=" + v
	}
	return ""
}

// ChooseLocal says at which addresses this host can be told to its peers, the
// best first, one an interface. The others are further links, if the peers have
// them too.
//
// Names chooses among the interfaces: a list of prefixes, with commas; after "="
// of whole names; after "^" those that are not to be used ("^=eth0,eth1").
// Empty: all but docker's, unless there are no others. Route is the address of
// this host that leads to the rendezvous, if it is known; it comes first, and
// its family does on every interface. Without a route, or if it is no good to
// others, private addresses come before public ones.
//
// Remote tells that some peers are on other hosts. They are never told a
// loopback address.
func ChooseLocal(interfaces []Interface, names string, route netip.Addr, remote bool) ([]Local, error) {
	chosen := parseNames(names)
	type candidate struct {
		Local
		rank []int // smaller comes first
	}
	var found []candidate
	loopback := false // was left out
	for i, in := range interfaces {
		place, ok := chosen.match(in.Name)
		if !in.Up || !ok {
			continue
		}
		var best *candidate
		for _, p := range in.Addrs {
			a := p.Addr().Unmap()
			if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Is6() && a.IsLinkLocalUnicast() {
				continue // link-local IPv6 means something else on every host
			}
			local := in.Loopback || a.IsLoopback()
			if local && remote {
				loopback = true
				continue
			}
			c := candidate{Local{in.Name, a, p.Masked()}, []int{
				no(a == route.Unmap()),
				place,
				yes(local),
				yes(names == "" && strings.HasPrefix(in.Name, "docker")),
				yes(a.IsLinkLocalUnicast()),
				no(a.Is4() == (!route.IsValid() || route.Unmap().Is4())),
				no(a.IsPrivate()),
				i,
			}}
			if best == nil || slices.Compare(c.rank, best.rank) < 0 {
				best = &c
			}
		}
		if best != nil {
			found = append(found, *best)
		}
	}
	if len(found) == 0 {
		return nil, noLocal(names, loopback, interfaces)
	}
	slices.SortFunc(found, func(a, b candidate) int { return slices.Compare(a.rank, b.rank) })
	out := make([]Local, len(found))
	for i, c := range found {
		out[i] = c.Local
	}
	return out, nil
}

func yes(b bool) int {
	if b {
		return 1
	}
	return 0
}

func no(b bool) int { return yes(!b) }

func noLocal(names string, loopback bool, interfaces []Interface) error {
	var have []string
	for _, in := range interfaces {
		have = append(have, in.Name)
	}
	of := "of the interfaces " + strings.Join(have, ", ")
	if names != "" {
		of += ", of which " + fmt.Sprintf("%q", names) + " chooses,"
	}
	if loopback {
		return fmt.Errorf("%s none has an address for peers on other hosts: loopback is only for this host", of)
	}
	return fmt.Errorf("%s none is up and has an address", of)
}

// nameList is a choice of interfaces.
type nameList struct {
	names          []string
	exclude, exact bool
}

func parseNames(s string) nameList {
	var l nameList
	s, l.exclude = strings.CutPrefix(strings.TrimSpace(s), "^")
	s, l.exact = strings.CutPrefix(s, "=")
	for name := range strings.SplitSeq(s, ",") {
		if name = strings.TrimSpace(name); name != "" {
			l.names = append(l.names, name)
		}
	}
	return l
}

// match tells whether an interface is chosen, and its place in the list.
func (l nameList) match(name string) (place int, ok bool) {
	place = slices.IndexFunc(l.names, func(n string) bool {
		return name == n || !l.exact && strings.HasPrefix(name, n)
	})
	if l.exclude || len(l.names) == 0 {
		return 0, place < 0
	}
	return place, place >= 0
}

// Interfaces lists those of this host.
func Interfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("network interfaces: %w", err)
	}
	var out []Interface
	for _, in := range all {
		addrs, err := in.Addrs()
		if err != nil {
			return nil, fmt.Errorf("network interface %s: %w", in.Name, err)
		}
		i := Interface{Name: in.Name, Up: in.Flags&net.FlagUp != 0, Loopback: in.Flags&net.FlagLoopback != 0}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.Addrs = append(i.Addrs, p)
			}
		}
		out = append(out, i)
	}
	return out, nil
}
