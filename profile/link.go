package profile

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
)

// Host is what the agent of one host knows of the iterations that were measured.
type Host struct {
	Reports   []Report   `json:"reports"` // of its workers, by rank
	Transfers []Transfer `json:"transfers,omitzero"`
	Passes    []Pass     `json:"passes,omitzero"` // by iteration
}

// Transfer is one that the host has done, from when all its workers had declared the
// bucket. Times are microseconds of the host's own clock.
type Transfer struct {
	Iteration int     `json:"iteration"` // of those measured
	Bytes     int64   `json:"bytes"`
	Start     float64 `json:"start"`
	End       float64 `json:"end"`
}

// Pass is the time in which the workers of a host declare the buckets of an iteration:
// the last one is declared at the end of the backward pass.
type Pass struct {
	First float64 `json:"first"`
	Last  float64 `json:"last"`
}

// Measured is what was measured of communication.
type Measured struct {
	// Points are how long transfers took by size: medians.
	Points []cluster.Point
	// Errors are, by point, the time that the fitted link explains over the measured
	// one, less 1.
	Errors []float64
	Notes  []string // what could not be measured
}

// c10d is the link whose transfers workers run: agent/protocol has it too.
const c10d = "c10d"

const (
	// maxOverlap bounds the slowdown that is believed: half the speed.
	maxOverlap = 1
	// maxPoints bounds what a worker may report of torch.distributed.
	maxPoints = 64
	// enough is the share of the backward pass that transfers must overlap with, or how
	// much they slow it cannot be told.
	enough = 0.1
)

// Cluster is what the training ran on: nodes of as many workers, joined by one link
// whose latency and bandwidth explain the measured transfers, and how much these slow
// computation. Where several rails join the nodes, transfers went over the first; what the
// others do is known by comparison, of all of them idle.
func Cluster(hosts []Host, rails []cluster.Link) (*cluster.Cluster, *Measured, error) {
	world := 0
	for h := range hosts {
		if world += len(hosts[h].Reports); len(hosts[h].Reports) != len(hosts[0].Reports) {
			return nil, nil, fmt.Errorf("hosts have %d and %d workers: a cluster has as many on each", len(hosts[0].Reports), len(hosts[h].Reports))
		}
		if a, b := len(hosts[0].Passes), len(hosts[h].Passes); a != b {
			return nil, nil, fmt.Errorf("hosts measured %d and %d iterations", a, b)
		}
		if err := hosts[h].check(); err != nil {
			return nil, nil, fmt.Errorf("host %d: %w", h, err)
		}
	}
	if world < 2 {
		return nil, nil, fmt.Errorf("one worker does not communicate")
	}
	m := &Measured{Points: points(hosts)}
	c := cluster.Uniform(len(hosts), len(hosts[0].Reports), cluster.Link{Name: "net"})
	if err := m.fit(c); err != nil {
		return nil, nil, err
	}
	beside(c, rails)
	m.slowdown(c, hosts)
	if r := hosts[0].Reports[0].C10D; r != nil {
		if err := m.join(c, r); err != nil {
			return nil, nil, fmt.Errorf("link %s: %w", c10d, err)
		}
	}
	return c, m, c.Validate()
}

func (h *Host) check() error {
	for i, t := range h.Transfers {
		if t.Iteration < 0 || t.Iteration >= len(h.Passes) || t.Bytes <= 0 || checkTime(t.Start) != nil || checkTime(t.End) != nil || t.End < t.Start {
			return fmt.Errorf("its transfer %d (%+v) cannot be", i, t)
		}
	}
	for i, p := range h.Passes {
		if checkTime(p.First) != nil || checkTime(p.Last) != nil || p.Last < p.First {
			return fmt.Errorf("its pass %d (%+v) cannot be", i, p)
		}
	}
	return nil
}

// span is the time in which one transfer, or several that overlap, are under way.
type span struct {
	start, end float64
	bytes      int64
}

// spans are those of an iteration, in order.
func (h *Host) spans(iteration int) (out []span) {
	var ts []Transfer
	for _, t := range h.Transfers {
		if t.Iteration == iteration {
			ts = append(ts, t)
		}
	}
	slices.SortFunc(ts, func(a, b Transfer) int { return cmp.Compare(a.Start, b.Start) })
	for _, t := range ts {
		if n := len(out); n > 0 && t.Start <= out[n-1].end {
			out[n-1].end, out[n-1].bytes = max(out[n-1].end, t.End), out[n-1].bytes+t.Bytes
		} else {
			out = append(out, span{t.Start, t.End, t.Bytes})
		}
	}
	return out
}

