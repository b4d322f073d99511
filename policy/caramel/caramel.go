// Package caramel holds a Caramel-style policy: it chooses the compute order, lets
// transfers cross into the next forward pass, batches and slices them by their
// measured cost, and defers no more of them than pays.
package caramel

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/internal/near"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"
)

// Caramel is a reconstruction (section 12 of the algorithms): the paper's abstract
// states the aims, and no code is public. Its five parts build candidates, a
// model of one link predicts them, and the simulator chooses among the best.
var Caramel = policy.Policy{
	Name:  "caramel",
	Title: "Caramel-style: compute order, crossing, batching by measured cost, depth, slices",
	Paper: "Caramel (arXiv 2004.14020, 2020); a reconstruction",
	Class: policy.Synchronous,
	Build: build,
}

// Parts are the names of the parts that [policy.Options.Without] leaves out.
var Parts = []string{"order", "crossing", "batching", "depth", "slices"}

// CheckParts returns an error for a name that is no part.
func CheckParts(names []string) error {
	for _, n := range names {
		if !slices.Contains(Parts, n) {
			return fmt.Errorf("caramel has no part %q%s", n, near.Hint(n, Parts))
		}
	}
	return nil
}

// builder gathers candidates for one job and cluster.
type builder struct {
	job      *job.Job // as given
	stripped *job.Job
	origin   []job.OpID // of the stripped job's ops
	cluster  *cluster.Cluster
	options  policy.Options
	crossing bool
	notes    []string
}

func (b *builder) with(part string) bool { return !slices.Contains(b.options.Without, part) }

// candidate is a schedule for a compute order; a nil order is the recorded one.
type candidate struct {
	*schedule
	order [][]job.OpID
}

func build(ctx context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
	if err := CheckParts(o.Without); err != nil {
		return nil, err
	}
	b := &builder{job: j, cluster: c, options: o}
	b.stripped, b.origin = j.Strip(o.Copies)
	if b.crossing = b.with("crossing"); b.crossing {
		if err := policy.CanCross(j); err != nil {
			b.note("without crossing: %v", err)
			b.crossing = false
		}
	}
	candidates, err := b.candidates(ctx)
	if err != nil {
		return nil, err
	}
	return b.choose(ctx, candidates)
}

// candidates lists the schedules of every compute order, the recorded one first.
func (b *builder) candidates(ctx context.Context) ([]candidate, error) {
	orders := [][][]job.OpID{nil}
	recorded, err := measure(b.stripped, b.cluster, b.crossing)
	if err != nil {
		return nil, err
	}
	if b.with("order") {
		found, err := b.orders(recorded)
		if err != nil {
			return nil, err
		}
		orders = append(orders, found...)
	}
	var out []candidate
	for _, order := range orders {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t := recorded
		if order != nil {
			if t, err = measure(permute(b.stripped, order), b.cluster, b.crossing); err != nil {
				return nil, err
			}
		}
		m := &model{timing: t, job: b.job, cluster: b.cluster, batching: b.with("batching"), depth: b.crossing && b.with("depth"), slicing: b.with("slices"), crossing: b.crossing}
		found, err := m.schedules()
		if err != nil {
			return nil, err
		}
		if order != nil {
			if ok, err := b.allowed(candidate{found[0], order}); err != nil || !ok {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		for _, s := range found {
			out = append(out, candidate{s, order})
		}
	}
	return out, nil
}

// allowed reports whether an order may be used, and notes why not. That does not
// depend on what is transferred when.
func (b *builder) allowed(x candidate) (bool, error) {
	p, err := b.plan(x)
	if err != nil {
		return false, err
	}
	if err := plan.Check(p, b.job, plan.DefaultLimits).Err(); err != nil { // several lanes may need what the recorded order gave
		b.note("compute order: as recorded; another would be faster, but %v", err)
		return false, nil
	}
	if most := b.options.Limits.MaxMemory; most > 0 {
		if err := plan.MemoryOf(p, b.job).Within(most); err != nil {
			b.note("compute order: as recorded; another would be faster, but what it defers keeps activations: %v", err)
			return false, nil
		}
	}
	return true, nil
}

// What the choice by simulation may cost: the best few candidates, a few
// iterations each.
const (
	finalists       = 4
	trialIterations = 6
	maxTrials       = 1 << 24 // ops simulated, over candidates and iterations, and laid out around the tensors' updates
)

// choose simulates the candidates that the model finds best, and the plainest:
// whole gradients in the order in which they become ready.
func (b *builder) choose(ctx context.Context, all []candidate) (*plan.Plan, error) {
	final := slices.Clone(all)
	slices.SortStableFunc(final, func(x, y candidate) int { return cmp.Compare(x.time, y.time) })
	ops, tensors := float64(len(b.stripped.Ops)), float64(len(b.job.Tensors))
	trials := (finalists + 1) * ops * (trialIterations + tensors/16)
	if trials > maxTrials {
		b.note("chosen by a model of one lane and one link: %.0f ops and %.0f tensors are too many to simulate each candidate", ops, tensors)
	} else {
		final = append(final[:min(finalists, len(final)):min(finalists, len(final))], all[0])
	}
	var best *plan.Plan
	least := math.Inf(1)
	for _, x := range final {
		p, err := b.plan(x)
		if err != nil {
			return nil, err
		}
		if trials > maxTrials {
			return p, nil
		}
		r, err := sim.Run(ctx, b.job, b.cluster, p, sim.Options{Iterations: trialIterations})
		if err != nil {
			return nil, err
		}
		if r.Time < least-rounding {
			best, least = p, r.Time
		}
	}
	return best, nil
}

// rounding is the simulator's, microseconds.
const rounding = 0.001

// plan writes a candidate down.
func (b *builder) plan(x candidate) (*plan.Plan, error) {
	p, err := policy.Start("caramel", b.job, b.cluster, b.options)
	if err != nil {
		return nil, err
	}
	p.Notes = slices.Clone(b.notes)
	if b.crossing {
		p.Updates[0].At = plan.AtRead
		if x.deferred > 0 {
			p.Notes = append(p.Notes, fmt.Sprintf("depth: of %d tensors, by first use, only of the last %d some arrive when the next forward pass has begun", len(b.job.Tensors), x.deferred))
		}
	}
	if x.order != nil {
		p.Ops = b.job.OpsFingerprint()
		moved := 0
		for l, ops := range x.order {
			p.Order = append(p.Order, nil)
			if ops != nil {
				recorded := 0
				for _, o := range ops {
					p.Order[l] = append(p.Order[l], b.origin[o])
					for int(b.stripped.Ops[recorded].Lane) != l {
						recorded++
					}
					if recorded != int(o) {
						moved++
					}
					recorded++
				}
			}
		}
		p.Notes = append(p.Notes, fmt.Sprintf("compute order: %d ops have changed places", moved))
	}
	p.Programs[0].Window = x.window
	for i := range x.loads {
		p.AllReduce(0, plan.Bucket{Slices: x.loads[i].slices})
	}
	if !b.crossing {
		return p, p.AddCollectives(b.job)
	}
	return p, p.AddCollectivesAmong(b.job, x.early)
}
