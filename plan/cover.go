package plan

import (
	"cmp"
	"fmt"
	"slices"

	"weft/cluster"
	"weft/internal/fault"
	"weft/job"
)

// reducedOnce is rule 1.
func (c *checker) reducedOnce() (string, error) {
	for _, prove := range []func() error{c.partitioned, c.covered, c.paired, c.collectivesOnce} {
		if err := prove(); err != nil {
			return "", err
		}
	}
	n := 0
	for range c.slots {
		n++
	}
	return fmt.Sprintf("%s of %s in %s", times(len(c.plan.Generations), "generation"), times(len(c.job.Tensors), "tensor"), times(n, "transfer")), nil
}

// partitioned: the generations follow each other and fill the period.
func (c *checker) partitioned() error {
	next := 0
	for i, g := range c.plan.Generations {
		if g.First > next {
			return fmt.Errorf("iteration %d belongs to no generation: generation %d starts at iteration %d", next, i, g.First)
		}
		if g.First < next {
			return fmt.Errorf("iteration %d belongs to generation %d and, before its turn, to generation %d", g.First, i-1, i)
		}
		next = g.First + g.Length
	}
	switch period := c.plan.Period; {
	case next < period:
		return fmt.Errorf("iteration %d belongs to no generation: the period has %d iterations", next, period)
	case next > period:
		return fmt.Errorf("generation %d ends in iteration %d, outside of the period of %d iterations", len(c.plan.Generations)-1, next-1, period)
	}
	return nil
}

// covered: each element of each generation is in exactly one reducing transfer.
func (c *checker) covered() error {
	type use struct {
		Slice
		slot slot
	}
	uses := make([][]use, len(c.plan.Generations))
	for s, t := range c.slots {
		if t.Bucket >= 0 && !t.reduces() && !t.Completes() {
			return fmt.Errorf("%s is a %s of %s: it neither reduces gradients nor brings them back", c.place(s), t.Kind, c.load(s))
		}
		if t.reduces() {
			r := c.residue(t)
			for _, x := range c.plan.Buckets[t.Bucket].Slices {
				uses[r] = append(uses[r], use{x, s})
			}
		}
	}
	for r, all := range uses {
		slices.SortStableFunc(all, func(a, b use) int {
			return cmp.Or(cmp.Compare(a.Tensor, b.Tensor), cmp.Compare(a.Offset, b.Offset))
		})
		when := c.plan.Generations[r].iterations()
		missing := func(k int, from, to int64) error {
			return fmt.Errorf("%s: %s of tensor %s never reduced", when, elements(from, to), c.tensor(job.TensorID(k)))
		}
		i := 0
		for k := range c.job.Tensors {
			var next int64
			var last use // the one that reached next
			for ; i < len(all) && int(all[i].Tensor) == k; i++ {
				x := all[i]
				if x.Offset > next {
					return missing(k, next, x.Offset)
				}
				if x.Offset < next {
					return fmt.Errorf("%s: %s of tensor %s reduced twice: by %s (%s) and by %s (%s)", when,
						elements(x.Offset, min(next, x.Offset+x.Length)), c.tensor(job.TensorID(k)),
						c.place(last.slot), c.load(last.slot), c.place(x.slot), c.load(x.slot))
				}
				next, last = x.Offset+x.Length, x
			}
			if n := c.job.Tensors[k].Elements; next < n {
				return missing(k, next, n)
			}
		}
	}
	return nil
}

// second gives the kind that brings back what a kind has reduced.
var second = map[cluster.Kind]cluster.Kind{
	cluster.ReduceScatter: cluster.AllGather,
	cluster.Push:          cluster.Pull,
}

