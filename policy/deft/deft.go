// Package deft holds DeFT: gradients travel while later iterations compute, and
// where communication takes longer than computation, fewer of them. Which bucket
// travels in which pass over which link is a knapsack problem.
//
// DeFT's algorithm is not public: this is a reconstruction (section 13 of the
// algorithms, and its decisions in 13.9).
package deft

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// Options are what a plan of DeFT has to meet.
type Options struct {
	// Limits of the plan; zero: those that follow from its own delay (plan.DelayLimits).
	Limits plan.Limits
	// Statistics of the training let the preserver judge a schedule by the loss
	// that it is expected to cost; nil: no preserver.
	Statistics *Statistics
	// Tolerance is how far the ratio of expected losses may be from 1; 0: 0.01.
	Tolerance float64
}

// DeFT is the policy without a preserver. Its plans are delayed.
var DeFT = New(Options{})

// New is the policy under the given options. A schedule that does not meet them
// is solved again with windows of 1.05 times the size, which exposes some
// communication, as often as it takes: then every iteration has its update, and
// in the end no delay.
func New(o Options) policy.Policy {
	return policy.Policy{
		Name:  "deft",
		Title: "DeFT: delayed updates, knapsacks over passes and links (reconstruction)",
		Paper: "DeFT (arXiv 2503.16815; Future Generation Computer Systems 175, 2026)",
		Build: func(j *job.Job, c *cluster.Cluster, po policy.Options) (*plan.Plan, error) {
			if po.Limits != (plan.Limits{}) {
				o.Limits = po.Limits
			}
			if o.Limits != (plan.Limits{}) && o.Limits.MaxDelay == 0 {
				return nil, fmt.Errorf("%w: deft delays updates, and the largest delay allowed is 0: allow 1", policy.ErrUnsuitable)
			}
			if j.Mode == job.Global {
				return nil, fmt.Errorf("%w: deft delays updates, and the job's updates wait for all gradients (update mode global)", policy.ErrUnsuitable)
			}
			m, err := newModel(j, c, po.Copies)
			if err != nil {
				return nil, err
			}
			buckets, fits, err := m.partition()
			if err != nil {
				return nil, err
			}
			p, err := o.build(m, buckets, po.Copies)
			if err != nil {
				return nil, err
			}
			if !fits {
				p.Notes = append(p.Notes, "the start-up of a transfer alone exceeds the forward pass: no bucket fits it, and a bucket may span consecutive passes")
			}
			if len(j.Collectives) > 0 {
				p.Notes = append(p.Notes, "the job's own collectives take time on the first link that the knapsacks do not know of")
			}
			return p, nil
		},
	}
}

const (
	enlarge   = 1.05
	mostTries = 2000
)

// build solves for the given buckets until the options are met.
func (o Options) build(m *model, buckets []plan.Bucket, copies bool) (*plan.Plan, error) {
	p, err := m.problem(buckets)
	if err != nil {
		return nil, err
	}
	if p.Forward+p.Backward <= 0 {
		return nil, fmt.Errorf("%w: deft hides transfers under computation, and the job has none", policy.ErrUnsuitable)
	}
	s, capacity, err := o.solve(p)
	if err != nil {
		return nil, err
	}
	out := s.plan(m, buckets, copies)
	out.Notes = o.notes(s, capacity)
	if err := out.AddCollectives(m.job); err != nil {
		return nil, err
	}
	// How early the next iteration may write is the checker's to know.
	limits := o.limits(out.MaxDelay)
	for early := range 2 {
		out.Buffers = s.buffers(early)
		if err = plan.Check(out, m.job, limits).Err(); err == nil {
			return out, nil
		}
	}
	return nil, fmt.Errorf("%w: deft: %w", policy.ErrUnsuitable, err)
}

// solve enlarges the windows until the options are met.
func (o Options) solve(p Problem) (s *Solution, capacity float64, err error) {
	p.Capacity = max(1, o.limits(0).MinUpdateRate*coverage(&p)) // below it cannot be met
	for range mostTries {
		switch s, err = Solve(p); {
		case err == nil:
			if err = o.met(s); err == nil {
				return s, p.Capacity, nil
			}
		case !errors.Is(err, ErrNoPeriod):
			return nil, 0, err
		}
		p.Capacity *= enlarge
	}
	return nil, 0, fmt.Errorf("%w: %w", policy.ErrUnsuitable, err)
}

func (o Options) limits(delay int) plan.Limits {
	if o.Limits != (plan.Limits{}) {
		return o.Limits
	}
	return plan.DelayLimits(delay)
}

// met is nil if the schedule keeps the limits and the preserver accepts it.
func (o Options) met(s *Solution) error {
	delay, staleness := s.delay()
	l := o.limits(delay)
	rate := float64(s.Updates) / float64(s.Period)
	switch {
	case delay > l.MaxDelay:
		return fmt.Errorf("deft: the delay is %d, the limit %d", delay, l.MaxDelay)
	case staleness > l.MaxStaleness:
		return fmt.Errorf("deft: the staleness is %d, the limit %d", staleness, l.MaxStaleness)
	case rate < l.MinUpdateRate:
		return fmt.Errorf("deft: the update rate is %.4g, the limit %.4g", rate, l.MinUpdateRate)
	case o.Statistics == nil:
		return nil
	}
	if r := o.Statistics.Ratio(s.lengths()); !(math.Abs(r-1) <= o.tolerance()) {
		return fmt.Errorf("deft: the expected loss is %.4g times that of synchronous training, the tolerance %.4g", r, o.tolerance())
	}
	return nil
}

