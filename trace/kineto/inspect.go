package kineto

import (
	"slices"

	"weft/internal/interval"
	"weft/internal/median"
	"weft/job"
)

// Inspection tells where the recorded steps spent their time. All times are
// microseconds.
type Inspection struct {
	Name    string
	Backend string
	Rank    int // -1 unknown
	World   int // 0 unknown

	HTA     *HTA // nil: no kernels in the trace
	Steps   []StepTime
	Median  StepTime // of each column over the steps; its Step is 0
	Buckets []BucketTime
	Notes   []string
}

// HTA is communication and its overlap under the definition of Holistic Trace
// Analysis, over the whole trace: the union of the nccl* kernels against the
// union of all other kernels.
type HTA struct {
	Communication float64 // union of nccl* kernels
	Overlapped    float64 // of it, while another kernel ran
	Exposed       float64 // the rest
}

// StepTime is where one step's time went. A step's compute time line is that of
// its device if it has one, and of its host threads if not: Computation +
// Copies + Exposed + HostBound + Idle = Time.
type StepTime struct {
	Step          int     // number in the trace's ProfilerStep mark
	Time          float64 // from this mark to its end
	Computation   float64 // device busy (union of its compute streams), or host threads computing
	Copies        float64 // the recorded library's own work on the compute lanes: into and out of buckets
	Exposed       float64 // a compute lane waits for communication
	HostBound     float64 // the device has nothing to do because the host has launched nothing
	Idle          float64 // the rest
	Communication float64 // union of the transfers, waiting for peers included
	Hidden        float64 // Communication - Exposed
}

// columns are the times of a step, for medians.
func (s *StepTime) columns() []*float64 {
	return []*float64{&s.Time, &s.Computation, &s.Copies, &s.Exposed, &s.HostBound, &s.Idle, &s.Communication, &s.Hidden}
}

// BucketTime is one gradient collective of a step, medians over the steps.
type BucketTime struct {
	Bytes   int64 // 0 unknown
	Tensors int   // 0 unknown
	Time    float64
	AlgBW   float64 // Bytes / Time, in bytes a microsecond (MB/s)
	Exposed float64 // time that a compute lane waited for it
}

// stretch is a time in nanoseconds.
type stretch = interval.Interval[int64]

func clip(x stretch, a, b int64) stretch { return stretch{Start: max(x.Start, a), End: min(x.End, b)} }

// length is 0 for a stretch that ends before it starts.
func length(x stretch) int64 { return max(0, x.End-x.Start) }

func us(ns int64) float64 { return float64(ns) / 1e3 }

// Inspect reports where the recorded steps spent their time. It needs marked
// steps and no more: traces that give no job can be inspected.
func (t *Trace) Inspect() (*Inspection, error) {
	v, err := newView(t)
	if err != nil {
		return nil, err
	}
	x := &Inspection{Name: t.Name, Backend: v.backend(), Rank: t.Rank, World: t.World, HTA: v.hta()}
	for n := range v.collectives {
		x.World = max(x.World, v.collectives[n].group)
	}
	in := newInspector(v)
	for s := range v.steps {
		x.Steps = append(x.Steps, in.step(s))
	}
	for c, p := range x.Median.columns() {
		times := make([]float64, len(x.Steps))
		for k := range x.Steps {
			times[k] = *x.Steps[k].columns()[c]
		}
		*p = median.Of(times)
	}
	x.Buckets = in.bucketTimes()
	x.Notes = in.notes()
	return x, nil
}

// hta is the overlap of kernels.
func (v *view) hta() *HTA {
	var comm, comp []stretch
	for _, i := range v.device {
		e := v.event(i)
		switch {
		case e.Cat != Kernel:
		case v.is(i, isNCCL):
			comm = append(comm, e.stretch())
		default:
			comp = append(comp, e.stretch())
		}
	}
	if len(comm)+len(comp) == 0 {
		return nil
	}
	comm, comp = interval.Union(comm), interval.Union(comp)
	all, both := interval.Length(comm), interval.Overlap(comm, comp)
	return &HTA{Communication: us(all), Overlapped: us(both), Exposed: us(all - both)}
}

// inspector attributes the time of steps.
type inspector struct {
	v       *view
	compute []int32    // events on compute streams, by start
	exposed []int64    // by collective of the trace
	buckets [][]bucket // by step
	// The streams may be a step behind the host: the graphs of this step and the
	// one before, and where in them a device event is.
	graphs [2]*graph
	opOf   [2]map[int32]int32
}

func newInspector(v *view) *inspector {
	in := &inspector{v: v, exposed: make([]int64, len(v.collectives))}
	for _, i := range v.device {
		if !v.isNCCLKernel(i) {
			in.compute = append(in.compute, i)
		}
	}
	v.byStart(in.compute)
	return in
}

// step attributes one step's time.
func (in *inspector) step(s int) StepTime {
	v, g, span := in.v, in.v.graphOf(s), &in.v.steps[s]
	in.buckets = append(in.buckets, g.buckets)
	in.graphs = [2]*graph{in.graphs[1], g}
	in.opOf = [2]map[int32]int32{in.opOf[1], {}}
	for n := range g.ops {
		if e := g.ops[n].event; e >= 0 {
			in.opOf[1][e] = int32(n)
		}
	}
	r := StepTime{Step: span.number, Time: us(span.end - span.start)}
	var transfers []stretch
	from, to := v.collectivesOf(s)
	for n := from; n < to; n++ {
		if c := &v.collectives[n]; c.transfer >= 0 {
			transfers = append(transfers, v.event(c.transfer).stretch())
		}
	}
	r.Communication = us(interval.Length(interval.Union(transfers)))
	if len(in.compute) > 0 {
		in.device(&r, span)
	} else {
		in.host(&r, g)
	}
	r.Idle = max(0, r.Time-r.Computation-r.Copies-r.Exposed-r.HostBound)
	r.Hidden = max(0, r.Communication-r.Exposed)
	return r
}

