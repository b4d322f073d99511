package study

import (
	"context"
	"fmt"
	"math"
	"slices"

	"weft/bound"
	"weft/cluster"
	"weft/internal/parallel"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/sim"
)

// Runner runs the jobs of a case, of which there is one unless the case has more.
type Runner func(ctx context.Context, jobs []*job.Job, c *cluster.Cluster) (Outcome, error)

// Run runs a study, as many cells of its table at once as there are processors;
// the result does not depend on how many. Progress, if set, is told how many
// cells are done; calls do not overlap. It is an error when a plan is not legal,
// not when a policy refuses a job.
func Run(ctx context.Context, s *Study, progress func(done, total int)) (*Result, error) {
	r, err := run(ctx, s, progress)
	if err != nil {
		return nil, fmt.Errorf("study %s: %w", s.Name, err)
	}
	return r, nil
}

func run(ctx context.Context, s *Study, progress func(done, total int)) (*Result, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	runners := make([]Runner, len(s.Schedules))
	for i := range s.Schedules {
		r, err := s.Schedules[i].runner()
		if err != nil {
			return nil, err
		}
		runners[i] = r
	}
	jobs, err := s.load()
	if err != nil {
		return nil, err
	}
	out := &Result{Study: s, Rows: make([]Row, len(s.Cases))}
	for i := range s.Cases {
		if out.Rows[i], err = newRow(&s.Cases[i], jobs[i], len(runners)); err != nil {
			return nil, fmt.Errorf("%v: %w", &s.Cases[i], err)
		}
	}
	n := len(runners)
	err = parallel.Do(ctx, len(s.Cases)*n, progress, func(cell int) error {
		row, i := &out.Rows[cell/n], cell%n
		o, err := runners[i](ctx, jobs[cell/n], row.Cluster)
		if err != nil {
			return fmt.Errorf("%v, %s: %w", row.Case, s.Schedules[i].Name, err)
		}
		if s.Training != nil && o.Generations != nil {
			o.Loss = s.Training.Ratio(o.Generations)
		}
		row.Outcomes[i] = o
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range s.Claims {
		out.Findings = append(out.Findings, out.find(&s.Claims[i]))
	}
	out.Notes = out.notes(jobs)
	return out, nil
}

// load gives the jobs of each case. Cases with the same source share its job.
func (s *Study) load() ([][]*job.Job, error) {
	loaded := map[Source]*job.Job{}
	jobs := make([][]*job.Job, len(s.Cases))
	for i := range s.Cases {
		for _, from := range s.Cases[i].Jobs {
			if loaded[from] == nil {
				j, err := from.load()
				if err != nil {
					return nil, err
				}
				loaded[from] = j
			}
			jobs[i] = append(jobs[i], loaded[from])
		}
	}
	return jobs, nil
}

// newRow is the row of a case, with room for so many outcomes.
func newRow(c *Case, jobs []*job.Job, outcomes int) (Row, error) {
	row := Row{Case: c, Cluster: &c.Cluster, Outcomes: make([]Outcome, outcomes)}
	covers, err := coverage(jobs, row.Cluster)
	if err != nil {
		return Row{}, err
	}
	row.Coverage = covers
	if c.Coverage != 0 {
		if !(covers > 0) || math.IsInf(covers, 1) {
			return Row{}, fmt.Errorf("no bandwidth makes the coverage rate %g: computation or wire takes no time", c.Coverage)
		}
		row.Coverage, row.Cluster = c.Coverage, throttle(row.Cluster, covers/c.Coverage)
	}
	return row, nil
}

// coverage is Row.Coverage of jobs on a cluster.
func coverage(jobs []*job.Job, c *cluster.Cluster) (float64, error) {
	var bytes int64
	var compute float64
	for _, j := range jobs {
		bytes += j.Bytes()
		for i := range j.Ops {
			compute += j.Ops[i].Time
		}
	}
	kinds := []cluster.Kind{cluster.AllReduce}
	if c.Servers != nil {
		kinds = []cluster.Kind{cluster.Push, cluster.Pull}
	}
	wire := 0.0
	for _, k := range kinds {
		cost, err := c.Cost(0, k, bytes)
		if err != nil {
			return 0, err
		}
		wire += cost.Wire
	}
	return wire / (compute * c.Scale), nil
}

// throttle is c with the bandwidth of its first link multiplied.
func throttle(c *cluster.Cluster, by float64) *cluster.Cluster {
	out := *c
	out.Links = slices.Clone(c.Links)
	out.Links[0].Bandwidth *= by
	return &out
}

func (s *Schedule) runner() (Runner, error) {
	if s.Run != nil {
		return s.Run, nil
	}
	if s.Custom != nil {
		return s.seeds(s.fastest(*s.Custom)), nil
	}
	p, err := all.Lookup(s.Policy)
	if err != nil {
		return nil, err
	}
	return s.seeds(s.fastest(p)), nil
}

// seeds makes a runner run under each seed.
func (s *Schedule) seeds(run Runner) Runner {
	if s.Seeds == 0 {
		return run
	}
	return func(ctx context.Context, jobs []*job.Job, c *cluster.Cluster) (Outcome, error) {
		var all Outcome
		total := 0.0
		for seed := range s.Seeds {
			seeded := *c
			seeded.Seed = c.Seed + uint64(seed)
			o, err := run(ctx, jobs, &seeded)
			if err != nil || o.Refusal != "" {
				return o, err
			}
			total += o.Time
			if seed > 0 {
				o.Least, o.Most = min(o.Least, all.Least), max(o.Most, all.Most)
			}
			all = o
		}
		all.Time = total / float64(s.Seeds)
		if all.Bound.Time > 0 {
			all.Gap = all.Time/all.Bound.Time - 1
		}
		return all, nil
	}
}

// fastest tries a policy's options in turn.
func (s *Schedule) fastest(p policy.Policy) Runner {
	tries := s.Tries
	if len(tries) == 0 {
		tries = []policy.Options{{}}
	}
	return func(ctx context.Context, jobs []*job.Job, c *cluster.Cluster) (Outcome, error) {
		var best Outcome
		for i, o := range tries {
			x, err := s.byPlan(ctx, p, o.WithDefaults(), jobs[0], c)
			if err != nil {
				return Outcome{}, err
			}
			if i == 0 || best.Refusal != "" || x.Refusal == "" && x.Time < best.Time {
				best = x
			}
		}
		return best, nil
	}
}

// byPlan builds a policy's plan, proves it within the options' limits and
// simulates it.
func (s *Schedule) byPlan(ctx context.Context, p policy.Policy, o policy.Options, j *job.Job, c *cluster.Cluster) (Outcome, error) {
	if p.Class == policy.Servers {
		c = c.WithServers()
	}
	built, err := p.Build(ctx, j, c, o)
	if ctx.Err() != nil {
		return Outcome{}, context.Cause(ctx)
	}
	if err != nil {
		return Outcome{Refusal: err.Error()}, nil
	}
	if s.Spread {
		wide, err := policy.Spread(j, c, built)
		if err != nil {
			return Outcome{}, err
		}
		if wide != nil {
			built = wide
		}
	}
	return prove(ctx, j, c, built, o.Limits)
}

// prove checks a plan, simulates it and sets it beside the bound of all plans that
// are no later than it.
func prove(ctx context.Context, j *job.Job, c *cluster.Cluster, p *plan.Plan, l plan.Limits) (Outcome, error) {
	r, err := sim.RunLegal(ctx, j, c, p, l, sim.Options{})
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{
		Time: r.Time, Least: r.Time, Most: r.Time, Mean: r.Mean, Class: bound.ClassOf(p),
		Transfers: p.MeanTransfers(), Delay: p.MaxDelay, Staleness: p.MaxStaleness, Rate: p.UpdateRate, Notes: p.Notes,
	}
	if !p.Synchronous() {
		for _, g := range p.Generations {
			o.Generations = append(o.Generations, g.Length)
		}
	}
	own := plan.Limits{MaxDelay: p.MaxDelay, MaxStaleness: p.MaxStaleness, MinUpdateRate: p.UpdateRate}
	if o.Bound, err = bound.Of(o.Class, j, c, own); err != nil {
		return Outcome{}, fmt.Errorf("lower bound: %w", err)
	}
	if o.Bound.Time > 0 {
		o.Gap = o.Time/o.Bound.Time - 1
	}
	return o, nil
}
