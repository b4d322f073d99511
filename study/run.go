package study

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"weft/bound"
	"weft/cluster"
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
	Mean              timeline.Breakdown // of Time, over the workers
	Bound             bound.Bound        // of all plans of the class
	Gap               float64            // Time over the bound, less 1; 0: there is no bound
	Transfers         float64            // of gradients or parameters, an iteration
	Delay, Staleness  int
	Rate              float64 // updates an iteration
	Notes             []string
}

// runner runs one or several jobs of a case.
type runner func(ctx context.Context, jobs []*job.Job, c *cluster.Cluster) (Outcome, error)

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
	out := &Result{Study: s, Rows: make([]Row, len(s.Cases))}
	runners := make([]runner, len(s.Schedules))
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
			return nil, fmt.Errorf("study %s, %s, %s: %w", s.Name, c.Model, c.Setting, err)
		}
		if c.Coverage == 0 {
			row.Coverage = covers
		} else {
			row.Cluster = throttle(row.Cluster, covers/c.Coverage)
		}
	}

	n := len(s.Cases) * len(s.Schedules)
	err := parallel(ctx, n, progress, func(k int) error {
		row, i := &out.Rows[k/len(s.Schedules)], k%len(s.Schedules)
		o, err := runners[i](ctx, jobs[k/len(s.Schedules)], row.Cluster)
		if err != nil {
			return fmt.Errorf("study %s, %s, %s, %s: %w", s.Name, row.Case.Model, row.Case.Setting, s.Schedules[i].Name, err)
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

// parallel does the work 0..n-1 on all processors and returns the error of the
// first that failed. It stops early when ctx ends.
func parallel(ctx context.Context, n int, progress func(done, total int), work func(int) error) error {
	var (
		all        sync.WaitGroup
		mu         sync.Mutex
		next, done int
		failures   = make([]error, n)
	)
	for range min(n, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for {
				mu.Lock()
				k := next
				next++
				mu.Unlock()
				if k >= n || ctx.Err() != nil {
					return
				}
				failures[k] = work(k)
				mu.Lock()
				done++
				if progress != nil {
					progress(done, n)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return cmp.Or(append([]error{context.Cause(ctx)}, failures...)...)
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
	return wire / compute, nil
}

// throttle is c with the bandwidth of its first link multiplied.
func throttle(c *cluster.Cluster, by float64) *cluster.Cluster {
	out := *c
	out.Links = slices.Clone(c.Links)
	out.Links[0].Bandwidth *= by
	return &out
}

func (s *Schedule) runner() (runner, error) {
	if s.Run != nil {
		return s.Run, nil
	}
	p, err := all.Lookup(s.Policy)
	if err != nil {
		return nil, err
	}
	return fastest(p, s.Tries), nil
}

// fastest tries a policy's options in turn.
func fastest(p policy.Policy, tries []policy.Options) runner {
	if len(tries) == 0 {
		tries = []policy.Options{{}}
	}
	return func(ctx context.Context, jobs []*job.Job, c *cluster.Cluster) (Outcome, error) {
		var best Outcome
		for i, o := range tries {
			x, err := byPlan(ctx, p, o.WithDefaults(), jobs[0], c)
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
func byPlan(ctx context.Context, p policy.Policy, o policy.Options, j *job.Job, c *cluster.Cluster) (Outcome, error) {
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
	return prove(ctx, j, c, built, o.Limits)
}

// prove checks a plan, simulates it and sets it beside its bound.
func prove(ctx context.Context, j *job.Job, c *cluster.Cluster, p *plan.Plan, l plan.Limits) (Outcome, error) {
	if err := plan.Check(p, j, l).Err(); err != nil {
		return Outcome{}, fmt.Errorf("the plan is not legal for this job: %w", err)
	}
	r, err := sim.Run(ctx, j, c, p, sim.Options{})
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{
		Time: r.Time, Least: r.Time, Most: r.Time, Mean: r.Mean,
		Delay: p.MaxDelay, Staleness: p.MaxStaleness, Rate: p.UpdateRate, Notes: p.Notes,
	}
	for i := range p.Programs {
		for t := range p.Programs[i].Transfers {
			if p.Programs[i].Transfers[t].Bucket >= 0 {
				o.Transfers++
			}
		}
	}
	o.Transfers /= float64(p.Period)
	if o.Bound, err = bound.Of(bound.ClassOf(p), j, c, l); err != nil {
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
// a fraction; NaN where one of them has no outcome.
func (r *Result) Gain(row, schedule int) float64 {
	o := r.Rows[row].Outcomes
	return Gain.of(&o[r.Study.Index(r.Study.Subject)], &o[schedule])
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

// of is how one's outcome compares to another's; NaN where there is none.
func (m Measure) of(one, other *Outcome) float64 {
	if one.Refusal != "" || other.Refusal != "" {
		return math.NaN()
	}
	a, b := other.Time, one.Time
	if m == Steadier {
		a, b = other.Most-other.Least, one.Most-one.Least
	}
	if a == b {
		a, b = 1, 1 // 0/0 too: they are equal
	}
	if m == Gain {
		return a/b - 1
	}
	return a / b
}

func (r *Result) find(c *Claim) Finding {
	f := Finding{Claim: c}
	of := r.Study.Index(c.Of)
	for i := range r.Rows {
		row := &r.Rows[i]
		if c.Setting != "" && row.Case.Setting != c.Setting {
			continue
		}
		var all []float64
		for _, other := range c.Over {
			if x := c.Measure.of(&row.Outcomes[of], &row.Outcomes[r.Study.Index(other)]); !math.IsNaN(x) {
				all = append(all, x)
			}
		}
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

// notes are those of jobs and plans and all refusals, each once, with the number
// of its cases where it does not hold for all.
func (r *Result) notes(jobs [][]*job.Job) []string {
	var order []string
	count := map[string]int{}
	add := func(s string) {
		if count[s] == 0 {
			order = append(order, s)
		}
		count[s]++
	}
	for i := range r.Rows {
		for _, n := range jobs[i][0].Notes {
			add(n)
		}
	}
	for s := range r.Study.Schedules {
		for i := range r.Rows {
			o := &r.Rows[i].Outcomes[s]
			if o.Refusal != "" {
				add(fmt.Sprintf("%s: %s", r.Study.Schedules[s].Name, o.Refusal))
			}
			for _, n := range o.Notes {
				add(fmt.Sprintf("%s: %s", r.Study.Schedules[s].Name, n))
			}
		}
	}
	for i, s := range order {
		if n := count[s]; n < len(r.Rows) {
			order[i] = fmt.Sprintf("%s (%d of %d cases)", s, n, len(r.Rows))
		}
	}
	return order
}