// host attributes the time of a step that computes on host threads.
func (in *inspector) host(r *StepTime, g *graph) {
	for n := range g.ops {
		switch o := &g.ops[n]; {
		case in.v.lanes[o.Lane].Kind != job.Host:
		case o.Phase == job.Runtime:
			r.Copies += o.Time / 1e3
		default:
			r.Computation += o.Time / 1e3
		}
	}
	for _, w := range g.waits {
		r.Exposed += us(w.to - w.from)
		in.exposed[g.collectives[w.collective].id] += w.to - w.from
	}
}

// device attributes the time of a step that computes on streams: of each gap in
// their work, and of the work.
func (in *inspector) device(r *StepTime, span *stepSpan) {
	v := in.v
	var busy, own []stretch
	at := span.start // the streams are busy or accounted for up to here
	for _, i := range in.compute[max(0, v.from(in.compute, span.start)-reach):] {
		e := v.event(i)
		if e.Start >= span.end {
			break
		}
		if e.End() <= span.start {
			continue
		}
		in.gap(r, stretch{Start: at, End: e.Start}, i)
		at = max(at, e.End())
		x := clip(e.stretch(), span.start, span.end)
		busy = append(busy, x)
		if g, n := in.find(i); g == nil || g.ops[n].Phase != job.Runtime {
			own = append(own, x)
		}
	}
	if at < span.end { // the next op is not launched in this step
		r.HostBound += us(span.end - at)
	}
	all, computing := interval.Length(interval.Union(busy)), interval.Length(interval.Union(own))
	r.Computation, r.Copies = us(computing), us(all-computing)
}

// gap attributes a time in which the streams are idle, before a device event:
// first to the host until it has launched the event's op, then to the collective
// that the op waits for.
func (in *inspector) gap(r *StepTime, idle stretch, next int32) {
	g, n := in.find(next)
	if g == nil || length(idle) == 0 {
		return
	}
	v := in.v
	launched, arrived, by := idle.Start, idle.Start, int32(-1)
	for _, d := range g.ops[n].Deps {
		switch dep := &g.ops[d]; v.lanes[dep.Lane].Kind {
		case job.Host:
			launched = max(launched, dep.end)
		case job.Comm:
			if dep.end > arrived {
				arrived, by = dep.end, v.transfer[dep.from]
			}
		}
	}
	for c := range g.collectives {
		if x := &g.collectives[c]; slices.Contains(x.before, n) {
			if end := v.event(v.collectives[x.id].transfer).End(); end > arrived {
				arrived, by = end, x.id
			}
		}
	}
	waiting := length(clip(stretch{Start: launched, End: arrived}, idle.Start, idle.End))
	r.HostBound += us(length(clip(stretch{Start: idle.Start, End: launched}, idle.Start, idle.End)))
	r.Exposed += us(waiting)
	if by >= 0 {
		in.exposed[by] += waiting
	}
}

// reach is how many events before a step's first are looked at for one that
// still runs: on several streams the order of starts is not that of ends.
const reach = 64

// find is the op of a device event; nil if it is none of this step or the one
// before.
func (in *inspector) find(event int32) (*graph, int32) {
	for k, ops := range in.opOf {
		if n, ok := ops[event]; ok {
			return in.graphs[k], n
		}
	}
	return nil, 0
}

// bucketTimes are of the steps that have as many gradient collectives as most.
func (in *inspector) bucketTimes() []BucketTime {
	v := in.v
	steps := map[int][][]bucket{} // by number of buckets
	most := 0
	for _, b := range in.buckets {
		n := len(b)
		if steps[n] = append(steps[n], b); len(steps[n]) > len(steps[most]) {
			most = n
		}
	}
	out := make([]BucketTime, most)
	for k := range out {
		var times, exposed []float64
		for _, buckets := range steps[most] {
			b := &buckets[k]
			c := &v.collectives[b.collective]
			out[k].Bytes, out[k].Tensors = c.bytes(), len(b.grads)
			if c.transfer >= 0 {
				times = append(times, us(v.event(c.transfer).Dur))
			}
			exposed = append(exposed, us(in.exposed[b.collective]))
		}
		out[k].Time, out[k].Exposed = median.Of(times), median.Of(exposed)
		if out[k].Time > 0 {
			out[k].AlgBW = float64(out[k].Bytes) / out[k].Time
		}
	}
	return out
}

// notes say what the figures lack.
func (in *inspector) notes() (notes []string) {
	if len(in.v.collectives) == 0 {
		notes = append(notes, "no collectives in this trace: it shows computation alone")
	} else {
		notes = append(notes, "transfer times of one rank include waiting for the others: give the traces of several ranks to tell them apart")
	}
	sizes := 0
	for n := range in.v.collectives {
		if in.v.collectives[n].gradient && in.v.collectives[n].elements == 0 {
			sizes++
		}
	}
	if sizes > 0 {
		notes = append(notes, "no collective sizes in this trace: bytes and bandwidth of buckets are unknown")
	}
	return notes
}
