// Package deft holds DeFT: gradients travel while later iterations compute, and
// where communication takes longer than computation, fewer of them. Which bucket
// travels in which pass over which link is a knapsack problem.
//
// DeFT's algorithm is not public: this is a reconstruction (section 13 of the
// algorithms, and its decisions in 13.9).
package deft

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// Options let the preserver judge schedules.
type Options struct {
	// Statistics of the training tell the loss that a schedule is expected to
	// cost; nil: no preserver.
	Statistics *Statistics
	// Tolerance is how far the ratio of expected losses may be from 1; 0: [Tolerance].
	Tolerance float64
}

// DeFT is the policy without a preserver.
var DeFT = New(Options{})

// New is the policy under the given options.
func New(o Options) policy.Policy {
	o.Tolerance = cmp.Or(o.Tolerance, Tolerance)
	return policy.Policy{
		Name:  "deft",
		Title: "DeFT: delayed updates, knapsacks over passes and links (reconstruction)",
		Paper: "DeFT (arXiv 2503.16815; Future Generation Computer Systems 175, 2026)",
		Class: policy.Delayed,
		Build: o.build,
	}
}

func (o Options) build(ctx context.Context, j *job.Job, c *cluster.Cluster, po policy.Options) (*plan.Plan, error) {
	limits := po.WithDefaults().Limits
	switch {
	case limits.MaxDelay < 1 && limits.MaxStaleness < 1 && limits.MinUpdateRate < 1:
		// A rate was given, and then --max-delay sets no staleness of its own.
		return nil, fmt.Errorf("%w: deft delays updates: give --max-delay 1 and --max-staleness 1, or more", policy.ErrUnsuitable)
	case limits.MaxDelay < 1:
		return nil, fmt.Errorf("%w: deft delays updates: give --max-delay 1 or more", policy.ErrUnsuitable)
	case limits.MaxStaleness < 1:
		return nil, fmt.Errorf("%w: deft delays updates: give --max-staleness 1 or more", policy.ErrUnsuitable)
	}
	m, err := newModel(j, c, po.Copies)
	if err != nil {
		return nil, err
	}
	if m.profile.Forward+m.profile.Backward <= 0 {
		return nil, fmt.Errorf("%w: deft hides transfers under computation, and the job has none", policy.ErrUnsuitable)
	}
	s := search{Options: o, model: m, limits: limits, copies: po.Copies, work: newWork()}
	return s.run(ctx)
}

// period is the generations of a period. The first begins to travel in the
// period that was solved, but its first iteration may lie before that.
func (s *solution) period() []generation {
	at := s.first()
	return s.Generations[at : at+s.Updates]
}

func (s *solution) first() int {
	return slices.IndexFunc(s.Generations, func(g generation) bool { return g.last() >= s.Prologue })
}

func (s *solution) lengths() []int {
	var out []int
	for _, g := range s.period() {
		out = append(out, g.Length)
	}
	return out
}

// rate is the update rate.
func (s *solution) rate() float64 { return float64(s.Updates) / float64(s.Period) }

func (s *solution) delay() (delay, staleness int) {
	for _, g := range s.period() {
		delay = max(delay, g.Applied-g.last())
		staleness = max(staleness, g.Applied-g.First)
	}
	return delay, staleness
}

// buffers counts the generations in use at once; early: writes may come so many
// iterations before the update.
func (s *solution) buffers(early int) int {
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
func (s *solution) plan(m *model, buckets []plan.Bucket, copies bool) (*plan.Plan, error) {
	p, err := policy.Start("deft", m.job, m.cluster, policy.Options{Copies: copies})
	if err != nil {
		return nil, err
	}
	p.Buckets = buckets
	p.Period, p.UpdateRate = s.Period, s.rate()
	p.MaxDelay, p.MaxStaleness = s.delay()

	p.Generations, p.Updates = nil, nil
	origin := s.period()[0].First
	for i, g := range s.period() {
		p.Generations = append(p.Generations, plan.Generation{First: g.First - origin, Length: g.Length})
		p.Updates = append(p.Updates, plan.Update{Generation: i, At: plan.AtStep, Iteration: g.Applied - origin})
	}
	sends := make([][]send, s.Prologue+s.Period) // by iteration
	for _, x := range s.Sends {
		sends[x.Iteration] = append(sends[x.Iteration], x)
	}
	// The iterations solved from the prologue on, repeated until they cover a
	// period from a repetition of origin.
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
		n := max(0, -floor(len(sends)-1-t, s.Period))
		for _, x := range sends[t-n*s.Period] {
			link := &p.Programs[m.links[x.Link]]
			link.Transfers = append(link.Transfers, plan.Transfer{
				Kind: cluster.AllReduce, Bucket: x.Bucket,
				Generation: x.Generation + (n-1)*s.Updates - s.first(),
				Gates:      []plan.Gate{{Kind: plan.GradientReady}},
			})
		}
	}
	return p, nil
}
