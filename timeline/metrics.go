package timeline

import (
	"cmp"
	"slices"

	"weft/internal/interval"
)

// Breakdown says where the time of an iteration goes, on one rank or on the
// mean of several. All are microseconds; docs/timeline.md has the formulas.
type Breakdown struct {
	Iteration     float64 // T: from boundary to boundary
	Computation   float64 // P: a compute lane computes
	Communication float64 // M: a transfer is on a link
	Exposed       float64 // a compute lane waits for communication
	Idle          float64 // no compute lane computes or waits: on device lanes, the host is late
}

// Hidden is the communication that computation covers: Communication - Exposed,
// and 0 where waiting for peers makes a lane wait longer than transfers take.
func (b Breakdown) Hidden() float64 { return max(0, b.Communication-b.Exposed) }

// Coverage is the coverage rate, communication for each unit of computation; 0
// without computation.
func (b Breakdown) Coverage() float64 { return ratio(b.Communication, b.Computation) }

// UMin is the time of an iteration that overlaps all it can: max(M, P).
func (b Breakdown) UMin() float64 { return max(b.Communication, b.Computation) }

// Efficiency is TicTac's overlap efficiency E = (UMax - T)/(UMax - UMin), UMax
// = M + P: 1 for full overlap, 0 for none, negative when idle time exceeds what
// was hidden, and 1 when there is nothing to overlap.
func (b Breakdown) Efficiency() float64 {
	// UMax - UMin is min(M, P); this form keeps E <= 1 in floating point.
	least := min(b.Communication, b.Computation)
	return 1 - ratio(max(0, b.Iteration-b.UMin()), least)
}

