package deft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"
)

// search looks for the plan of least time within the limits: over several cuts
// of the gradients, numbers of links and rules, with windows of the size that
// computation hides and larger ones. The simulator chooses among the best.
type search struct {
	Options
	*model
	limits plan.Limits
	copies bool

	work  *work
	found []candidate
}

// shape is the buckets and the links that they may take.
type shape struct {
	*model
	buckets []plan.Bucket
	problem problem
	load    float64 // see problem.load
	solver  *solver // with windows of the size that computation hides
}

// candidate is a schedule within the limits.
type candidate struct {
	*solution
	shape    *shape
	capacity float64
	time     float64 // of an iteration, microseconds: predicted, in the end simulated
}

const (
	kappa      = 0.05 // section 13.9: by so much windows grow
	rounding   = 1e-9
	mostShapes = 4
	mostGrown  = 12 // times that windows grow
	finalists  = 3
	mostSimOps = 1 << 20
)

func (s *search) run(ctx context.Context) (*plan.Plan, error) {
	shapes, err := s.shapes()
	if err != nil {
		return nil, err
	}
	for _, x := range shapes {
		for _, r := range s.rules(x) {
			if err := s.try(ctx, x, r); err != nil {
				return nil, err
			}
			if slices.ContainsFunc(s.found, candidate.perfect) {
				// Another rule for this shape cannot be preferred. The other shapes still
				// try their first: the profile may be wrong about this one.
				break
			}
		}
	}
	return s.choose(ctx)
}

// shapes are the first cut on all links, which section 13.7 asks for, and of the
// others those that load the links least.
func (s *search) shapes() ([]*shape, error) {
	var out []*shape
	for links := len(s.links); links > 0; links-- {
		for _, how := range cuts {
			m := s.on(links)
			buckets, err := m.buckets(how)
			if err != nil {
				return nil, err
			}
			p, err := m.problem(buckets)
			if err != nil {
				return nil, err
			}
			solver, err := newSolver(p, s.work)
			if err != nil {
				return nil, err
			}
			x := &shape{model: m, buckets: buckets, problem: p, load: p.load(), solver: solver}
			if !slices.ContainsFunc(out, func(y *shape) bool { return y.load == x.load && len(y.buckets) == len(buckets) }) {
				out = append(out, x)
			}
		}
	}
	slices.SortStableFunc(out[1:], func(a, b *shape) int { return cmp.Compare(a.load, b.load) })
	return out[:min(len(out), mostShapes)], nil
}

