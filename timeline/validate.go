package timeline

import (
	"fmt"
	"slices"

	"weft/job"
)

// MaxTime bounds all times of a timeline, in microseconds before or after its
// origin: 11.5 days, within which a float64 tells nanoseconds apart.
const MaxTime = 1e12

// MaxRank is the largest rank number, and maxRows how many rows (ranks times
// lanes) a timeline may have, so that a hostile file cannot ask for more
// memory than its size accounts for.
const (
	MaxRank = 1<<24 - 1
	maxRows = 1 << 20
)

// Validate reports the first thing that is wrong with the timeline, and where.
// Functions of this package expect a timeline that has nothing wrong.
func (t *Timeline) Validate() error {
	seen := map[int]bool{}
	for i, r := range t.Ranks {
		if r.Stands != nil && !slices.Contains(r.Stands, r.Rank) {
			return fmt.Errorf("timeline: rank %d (position %d) is not among the ranks %v that it stands for", r.Rank, i, r.Stands)
		}
		for _, n := range r.All() {
			if n < 0 || n > MaxRank {
				return fmt.Errorf("timeline: rank %d (position %d) is not within 0 to %d", n, i, MaxRank)
			}
			if seen[n] {
				return fmt.Errorf("timeline: rank %d appears twice, the second time at position %d", n, i)
			}
			seen[n] = true
		}
	}
	for i, l := range t.Lanes {
		if l.Kind > Link {
			return fmt.Errorf("timeline: lane %d (%q) has unknown kind %d", i, l.Name, l.Kind)
		}
	}
	if len(t.Ranks)*len(t.Lanes) > maxRows {
		return fmt.Errorf("timeline: %d ranks of %d lanes, more than %d rows", len(t.Ranks), len(t.Lanes), maxRows)
	}
	if n := len(t.Iterations); n == 1 || n > 0 && len(t.Ranks) == 0 {
		return fmt.Errorf("timeline: %d iteration boundaries and %d ranks: an iteration needs two and one", n, len(t.Ranks))
	}
	for i, at := range t.Iterations {
		if !(at >= -MaxTime && at <= MaxTime) || i > 0 && at < t.Iterations[i-1] {
			return fmt.Errorf("timeline: boundary %d of iterations is at %v us: they ascend and lie within %g us of the origin", i, at, float64(MaxTime))
		}
	}
	for i := range t.Spans {
		why := t.span(i)
		if why == "" && i > 0 && byStart(&t.Spans[i-1], &t.Spans[i]) > 0 {
			why = "out of order: spans are ordered by start, rank and lane (Timeline.Sort does it)"
		}
		if why != "" {
			return fmt.Errorf("timeline: span %d (%q, %v to %v us): %s", i, t.Spans[i].Name, t.Spans[i].Start, t.Spans[i].End, why)
		}
	}
	for i, f := range t.Flows {
		for _, s := range []int32{f.From, f.To} {
			if s < 0 || int(s) >= len(t.Spans) {
				return fmt.Errorf("timeline: flow %d: no span %d, there are %d", i, s, len(t.Spans))
			}
			if t.Spans[s].Kind == Queued {
				return fmt.Errorf("timeline: flow %d: span %d (%q) is queued: arrows join ops, waits and transfers", i, s, t.Spans[s].Name)
			}
		}
	}
	return nil
}

// span says what is wrong with span i by itself.
func (t *Timeline) span(i int) (why string) {
	s := &t.Spans[i]
	switch {
	case s.Rank < 0 || int(s.Rank) >= len(t.Ranks):
		return fmt.Sprintf("no rank at position %d, there are %d", s.Rank, len(t.Ranks))
	case s.Lane < 0 || int(s.Lane) >= len(t.Lanes):
		return fmt.Sprintf("no lane %d, there are %d", s.Lane, len(t.Lanes))
	case s.Kind > Wait:
		return fmt.Sprintf("unknown kind %d", s.Kind)
	case (s.Kind == Transfer || s.Kind == Queued) != (t.Lanes[s.Lane].Kind == Link):
		return fmt.Sprintf("a %s span on lane %d (%q): transfers belong on links, all else on compute lanes", s.Kind, s.Lane, t.Lanes[s.Lane].Name)
	case !(s.Start >= -MaxTime && s.Start <= s.End && s.End <= MaxTime):
		return fmt.Sprintf("it must not end before it starts, and lie within %g us of the origin", float64(MaxTime))
	case s.Phase > uint8(job.Runtime):
		return fmt.Sprintf("unknown phase %d", s.Phase)
	case s.Bytes < 0 || s.Bucket < -1:
		return fmt.Sprintf("%d bytes of bucket %d", s.Bytes, s.Bucket)
	}
	return ""
}

var (
	laneNames = []string{"host", "device", "link"}
	spanNames = []string{"compute", "transfer", "queued", "wait"}
)

func (k LaneKind) String() string { return laneNames[k] }
func (k SpanKind) String() string { return spanNames[k] }
