// Package compare evaluates policies on one job and cluster: each builds its
// plan, the checker proves it, the simulator runs it, and the results are
// ranked beside a lower bound.
package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"weft/bound"
	"weft/cluster"
	"weft/internal/fault"
	"weft/internal/parallel"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"
	"weft/timeline"
)

// Baseline is the policy that speedups refer to: what a user of PyTorch has.
const Baseline = "ddp"

// Slowdowns are by how much communication was measured to slow the computation
// beside it: 18.9 % on average, 40 % at most (arXiv 2507.03114). Every comparison
// ranks the policies without slowdown and at both.
var Slowdowns = []float64{0, 0.189, 0.40}

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
	// Blocks of policies that move the same bytes: those that reduce among the
	// workers, then those with parameter servers. A block is left out without
	// policies, or if no link has a price for what they transfer.
	Blocks []Block
	Notes  []string
}

// unpriced reports that a link of the cluster was not measured for what a policy
// would transfer.
func unpriced(err error) bool {
	_, is := errors.AsType[*cluster.UnpricedError](err)
	return is
}

// Block is a ranking and the bounds that end it.
type Block struct {
	Cluster *cluster.Cluster // that its policies run on
	// Rows are the policies that serve the job, fastest first, at equal times in
	// the order of Options.Policies; then those that refuse it.
	Rows   []Row
	Floors []Floor
}

// Floor is the lower bound of a class of plans.
type Floor struct {
	Class bound.Class
	bound.Bound
}

// Row is one policy's outcome.
type Row struct {
	Policy  policy.Policy
	Refusal error // why it does not serve the job; what follows is then zero
	Plan    *plan.Plan
	Time    float64            // of an iteration in steady state, microseconds
	Slowed  []float64          // Time had the cluster each of Slowdowns
	Mean    timeline.Breakdown // of Time, mean over the workers
	Speedup float64            // Baseline's time over this; 0: Baseline was not compared
	Gap     float64            // Time over the bound of the plan's class, less 1: what no schedule can gain more than
	// Transfers of gradients an iteration, and the bytes of the largest bucket.
	Transfers float64
	Largest   int64
}

func (r *Row) served() bool { return r.Refusal == nil }

// Run compares. The outcome depends on nothing but the arguments, however many
// processors there are. When all policies refuse the job, Run does. A plan that
// the checker refutes is an error: no policy may build one.
func Run(ctx context.Context, j *job.Job, c *cluster.Cluster, o Options) (*Comparison, error) {
	if most := o.Policy.Limits.MaxMemory; most > 0 && plan.LeastMemory(j).Within(most) != nil {
		// Say so before any plan is built, and what a plain one would need: with that the policies have one.
		plain := plan.New(j, "")
		plain.Copies = o.Policy.Copies
		return nil, fmt.Errorf("no plan fits job %q: %w", fault.Short(j.Name), plan.MemoryOf(plain, j).Within(most))
	}
	if len(o.Policies) == 0 {
		return nil, errors.New("no policy to compare")
	}
	o.Policy = o.Policy.WithDefaults()
	rows, err := evaluate(ctx, j, c, o)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(rows, func(r Row) bool { return r.served() }) {
		return nil, refusal(rows)
	}
	if base := slices.IndexFunc(rows, func(r Row) bool { return r.Policy.Name == Baseline && r.served() }); base >= 0 {
		for i := range rows {
			if rows[i].served() {
				rows[i].Speedup = rows[base].Time / rows[i].Time
			}
		}
	}
	out := &Comparison{Notes: slices.Clone(j.Notes)}
	for i := range rows {
		out.Notes = append(out.Notes, notes(&rows[i])...)
	}
	for _, servers := range []bool{false, true} {
		b := Block{Cluster: on(c, servers)}
		for i := range rows {
			if (rows[i].Policy.Class == policy.Servers) == servers {
				b.Rows = append(b.Rows, rows[i])
			}
		}
		if len(b.Rows) == 0 {
			continue
		}
		slices.SortStableFunc(b.Rows, func(x, y Row) int {
			return cmp.Or(rank(x.served())-rank(y.served()), cmp.Compare(x.Time, y.Time))
		})
		err := b.end(j, servers, o.Policy.Limits)
		if unpriced(err) { // then nor has a policy a price; the notes say so
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lower bound: %w", err)
		}
		out.Blocks = append(out.Blocks, b)
	}
	out.Notes = append(out.Notes, linkNotes(rows, c)...)
	if best := out.Blocks[0].Rows[0].Mean; j.HasDevice() && best.Idle > hostBound*best.Iteration {
		out.Notes = append(out.Notes, fmt.Sprintf(
			"host-bound: %.1f ms of each iteration the device waits for the host, not for the network; no schedule of communication recovers that",
			best.Idle/1000))
	}
	return out, nil
}