// rules are those within the limits that may serve, the shortest generations
// first. One update an iteration, one late, is always among them.
func (s *search) rules(x *shape) []rule {
	longest := mostDelay
	if r := s.limits.MinUpdateRate; r > 0 {
		longest = int(min(1/r+rounding, mostDelay))
	}
	// So many iterations hide a generation.
	hidden := int(min(math.Ceil(x.load/(s.profile.Forward+s.profile.Backward)), mostDelay))
	var out []rule
	for _, length := range []int{1, hidden - 1, hidden, hidden + 1, longest} {
		for _, delay := range []int{1, 2, length - 1, length, length + 1} {
			r := rule{Delay: delay, Length: length}
			if length >= 1 && length <= longest && delay >= 1 && delay <= s.limits.MaxDelay &&
				delay+length-1 <= s.limits.MaxStaleness && !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	slices.SortFunc(out, func(a, b rule) int {
		return cmp.Or(cmp.Compare(a.Length, b.Length), cmp.Compare(a.Delay, b.Delay))
	})
	return out
}

// try solves under a rule. While the schedule is rejected, and once more if it
// has not an update an iteration, the windows are enlarged.
func (s *search) try(ctx context.Context, x *shape, r rule) error {
	solver, capacity := x.solver, 1.0
	for grown := 0; ; grown++ {
		got, err := solver.solve(ctx, r)
		if err != nil {
			return err
		}
		met := s.met(got)
		if met && !slices.ContainsFunc(s.found, func(y candidate) bool { return y.shape == x && y.same(got) }) {
			s.found = append(s.found, candidate{got, x, capacity, got.Time})
		}
		if got.Updates == got.Period || r.Length > 1 || met && grown > 0 || grown == mostGrown {
			return nil
		}
		// Below the second no schedule keeps the update rate.
		capacity = max(capacity*(1+kappa), s.limits.MinUpdateRate*x.load/(s.profile.Forward+s.profile.Backward))
		p := x.problem
		p.Capacity = capacity
		if solver, err = newSolver(p, s.work); err != nil {
			return err
		}
	}
}

// met: the schedule is within the limits, and the preserver accepts it.
func (s *search) met(x *solution) bool {
	delay, staleness := x.delay()
	return delay <= s.limits.MaxDelay && staleness <= s.limits.MaxStaleness && x.rate() >= s.limits.MinUpdateRate-rounding &&
		(s.Statistics == nil || s.Statistics.Accepts(x.lengths(), s.Tolerance))
}

// perfect: as far as the profile tells, nothing is preferred to it.
func (x candidate) perfect() bool {
	_, staleness := x.delay()
	p := &x.shape.problem
	return x.time <= (1+policy.Equal)*(p.Forward+p.Backward) && x.rate() == 1 && staleness <= 1
}

// best is the place of the least time; of equals, within 1 %, that of the
// highest update rate, then of the lowest staleness, then of the least memory.
func best(all []candidate) int {
	least := slices.MinFunc(all, func(a, b candidate) int { return cmp.Compare(a.time, b.time) }).time
	at := -1
	for i := range all {
		if all[i].time <= least*(1+policy.Equal) && (at < 0 || all[i].compare(&all[at]) < 0) {
			at = i
		}
	}
	return at
}

// compare ranks candidates of equal time.
func (x *candidate) compare(y *candidate) int {
	_, a := x.delay()
	_, b := y.delay()
	return cmp.Or(cmp.Compare(y.rate(), x.rate()), cmp.Compare(a, b), cmp.Compare(x.buffers(0), y.buffers(0)))
}

// same: both are the same, as far as they are ranked.
func (x *solution) same(y *solution) bool {
	xd, xs := x.delay()
	yd, ys := y.delay()
	return x.Time == y.Time && x.rate() == y.rate() && xd == yd && xs == ys
}

// choose builds the plans of the best candidates, simulates them and takes the
// best of them.
func (s *search) choose(ctx context.Context) (*plan.Plan, error) {
	var (
		last  []candidate
		plans []*plan.Plan
		err   = errors.New("deft: no schedule is within the limits and the tolerance")
		ops   int
	)
	for tries := 0; tries < 2*finalists && len(last) < finalists && len(s.found) > 0; tries++ {
		i := best(s.found)
		x := s.found[i]
		s.found = slices.Delete(s.found, i, i+1)
		p, e := s.legal(&x)
		if e != nil {
			err = e
			continue
		}
		last, plans = append(last, x), append(plans, p)
		ops += x.iterations() * len(s.job.Ops) * (1 + len(s.cluster.Workers))
	}
	if len(last) == 0 {
		return nil, fmt.Errorf("%w: %w", policy.ErrUnsuitable, err)
	}
	if len(last) > 1 && ops <= mostSimOps {
		for i := range last {
			r, err := sim.Run(ctx, s.job, s.cluster, plans[i], sim.Options{Iterations: last[i].iterations()})
			if err != nil {
				return nil, err
			}
			last[i].time = r.Time
		}
	}
	i := best(last)
	plans[i].Notes = append(s.notes(&last[i]), plans[i].Notes...)
	return plans[i], nil
}

// iterations are how many of the plan are simulated: at least 12, in whole periods.
func (x *candidate) iterations() int { return x.Period * max(4, (11+x.Period)/x.Period) }

// legal is the plan of a schedule, if it keeps the plan rules.
func (s *search) legal(x *candidate) (*plan.Plan, error) {
	p, err := x.plan(x.shape.model, x.shape.buckets, s.copies)
	if err != nil {
		return nil, err
	}
	if err := p.AddCollectives(s.job); err != nil {
		return nil, err
	}
	limits := s.limits
	limits.MaxMemory = 0   // the caller tells by how much a plan does not fit
	for early := range 2 { // how early the next iteration may write is the checker's to know
		p.Buffers = x.buffers(early)
		if err = plan.Check(p, s.job, limits).Err(); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("deft: %w", err)
}

func (s *search) notes(x *candidate) []string {
	notes := []string{"DeFT's algorithm is not public: this is a reconstruction"}
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if s.Statistics == nil {
		add("no statistics of the training were given: what the delay costs in convergence is not judged")
	} else {
		add("the expected loss after a period is %.4g times that of synchronous training (Gaussian walk with rebound; staleness not modelled)", s.Statistics.Ratio(x.lengths()))
	}
	if s.job.Mode == job.Global {
		add("what the job computes from all gradients before an update, it computes from those of a generation")
	}
	if x.capacity > 1 {
		add("passes are packed to %.3g times their length, of which some may be exposed", x.capacity)
	}
	if x.Overrun > 0 {
		add("what is due at its largest delay goes even where it is exposed: %.3g ms of %d iterations", x.Overrun/1e3, x.Period)
	}
	if least, _ := s.model.cost(s.links[0], cluster.AllReduce, 1); least > s.profile.Forward {
		add("the start-up of a transfer alone exceeds the forward pass: no bucket fits it, and a bucket may span consecutive passes")
	} else if x.Spans {
		add("some bucket fits no forward pass, and may span consecutive passes")
	}
	if x.Inexact > 0 {
		add("%d of %d passes are not proved to be packed best: up to %.3g ms may be missing in one", x.Inexact, 2*len(x.Cases), x.Gap/1e3)
	}
	if s.work.left < 0 {
		add("the search ended at its bound of work: later schedules fill passes in the order of dispatch")
	}
	if x.Rested {
		add("no short period was found: the queues are emptied once in %d iterations", x.Period)
	}
	return notes
}
