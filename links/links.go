// Package links measures what joins the hosts of a job: how long messages and
// collectives of the live engine take by size, and the latency and bandwidth that
// explain it.
package links

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"weft/cluster"
	"weft/collective"
	"weft/collective/kernel"
	"weft/job"
	"weft/plan"
	"weft/transport"
)

// Kinds are the collectives that are measured: those that plans consist of, as rings.
var Kinds = []cluster.Kind{cluster.AllReduce, cluster.ReduceScatter, cluster.AllGather, cluster.Broadcast}

// Sizes that are measured, bytes. On a slow link the largest are left out.
var Sizes = []int64{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}

const (
	perSize         = 300 * time.Millisecond // for all iterations of a size, about
	few, many       = 3, 200                 // iterations of a size
	tooLong         = 2 * time.Second        // of one iteration: no larger size is measured
	channel, advice = 1, 2                   // of collectives; of what goes to host 0 and from it
)

// Measured is what host 0 knows in the end. Times are microseconds.
type Measured struct {
	// Messages are the times of one message from a host to the next, half of there and
	// back, of the slowest pair; their Kind says nothing.
	Messages []cluster.Point
	Rings    []cluster.Point // collectives, by kind and then size
}

// Measure measures among the hosts of an endpoint; all of them call it at the same
// time. The result is that of host 0, and nil elsewhere. progress, if not nil, is told
// what is done.
func Measure(ctx context.Context, e transport.Endpoint, progress func(done, total int)) (*Measured, error) {
	return measure(ctx, e, effort{Kinds, Sizes, perSize, tooLong, 0.5}, progress)
}

// effort is what to measure, and how long.
type effort struct {
	kinds            []cluster.Kind
	sizes            []int64
	perSize, tooLong time.Duration // as the constants
	quantile         float64       // of the times, which is taken
}

func measure(ctx context.Context, e transport.Endpoint, f effort, progress func(done, total int)) (*Measured, error) {
	m := &measurement{ctx: ctx, e: e, effort: f}
	var err error
	if m.barrier, err = collective.Barrier(e.Rank(), e.World()); err != nil {
		return nil, err
	}
	out, largest, done := new(Measured), int64(math.MaxInt64), 0
	sizes := func(measure func(bytes int64) (func(n int) ([]time.Duration, error), error), to *[]cluster.Point, k cluster.Kind) error {
		for _, bytes := range f.sizes {
			if done++; progress != nil {
				progress(done-1, (len(f.kinds)+1)*len(f.sizes))
			}
			if bytes > largest {
				continue
			}
			run, err := measure(bytes)
			if err != nil {
				return err
			}
			t, last, err := m.typical(run)
			if err != nil {
				return err
			}
			if last {
				largest = bytes
			}
			*to = append(*to, cluster.Point{Kind: k, Bytes: bytes, Time: float64(t.Nanoseconds()) / 1e3})
		}
		return nil
	}
	if err := sizes(m.messages, &out.Messages, 0); err != nil {
		return nil, err
	}
	for _, k := range f.kinds {
		ring := func(bytes int64) (func(int) ([]time.Duration, error), error) { return m.ring(k, bytes) }
		if err := sizes(ring, &out.Rings, k); err != nil {
			return nil, err
		}
	}
	if e.Rank() > 0 {
		return nil, nil
	}
	return out, nil
}

// measurement is one host's part.
type measurement struct {
	effort
	ctx     context.Context
	e       transport.Endpoint
	barrier *collective.Program
	op      uint64
}

// typical runs something often enough to tell how long it takes, and whether it is
// the longest that is to be.
func (m *measurement) typical(run func(n int) ([]time.Duration, error)) (t time.Duration, last bool, err error) {
	if _, err := run(1); err != nil { // touches memory
		return 0, false, err
	}
	first, err := run(1)
	if err != nil {
		return 0, false, err
	}
	n, last, err := m.decide(int(min(max(m.perSize/max(first[0], 1), few), many)), first[0] > m.tooLong)
	if err != nil {
		return 0, false, err
	}
	times, err := run(n)
	if err == nil {
		err = m.longest(times)
	}
	if err != nil {
		return 0, false, err
	}
	slices.Sort(times)
	return times[int(m.quantile*float64(n))], last, nil
}

// ring measures a collective.
func (m *measurement) ring(k cluster.Kind, bytes int64) (func(n int) ([]time.Duration, error), error) {
	spec := collective.Spec{Kind: k, World: m.e.World(), Slices: []plan.Slice{{Length: bytes / 4}}}
	p, err := spec.Choose(cluster.Link{Bandwidth: 1}, 4).Program(m.e.Rank()) // no latency: a ring
	if err != nil {
		return nil, err
	}
	t := collective.Transfer{Program: p, Reduction: collective.Reduction{DType: job.Float32, Op: kernel.Sum}, Result: make([]byte, bytes)}
	return func(n int) ([]time.Duration, error) {
		times := make([]time.Duration, n)
		for i := range times {
			if err := m.run(collective.Transfer{Program: m.barrier}); err != nil {
				return nil, err
			}
			start := time.Now()
			if err := m.run(t); err != nil {
				return nil, err
			}
			times[i] = time.Since(start)
		}
		return times, nil
	}, nil
}

