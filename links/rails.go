package links

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weft/cluster"
	"weft/collective"
	"weft/transport"
)

// Rail is what was measured of one of the networks that join the hosts.
type Rail struct {
	Name  string
	Times *Measured
	Fit   *Fit
}

// quick is the effort for which a training waits: a second or two on slow rails, less on fast ones.
// The smallest message has next to no time on the wire, and so takes its latency though a shaper
// lets small ones pass at once. Of so few times it takes the least: what disturbs them only adds to them.
var quick = effort{[]cluster.Kind{cluster.AllReduce}, []int64{64, 256 << 10, 1 << 20}, 50 * time.Millisecond, 20 * time.Millisecond, 0}

// Quick measures each of several rails, and every two at once, with messages of few sizes.
// All hosts call it at the same time. The links, by the names of the rails, are those that
// host 0 finds, and nil elsewhere.
func Quick(ctx context.Context, rails []transport.Endpoint) ([]cluster.Link, error) {
	var err error
	found, times := make([]Rail, len(rails)), make([]*Measured, len(rails))
	for r, e := range rails {
		if times[r], err = measure(ctx, e, quick, nil); err != nil {
			return nil, err
		}
	}
	pairs, err := MeasurePairs(ctx, rails, times)
	if err != nil || times[0] == nil {
		return nil, err
	}
	hosts := make(collective.Layout, rails[0].World())
	for h := range hosts {
		hosts[h] = 1
	}
	for r := range rails {
		found[r] = Rail{Name: transport.RailName(r), Times: times[r]}
		if found[r].Fit, err = times[r].Fit(len(hosts)); err != nil {
			return nil, err
		}
	}
	c, err := Cluster(hosts, found, pairs, false)
	if err != nil {
		return nil, err
	}
	return c.Links, nil
}

// Pair is two rails that were used at once. Times are microseconds.
type Pair struct {
	Rails    [2]int
	Alone    float64 // of the slower one, by itself
	Together float64
	Shared   float64 // what both would take on a medium as fast as the faster of the two
}

// SharesMedium reports whether the two share a medium.
func (p *Pair) SharesMedium() bool { return cluster.OneMedium(p.Alone, p.Together, p.Shared) }

const (
	perRail   = 300 * time.Millisecond // of all-reduces on each rail, about
	perPair   = 3                      // times that each is measured
	pairBytes = 1 << 20                // of an all-reduce, at most
)

// MeasurePairs measures every two rails alone and together; all hosts call it at the same
// time. What was measured of each rail, and the result, are host 0's, and nil elsewhere.
func MeasurePairs(ctx context.Context, rails []transport.Endpoint, measured []*Measured) ([]Pair, error) {
	var all []*part
	for r, e := range rails {
		x := &part{measurement: measurement{ctx: ctx, e: e}}
		var err error
		if x.barrier, err = collective.Barrier(e.Rank(), e.World()); err != nil {
			return nil, err
		}
		if e.Rank() == 0 {
			x.choose(measured[r])
		}
		if err := x.prepare(); err != nil {
			return nil, err
		}
		if x.alone, err = together(x); err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	var out []Pair
	for b, second := range all {
		for a, first := range all[:b] {
			both, err := together(first, second)
			if err != nil {
				return nil, err
			}
			rate := max(first.rate(), second.rate())
			if rate > 0 {
				out = append(out, Pair{[2]int{a, b}, max(first.alone, second.alone), both, (first.moved() + second.moved()) / rate})
			}
		}
	}
	if rails[0].Rank() > 0 {
		return nil, nil
	}
	return out, nil
}

// part is what one rail does beside another.
type part struct {
	measurement
	bytes int64
	n     int
	run   func(n int) ([]time.Duration, error)
	alone float64 // microseconds
}

func (x *part) moved() float64 { return float64(x.bytes) * float64(x.n) }

func (x *part) rate() float64 { return x.moved() / x.alone }

// choose sizes the part, by how long all-reduces have taken.
func (x *part) choose(m *Measured) {
	for _, p := range m.Rings {
		if p.Kind == cluster.AllReduce && (x.bytes == 0 || p.Bytes <= pairBytes) {
			x.bytes = p.Bytes
			x.n = int(min(max(float64(perRail.Microseconds())/p.Time, few), many))
		}
	}
}

// prepare makes the part the same on all hosts.
func (x *part) prepare() error {
	v, err := x.tell(uint64(x.bytes)<<32 | uint64(x.n))
	if err != nil {
		return err
	}
	x.bytes, x.n = int64(v>>32), int(v&(1<<32-1))
	if x.bytes < 4 || x.bytes > Sizes[len(Sizes)-1] || x.n < few || x.n > many {
		return fmt.Errorf("host 0 wants %d all-reduces of %d bytes", x.n, x.bytes)
	}
	x.run, err = x.ring(cluster.AllReduce, x.bytes)
	return err
}

// together is the least time, microseconds, of all parts at once.
func together(parts ...*part) (float64, error) {
	first := parts[0]
	times, errs := make([]time.Duration, perPair), make([]error, len(parts))
	for i := range times {
		if err := first.measurement.run(collective.Transfer{Program: first.barrier}); err != nil {
			return 0, err
		}
		start := time.Now()
		Together(len(parts), func(p int) { _, errs[p] = parts[p].run(parts[p].n) })
		times[i] = time.Since(start)
		for _, err := range errs {
			if err != nil {
				return 0, err
			}
		}
	}
	if err := first.longest(times); err != nil {
		return 0, err
	}
	return float64(slices.Min(times).Nanoseconds()) / 1e3, nil
}

// Cluster is what was measured as a cluster, with a link for each rail; those that share
// a medium name the first of them. With table, links have the times of rings.
func Cluster(l collective.Layout, rails []Rail, pairs []Pair, table bool) (*cluster.Cluster, error) {
	for _, n := range l {
		if n != l[0] {
			return nil, fmt.Errorf("hosts have %v workers: a cluster has as many on each", l)
		}
	}
	c := &cluster.Cluster{Nodes: len(l), PerNode: l[0], Scale: 1}
	for _, r := range rails {
		link := r.Fit.Link
		link.Name = r.Name
		if table {
			link.Curve = rising(r.Times.Rings)
		}
		c.Links = append(c.Links, link)
	}
	for _, p := range pairs { // by the second of the two, then the first
		if !p.SharesMedium() {
			continue
		}
		a, b := &c.Links[p.Rails[0]], &c.Links[p.Rails[1]]
		if a.Medium == "" {
			a.Medium = a.Name
		}
		old, medium := b.Medium, a.Medium
		b.Medium = medium
		for i := range c.Links {
			if old != "" && c.Links[i].Medium == old {
				c.Links[i].Medium = medium
			}
		}
	}
	return c, c.Validate()
}
