package agent

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft/agent/protocol"
	"weft/engine"
	"weft/internal/interval"
	"weft/job"
	"weft/plan"
	"weft/timeline"
)

// What happened in the last iterations, as docs/timeline.md has it under "Measured".

// LastIterations is how many iterations a timeline of an agent has at most. They are fewer
// where they have more transfers, or more that workers tell, than is kept.
const LastIterations = 32

const (
	lastTransfers = 1 << 15
	lastTold      = 1 << 14 // of each worker
)

// ring keeps the last of what it is given, at most so many.
type ring[T any] struct {
	most  int
	kept  []T // what was given as number i lies at i%most
	given int
}

func (r *ring[T]) add(x T) {
	if len(r.kept) < r.most {
		r.kept = append(r.kept, x)
	} else {
		r.kept[r.given%r.most] = x
	}
	r.given++
}

// first is the number of the first that is kept.
func (r *ring[T]) first() int { return r.given - len(r.kept) }

func (r *ring[T]) at(i int) T { return r.kept[i%r.most] }

// all is what is kept, in order.
func (r *ring[T]) all() []T {
	begin := 0
	if r.given > len(r.kept) {
		begin = r.given % r.most
	}
	return slices.Concat(r.kept[begin:], r.kept[:begin])
}

// period of time, since the agent began.
type period struct{ start, end time.Duration }

// flown is a transfer that is done.
type flown struct {
	period
	ready          time.Duration
	link, transfer int // positions in the plan
	iteration      int
}

// doing is what a worker says that it did: waiting, or a phase of its computation.
type doing struct {
	period
	phase job.Phase
	waits bool // and no phase
}

// witness is what a worker has told.
type witness struct {
	ends ring[ending] // of iterations, from the first
	told ring[doing]
}

// ending is when a worker told the end of an iteration, and when its last step returned; 0: none has, or that is not told.
type ending struct{ told, stepped time.Duration }

// declaration is when the last worker of this host has declared a bucket of an iteration.
type declaration struct {
	iteration int
	at        time.Duration
}

// recorder keeps what happens in a session. All methods take nil, for nobody wants to know.
type recorder struct {
	layout   *layout
	ranks    []int
	began    time.Duration
	clock    time.Duration     // CLOCK_MONOTONIC when the agent began
	declared [][]declaration   // by bucket, one a buffer
	done     [][]time.Duration // by link and transfer: when it last was
	flights  ring[flown]
	workers  []witness
}

// record begins to record a session; nil: there is nothing to record.
func (a *Agent) record(l *layout) *recorder {
	if !a.Record || len(l.job.Tensors) == 0 || l.replays() {
		return nil
	}
	l.welcome.Timeline = true
	r := &recorder{layout: l, ranks: a.Ranks, workers: make([]witness, len(a.Ranks)), flights: ring[flown]{most: lastTransfers}}
	took := time.Duration(1<<63 - 1)
	for range 5 { // the one in which nobody else had the processor
		var now unix.Timespec
		before := a.now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			break
		}
		if t := a.now() - before; t < took {
			took, r.began, r.clock = t, before, time.Duration(now.Nano())-before
		}
	}
	for range l.plan.Buckets {
		r.declared = append(r.declared, slices.Repeat([]declaration{{iteration: -1}}, l.plan.Buffers))
	}
	for i := range l.plan.Programs {
		r.done = append(r.done, make([]time.Duration, len(l.plan.Programs[i].Transfers)))
	}
	for w := range r.workers {
		r.workers[w] = witness{ring[ending]{most: LastIterations + 1}, ring[doing]{most: lastTold}}
	}
	if a.recorder.whole() {
		a.recorded = a.recorder
	}
	a.recorder = r
	return r
}

// whole reports whether there is an iteration with both its ends, be the last of these not known yet.
func (r *recorder) whole() bool {
	return r != nil && !slices.ContainsFunc(r.workers, func(x witness) bool { return x.ends.given < 3 })
}

// hears takes what worker w tells with a message, behind the first bytes of its payload.
func (r *recorder) hears(w int, m protocol.Message, now time.Duration) error {
	did := m.Payload[min(waitedBytes, len(m.Payload)):]
	switch {
	case r == nil && len(did) > 0:
		return fmt.Errorf("a %v of %d bytes, and nobody has asked what it did: want at most %d", m.Kind, len(m.Payload), waitedBytes)
	case r == nil:
		return nil
	}
	x := &r.workers[w]
	switch {
	case m.Kind == protocol.KindBoundary && m.Iteration == x.ends.given:
		x.ends.add(ending{told: now})
	case m.Kind == protocol.KindReady && m.Index < len(r.declared):
		if m.Iteration == x.ends.given+1 { // without boundaries
			x.ends.add(ending{told: now})
		}
		of := r.declared[m.Index]
		at := slices.IndexFunc(of, func(d declaration) bool { return d.iteration == m.Iteration })
		if at < 0 {
			at = slices.Index(of, slices.MinFunc(of, func(a, b declaration) int { return a.iteration - b.iteration }))
		}
		of[at] = declaration{m.Iteration, now}
	}
	if err := r.tell(x, did, now); err != nil {
		return fmt.Errorf("a %v: %w", m.Kind, err)
	}
	return nil
}