// Speedup is TicTac's theoretical speedup S = (UMax - UMin)/UMin: what full
// overlap gains over none, at most 1; 0 for an empty iteration.
func (b Breakdown) Speedup() float64 {
	return ratio(min(b.Communication, b.Computation), b.UMin())
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (b *Breakdown) add(o Breakdown, weight float64) {
	b.Iteration += weight * o.Iteration
	b.Computation += weight * o.Computation
	b.Communication += weight * o.Communication
	b.Exposed += weight * o.Exposed
	b.Idle += weight * o.Idle
}

// Metrics are means over the iterations From to To, To excluded.
type Metrics struct {
	From, To int
	// Ranks are in the order of Timeline.Ranks. Mean is over all ranks, each as
	// often as it stands for others; Worst is the rank that waits longest, the
	// lowest of several, and WorstRank its number (-1: no rank).
	Ranks     []Breakdown
	Mean      Breakdown
	Worst     Breakdown
	WorstRank int
	// Transfers has a row for each link, bucket and name of a transfer, by link
	// and then in order of dispatch.
	Transfers []TransferMetrics
}

// TransferMetrics is one transfer of the schedule: the mean over the iterations
// that it belongs to and over all ranks.
type TransferMetrics struct {
	Lane   int32 // position in Timeline.Lanes
	Bucket int32 // -1: a collective that carries no gradient
	Name   string
	Count  float64 // transfers in an iteration of a rank
	Bytes  float64
	Ready  float64 // from the start of its iteration until it was ready, microseconds
	Queued float64 // from then until it was dispatched
	Time   float64 // from dispatch to completion
}

// Bandwidth is the payload carried while the transfer was in flight, in bits
// per second; 0 if it took no time.
func (m TransferMetrics) Bandwidth() float64 { return ratio(8*m.Bytes*1e6, m.Time) }

// Metrics measures the iterations from (included) to to (excluded), which are
// limited to those that the timeline has; none give zeros. Spans are cut at the
// first and the last boundary.
func (t *Timeline) Metrics(from, to int) Metrics {
	from = max(from, 0)
	to = max(from, min(to, len(t.Iterations)-1))
	m := Metrics{From: from, To: to, WorstRank: -1}
	if from == to {
		return m
	}
	m.Ranks = t.breakdowns(from, to)
	m.Mean, m.Worst, m.WorstRank = Summary(t.Ranks, m.Ranks)
	m.Transfers = t.transfers(from, to)
	return m
}

// Summary is the mean over all ranks, each as often as it stands for others, and
// the rank that waits longest, the lowest of several, with its number (-1: no
// rank). The two lists go together.
func Summary(ranks []Rank, of []Breakdown) (mean, worst Breakdown, worstRank int) {
	world := 0.0
	for i := range ranks {
		world += float64(ranks[i].Weight())
	}
	worstRank = -1
	for i, b := range of {
		mean.add(b, float64(ranks[i].Weight())/world)
		n := slices.Min(ranks[i].All())
		if worstRank < 0 || b.Exposed > worst.Exposed || b.Exposed == worst.Exposed && n < worstRank {
			worst, worstRank = b, n
		}
	}
	return mean, worst, worstRank
}

// computes tells for each lane whether it is one of those whose work is the
// computation: the device lanes, or in a CPU job the host lanes.
func (t *Timeline) computes() []bool {
	kind := Host
	if slices.ContainsFunc(t.Lanes, func(l Lane) bool { return l.Kind == Device }) {
		kind = Device
	}
	lanes := make([]bool, len(t.Lanes))
	for i, l := range t.Lanes {
		lanes[i] = l.Kind == kind
	}
	return lanes
}

func (t *Timeline) breakdowns(from, to int) []Breakdown {
	first, last := t.Iterations[from], t.Iterations[to]
	spans := make([][Wait + 1][]interval.Interval[float64], len(t.Ranks))
	computes := t.computes()
	for i := range t.Spans {
		s := &t.Spans[i]
		if s.Kind != Transfer && !computes[s.Lane] || s.End <= first || s.Start >= last {
			continue
		}
		of := &spans[s.Rank][s.Kind]
		*of = append(*of, interval.Interval[float64]{Start: max(s.Start, first), End: min(s.End, last)})
	}
	n := float64(to - from)
	out := make([]Breakdown, len(t.Ranks))
	for i := range spans {
		compute, wait := interval.Union(spans[i][Compute]), interval.Union(spans[i][Wait])
		busy := interval.Length(compute) + interval.Length(wait) - interval.Overlap(compute, wait)
		out[i] = Breakdown{
			Iteration:     (last - first) / n,
			Computation:   interval.Length(compute) / n,
			Communication: interval.Length(interval.Union(spans[i][Transfer])) / n,
			Exposed:       interval.Length(wait) / n,
			Idle:          max(0, last-first-busy) / n,
		}
	}
	return out
}

func (t *Timeline) transfers(from, to int) []TransferMetrics {
	type key struct {
		lane, bucket int32
		name         string
	}
	position := map[key]int{}
	var rows []TransferMetrics
	for i := range t.Spans {
		s := &t.Spans[i]
		if s.Kind != Transfer && s.Kind != Queued || int(s.Iteration) < from || int(s.Iteration) >= to {
			continue
		}
		k := key{s.Lane, s.Bucket, s.Name}
		p, ok := position[k]
		if !ok {
			p = len(rows)
			position[k] = p
			rows = append(rows, TransferMetrics{Lane: s.Lane, Bucket: s.Bucket, Name: s.Name})
		}
		// Sums; the queue ends at dispatch, so what was dispatched at d after q in
		// the queue was ready at d - q.
		row, weight := &rows[p], float64(t.Ranks[s.Rank].Weight())
		if s.Kind == Queued {
			row.Queued += weight * (s.End - s.Start)
			row.Ready -= weight * (s.End - s.Start)
			continue
		}
		row.Count += weight
		row.Bytes += weight * float64(s.Bytes)
		row.Ready += weight * (s.Start - t.Iterations[s.Iteration])
		row.Time += weight * (s.End - s.Start)
	}
	rows = slices.DeleteFunc(rows, func(r TransferMetrics) bool { return r.Count == 0 }) // queued when the timeline ended
	for i := range rows {
		r := &rows[i]
		n := r.Count
		r.Bytes, r.Ready, r.Queued, r.Time = r.Bytes/n, r.Ready/n, r.Queued/n, r.Time/n
		r.Count = n / float64(t.World()) / float64(to-from)
	}
	slices.SortFunc(rows, func(a, b TransferMetrics) int {
		return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Ready+a.Queued, b.Ready+b.Queued),
			cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Name, b.Name))
	})
	return rows
}
