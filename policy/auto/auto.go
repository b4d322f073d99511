// Package auto searches all other policies, and their parameters, for the best
// plan that a user's limits allow.
package auto

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"weft/bound"
	"weft/cluster"
	"weft/internal/parallel"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"
)

// New makes the policy that searches the given ones, those for parameter
// servers excepted, because whether there are any is not for a plan to choose.
func New(others []policy.Policy) policy.Policy {
	return policy.Policy{
		Name:  "auto",
		Title: "the best plan of all policies within your limits",
		Paper: "none: a search",
		Class: policy.Delayed,
		Build: func(ctx context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
			return search(ctx, j, c, o.WithDefaults(), others)
		},
	}
}

// candidate is a policy with parameters.
type candidate struct {
	policy policy.Policy
	with   string // the parameters, as flags
	o      policy.Options
}

// outcome is a plan of a candidate, and what came of it.
type outcome struct {
	candidate
	plan   *plan.Plan
	time   float64 // of an iteration, microseconds
	memory plan.Memory
}

// parameter is a change of a policy's options.
type parameter struct {
	flags string // that make the same change
	set   func(*policy.Options)
}

// parameters are what a policy is tried with besides its defaults.
var parameters = map[string][]parameter{
	"wfbp":          inFlight,
	"mg-wfbp":       inFlight,
	"mg-wfbp-exact": inFlight,
	"ddp": {
		{"--bucket 1MiB", func(o *policy.Options) { o.Bucket = 1 << 20 }},
		{"--bucket 4MiB", func(o *policy.Options) { o.Bucket = 4 << 20 }},
		{"--bucket 10MiB", func(o *policy.Options) { o.Bucket = 10 << 20 }},
		{"--bucket 50MiB", func(o *policy.Options) { o.Bucket = 50 << 20 }},
		{"--bucket 100MiB", func(o *policy.Options) { o.Bucket = 100 << 20 }},
		{"--bucket 4MiB --in-flight 2", func(o *policy.Options) { o.Bucket, o.InFlight = 4<<20, 2 }},
		{"--in-flight 2", func(o *policy.Options) { o.InFlight = 2 }},
	},
	"horovod": {
		{"--cycle 5ms", func(o *policy.Options) { o.Cycle = 5000 }},
		{"--fusion 32MiB", func(o *policy.Options) { o.Fusion = 32 << 20 }},
	},
	"p3": {
		{"--slice 200000", func(o *policy.Options) { o.Slice = 200_000 }},
		{"--slice 1000000", func(o *policy.Options) { o.Slice = 1_000_000 }},
	},
}

var inFlight = []parameter{
	{"--in-flight 2", func(o *policy.Options) { o.InFlight = 2 }},
	{"--in-flight 4", func(o *policy.Options) { o.InFlight = 4 }},
}

// candidates lists what is tried: each policy plain and with its parameters.
func candidates(o policy.Options, others []policy.Policy) []candidate {
	var out []candidate
	for _, p := range others {
		if p.Class == policy.Servers {
			continue
		}
		out = append(out, candidate{policy: p, o: o})
		for _, x := range parameters[p.Name] {
			tried := o
			x.set(&tried)
			out = append(out, candidate{p, x.flags, tried})
		}
	}
	return out
}

func search(ctx context.Context, j *job.Job, c *cluster.Cluster, o policy.Options, others []policy.Policy) (*plan.Plan, error) {
	outcomes, failures, err := evaluate(ctx, j, c, candidates(o, others), o.Progress)
	late := errors.Is(err, context.DeadlineExceeded) // then the best so far is it
	if err != nil && !(late && len(outcomes) > 0) {
		return nil, err
	}
	if len(outcomes) == 0 {
		return nil, fmt.Errorf("auto: no policy has a plan for this job: %w", errors.Join(failures...))
	}
	best, err := choose(outcomes, o.Limits)
	if err != nil {
		return nil, err
	}
	floor, err := bound.Of(bound.ClassOf(best.plan), j, c, o.Limits)
	if err != nil {
		return nil, fmt.Errorf("auto: lower bound: %w", err)
	}
	p := *best.plan
	p.Policy = "auto"
	p.Notes = append([]string{best.note(floor, len(outcomes))}, p.Notes...)
	return &p, nil
}

