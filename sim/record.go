package sim

import "weft/timeline"

// result sums the run up.
func (m *machine) result() *Result {
	r := &Result{Iterations: make([]float64, m.iterations), Steady: m.steady}
	from := 0.0
	for i, end := range m.ends {
		r.Iterations[i] = (end - from) / nsPerUs
		from = end
	}
	n := m.iterations - m.steady
	r.Mean, r.Worst, r.WorstRank = timeline.Summary(ranks(m.workers), breakdown(m.from, m.end, n))
	r.Time = r.Mean.Iteration
	r.Timeline = m.rec.timeline()
	return r
}

func ranks(workers []worker) []timeline.Rank {
	out := make([]timeline.Rank, len(workers))
	for i := range workers {
		out[i].Rank = workers[i].rank
		if len(workers[i].stands) > 1 {
			out[i].Stands = workers[i].stands
		}
	}
	return out
}

// recorder collects the spans of the first few workers; a nil recorder collects
// nothing.
type recorder struct {
	m     *machine
	few   int // workers
	spans []timeline.Span
	flows []timeline.Flow
	// arrivals: the transfer (its span on the first worker) that an op waited for last.
	arrivals map[waiter]int32
}

func newRecorder(m *machine, few int) *recorder {
	return &recorder{
		m: m, few: few, arrivals: map[waiter]int32{},
		spans: make([]timeline.Span, 0, m.iterations*m.spans()*few),
	}
}

func (r *recorder) workers() []worker { return r.m.workers[:r.few] }

// compute records an op and returns the position of its span, or -1.
func (r *recorder) compute(w, l, o, i int32, start, end float64) int32 {
	if r == nil || int(w) >= r.few {
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
	if r != nil && int(w) < r.few && end > start {
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
	for w := range r.few {
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
	t.Ranks = ranks(r.workers())
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