// doingBytes is what one thing takes that a worker tells: what it is, and when it began and ended.
const doingBytes = 1 + 8 + 8

// What it is that a worker tells.
const (
	toldWait    = 0
	toldPhase   = 1 // and the phase's number
	toldStepped = toldPhase + 1 + byte(job.Update)
)

// tell notes what a worker says that it did. Of another clock than the agent's nothing can be told, and nothing is.
func (r *recorder) tell(to *witness, b []byte, now time.Duration) error {
	if len(b)%doingBytes != 0 {
		return fmt.Errorf("%d bytes of what it did: need a multiple of %d", len(b), doingBytes)
	}
	for ; len(b) > 0; b = b[doingBytes:] {
		what := b[0]
		from, until := binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint64(b[9:])
		if what > toldStepped || from > until || until > 1<<63-1 {
			return fmt.Errorf("%d from %d to %d ns: there is no such time", what, from, until)
		}
		iteration := int(from)
		if what == toldStepped {
			from = until
		}
		d := doing{period: period{time.Duration(from) - r.clock, time.Duration(until) - r.clock}, waits: what == toldWait}
		switch {
		case d.start < r.began || d.end > now:
		case what == toldStepped:
			to.steps(iteration, d.end)
		default:
			if !d.waits {
				d.phase = job.Phase(what - toldPhase)
			}
			to.told.add(d)
		}
	}
	return nil
}

// steps notes that a step of an iteration has returned, after which that iteration ends.
func (x *witness) steps(iteration int, at time.Duration) {
	if iteration >= x.ends.first() && iteration < x.ends.given {
		x.ends.kept[iteration%x.ends.most].stepped = at
	}
}

// ready is when the gates of a transfer that starts were open on this host.
func (r *recorder) ready(x *engine.Action) (at time.Duration) {
	if r == nil {
		return 0
	}
	p := r.layout.plan
	began := x.Instance / len(p.Programs[x.Link].Transfers) * p.Period
	for _, g := range x.Transfer.Gates {
		switch g.Kind {
		case plan.GradientReady:
			for _, d := range r.declared[x.Bucket] {
				if d.iteration == x.Iteration {
					at = max(at, d.at)
				}
			}
		case plan.TransferDone:
			at = max(at, r.done[g.Link][g.Transfer])
		case plan.Boundary:
			at = max(at, r.ended(began+g.Iteration))
		}
	}
	return at
}

// ended is when the last worker ended an iteration; 0: it is not known any more.
func (r *recorder) ended(iteration int) (at time.Duration) {
	for w := range r.workers {
		if x := &r.workers[w].ends; iteration >= x.first() && iteration < x.given {
			at = max(at, x.at(iteration).told)
		}
	}
	return at
}

// transferred notes a transfer, whose times count from an origin.
func (r *recorder) transferred(f *Flight, origin time.Time) {
	if r == nil {
		return
	}
	t := f.Instance % len(r.done[f.Link])
	x := flown{period{f.Start.Sub(origin), f.End.Sub(origin)}, f.Ready.Sub(origin), f.Link, t, f.Iteration}
	r.done[f.Link][t] = x.end
	r.flights.add(x)
}

// Timeline is what happened in the last iterations on this host, at most [LastIterations], of an agent that records: a lane
// for each worker, and one for each link. nil: there was no whole iteration.
func (a *Agent) Timeline() *timeline.Timeline {
	a.mu.Lock()
	now, before := a.recorder.copy(), a.recorded.copy()
	a.mu.Unlock()
	if t := now.timeline(); t != nil {
		return t
	}
	return before.timeline()
}

// copy is what is kept now.
func (r *recorder) copy() *recorder {
	if r == nil {
		return nil
	}
	now := *r
	now.flights.kept, now.workers = slices.Clone(r.flights.kept), slices.Clone(r.workers)
	for w := range now.workers {
		x := &now.workers[w]
		x.ends.kept, x.told.kept = slices.Clone(x.ends.kept), slices.Clone(x.told.kept)
	}
	return &now
}

// ended are the ends of iterations that are kept, without those after the last step: the next one may be theirs.
func (x *witness) ended() []time.Duration {
	ends, steps := make([]time.Duration, len(x.ends.kept)), len(x.ends.kept)
	for i, e := range x.ends.all() {
		if ends[i] = cmp.Or(e.stepped, e.told); e.stepped > 0 {
			steps = i + 1
		}
	}
	return ends[:steps]
}

// window is when the iterations ended of which everything is kept, first the one before the first that begins after its end.
func (r *recorder) window() (first int, ends []time.Duration) {
	lost := time.Duration(0) // what ended until then need not be there
	last := 1<<63 - 1
	var steps [][]time.Duration
	for w := range r.workers {
		x := &r.workers[w]
		steps = append(steps, x.ended())
		first, last = max(first, x.ends.first()), min(last, x.ends.first()+len(steps[w]))
		if i := x.told.first(); i > 0 {
			lost = max(lost, x.told.at(i).end)
		}
	}
	if i := r.flights.first(); i > 0 {
		lost = max(lost, r.flights.at(i).end)
	}
	for i := first; i < last; i++ {
		end := time.Duration(0)
		for w := range r.workers {
			end = max(end, steps[w][i-r.workers[w].ends.first()])
		}
		if end < lost {
			first = i + 1
		} else {
			ends = append(ends, end)
		}
	}
	return first, ends
}

