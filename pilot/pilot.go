// Package pilot decides what a live training runs: plain buckets at first, which are
// profiled; then the plan that was made of the profile, in turns with plain buckets,
// until the difference is known; then what was faster, watched.
//
// It is a state machine without a clock: it is told how long iterations have taken,
// and answers what to run, and for how many iterations. One host asks it, and all do
// what it says, at the same iteration.
package pilot

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"weft/internal/median"
)

// Config says how long to look before each decision, in iterations.
type Config struct {
	Warm    int // before the profile
	Profile int // of the profile
	Settle  int // after a switch, which are not counted
	Window  int // counted, of one turn
	Turns   int // of each, the plan and plain buckets; at least 2
	Rest    int // between two looks at what runs; doubled at each look that finds what was expected, up to 8 times as many
	// Drift is by what share the time of an iteration may leave what was measured, in two
	// looks that follow each other, before everything is measured again.
	Drift float64
}

// Default is what weft run uses.
var Default = Config{Warm: 5, Profile: 20, Settle: 2, Window: 8, Turns: 4, Rest: 100, Drift: 0.15}

// Decision is what to do next.
type Decision struct {
	// Make: profile, make a plan, and tell [Pilot.Made]. The rest is zero.
	Make bool
	// Planned: run the plan; otherwise plain buckets.
	Planned bool
	// Profile: measure as at first, op by op.
	Profile bool
	// Next is after how many iterations to come again.
	Next int
	// Why tells the user what was found; empty: nothing new.
	Why string
}

// Pilot is the state of one training. It is not safe for concurrent use.
type Pilot struct {
	Config
	state    state
	planned  bool // what runs
	delayed  bool // the plan does not give the weights of plain buckets
	windows  map[bool][]float64
	turn     int     // of 2*Turns
	expected float64 // time of an iteration of what was kept; 0: the next look tells
	rest     int
	drifted  bool // in the last look
}

type state uint8

const (
	profiling state = iota
	making
	comparing
	watching
)

// New is the pilot of a training that starts in plain buckets; the first review is after
// [Pilot.First] iterations.
func New(c Config) *Pilot { return &Pilot{Config: c, rest: c.Rest} }

// First is after how many iterations the first review is.
func (p *Pilot) First() int { return p.Warm + p.Profile }

// Review takes the times of the iterations since the last decision, each that of the
// slowest worker, in microseconds.
func (p *Pilot) Review(times []float64) Decision {
	switch p.state {
	case comparing:
		p.windows[p.planned] = append(p.windows[p.planned], median.Of(times[min(p.Settle, len(times)-1):]))
		if p.turn++; p.turn < 2*p.Turns {
			return p.take("")
		}
		return p.keep()
	case watching:
		return p.look(median.Of(times))
	}
	p.state = making
	return Decision{Make: true}
}

// Made tells that the plan is there, and whether it delays updates; or why there is none,
// and none is sought again before the training changes.
func (p *Pilot) Made(delayed bool, none error) Decision {
	if none != nil {
		return p.watch(false, 0, fmt.Sprintf("plain buckets: %v", none))
	}
	p.state, p.delayed, p.turn, p.windows = comparing, delayed, 0, map[bool][]float64{}
	return p.take("")
}

// take begins the next turn. The plan and plain buckets take turns as in ABBA: half the
// switches, and what changes steadily comes to both alike.
func (p *Pilot) take(why string) Decision {
	next := p.turn%4 == 0 || p.turn%4 == 3
	n := p.Window
	if next != p.planned || p.turn == 0 {
		n += p.Settle
	}
	p.planned = next
	return Decision{Planned: next, Next: n, Why: why}
}

// keep ends the turns. A plan stays unless it is slower, beyond the 95 % interval of the
// turns' differences; one that delays updates has to be faster beyond it.
func (p *Pilot) keep() Decision {
	var differences []float64
	for i, t := range p.windows[true] {
		differences = append(differences, t-p.windows[false][i])
	}
	mean, half := Interval(differences)
	plan, plain := median.Of(p.windows[true]), median.Of(p.windows[false])
	planned := mean-half <= 0
	if p.delayed {
		planned = mean+half < 0
	}
	verdict, time := "dropped", plain
	if planned {
		verdict, time = "kept", plan
	}
	return p.watch(planned, time, fmt.Sprintf("the plan is %s: %.1f ms an iteration, plain buckets %.1f ms, difference %+.1f ms ± %.1f (95 %%)",
		verdict, plan/1e3, plain/1e3, mean/1e3, half/1e3))
}

// watch lets what was kept run.
func (p *Pilot) watch(planned bool, expected float64, why string) Decision {
	p.state, p.planned, p.expected, p.drifted = watching, planned, expected, false
	return Decision{Planned: planned, Next: p.rest, Why: why}
}

// look compares what runs with what was measured.
func (p *Pilot) look(time float64) Decision {
	if p.expected == 0 {
		p.expected = time
	}
	drifted := math.Abs(time/p.expected-1) > p.Drift
	switch {
	case drifted && p.drifted:
		p.state, p.planned, p.rest = profiling, false, p.Rest
		return Decision{Profile: true, Next: p.First(), Why: fmt.Sprintf("an iteration takes %.1f ms, and took %.1f ms: measuring again", time/1e3, p.expected/1e3)}
	case drifted:
		p.drifted = true
		return Decision{Planned: p.planned, Next: p.Window}
	}
	p.drifted = false
	p.rest = min(2*p.rest, 8*p.Rest)
	return Decision{Planned: p.planned, Next: p.rest}
}

// Interval is the mean of x, two values or more, and half the width of its 95 %
// confidence interval by Student's t.
func Interval(x []float64) (mean, half float64) {
	mean, deviation := stat.MeanStdDev(x, nil)
	n := float64(len(x))
	t := distuv.StudentsT{Sigma: 1, Nu: n - 1}.Quantile(0.975)
	return mean, t * deviation / math.Sqrt(n)
}