// paired: what is scattered is gathered, and what is pushed is pulled, once and
// not before it is there.
func (c *checker) paired() error {
	type key struct {
		kind           cluster.Kind
		bucket, window int
	}
	back := map[key]slot{}
	for s, t := range c.slots {
		if !t.Completes() || t.Kind == cluster.AllReduce {
			continue
		}
		k := key{t.Kind, t.Bucket, c.residue(t)}
		if first, ok := back[k]; ok {
			return fmt.Errorf("%s: bucket %d comes back twice: by %s of %s and of %s", c.plan.Generations[k.window].iterations(), t.Bucket, t.Kind, c.place(first), c.place(s))
		}
		back[k] = s
	}
	for s, t := range c.slots {
		kind, ok := second[t.Kind]
		if !ok || t.Bucket < 0 {
			continue
		}
		k := key{kind, t.Bucket, c.residue(t)}
		f, ok := back[k]
		if !ok {
			return fmt.Errorf("%s: bucket %d is reduced by the %s of %s, but no %s brings it back", c.plan.Generations[k.window].iterations(), t.Bucket, t.Kind, c.place(s), kind)
		}
		if !c.behind(f, s) {
			return fmt.Errorf("%s: the %s of bucket %d (%s) may start before its %s (%s) is done: give it that transfer as gate, or place it later in the same program with a window of one transfer",
				c.plan.Generations[k.window].iterations(), kind, t.Bucket, c.place(f), t.Kind, c.place(s))
		}
		delete(back, k)
	}
	for s, t := range c.slots {
		if k := (key{t.Kind, t.Bucket, c.residue(t)}); back[k] == s && t.Completes() && t.Kind != cluster.AllReduce {
			return fmt.Errorf("%s: the %s of %s brings back bucket %d, which nothing reduces", c.plan.Generations[k.window].iterations(), t.Kind, c.place(s), t.Bucket)
		}
	}
	return nil
}

// behind reports whether s, of the same generation, is done when f is
// dispatched: f is gated on it, or on a transfer behind it in a program that
// sends one at a time, or f is itself such a transfer.
func (c *checker) behind(f, s slot) bool {
	serial := func(x slot) bool {
		// Periods between the two: how much later a slot carries a generation.
		later := c.at(s).Generation - c.at(x).Generation
		return x.link == s.link && c.plan.Programs[s.link].Window.Transfers == 1 && (later > 0 || later == 0 && x.index > s.index)
	}
	if serial(f) {
		return true
	}
	return slices.ContainsFunc(c.at(f).Gates, func(g Gate) bool {
		x := slot{g.Link, g.Transfer}
		return g.Kind == TransferDone && (x == s || serial(x))
	})
}

// collectivesOnce: each of the job's own collectives is issued once an iteration.
func (c *checker) collectivesOnce() error {
	type key struct{ collective, iteration int }
	by := map[key]slot{}
	for s, t := range c.slots {
		if t.Bucket >= 0 {
			continue
		}
		_, i := divide(t.Iteration, c.plan.Period)
		k := key{t.Collective, i}
		if first, ok := by[k]; ok {
			return fmt.Errorf("iteration %d: the job's collective %q is issued twice: by %s and by %s", i, fault.Short(c.job.Collectives[t.Collective].Name), c.place(first), c.place(s))
		}
		by[k] = s
	}
	if len(by) == len(c.job.Collectives)*c.plan.Period {
		return nil
	}
	for i := range c.plan.Period {
		for x := range c.job.Collectives {
			if _, ok := by[key{x, i}]; !ok {
				return fmt.Errorf("iteration %d: the job's collective %q is never issued", i, fault.Short(c.job.Collectives[x].Name))
			}
		}
	}
	return nil
}

// finals lists, by generation and tensor, the transfers that complete the
// tensor's gradient.
func (c *checker) finals() [][][]slot {
	out := make([][][]slot, len(c.plan.Generations))
	for r := range out {
		out[r] = make([][]slot, len(c.job.Tensors))
	}
	for s, t := range c.slots {
		if t.Completes() {
			r := c.residue(t)
			for _, k := range c.plan.Buckets[t.Bucket].Tensors() {
				out[r][k] = append(out[r][k], s)
			}
		}
	}
	return out
}

// tensors lists what an update applies to.
func (c *checker) tensors(u *Update) []job.TensorID {
	if u.Tensors != nil {
		return u.Tensors
	}
	all := make([]job.TensorID, len(c.job.Tensors))
	for i := range all {
		all[i] = job.TensorID(i)
	}
	return all
}