// timeline shows the last iterations, and what came after them; nil: there is none of which
// everything is kept.
func (r *recorder) timeline() *timeline.Timeline {
	if r == nil {
		return nil
	}
	before, ends := r.window()
	if len(ends) < 2 {
		return nil
	}
	p, origin := r.layout.plan, ends[0]
	first := before + 1
	t := &timeline.Timeline{
		Name:  fmt.Sprintf("%s, measured, iterations %d to %d", p.Policy, first, before+len(ends)-1),
		Lanes: []timeline.Lane{{Name: "host", Kind: timeline.Host}},
	}
	for i := range p.Programs {
		t.Lanes = append(t.Lanes, timeline.Lane{Name: p.Programs[i].Link, Kind: timeline.Link})
	}
	for _, end := range ends {
		t.Iterations = append(t.Iterations, micros(end-origin))
	}
	transfers, completing := r.transfers(origin, first)
	for w, rank := range r.ranks {
		t.Ranks = append(t.Ranks, timeline.Rank{Rank: rank})
		base := len(t.Spans)
		for _, s := range transfers {
			s.Rank = int32(w)
			t.Spans = append(t.Spans, s)
		}
		for _, s := range r.host(w, origin) {
			i, at := slices.BinarySearch(t.Iterations, s.Start)
			if !at {
				i--
			}
			s.Rank, s.Iteration = int32(w), int32(i)
			if s.Kind == timeline.Wait {
				// It was for the first bucket that came meanwhile, if one did.
				k, _ := slices.BinarySearchFunc(completing, s.Start, func(i int, at float64) int { return cmp.Compare(transfers[i].End, at) })
				if k < len(completing) && transfers[completing[k]].End <= s.End {
					i := completing[k]
					t.Flows = append(t.Flows, timeline.Flow{From: int32(base + i), To: int32(len(t.Spans))})
					s.Name += ": " + transfers[i].Name
				}
			}
			t.Spans = append(t.Spans, s)
		}
	}
	t.Sort()
	return t
}

// transfers are those that have ended since an origin, by their ends, each behind the time that it was queued; and the
// places of those after which a bucket is reduced.
func (r *recorder) transfers(origin time.Duration, first int) (out []timeline.Span, completing []int) {
	p := r.layout.plan
	tensors := make([]string, len(p.Buckets))
	for b := range tensors {
		tensors[b] = firstTensors(&p.Buckets[b], r.layout.job)
	}
	for _, f := range r.flights.all() {
		if f.end < origin {
			continue
		}
		x := &p.Programs[f.link].Transfers[f.transfer]
		s := timeline.Span{
			Lane: int32(1 + f.link), Kind: timeline.Queued, Name: fmt.Sprintf("%s bucket %d", x.Kind, x.Bucket), Iteration: int32(f.iteration - first),
			Start: micros(f.ready - origin), End: micros(f.start - origin), Bucket: int32(x.Bucket),
			Bytes: p.Buckets[x.Bucket].Bytes(r.layout.job), Tensors: tensors[x.Bucket],
		}
		if s.Start < s.End {
			out = append(out, s)
		}
		s.Kind, s.Start, s.End = timeline.Transfer, s.End, micros(f.end-origin)
		if x.Completes() {
			completing = append(completing, len(out))
		}
		out = append(out, s)
	}
	return out, completing
}

// host is what a worker has done since an origin: phases of its computation, and between them
// what it waited.
func (r *recorder) host(w int, origin time.Duration) (out []timeline.Span) {
	var waits []interval.Interval[float64]
	told := slices.DeleteFunc(r.workers[w].told.all(), func(d doing) bool { return d.end < origin })
	for _, d := range told {
		if d.waits {
			x := interval.Interval[float64]{Start: micros(d.start - origin), End: micros(d.end - origin)}
			waits = append(waits, x)
			out = append(out, timeline.Span{Kind: timeline.Wait, Name: "wait", Start: x.Start, End: x.End, Bucket: -1})
		}
	}
	waits = interval.Union(waits)
	for _, d := range told {
		if d.waits {
			continue
		}
		for _, x := range interval.Without(interval.Interval[float64]{Start: micros(d.start - origin), End: micros(d.end - origin)}, waits) {
			out = append(out, timeline.Span{Kind: timeline.Compute, Phase: uint8(d.phase), Name: d.phase.String(), Start: x.Start, End: x.End, Bucket: -1})
		}
	}
	return out
}

// firstTensors names the first few tensors of a bucket.
func firstTensors(b *plan.Bucket, j *job.Job) string {
	const few = 3
	var names []string
	all := b.Tensors()
	for _, k := range all[:min(few, len(all))] {
		names = append(names, j.Tensors[k].Name)
	}
	if more := len(all) - few; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
