package sim

import "weft/timeline"

// result sums the run up. The first half is warm-up; the steady part is a whole
// number of periods where the run is long enough.
func (m *machine) result() *Result {
	r := &Result{Iterations: make([]float64, m.iterations)}
	from := 0.0
	for i, end := range m.ends {
		r.Iterations[i] = (end - from) / nsPerUs
		from = end
	}
	steady := max(m.iterations/2/m.period*m.period, min(m.period, m.iterations))
	r.Steady = m.iterations - steady
	start := 0.0
	if r.Steady > 0 {
		start = m.ends[r.Steady-1]
	}
	r.Time = (m.ends[m.iterations-1] - start) / nsPerUs / float64(steady)
	r.Timeline = m.rec.timeline()
	return r
}

// recorder collects spans; a nil recorder collects nothing.
type recorder struct {
	m     *machine
	spans []timeline.Span
	flows []timeline.Flow
	// arrivals: the transfer (its span on the first worker) that an op waited for last.
	arrivals map[waiter]int32
}

func newRecorder(m *machine) *recorder {
	return &recorder{
		m: m, arrivals: map[waiter]int32{},
		spans: make([]timeline.Span, 0, m.iterations*m.spans()*len(m.workers)),
	}
}

// compute records an op and returns the position of its span, or -1.
func (r *recorder) compute(w, l, o, i int32, start, end float64) int32 {
	if r == nil {
		return -1
	}
	kind := timeline.Compute
	if r.m.lanes[l].kind == timeline.Link {
		kind = timeline.Transfer // a recorded collective, replayed
	}
	at := r.add(timeline.Span{
		Rank: w, Lane: l, Kind: kind, Phase: uint8(r.m.ops[o].phase), Name: r.m.ops[o].name,
		Iteration: i, Start: start, End: end, Bucket: -1,
	})
	if from, ok := r.arrivals[waiter{i, o}]; ok {
		r.flows = append(r.flows, timeline.Flow{From: from + w, To: at})
	}
	return at
}

// wait records that a lane stood still for communication before op o.
func (r *recorder) wait(w, l, o, i int32, start, end float64) {
	if r != nil && end > start {
		r.add(timeline.Span{
			Rank: w, Lane: l, Kind: timeline.Wait, Phase: uint8(r.m.ops[o].phase), Name: "wait: " + r.m.ops[o].name,
			Iteration: i, Start: start, End: end, Bucket: -1,
		})
	}
}

// transfer records a transfer on every worker and returns the position of the
// first worker's span; the others follow it.
func (r *recorder) transfer(l int32, at int, x *instance, t *transfer, end float64) int32 {
	if r == nil {
		return -1
	}
	ts := r.m.program.links[l].transfers
	s := timeline.Span{
		Lane: int32(len(r.m.lanes)) + l, Name: t.name, Bytes: t.bytes, Bucket: t.bucket,
		Iteration: int32(at/len(ts)*r.m.period + t.last),
	}
	if x.started > x.ready {
		s.Kind, s.Start, s.End = timeline.Queued, x.ready, x.started
		r.everywhere(s)
	}
	s.Kind, s.Start, s.End = timeline.Transfer, x.started, end
	first := r.everywhere(s)
	if x.gradOp >= 0 {
		r.flows = append(r.flows, timeline.Flow{From: x.gradOp, To: first + r.spans[x.gradOp].Rank})
	}
	return first
}

func (r *recorder) everywhere(s timeline.Span) int32 {
	first := int32(len(r.spans))
	for w := range r.m.workers {
		s.Rank = int32(w)
		r.add(s)
	}
	return first
}

// arrived remembers that the transfer with the given span was the last that w waited for.
func (r *recorder) arrived(w waiter, span int32) {
	if r != nil {
		r.arrivals[w] = span
	}
}

// add takes times in nanoseconds.
func (r *recorder) add(s timeline.Span) int32 {
	s.Start /= nsPerUs
	s.End /= nsPerUs
	r.spans = append(r.spans, s)
	return int32(len(r.spans) - 1)
}

func (r *recorder) timeline() *timeline.Timeline {
	if r == nil {
		return nil
	}
	t := &timeline.Timeline{Name: r.m.name, Iterations: []float64{0}}
	for i := range r.m.workers {
		w := &r.m.workers[i]
		k := timeline.Rank{Rank: w.rank}
		if len(w.stands) > 1 {
			k.Stands = w.stands
		}
		t.Ranks = append(t.Ranks, k)
	}
	for _, l := range r.m.lanes {
		t.Lanes = append(t.Lanes, timeline.Lane{Name: l.name, Kind: l.kind})
	}
	for _, l := range r.m.program.links {
		t.Lanes = append(t.Lanes, timeline.Lane{Name: l.name, Kind: timeline.Link})
	}
	for _, end := range r.m.ends {
		t.Iterations = append(t.Iterations, end/nsPerUs)
	}
	t.Spans, t.Flows = r.spans, r.flows
	t.Sort()
	return t
}
