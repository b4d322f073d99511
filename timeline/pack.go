package timeline

import "math"

// ticks is a time in nanoseconds, the resolution of files and drawings. At this
// resolution spans that only rounding errors let overlap follow each other.
func ticks(us float64) int64 { return int64(math.Round(us * 1000)) }

// pack spreads the chosen spans over tracks, so that those of a track never
// overlap: each goes to the first track of its row (a lane of a rank) that is
// free. It returns the track of each span within its row, -1 for spans not
// chosen, and how many tracks each row has; row r is lane r%L of rank r/L, L
// being the number of lanes.
func (t *Timeline) pack(choose func(*Span) bool) (track []int32, count []int) {
	track, count = make([]int32, len(t.Spans)), make([]int, len(t.Ranks)*len(t.Lanes))
	free := make([][]int64, len(count)) // by row: when each track is free
	for i := range t.Spans {
		s := &t.Spans[i]
		track[i] = -1
		if !choose(s) {
			continue
		}
		row := int(s.Rank)*len(t.Lanes) + int(s.Lane)
		k := 0
		for k < len(free[row]) && free[row][k] > ticks(s.Start) {
			k++
		}
		if k == len(free[row]) {
			free[row] = append(free[row], 0)
		}
		free[row][k] = ticks(s.End)
		track[i] = int32(k)
	}
	for row := range free {
		count[row] = len(free[row])
	}
	return track, count
}
