package study

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"weft/bound"
	"weft/cluster"
	"weft/internal/parallel"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/sim"
	"weft/timeline"
)

// Result of a study.
type Result struct {
	Study    *Study
	Rows     []Row // one a case
	Findings []Finding
	Notes    []string
}

// Row is what became of a case.
type Row struct {
	Case    *Case
	Cluster *cluster.Cluster // the case's, at the bandwidth that its coverage asks for
	// Coverage is the wire time of moving all gradients once, by one all-reduce or
	// through the servers if there are some, over the computation: of the first link.
	Coverage float64
	Outcomes []Outcome // one a schedule
}

// Outcome of a schedule on a case. Times are microseconds.
type Outcome struct {
	Refusal string // why there is none: the rest is then zero
	// Time of an iteration in steady state. Of several runs, Time is their mean,
	// and Least and Most are the extremes; of one, all are the same.
	Time, Least, Most float64
	Mean              timeline.Breakdown // of Time, over the workers; of several runs the last's
	Class             bound.Class        // of the plan
	Bound             bound.Bound        // of all plans of the class that are no later
	Gap               float64            // Time over the bound, less 1; 0: there is no bound
	Transfers         float64            // of buckets, an iteration
	Delay, Staleness  int
	Rate              float64 // updates an iteration
	Generations       []int   // their lengths in a period; nil if synchronous
	// Loss is the expected loss after as many iterations as a period has, over that
	// of synchronous training; 0: none is assumed.
	Loss  float64
	Notes []string
}

// Runner runs the jobs of a case, of which there is one unless the case has more.
type Runner func(ctx context.Context, jobs []*job.Job, c *cluster.Cluster) (Outcome, error)

// Finding is what stands beside a claim: the least and the most of all cases.
type Finding struct {
	Claim       *Claim
	Least, Most float64
	// Worst and Best are the cases that they are of; nil where no case has an outcome.
	Worst, Best *Case
}

