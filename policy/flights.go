package policy

import (
	"slices"

	"weft/cluster"
	"weft/plan"
)

// Flights are the transfers in flight on a link whose program has a window, for a
// policy that predicts when each may be dispatched. Times are microseconds.
type Flights struct {
	window plan.Window
	flying []flight // the first to be done first
	bytes  int64    // of these
}

type flight struct {
	done  float64
	bytes int64
}

// NewFlights are none yet.
func NewFlights(w plan.Window, l *cluster.Link) *Flights {
	return &Flights{window: w.Within(l.InFlight)}
}

// Next is the earliest time, from now on, at which the window lets another
// transfer go. Now never falls from call to call.
func (f *Flights) Next(now float64) float64 {
	full := func() bool {
		w := f.window
		return w.Transfers > 0 && len(f.flying) >= w.Transfers || w.Bytes > 0 && f.bytes >= w.Bytes
	}
	for len(f.flying) > 0 && (f.flying[0].done <= now || full()) {
		now = max(now, f.flying[0].done)
		f.bytes -= f.flying[0].bytes
		f.flying = f.flying[1:]
	}
	return now
}

// Send notes a transfer of so many bytes that goes now and will be done at the
// given time.
func (f *Flights) Send(bytes int64, done float64) {
	at := len(f.flying)
	for at > 0 && f.flying[at-1].done > done {
		at--
	}
	f.flying = slices.Insert(f.flying, at, flight{done, bytes})
	f.bytes += bytes
}