// points are the median times of spans by bytes. A host that starts before others waits
// for them, so an iteration's are those of the host that took least.
func points(hosts []Host) (out []cluster.Point) {
	times := map[int64][]float64{}
	for i := range hosts[0].Passes {
		var least []span
		shortest := math.Inf(1)
		for h := range hosts {
			s, sum := hosts[h].spans(i), 0.0
			for _, x := range s {
				sum += x.end - x.start
			}
			if sum < shortest {
				least, shortest = s, sum
			}
		}
		for _, x := range least {
			times[x.bytes] = append(times[x.bytes], x.end-x.start)
		}
	}
	for bytes, t := range times {
		if slices.Sort(t); t[len(t)/2] == 0 {
			continue // too short to measure
		}
		out = append(out, cluster.Point{Kind: cluster.AllReduce, Bytes: bytes, Time: t[len(t)/2]})
	}
	slices.SortFunc(out, func(a, b cluster.Point) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return out
}

// fit finds the latency and bandwidth of the cluster's link.
func (m *Measured) fit(c *cluster.Cluster) error {
	if err := line(c, 0, m.Points); err != nil {
		return fmt.Errorf("transfers: %w", err)
	}
	for _, p := range m.Points {
		cost, err := c.Cost(0, p.Kind, p.Bytes)
		if err != nil {
			return err
		}
		m.Errors = append(m.Errors, cost.Total()/p.Time-1)
	}
	return nil
}

// line gives a link the latency and bandwidth that points, by ascending size, are of.
func line(c *cluster.Cluster, link int, points []cluster.Point) error {
	latency, slowness, err := cluster.Line(points)
	if err != nil {
		return err
	}
	// Of a link with a latency of 1 us and a byte a microsecond, costs are the factors.
	l, last := &c.Links[link], points[len(points)-1]
	l.Latency, l.Bandwidth = 1, 8e6
	cost, err := c.Cost(link, last.Kind, last.Bytes)
	if err != nil {
		return err
	}
	l.Latency = math.Round(latency/cost.Alpha*1e3) / 1e3
	l.Bandwidth = math.Round(8e6 * cost.Wire / float64(last.Bytes) / slowness)
	return nil
}

// join adds the link of torch.distributed, whose transfers a worker runs one at a time.
func (m *Measured) join(c *cluster.Cluster, r *C10D) error {
	var points []cluster.Point
	for i, p := range r.Points {
		if checkTime(p.Time) != nil || i > 0 && p.Bytes <= points[i-1].Bytes {
			return fmt.Errorf("its points (%+v) cannot be", r.Points)
		}
		points = append(points, cluster.Point{Kind: cluster.AllReduce, Bytes: p.Bytes, Time: p.Time})
	}
	if len(points) == 0 || len(points) > maxPoints || cmp.Or(checkTime(r.Alone), checkTime(r.Together), checkTime(r.Shared)) != nil {
		return fmt.Errorf("its times (%+v) cannot be", r)
	}
	at := len(c.Links)
	c.Links = append(c.Links, cluster.Link{Name: c10d, InFlight: 1})
	if err := line(c, at, points); err != nil {
		return err
	}
	net, own := &c.Links[0], &c.Links[at]
	beside := "at the same time as"
	if cluster.OneMedium(r.Alone, r.Together, r.Shared) {
		net.Medium, own.Medium = net.Name, net.Name
		beside = "on one medium with"
	}
	m.Notes = append(m.Notes, fmt.Sprintf("link %s, torch.distributed: %.3g Gbit/s and %.0f us a step, %s link %s", c10d, own.Bandwidth/1e9, own.Latency, beside, net.Name))
	return nil
}

// beside adds the links of further rails. No transfer of a training has less latency than a
// message on an idle rail, nor more bandwidth, though a line through few and disturbed times may say so. What transfers of a training
// take more than messages on an idle rail, they take on each.
func beside(c *cluster.Cluster, rails []cluster.Link) {
	if len(rails) == 0 {
		return
	}
	net, idle := &c.Links[0], rails[0]
	net.Latency = max(net.Latency, idle.Latency)
	if len(rails) == 1 {
		return
	}
	net.Name, net.Medium = idle.Name, idle.Medium
	more, share := net.Latency-idle.Latency, min(1, net.Bandwidth/idle.Bandwidth)
	for _, l := range rails[1:] {
		l.Latency += more
		l.Bandwidth = math.Round(l.Bandwidth * share)
		c.Links = append(c.Links, l)
	}
}

// slowdown compares backward passes with transfers beside them and without. A pass of
// B us alone takes B + d with transfers under way for A us of it, in which computation
// goes on at the rate 1/(1+s): (B + d - A) + A/(1+s) = B, so s = d / (A - d).
func (m *Measured) slowdown(c *cluster.Cluster, hosts []Host) {
	var found []float64
	little := true
	for h := range hosts {
		var beside []float64
		for i := 1; i < len(hosts[h].Passes); i += 2 { // the others are quiet
			p, sum := hosts[h].Passes[i], 0.0
			for _, x := range hosts[h].spans(i) {
				sum += max(0, min(x.end, p.Last)-max(x.start, p.First))
			}
			if p.Last > 0 {
				beside = append(beside, sum)
			}
		}
		if len(beside) == 0 {
			continue
		}
		slices.Sort(beside)
		a := beside[len(beside)/2]
		for _, r := range hosts[h].Reports {
			b := r.Phases["backward"]
			if r.Overlapped == 0 || a < enough*b {
				continue
			}
			little = false
			d := max(0, r.Overlapped-b)
			if s := d / (a - d); a > d && s < maxOverlap {
				found = append(found, s)
			} else {
				found = append(found, maxOverlap)
			}
		}
	}
	if little {
		m.Notes = append(m.Notes, fmt.Sprintf("transfers overlapped with less than %.0f %% of the backward pass: how much they slow it is not known, and taken to be nothing", 100*enough))
		return
	}
	slices.Sort(found)
	c.Overlap = math.Round(found[len(found)/2]*1e3) / 1e3
	if c.Overlap == maxOverlap {
		m.Notes = append(m.Notes, "backward passes beside transfers took more than these explain at half the speed of computation, which is taken: other programs may have disturbed them")
	}
}
