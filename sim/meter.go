package sim

import "weft/timeline"

// meter adds up, for one worker, how long its computing lanes compute, how long
// they wait for communication, and how long they do either; times of several
// lanes count once. It is what timeline.Metrics finds in the spans, without them.
type meter struct {
	at                       float64 // up to when time is counted
	running, waiting         int32   // lanes
	computed, waited, either float64
}

// until counts the time up to now.
func (m *meter) until(now float64) {
	d := now - m.at
	m.at = now
	if m.running > 0 {
		m.computed += d
	}
	if m.waiting > 0 {
		m.waited += d
	}
	if m.running+m.waiting > 0 {
		m.either += d
	}
}

// read takes all meters at now: those of the workers, and as the last element
// the links', whose lanes "compute" while a transfer is in flight.
func (m *machine) read() []meter {
	out := make([]meter, 0, len(m.workers)+1)
	for w := range m.workers {
		x := &m.workers[w].meter
		x.until(m.now)
		out = append(out, *x)
	}
	m.sending.until(m.now)
	return append(out, m.sending)
}

// breakdown compares two readings, n iterations apart.
func breakdown(from, to []meter, n int) []timeline.Breakdown {
	per := func(d float64) float64 { return d / nsPerUs / float64(n) }
	links := len(to) - 1
	out := make([]timeline.Breakdown, links)
	for w := range out {
		a, b := &from[w], &to[w]
		out[w] = timeline.Breakdown{
			Iteration:     per(b.at - a.at),
			Computation:   per(b.computed - a.computed),
			Communication: per(to[links].computed - from[links].computed),
			Exposed:       per(b.waited - a.waited),
			Idle:          per((b.at - a.at) - (b.either - a.either)),
		}
	}
	return out
}