// linkNotes are what a reader must know of the links.
func linkNotes(rows []Row, c *cluster.Cluster) (out []string) {
	for _, l := range c.Links {
		if !slices.ContainsFunc(rows, func(r Row) bool { return r.served() && uses(r.Plan, l.Name) }) {
			out = append(out, fmt.Sprintf("no policy uses link %s, which the bound counts", l.Name))
		}
	}
	for _, l := range c.Links {
		if l.Latency == 0 && len(l.Curve) == 0 && c.World() > 1 {
			out = append(out, fmt.Sprintf("link %s has no latency, so transfers start for free, however many; write it as in 10Gbit,25us", l.Name))
		}
	}
	return out
}

// refusal is why there is no row: if plans do not fit into memory, how much the
// leanest needs.
func refusal(rows []Row) error {
	out := rows[0].Refusal
	var least *plan.MemoryError
	for i := range rows {
		if m, ok := errors.AsType[*plan.MemoryError](rows[i].Refusal); ok && (least == nil || m.Need.Total() < least.Need.Total()) {
			least, out = m, fmt.Errorf("no plan fits, not even that of %s: %w", rows[i].Policy.Name, m)
		}
	}
	return out
}

func rank(served bool) int {
	if served {
		return 0
	}
	return 1
}

// on is the cluster that policies run on: those with parameter servers need some.
func on(c *cluster.Cluster, servers bool) *cluster.Cluster {
	if servers {
		return c.WithServers()
	}
	return c
}

// notes are what a reader of the row must know.
func notes(r *Row) (out []string) {
	if !r.served() {
		return []string{fmt.Sprintf("%s is not compared: %v", r.Policy.Name, r.Refusal)}
	}
	for _, n := range r.Plan.Notes {
		out = append(out, r.Policy.Name+": "+n)
	}
	return out
}

// end gives a block its bounds, that of its plain plans and those that its rows
// need besides, and each row its distance from the one that holds for it.
func (b *Block) end(j *job.Job, servers bool, l plan.Limits) error {
	plain := bound.InOrder
	if servers {
		plain = bound.ByServers
	}
	need := []bound.Class{plain}
	for i := range b.Rows {
		if r := &b.Rows[i]; r.served() {
			need = append(need, bound.ClassOf(r.Plan))
		}
	}
	slices.Sort(need)
	times := map[bound.Class]float64{}
	for _, k := range slices.Compact(need) {
		x, err := bound.Of(k, j, b.Cluster, l)
		if err != nil {
			return err
		}
		b.Floors = append(b.Floors, Floor{k, x})
		times[k] = x.Time
	}
	for i := range b.Rows {
		if r := &b.Rows[i]; r.served() {
			if t := times[bound.ClassOf(r.Plan)]; t > 0 {
				r.Gap = r.Time/t - 1
			}
		}
	}
	return nil
}

// uses reports whether a plan transfers anything on the named link.
func uses(p *plan.Plan, link string) bool {
	return slices.ContainsFunc(p.Programs, func(x plan.Program) bool { return x.Link == link && len(x.Transfers) > 0 })
}

// evaluate runs the policies, as many at once as there are processors. It
// returns a row for each, or the error of the first that failed.
func evaluate(ctx context.Context, j *job.Job, c *cluster.Cluster, o Options) ([]Row, error) {
	rows := make([]Row, len(o.Policies))
	return rows, parallel.Do(ctx, len(rows), o.Progress, func(i int) (err error) {
		p := o.Policies[i]
		rows[i], err = try(ctx, j, on(c, p.Class == policy.Servers), p, o.Policy)
		return err
	})
}

// try builds one policy's plan, checks it, and runs it.
func try(ctx context.Context, j *job.Job, c *cluster.Cluster, p policy.Policy, o policy.Options) (Row, error) {
	r := Row{Policy: p}
	r.Plan, r.Refusal = p.Plan(ctx, j, c, o)
	if err := ctx.Err(); err != nil || !r.served() {
		return r, err
	}
	if most := o.Limits.MaxMemory; most > 0 {
		if r.Refusal = plan.MemoryOf(r.Plan, j).Within(most); !r.served() {
			return r, nil
		}
	}
	result, err := sim.RunLegal(ctx, j, c, r.Plan, o.Limits, sim.Options{})
	if unpriced(err) {
		r.Refusal = err
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("policy %s: %w", p.Name, err)
	}
	r.Time, r.Mean = result.Time, result.Mean
	for _, x := range Slowdowns {
		slowed := *c
		slowed.Overlap = x
		at := result
		if x != c.Overlap {
			if at, err = sim.Run(ctx, j, &slowed, r.Plan, sim.Options{}); err != nil {
				return r, fmt.Errorf("policy %s at a slowdown of %g: %w", p.Name, x, err)
			}
		}
		r.Slowed = append(r.Slowed, at.Time)
	}
	for i := range r.Plan.Buckets {
		r.Largest = max(r.Largest, r.Plan.Buckets[i].Bytes(j))
	}
	r.Transfers = r.Plan.MeanTransfers()
	return r, nil
}