// Run runs a study, as many cells of its table at once as there are processors;
// the result does not depend on how many. Progress, if set, is told how many
// cells are done; calls do not overlap. It is an error when a plan is not legal,
// not when a policy refuses a job.
func Run(ctx context.Context, s *Study, progress func(done, total int)) (*Result, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("study %s: %w", s.Name, err)
	}
	out := &Result{Study: s, Rows: make([]Row, len(s.Cases))}
	runners := make([]Runner, len(s.Schedules))
	for i := range s.Schedules {
		r, err := s.Schedules[i].runner()
		if err != nil {
			return nil, fmt.Errorf("study %s: %w", s.Name, err)
		}
		runners[i] = r
	}
	loaded := map[Source]*job.Job{}
	jobs := make([][]*job.Job, len(s.Cases))
	for i := range s.Cases {
		c := &s.Cases[i]
		for _, src := range c.Jobs {
			if loaded[src] == nil {
				j, err := src.load()
				if err != nil {
					return nil, fmt.Errorf("study %s: %w", s.Name, err)
				}
				loaded[src] = j
			}
			jobs[i] = append(jobs[i], loaded[src])
		}
		row := &out.Rows[i]
		*row = Row{Case: c, Cluster: &c.Cluster, Coverage: c.Coverage, Outcomes: make([]Outcome, len(s.Schedules))}
		covers, err := coverage(jobs[i], row.Cluster)
		if err != nil {
			return nil, fmt.Errorf("study %s, %v: %w", s.Name, c, err)
		}
		switch {
		case c.Coverage == 0:
			row.Coverage = covers
		case !(covers > 0) || math.IsInf(covers, 1):
			return nil, fmt.Errorf("study %s, %v: no bandwidth makes the coverage rate %g: computation or wire takes no time", s.Name, c, c.Coverage)
		default:
			row.Cluster = throttle(row.Cluster, covers/c.Coverage)
		}
	}

	n := len(s.Cases) * len(s.Schedules)
	err := parallel.Do(ctx, n, progress, func(k int) error {
		row, i := &out.Rows[k/len(s.Schedules)], k%len(s.Schedules)
		o, err := runners[i](ctx, jobs[k/len(s.Schedules)], row.Cluster)
		if err != nil {
			return fmt.Errorf("study %s, %v, %s: %w", s.Name, row.Case, s.Schedules[i].Name, err)
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
	if err := plan.Check(p, j, l).Err(); err != nil {
		return Outcome{}, fmt.Errorf("the plan is not legal for this job: %w", err)
	}
	r, err := sim.Run(ctx, j, c, p, sim.Options{})
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

// Index is the position of a schedule, or -1.
func (s *Study) Index(schedule string) int {
	return slices.IndexFunc(s.Schedules, func(x Schedule) bool { return x.Name == schedule })
}

// Gain is how many more iterations a second the subject runs than a schedule, as
// a fraction; NaN where one of them has no outcome, or there is no subject.
func (r *Result) Gain(row, schedule int) float64 {
	o := r.Rows[row].Outcomes
	if r.Study.Subject == "" {
		return math.NaN()
	}
	return gain(&o[r.Study.Index(r.Study.Subject)], &o[schedule])
}

// Rank is the place of a schedule among those of a case, the fastest 1; equal
// times share a place. 0: it has no outcome.
func (r *Result) Rank(row, schedule int) int {
	o := r.Rows[row].Outcomes
	if o[schedule].Refusal != "" {
		return 0
	}
	place := 1
	for i := range o {
		if o[i].Refusal == "" && o[i].Time < o[schedule].Time {
			place++
		}
	}
	return place
}

// gain is one's over another; NaN where one of them has no outcome, or takes no
// time.
func gain(one, other *Outcome) float64 {
	if one.Refusal != "" || other.Refusal != "" || one.Time == 0 {
		return math.NaN()
	}
	return other.Time/one.Time - 1
}

// Spread is how much the times of several runs differ, as a fraction of their
// mean; NaN where there are none.
func (o *Outcome) Spread() float64 {
	if o.Refusal != "" || o.Time == 0 {
		return math.NaN()
	}
	return (o.Most - o.Least) / o.Time
}

func (r *Result) find(c *Claim) Finding {
	f := Finding{Claim: c}
	for i := range r.Rows {
		row := &r.Rows[i]
		if !strings.Contains(row.Case.String(), c.Where) {
			continue
		}
		of := &row.Outcomes[r.Study.Index(c.Of)]
		var all []float64
		for _, other := range c.Over {
			all = append(all, gain(of, &row.Outcomes[r.Study.Index(other)]))
		}
		if len(c.Over) == 0 {
			all = append(all, of.Spread())
		}
		all = slices.DeleteFunc(all, math.IsNaN)
		if len(all) == 0 {
			continue
		}
		least, most := slices.Min(all), slices.Max(all)
		if c.Fastest {
			most = least
		}
		if f.Worst == nil || least < f.Least {
			f.Least, f.Worst = least, row.Case
		}
		if f.Best == nil || most > f.Most {
			f.Most, f.Best = most, row.Case
		}
	}
	return f
}

var figure = regexp.MustCompile(`[0-9][0-9.e+-]*`)

// notes are those of jobs and plans and all refusals: each with the schedules that
// have it, and the number of its cases where these are not all. Of notes that
// differ in their figures the first stands for all.
func (r *Result) notes(jobs [][]*job.Job) []string {
	type note struct {
		text      string
		schedules []string
		cases     map[int]bool
		several   bool // figures
	}
	var all []*note
	byText := map[string]*note{}
	add := func(row int, schedule, text string) {
		key := figure.ReplaceAllString(text, "#")
		n := byText[key]
		if n == nil {
			n = &note{text: text, cases: map[int]bool{}}
			byText[key] = n
			all = append(all, n)
		}
		n.several = n.several || n.text != text
		if schedule != "" && !slices.Contains(n.schedules, schedule) {
			n.schedules = append(n.schedules, schedule)
		}
		n.cases[row] = true
	}
	for i := range r.Rows {
		for _, n := range jobs[i][0].Notes {
			add(i, "", n)
		}
	}
	for s := range r.Study.Schedules {
		for i := range r.Rows {
			o, name := &r.Rows[i].Outcomes[s], r.Study.Schedules[s].Name
			if o.Refusal != "" {
				add(i, name, o.Refusal)
			}
			for _, n := range o.Notes {
				add(i, name, n)
			}
		}
	}
	out := make([]string, len(all))
	for i, n := range all {
		if out[i] = n.text; len(n.schedules) > 0 {
			out[i] = strings.Join(n.schedules, "; ") + ": " + n.text
		}
		var where []string
		if n.several {
			where = append(where, "figures of the first")
		}
		if len(n.cases) < len(r.Rows) {
			where = append(where, fmt.Sprintf("%d of %d cases", len(n.cases), len(r.Rows)))
		}
		if len(where) > 0 {
			out[i] += " (" + strings.Join(where, "; ") + ")"
		}
	}
	return out
}
