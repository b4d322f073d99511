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
	for _, prove := range []func() error{c.partitioned, c.covered, c.gathered, c.pulled, c.collectivesOnce} {
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

// use is a slice and the transfer that carries it.
type use struct {
	Slice
	slot slot
}

// uses lists, by generation, the slices of the transfers that are asked for, by
// tensor and offset.
func (c *checker) uses(of func(*Transfer) bool) [][]use {
	out := make([][]use, len(c.plan.Generations))
	for s, t := range c.slots {
		if t.Bucket >= 0 && of(t) {
			r := c.residue(t)
			for _, x := range c.plan.Buckets[t.Bucket].Slices {
				out[r] = append(out[r], use{x, s})
			}
		}
	}
	for _, all := range out {
		slices.SortStableFunc(all, func(a, b use) int {
			return cmp.Or(cmp.Compare(a.Tensor, b.Tensor), cmp.Compare(a.Offset, b.Offset))
		})
	}
	return out
}

// covered: each element of each generation is in exactly one reducing transfer.
func (c *checker) covered() error {
	for s, t := range c.slots {
		if t.Bucket >= 0 && !t.reduces() && !t.Completes() {
			return fmt.Errorf("%s is a %s of %s: it neither reduces gradients nor brings them back", c.place(s), t.Kind, c.load(s))
		}
	}
	uses := c.uses((*Transfer).reduces)
	for r, all := range uses {
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

// gathered: what is scattered is gathered, bucket by bucket, once and not before
// it is there.
func (c *checker) gathered() error {
	type key struct{ bucket, window int }
	back := map[key]slot{}
	for s, t := range c.slots {
		if t.Kind != cluster.AllGather || t.Bucket < 0 {
			continue
		}
		k := key{t.Bucket, c.residue(t)}
		if first, ok := back[k]; ok {
			return fmt.Errorf("%s: bucket %d comes back twice: by all-gather of %s and of %s", c.plan.Generations[k.window].iterations(), t.Bucket, c.place(first), c.place(s))
		}
		back[k] = s
	}
	for s, t := range c.slots {
		if t.Kind != cluster.ReduceScatter || t.Bucket < 0 {
			continue
		}
		k := key{t.Bucket, c.residue(t)}
		f, ok := back[k]
		if !ok {
			return fmt.Errorf("%s: bucket %d is reduced by the reduce-scatter of %s, but no all-gather brings it back", c.plan.Generations[k.window].iterations(), t.Bucket, c.place(s))
		}
		if !c.finished(f)(s) {
			return c.early(k.window, f, s)
		}
		delete(back, k)
	}
	for s, t := range c.slots {
		if k := (key{t.Bucket, c.residue(t)}); back[k] == s && t.Kind == cluster.AllGather && t.Bucket >= 0 {
			return fmt.Errorf("%s: the all-gather of %s brings back bucket %d, which nothing reduces", c.plan.Generations[k.window].iterations(), c.place(s), t.Bucket)
		}
	}
	return nil
}

// pulled: each element that is pushed is pulled, once and not before it is
// there. Pulls may be cut otherwise than pushes: the servers hold elements, not
// buckets.
func (c *checker) pulled() error {
	pushes := c.uses(func(t *Transfer) bool { return t.Kind == cluster.Push })
	pulls := c.uses(func(t *Transfer) bool { return t.Kind == cluster.Pull })
	known := map[slot]func(slot) bool{} // by pull
	finished := func(pull, push slot) bool {
		if known[pull] == nil {
			known[pull] = c.finished(pull)
		}
		return known[pull](push)
	}
	for r, rest := range pushes {
		when := c.plan.Generations[r].iterations()
		missing := func(x use, from int64) error {
			return fmt.Errorf("%s: %s of tensor %s pushed by %s, but no pull brings it back", when, elements(from, x.Offset+x.Length), c.tensor(x.Tensor), c.place(x.slot))
		}
		done := int64(0) // elements of the first of rest that are pulled
		for _, y := range pulls[r] {
			for from, end := y.Offset, y.Offset+y.Length; from < end; {
				surplus := len(rest) == 0
				if !surplus {
					x := rest[0]
					order := cmp.Or(cmp.Compare(x.Tensor, y.Tensor), cmp.Compare(x.Offset+done, from))
					switch {
					case order < 0:
						return missing(x, x.Offset+done)
					case order == 0 && !finished(y.slot, x.slot):
						return c.early(r, y.slot, x.slot)
					}
					surplus = order > 0
				}
				if surplus {
					return fmt.Errorf("%s: the pull of %s brings back element %d of tensor %s, which nothing pushes, or another pull brings", when, c.place(y.slot), from, c.tensor(y.Tensor))
				}
				n := min(end-from, rest[0].Length-done)
				from, done = from+n, done+n
				if done == rest[0].Length {
					rest, done = rest[1:], 0
				}
			}
		}
		if len(rest) > 0 {
			return missing(rest[0], rest[0].Offset+done)
		}
	}
	return nil
}

// early tells that transfer f may bring back what s has not reduced yet.
func (c *checker) early(generation int, f, s slot) error {
	return fmt.Errorf("%s: the %s of %s (%s) may start before the %s of %s (%s) is done: give it that transfer as gate, or place it later in the same program with a window of one transfer",
		c.plan.Generations[generation].iterations(), c.at(f).Kind, c.load(f), c.place(f), c.at(s).Kind, c.load(s), c.place(s))
}

// finished tells which transfers of the same generation are done when f is
// dispatched: those that it is gated on, and in a program that sends one at a
// time those ahead of f itself or of its gates.
func (c *checker) finished(f slot) func(s slot) bool {
	gates := map[slot]bool{}
	last := map[int]slot{} // by link with a window of one transfer
	ahead := func(a, b slot) bool {
		return cmp.Or(cmp.Compare(c.at(b).Generation, c.at(a).Generation), cmp.Compare(a.index, b.index)) < 0
	}
	note := func(x slot) {
		if y, ok := last[x.link]; c.plan.Programs[x.link].Window.Transfers == 1 && (!ok || ahead(y, x)) {
			last[x.link] = x
		}
	}
	note(f)
	for _, g := range c.at(f).Gates {
		if g.Kind == TransferDone {
			x := slot{g.Link, g.Transfer}
			gates[x] = true
			note(x)
		}
	}
	return func(s slot) bool {
		x, ok := last[s.link]
		return gates[s] || ok && ahead(s, x)
	}
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