func (o Options) tolerance() float64 {
	if o.Tolerance == 0 {
		return 0.01
	}
	return o.Tolerance
}

// coverage is C/(F+B)/Λ: by section 13.6 no update rate exceeds its inverse.
func coverage(p *Problem) float64 {
	var c, links float64
	for i := range p.Ready {
		c += p.Cost[0][i]
	}
	for l := range p.Cost {
		speed := 0.0
		for i, t := range p.Cost[l] {
			if p.Cost[0][i] > 0 && t > 0 {
				speed = max(speed, p.Cost[0][i]/t)
			}
		}
		links += speed
	}
	if links == 0 {
		return 0
	}
	return c / (p.Forward + p.Backward) / links
}

func (o Options) notes(s *Solution, capacity float64) []string {
	notes := []string{"DeFT's algorithm is not public: this is a reconstruction"}
	if o.Statistics == nil {
		notes = append(notes, "no statistics of the training were given: what the delay costs in convergence is not judged")
	} else {
		notes = append(notes, fmt.Sprintf("the expected loss after a period is %.4g times that of synchronous training (Gaussian walk with rebound; staleness not modelled)", o.Statistics.Ratio(s.lengths())))
	}
	if capacity > 1 {
		notes = append(notes, fmt.Sprintf("more is sent in a pass than it hides: %.3g times its length, to keep the limits", capacity))
	}
	if s.Spans {
		notes = append(notes, "some bucket fits no forward pass, and may span consecutive passes")
	}
	if s.Inexact > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d passes are not proved to be packed best: up to %.3g us may be missing in one", s.Inexact, 2*len(s.Cases), s.Gap))
	}
	if s.Settled {
		notes = append(notes, "no short period was found with buckets sent in the pass that makes them: they wait for the next")
	}
	return notes
}

// first is the first generation of the period: it begins to travel in the period
// that was solved, but its first iteration may lie before that.
func (s *Solution) first() int {
	return slices.IndexFunc(s.Generations, func(g Generation) bool { return g.Last() >= s.Prologue })
}

// period is the generations of a period.
func (s *Solution) period() []Generation {
	at := s.first()
	return s.Generations[at : at+s.Updates]
}

func (s *Solution) lengths() []int {
	var out []int
	for _, g := range s.period() {
		out = append(out, g.Length)
	}
	return out
}

func (s *Solution) delay() (delay, staleness int) {
	for _, g := range s.period() {
		delay = max(delay, g.Applied-g.Last())
		staleness = max(staleness, g.Applied-g.First)
	}
	return delay, staleness
}

// buffers counts the generations in use at once; early: writes may come so many
// iterations before the update.
func (s *Solution) buffers(early int) int {
	most := 1
	for i := range s.Period {
		n := 0
		for _, g := range s.period() {
			// Repetitions at or before i, less those over by then.
			n += floor(i-g.First, s.Period) - floor(i-g.Applied-early-1, s.Period)
		}
		most = max(most, n)
	}
	return most
}

func floor(a, b int) int { return int(math.Floor(float64(a) / float64(b))) }

// plan makes the periodic plan, without buffers, notes and collectives. Its
// period begins with an iteration in which a generation begins.
func (s *Solution) plan(m *model, buckets []plan.Bucket, copies bool) *plan.Plan {
	names := make([]string, len(m.cluster.Links))
	for l := range names {
		names[l] = m.cluster.Links[l].Name
	}
	p := plan.New(m.job, "deft", names...)
	p.Copies, p.Buckets = copies, buckets
	p.Period, p.UpdateRate = s.Period, float64(s.Updates)/float64(s.Period)
	p.MaxDelay, p.MaxStaleness = s.delay()

	p.Generations, p.Updates = nil, nil
	origin := s.period()[0].First
	for i, g := range s.period() {
		p.Generations = append(p.Generations, plan.Generation{First: g.First - origin, Length: g.Length})
		p.Updates = append(p.Updates, plan.Update{Generation: i, At: plan.AtStep, Iteration: g.Applied - origin})
	}
	// The iterations solved from the prologue on, repeated until they cover a
	// period from a repetition of origin.
	end := s.Prologue + s.Period
	for t := origin + s.Period; t < origin+2*s.Period; t++ {
		// What the job itself sends in forward goes first, or that pass would wait
		// for all that is sent under it.
		for c, at := range m.profile.Collectives {
			kind, err := cluster.ParseKind(m.job.Collectives[c].Kind)
			if at < 0 && err == nil { // AddCollectives refuses the others
				link := &p.Programs[0]
				link.Transfers = append(link.Transfers, plan.Transfer{Kind: kind, Bucket: -1, Collective: c, Iteration: t - origin - s.Period})
			}
		}
		n := max(0, -floor(end-1-t, s.Period))
		for _, x := range s.Sends {
			if x.Iteration == t-n*s.Period {
				link := &p.Programs[m.links[x.Link]]
				link.Transfers = append(link.Transfers, plan.Transfer{
					Kind: cluster.AllReduce, Bucket: x.Bucket,
					Generation: x.Generation + (n-1)*s.Updates - s.first(),
					Gates:      []plan.Gate{{Kind: plan.GradientReady}},
				})
			}
		}
	}
	return p
}
