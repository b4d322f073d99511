// Package compare evaluates policies on one job and cluster: each builds its
// plan, the checker proves it, the simulator runs it, and the results are
// ranked beside a lower bound.
package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"weft/bound"
	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"
	"weft/timeline"
)

// Baseline is the policy that speedups refer to: what a user of PyTorch has.
const Baseline = "ddp"

// hostBound is the share of an iteration from which on the device's waiting for
// the host is worth a note.
const hostBound = 0.05

// Options of a comparison.
type Options struct {
	Policies []policy.Policy
	Policy   policy.Options
	// Progress, if set, is told how many of the policies are done. Calls do not
	// overlap.
	Progress func(done, total int)
}

// Comparison is the outcome.
type Comparison struct {
	Rows  []Row // fastest first; at equal times in the order of Options.Policies
	Bound bound.Bound
	Notes []string
}

// Row is one policy's outcome.
type Row struct {
	Policy  policy.Policy
	Plan    *plan.Plan
	Time    float64            // of an iteration in steady state, microseconds
	Mean    timeline.Breakdown // of that time, mean over the workers
	Speedup float64            // Baseline's time over this; 0: Baseline was not compared
	Gap     float64            // Time / Bound.Time - 1: what no schedule can gain more than
	// Transfers of gradients an iteration, and the bytes of the largest bucket.
	Transfers float64
	Largest   int64
}

// Run compares. The outcome depends on nothing but the arguments, however many
// processors there are. A policy that refuses the job becomes a note; when all
// refuse, Run does. A plan that the checker refutes is an error: no policy may
// build one.
func Run(ctx context.Context, j *job.Job, c *cluster.Cluster, o Options) (*Comparison, error) {
	if len(o.Policies) == 0 {
		return nil, errors.New("no policy to compare")
	}
	floor, err := bound.Synchronous(j, c)
	if err != nil {
		return nil, fmt.Errorf("lower bound: %w", err)
	}
	rows, refusals, err := evaluate(ctx, j, c, o)
	if err != nil {
		return nil, err
	}
	out := &Comparison{Bound: floor, Notes: slices.Clone(j.Notes)}
	for i, err := range refusals {
		switch {
		case err != nil:
			out.Notes = append(out.Notes, fmt.Sprintf("%s is not compared: %v", o.Policies[i].Name, err))
		default:
			out.Rows = append(out.Rows, rows[i])
			for _, n := range rows[i].Plan.Notes {
				out.Notes = append(out.Notes, rows[i].Policy.Name+": "+n)
			}
		}
	}
	if len(out.Rows) == 0 {
		return nil, refusals[0]
	}

	slices.SortStableFunc(out.Rows, func(a, b Row) int { return cmp.Compare(a.Time, b.Time) })
	base := slices.IndexFunc(out.Rows, func(r Row) bool { return r.Policy.Name == Baseline })
	for i := range out.Rows {
		r := &out.Rows[i]
		if base >= 0 {
			r.Speedup = out.Rows[base].Time / r.Time
		}
		if floor.Time > 0 {
			r.Gap = r.Time/floor.Time - 1
		}
	}
	for _, l := range c.Links {
		if !slices.ContainsFunc(out.Rows, func(r Row) bool { return uses(r.Plan, l.Name) }) {
			out.Notes = append(out.Notes, fmt.Sprintf("no policy uses link %s, which the bound counts", l.Name))
		}
	}
	if best := out.Rows[0].Mean; j.HasDevice() && best.Idle > hostBound*best.Iteration {
		out.Notes = append(out.Notes, fmt.Sprintf(
			"host-bound: %.1f ms of each iteration the device waits for the host, not for the network; no schedule of communication recovers that",
			best.Idle/1000))
	}
	return out, nil
}

// uses reports whether a plan transfers anything on the named link.
func uses(p *plan.Plan, link string) bool {
	return slices.ContainsFunc(p.Programs, func(x plan.Program) bool { return x.Link == link && len(x.Transfers) > 0 })
}

// evaluate runs the policies, as many at once as there are processors. It
// returns a row or a refusal for each, or the error of the first that failed.
func evaluate(ctx context.Context, j *job.Job, c *cluster.Cluster, o Options) (rows []Row, refusals []error, err error) {
	n := len(o.Policies)
	rows, refusals = make([]Row, n), make([]error, n)
	failures := make([]error, n)
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		done int
	)
	for i, p := range o.Policies {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			built, err := p.Build(ctx, j, c, o.Policy)
			if err != nil {
				refusals[i] = err
			} else {
				rows[i], failures[i] = prove(ctx, j, c, p, built)
			}
			if o.Progress != nil {
				mu.Lock()
				defer mu.Unlock()
				done++
				o.Progress(done, n)
			}
		})
	}
	all.Wait()
	return rows, refusals, cmp.Or(failures...)
}

// prove checks one plan and runs it.
func prove(ctx context.Context, j *job.Job, c *cluster.Cluster, p policy.Policy, built *plan.Plan) (Row, error) {
	if err := plan.Check(built, j, plan.DefaultLimits).Err(); err != nil {
		return Row{}, fmt.Errorf("the plan of policy %s is not legal for this job: %w", p.Name, err)
	}
	result, err := sim.Run(ctx, j, c, built, sim.Options{})
	if err != nil {
		return Row{}, fmt.Errorf("policy %s: %w", p.Name, err)
	}
	r := Row{
		Policy: p,
		Plan:   built,
		Time:   result.Time,
		Mean:   result.Mean,
	}
	for i := range built.Buckets {
		r.Largest = max(r.Largest, built.Buckets[i].Bytes(j))
	}
	for i := range built.Programs {
		for t := range built.Programs[i].Transfers {
			if built.Programs[i].Transfers[t].Bucket >= 0 {
				r.Transfers++
			}
		}
	}
	r.Transfers /= float64(built.Period)
	return r, nil
}
