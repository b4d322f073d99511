package rendezvous

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft/collective"
)

// Member is what an agent says of its host.
type Member struct {
	Weft    string `json:"weft"`  // its version
	World   int    `json:"world"` // workers on all hosts
	First   int    `json:"first"` // its workers' ranks follow each other
	Workers int    `json:"workers"`
	Auto    bool   `json:"auto,omitzero"` // rails are the subnets that all hosts share, after the first
	Rails   []Rail `json:"rails"`         // where it takes its peers' connections; none, of one that says why it leaves
}

// Rail is where a host is on a network that joins all.
type Rail struct {
	Address string       `json:"address"` // host:port
	Subnet  netip.Prefix `json:"subnet"`
}

// address is one of the member, for messages.
func (m *Member) address() string {
	if len(m.Rails) == 0 {
		return "not yet listening"
	}
	return m.Rails[0].Address
}

// chooses tells how many rails the member has, and by what.
func (m *Member) chooses() string {
	switch {
	case m.Auto:
		return "auto"
	case len(m.Rails) == 1:
		return "one rail"
	}
	return fmt.Sprint(len(m.Rails), " rails")
}

// ranks names the member's workers.
func (m *Member) ranks() string {
	if m.Workers == 1 {
		return fmt.Sprint("rank ", m.First)
	}
	return fmt.Sprintf("ranks %d to %d", m.First, m.First+m.Workers-1)
}

// table is the members that have come, by their first ranks.
type table []Member

// add refuses a member that cannot be of one job with those that are there.
func (t *table) add(m Member) error {
	if m.World < 1 || m.First < 0 || m.Workers < 1 || m.First > m.World-m.Workers {
		return fmt.Errorf("%s of %d workers: RANK, LOCAL_RANK, LOCAL_WORLD_SIZE or WORLD_SIZE is wrong there", m.ranks(), m.World)
	}
	for _, x := range *t {
		a, b := &x, &m
		if b.First < a.First {
			a, b = b, a
		}
		switch {
		case a.Weft != b.Weft:
			return fmt.Errorf("weft is %s on rank %d, %s on rank %d: install the same on all hosts", a.Weft, a.First, b.Weft, b.First)
		case a.World != b.World:
			return fmt.Errorf("rank %d counts %d workers (WORLD_SIZE), rank %d counts %d", a.First, a.World, b.First, b.World)
		case b.First < a.First+a.Workers:
			return fmt.Errorf("rank %d is on two hosts: one has %s (%s), one %s (%s); ranks must be numbered host by host (Slurm: --distribution=block), and each host's number given once",
				b.First, a.ranks(), a.address(), b.ranks(), b.address())
		case len(a.Rails) > 0 && len(b.Rails) > 0 && a.chooses() != b.chooses():
			return fmt.Errorf("rank %d has %s, rank %d %s: give all hosts as many (--rails, WEFT_RAILS)", a.First, a.chooses(), b.First, b.chooses())
		}
	}
	at, _ := slices.BinarySearchFunc(*t, m.First, func(x Member, first int) int { return cmp.Compare(x.First, first) })
	*t = slices.Insert(*t, at, m)
	return nil
}

// has reports whether the host of a rank has come.
func (t table) has(rank int) bool {
	return slices.ContainsFunc(t, func(m Member) bool { return m.First <= rank && rank < m.First+m.Workers })
}

// missing names the ranks of a world that have not come; "": all have.
func (t table) missing(world int) string {
	var out []string
	next := 0
	gap := func(until int) {
		switch until - next {
		case 0:
		case 1:
			out = append(out, strconv.Itoa(next))
		default:
			out = append(out, fmt.Sprintf("%d to %d", next, until-1))
		}
	}
	for _, m := range t {
		gap(m.First)
		next = m.First + m.Workers
	}
	gap(world)
	return strings.Join(out, ", ")
}

// rails are the addresses of all members, by rail. Where hosts choose by themselves,
// further rails are the subnets in which all have an address, and no two the same one:
// what is set up alike on every host (a bridge of containers) joins none.
func (t table) rails() (out [][]string) {
	first := slices.IndexFunc(t, func(m Member) bool { return len(m.Rails) > 0 })
	if first < 0 {
		return nil
	}
	for r := range t[first].Rails {
		if addresses, ok := t.rail(r, t[first].Rails[r].Subnet); ok {
			out = append(out, addresses)
		}
	}
	return out
}

func (t table) rail(r int, subnet netip.Prefix) (addresses []string, ok bool) {
	found := map[string]bool{}
	for _, m := range t {
		at := r
		if m.Auto && r > 0 {
			at = slices.IndexFunc(m.Rails, func(x Rail) bool { return x.Subnet == subnet })
		}
		if len(m.Rails) == 0 { // it has come to say why it leaves
			addresses = append(addresses, "")
			continue
		}
		if at < 0 {
			return nil, false
		}
		host, _, err := net.SplitHostPort(m.Rails[at].Address)
		if m.Auto && r > 0 && (err != nil || found[host]) {
			return nil, false
		}
		found[host] = true
		addresses = append(addresses, m.Rails[at].Address)
	}
	return addresses, true
}

// layout is how many workers each host has, of a table that is complete.
func (t table) layout() (l collective.Layout) {
	for _, m := range t {
		l = append(l, m.Workers)
	}
	return l
}