func (m *measurement) run(t collective.Transfer) error {
	m.op++
	t.Channel, t.Op = channel, m.op
	return t.Run(m.ctx, m.e)
}

// messages measures a message from each host to the next, pair by pair.
func (m *measurement) messages(bytes int64) (func(n int) ([]time.Duration, error), error) {
	b := make([]byte, bytes)
	pairs := m.e.World()
	if pairs == 2 {
		pairs = 1
	}
	return func(n int) ([]time.Duration, error) {
		times := make([]time.Duration, n)
		for h := range pairs {
			if err := m.run(collective.Transfer{Program: m.barrier}); err != nil {
				return nil, err
			}
			next := (h + 1) % m.e.World()
			for i := range times {
				m.op++
				there, back := transport.Tag{Channel: channel, Op: m.op}, transport.Tag{Channel: channel, Op: m.op, Chunk: 1}
				var err error
				switch m.e.Rank() {
				case h:
					start := time.Now()
					if err = m.e.Send(m.ctx, next, there, b); err == nil {
						err = m.e.Recv(m.ctx, next, back, b)
					}
					times[i] = time.Since(start) / 2
				case next:
					if err = m.e.Recv(m.ctx, h, there, b); err == nil {
						err = m.e.Send(m.ctx, h, back, b)
					}
				}
				if err != nil {
					return nil, err
				}
			}
		}
		return times, nil
	}, nil
}

// longest makes the times of host 0 those of the host that took longest: others may
// have begun before it, or still receive what it has sent.
func (m *measurement) longest(times []time.Duration) error {
	m.op++
	tag := transport.Tag{Channel: advice, Op: m.op}
	b := make([]byte, 8*len(times))
	if m.e.Rank() > 0 {
		for i, t := range times {
			binary.LittleEndian.PutUint64(b[8*i:], uint64(t))
		}
		return m.e.Send(m.ctx, 0, tag, b)
	}
	for h := 1; h < m.e.World(); h++ {
		if err := m.e.Recv(m.ctx, h, tag, b); err != nil {
			return err
		}
		for i := range times {
			times[i] = max(times[i], time.Duration(binary.LittleEndian.Uint64(b[8*i:])))
		}
	}
	return nil
}

// decide makes all hosts do what host 0 wants.
func (m *measurement) decide(n int, last bool) (int, bool, error) {
	v := uint64(n) << 1
	if last {
		v |= 1
	}
	v, err := m.tell(v)
	if n = int(v >> 1); err == nil && (n < few || n > many) {
		err = fmt.Errorf("host 0 wants %d iterations", n)
	}
	return n, v&1 == 1, err
}

// tell returns, on all hosts, what host 0 says.
func (m *measurement) tell(v uint64) (uint64, error) {
	m.op++
	tag := transport.Tag{Channel: advice, Op: m.op}
	b := make([]byte, 8)
	if m.e.Rank() > 0 {
		err := m.e.Recv(m.ctx, 0, tag, b)
		return binary.LittleEndian.Uint64(b), err
	}
	binary.LittleEndian.PutUint64(b, v)
	for h := 1; h < m.e.World(); h++ {
		if err := m.e.Send(m.ctx, h, tag, b); err != nil {
			return 0, err
		}
	}
	return v, nil
}

// Fit is the latency and bandwidth that explain the times of messages, and how well: errors are the explained time over the measured one, less 1.
type Fit struct {
	Link            cluster.Link
	Messages, Rings []float64 // errors
}

// Worst is the largest error, whichever its sign.
func Worst(errors []float64) float64 {
	worst := 0.0
	for _, e := range errors {
		worst = max(worst, math.Abs(e))
	}
	return worst
}

// Fit finds the link, by [cluster.Line] through the messages. Rings of so many hosts
// follow from both.
func (m *Measured) Fit(hosts int) (*Fit, error) {
	latency, slowness, err := cluster.Line(m.Messages)
	if err != nil {
		return nil, fmt.Errorf("messages: %w", err)
	}
	f := &Fit{Link: cluster.Link{Latency: math.Round(latency*1e3) / 1e3, Bandwidth: math.Round(8e6 / slowness)}}
	for _, p := range m.Messages {
		f.Messages = append(f.Messages, (f.Link.Latency+float64(p.Bytes)*8e6/f.Link.Bandwidth)/p.Time-1)
	}
	c := cluster.Uniform(hosts, 1, f.Link)
	for _, p := range m.Rings {
		cost, err := c.Cost(0, p.Kind, p.Bytes)
		if err != nil {
			return nil, err
		}
		f.Rings = append(f.Rings, cost.Total()/p.Time-1)
	}
	return f, nil
}

// rising is points of which none takes longer than a larger one of its kind: what
// disturbs a measurement only adds to it.
func rising(points []cluster.Point) []cluster.Point {
	out := slices.Clone(points)
	for i := len(out) - 2; i >= 0; i-- {
		if next := out[i+1]; next.Kind == out[i].Kind {
			out[i].Time = min(out[i].Time, next.Time)
		}
	}
	return out
}
