package profile

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"weft/cluster"
	"weft/internal/median"
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
	// maxPoints bounds what a worker may report of torch.distributed.
	maxPoints = 64
	// enough is the share of the backward pass that transfers must overlap with, or how
	// much they slow it cannot be told.
	enough = 0.02
)

// Cluster is what the training ran on: nodes of as many workers, joined by one link
// whose latency and bandwidth explain the measured transfers, and what these take from
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
	idle(c, rails)
	overhead(c, hosts)
	m.work(c, hosts)
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

// points are the median times of spans by bytes, of those beside which no worker computes:
// they begin when the backward pass has ended. A host that starts before others waits
// for them, so an iteration's are those of the host that took least.
func points(hosts []Host) (out []cluster.Point) {
	times := map[int64][]float64{}
	for i := range hosts[0].Passes {
		var least []span
		shortest := math.Inf(1)
		for h := range hosts {
			s, sum := hosts[h].spans(i), 0.0
			if i%2 == 1 {
				s = slices.DeleteFunc(s, func(x span) bool { return x.start < hosts[h].Passes[i].Last })
			}
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

// idle takes from the rails, which were measured idle, what transfers of a training cannot
// tell, for these are few, large and disturbed: the latency. A further rail has the bandwidth that
// it has beside the first one idle, by that of the first one in the training.
func idle(c *cluster.Cluster, rails []cluster.Link) {
	if len(rails) == 0 {
		return
	}
	net, first := &c.Links[0], rails[0]
	net.Latency = first.Latency
	if len(rails) == 1 {
		return
	}
	net.Name, net.Medium = first.Name, first.Medium
	share := min(1, net.Bandwidth/first.Bandwidth)
	for _, l := range rails[1:] {
		l.Bandwidth = math.Round(l.Bandwidth * share)
		c.Links = append(c.Links, l)
	}
}

// overhead is what a transfer takes of workers and agents, however small it is: what a barrier
// takes beside the latencies of its rounds, each of which has one among twice as many hosts. Who is early
// at a barrier waits for the others, so it is what the last worker sees.
func overhead(c *cluster.Cluster, hosts []Host) {
	least := math.Inf(1)
	for h := range hosts {
		for _, r := range hosts[h].Reports {
			least = min(least, r.Call)
		}
	}
	rounds := max(1, bits.Len(uint(len(hosts)-1)))
	for l := range c.Links {
		x := &c.Links[l]
		x.Overhead = math.Round(max(0, least-float64(rounds)*x.Latency)*1e3) / 1e3
	}
}

// work compares backward passes with transfers beside them and without: what one takes
// longer is what the bytes that were moved beside it take from it, whatever the time that
// they took, on the worker where that is most, for the others wait for it. A transfer
// that ends behind the pass counts by the part of its time within.
// Contention is what transfers beside the pass take longer than the link does by itself,
// on the host where that is least, for the others wait for it.
func (m *Measured) work(c *cluster.Cluster, hosts []Host) {
	var found []float64
	contention := math.Inf(1)
	little, much := true, false
	for h := range hosts {
		var times, bytes []float64                     // beside the pass, by iteration
		for i := 1; i < len(hosts[h].Passes); i += 2 { // the others are quiet
			p, time, moved := hosts[h].Passes[i], 0.0, 0.0
			for _, x := range hosts[h].spans(i) {
				if in := min(x.end, p.Last) - max(x.start, p.First); in > 0 {
					time += in
					moved += float64(x.bytes) * in / (x.end - x.start)
				}
			}
			if p.Last > 0 {
				times, bytes = append(times, time), append(bytes, moved)
			}
		}
		beside, moved := median.Of(times), median.Of(bytes)
		if cost, err := c.Cost(0, cluster.AllReduce, int64(moved)); err == nil && moved > 0 {
			contention = min(contention, max(0, beside/cost.Total()-1))
		}
		for _, r := range hosts[h].Reports {
			b := r.Phases["backward"]
			if r.Overlapped == 0 || beside == 0 || beside < enough*b {
				continue
			}
			little = false
			longer := max(0, r.Overlapped-b)
			if most := cluster.MaxLoad * beside; longer > most {
				longer, much = most, true
			}
			found = append(found, longer/moved*1e6)
		}
	}
	if little {
		m.Notes = append(m.Notes, fmt.Sprintf("transfers overlapped with less than %.0f %% of the backward pass: how much they slow it is not known, and taken to be nothing", 100*enough))
		return
	}
	c.Contention = math.Round(contention*1e3) / 1e3
	c.Work = math.Round(slices.Max(found)*1e3) / 1e3 // whom it slows most the others wait for
	if much {
		m.Notes = append(m.Notes, fmt.Sprintf("backward passes beside transfers took longer by more than %.0f %% of the time of these, which is taken: other programs may have disturbed them", 100*cluster.MaxLoad))
	}
}
