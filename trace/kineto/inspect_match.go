package kineto

import (
	"fmt"
	"math"
	"slices"

	"weft/internal/median"
)

// Matched is several ranks' traces of one run, collective by collective. All
// times are microseconds.
type Matched struct {
	Ranks       []RankSkew
	Collectives []MatchedCollective
}

// RankSkew is one rank against the others.
type RankSkew struct {
	Name   string
	Rank   int     // -1 unknown
	Offset float64 // clock offset against the first trace, removed: median difference of common ends
	Late   float64 // median of how long the others wait for this rank
	Last   int     // collectives at which this rank came last
	Wait   float64 // median of its waiting for peers a step
}

// MatchedCollective is one collective seen by all ranks.
type MatchedCollective struct {
	Step     int // number in the ProfilerStep mark
	Name     string
	Bytes    int64     // 0 unknown
	Transfer float64   // from the last rank's start to the end
	Wait     []float64 // by rank: from its start to the last rank's
	Last     int       // position of the last rank
}

// Match matches the collectives of several ranks of one run by their order in
// steps of the same number. A collective ends on all ranks together, which
// gives the offsets of the clocks; it transfers from the start of its last rank
// on, and what came before is waiting for peers.
func Match(traces ...*Trace) (*Matched, error) {
	if len(traces) < 2 {
		return nil, fmt.Errorf("matching ranks: want the traces of at least two, have %d", len(traces))
	}
	views := make([]*view, len(traces))
	for r, t := range traces {
		var err error
		if views[r], err = newView(t); err != nil {
			return nil, err
		}
		for _, other := range traces[:r] {
			if t.Rank >= 0 && t.Rank == other.Rank {
				return nil, t.fail("rank %d, as %s is: give one trace a rank", t.Rank, other.Name)
			}
		}
	}
	rows, err := pair(views)
	if err != nil {
		return nil, err
	}
	m := &Matched{}
	offsets := make([]float64, len(views))
	for r, v := range views {
		var diff []float64
		for _, row := range rows {
			diff = append(diff, row[r].end-row[0].end)
		}
		offsets[r] = median.Of(diff)
		m.Ranks = append(m.Ranks, RankSkew{Name: v.t.Name, Rank: v.t.Rank, Offset: offsets[r]})
	}
	late := make([][]float64, len(views))
	waits := make([]map[int]float64, len(views))
	for r := range waits {
		waits[r] = map[int]float64{}
	}
	for _, row := range rows {
		c := MatchedCollective{Step: row[0].step, Name: row[0].c.kind, Bytes: row[0].c.bytes(), Wait: make([]float64, len(row))}
		end := 0.0
		for r := range row {
			row[r].start -= offsets[r]
			end += (row[r].end - offsets[r]) / float64(len(row))
			if row[r].start > row[c.Last].start {
				c.Last = r
			}
		}
		last := row[c.Last].start
		c.Transfer = max(0, end-last)
		for r := range row {
			c.Wait[r] = last - row[r].start
			waits[r][c.Step] += c.Wait[r]
			others := math.Inf(-1) // start of the last of the others
			for o := range row {
				if o != r {
					others = max(others, row[o].start)
				}
			}
			late[r] = append(late[r], max(0, row[r].start-others))
		}
		m.Ranks[c.Last].Last++
		m.Collectives = append(m.Collectives, c)
	}
	for r := range m.Ranks {
		m.Ranks[r].Late = median.Of(late[r])
		var w []float64
		for _, x := range waits[r] {
			w = append(w, x)
		}
		m.Ranks[r].Wait = median.Of(w)
	}
	return m, nil
}

// seen is one rank's view of a collective; times are microseconds.
type seen struct {
	step       int
	c          *collective
	start, end float64
}

// pair lines the ranks' collectives up.
func pair(views []*view) ([][]seen, error) {
	var rows [][]seen
	first := views[0].seen()
	others := make([]map[int][]seen, len(views))
	for r, v := range views {
		others[r] = v.seen()
	}
	var steps []int
	for s := range first {
		if !slices.ContainsFunc(others, func(m map[int][]seen) bool { return m[s] == nil }) {
			steps = append(steps, s)
		}
	}
	if len(steps) == 0 {
		return nil, views[0].t.fail("no step with collectives is in all of the traces: they are not of one run, or have no collectives")
	}
	slices.Sort(steps)
	for _, s := range steps {
		for r := range views {
			if a, b := len(first[s]), len(others[r][s]); a != b {
				return nil, views[r].t.fail("step %d has %d collectives, that of %s %d: the traces are not of one run", s, b, views[0].t.Name, a)
			}
		}
		for n := range first[s] {
			row := make([]seen, len(views))
			for r := range views {
				row[r] = others[r][s][n]
				if a, b := row[0].c, row[r].c; a.kind != b.kind || a.elements != b.elements {
					return nil, views[r].t.fail("step %d, collective %d: %s of %d elements, in %s %s of %d: the traces are not of one run",
						s, n, b.kind, b.elements, views[0].t.Name, a.kind, a.elements)
				}
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// seen lists the collectives whose transfer was recorded, by step number.
func (v *view) seen() map[int][]seen {
	out := map[int][]seen{}
	for n := range v.collectives {
		c := &v.collectives[n]
		step := v.stepOf(c)
		if step < 0 || c.transfer < 0 {
			continue
		}
		e := v.event(c.transfer)
		x := seen{step: v.steps[step].number, c: c, start: us(e.Start), end: us(e.End())}
		out[x.step] = append(out[x.step], x)
	}
	return out
}
