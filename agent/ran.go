package agent

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"weft/agent/protocol"
	"weft/internal/median"
	"weft/plan"
)

const (
	lastPeriods = 256 // of a plan, of which times are kept
	lastPlans   = 8   // of which there are
)

// Ran is what iterations of a plan took, as this host has seen it.
type Ran struct {
	Plan  *plan.Plan
	Plain bool // plain buckets
	// Iterations is how many have been measured.
	Iterations int
	// Time is that of an iteration, and Exposed how long a worker waited in it for the agent: microseconds, of each
	// worker the median over the last periods of the plan, and of the workers of this host the mean.
	Time, Exposed float64
}

func (r *Ran) String() string {
	return fmt.Sprintf("%.1f ms an iteration, %.1f ms of it exposed", r.Time/1e3, r.Exposed/1e3)
}

// Ran is what was measured of the plans that were executed, the last one last. Not measured are
// iterations that are profiled, and the first ones after a hello.
func (a *Agent) Ran() (out []Ran) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.paces {
		r := Ran{Plan: p.plan, Plain: p.plain}
		workers := 0.0
		for _, w := range p.workers {
			if n := w.times.given; n > 0 {
				workers++
				r.Iterations = max(r.Iterations, n*p.plan.Period)
				r.Time += median.Of(w.times.kept)
				r.Exposed += median.Of(w.waits.kept)
			}
		}
		if workers > 0 {
			r.Time /= workers
			r.Exposed /= workers
			out = append(out, r)
		}
	}
	return out
}

// pace is what a plan took, in all sessions that executed it.
type pace struct {
	digest  string
	plan    *plan.Plan
	plain   bool
	workers []periods
}

// periods are those of a worker.
type periods struct {
	times, waits ring[float64] // of an iteration of the last ones
}

// mark is when a worker declared its first bucket of a period's last iteration, and for how long it had waited until
// then, of all the time.
type mark struct {
	iteration  int // -1: none yet
	at, waited time.Duration
}

// pace is that of a session's plan; nil: it moves nothing.
func (a *Agent) pace(l *layout) *pace {
	if len(l.job.Tensors) == 0 {
		return nil
	}
	i := slices.IndexFunc(a.paces, func(p *pace) bool { return p.digest == l.welcome.Digest })
	p := &pace{digest: l.welcome.Digest, plan: l.plan, plain: l.given == nil, workers: slices.Repeat([]periods{{ring[float64]{most: lastPeriods}, ring[float64]{most: lastPeriods}}}, len(a.Ranks))}
	switch {
	case i >= 0:
		p = a.paces[i]
		a.paces = slices.Delete(a.paces, i, i+1)
	case len(a.paces) == lastPlans:
		a.paces = slices.Delete(a.paces, 0, 1)
	}
	a.paces = append(a.paces, p)
	return p
}

// passes notes that a worker declares a bucket.
func (s *session) passes(w int, m protocol.Message, now time.Duration) error {
	waited, err := waited(m)
	period := s.plan.Period
	if err != nil || s.pace == nil || m.Iteration%period != period-1 || m.Iteration <= s.marks[w].iteration {
		return err
	}
	last := s.marks[w]
	s.marks[w] = mark{m.Iteration, now, waited}
	if last.iteration >= 0 && !s.measured.sees(last.iteration) && !s.measured.sees(m.Iteration) {
		n := float64(m.Iteration - last.iteration)
		s.pace.workers[w].add(micros(now-last.at)/n, micros(waited-last.waited)/n)
	}
	return nil
}

func (p *periods) add(time, wait float64) {
	p.times.add(time)
	p.waits.add(wait)
}

// waitedBytes is what that takes of a payload.
const waitedBytes = 8

// waited is for how long a worker says that it has waited since it connected; nothing if it does not say.
func waited(m protocol.Message) (time.Duration, error) {
	switch n := len(m.Payload); {
	case n == 0:
		return 0, nil
	case n >= waitedBytes:
		return time.Duration(binary.LittleEndian.Uint64(m.Payload)), nil
	}
	return 0, fmt.Errorf("a %v with %d bytes: want %d or more, or none", m.Kind, len(m.Payload), waitedBytes)
}