// evaluate builds and runs every candidate, as many at once as there are
// processors. What is not of a candidate's kind fails silently; err is why ctx
// ended.
func evaluate(ctx context.Context, j *job.Job, c *cluster.Cluster, all []candidate, progress func(done, total int)) (outcomes []outcome, failures []error, err error) {
	found, failed := make([][]outcome, len(all)), make([]error, len(all))
	err = parallel.Do(ctx, len(all), progress, func(i int) error {
		found[i], failed[i] = all[i].try(ctx, j, c)
		return nil // the others may do
	})
	for i, err := range failed {
		if err != nil && !errors.Is(err, policy.ErrUnsuitable) {
			failures = append(failures, err)
		}
		outcomes = append(outcomes, found[i]...)
	}
	return outcomes, failures, err
}

// try builds the candidate's plan, and the same spread over all links, proves
// both and runs them.
func (x candidate) try(ctx context.Context, j *job.Job, c *cluster.Cluster) (out []outcome, err error) {
	p, err := x.policy.Build(ctx, j, c, x.o)
	if err != nil {
		return nil, err
	}
	spread, err := policy.Spread(j, c, p)
	if err != nil {
		return nil, err
	}
	limits := x.o.Limits
	limits.MaxMemory = 0 // choose tells what would fit
	for _, p := range []*plan.Plan{p, spread} {
		if p == nil {
			continue
		}
		r, err := sim.RunLegal(ctx, j, c, p, limits, sim.Options{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.policy.Name, err)
		}
		out = append(out, outcome{x, p, r.Time, plan.MemoryOf(p, j)})
	}
	return out, nil
}

// choose takes the fastest outcome that fits into memory, and of those about as
// fast the one with the highest update rate, then the lowest staleness, then the
// least memory, then the fewest transfers.
func choose(all []outcome, l plan.Limits) (outcome, error) {
	memory := func(x, y outcome) int { return cmp.Compare(x.memory.Total(), y.memory.Total()) }
	fit := slices.DeleteFunc(slices.Clone(all), func(x outcome) bool { return l.MaxMemory > 0 && x.memory.Total() > l.MaxMemory })
	if len(fit) == 0 {
		return outcome{}, fmt.Errorf("auto: no plan fits: %w", slices.MinFunc(all, memory).memory.Within(l.MaxMemory))
	}
	least := slices.MinFunc(fit, func(x, y outcome) int { return cmp.Compare(x.time, y.time) }).time
	fit = slices.DeleteFunc(fit, func(x outcome) bool { return x.time > (1+policy.Equal)*least })
	return slices.MinFunc(fit, func(x, y outcome) int {
		return cmp.Or(
			cmp.Compare(y.plan.UpdateRate, x.plan.UpdateRate),
			cmp.Compare(x.plan.MaxStaleness, y.plan.MaxStaleness),
			memory(x, y),
			cmp.Compare(x.plan.MeanTransfers(), y.plan.MeanTransfers()), // what each costs the host is in no model
			cmp.Compare(x.time, y.time),
		)
	}), nil
}

// kinds are the plans that the bound of a class is of.
var kinds = map[bound.Class]string{
	bound.InOrder:  "synchronous plan in the recorded compute order",
	bound.AnyOrder: "synchronous plan",
	bound.InLimits: "plan within the limits in the recorded compute order",
}

// note says what was chosen, and what is left to gain.
func (x outcome) note(floor bound.Bound, tried int) string {
	name := x.policy.Name
	if x.with != "" {
		name += " " + x.with
	}
	idle := func(x plan.Program) bool { return len(x.Transfers) == 0 }
	if used := slices.DeleteFunc(slices.Clone(x.plan.Programs), idle); len(used) > 1 {
		name += fmt.Sprintf(" over %d links", len(used))
	}
	kind := kinds[bound.ClassOf(x.plan)]
	gap := fmt.Sprintf("and no %s is faster", kind)
	if floor.Time > 0 && x.time > floor.Time*(1+1e-9) {
		gap = fmt.Sprintf("%.1f %% above the lower bound of every %s, %.2f ms", 100*(x.time/floor.Time-1), kind, floor.Time/1000)
	}
	return fmt.Sprintf("the best of %d plans is that of %s: %.2f ms, %s", tried, name, x.time/1000, gap)
}
