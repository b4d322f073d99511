package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"weft/job"
)

// oneVersion is rule 3.
func (c *checker) oneVersion() (string, error) {
	p := c.plan
	v := c.versions()
	type point struct {
		iteration  int
		at         Point
		generation int
		update     int
	}
	points := make([][]point, len(c.job.Tensors))
	for i := range p.Updates {
		u := &p.Updates[i]
		g := p.Generations[u.Generation]
		if u.Iteration < g.Last() {
			return "", fmt.Errorf("update %d applies generation %d after iteration %d, before its last gradients are there (%s)", i, u.Generation, u.Iteration, g.iterations())
		}
		for _, k := range c.tensors(u) {
			name := c.job.Tensors[k].Name
			for _, x := range points[k] {
				if x.generation == u.Generation {
					return "", fmt.Errorf("%s: generation %d is applied twice to tensor %s: by update %d and by update %d", g.iterations(), u.Generation, name, x.update, i)
				}
			}
			points[k] = append(points[k], point{u.Iteration, u.At, u.Generation, i})
			var err error
			switch u.At {
			case AtStep:
				err = v.atStep(k)
			case AtRead:
				err = v.atRead(k)
			}
			if err != nil {
				return "", fmt.Errorf("iteration %d, tensor %s (update %d): %w", u.Iteration, name, i, err)
			}
		}
	}
	for k, all := range points {
		slices.SortFunc(all, func(a, b point) int { return cmp.Compare(a.generation, b.generation) })
		for i := range all {
			a, b := all[i], all[(i+1)%len(all)]
			if i+1 == len(all) { // the first generation of the next period
				b.iteration += p.Period
				b.generation += len(p.Generations)
			}
			if cmp.Or(cmp.Compare(a.iteration, b.iteration), cmp.Compare(a.at, b.at)) > 0 {
				return "", fmt.Errorf("tensor %s: generation %d is applied after iteration %d (update %d), before the older generation %d, after iteration %d (update %d)",
					c.job.Tensors[k].Name, b.generation, b.iteration, b.update, a.generation, a.iteration, a.update)
			}
		}
	}
	return "every update lies between the last read of one iteration and the first of the next", nil
}

// versions proves, once for each tensor, that the places where updates are
// applied separate the reads of two iterations.
type versions struct {
	c       *checker
	barrier []job.OpID
	next    bool // the barrier stands in the next iteration
	step    []*error
	read    []*error
}

func (c *checker) versions() *versions {
	v := &versions{c: c, step: make([]*error, len(c.job.Tensors)), read: make([]*error, len(c.job.Tensors))}
	v.barrier, v.next = barrierOps(c.job, c.compute)
	return v
}

// atStep proves it for updates at the tensor's update ops, behind the barrier.
// A tensor without update ops is updated at the barrier.
func (v *versions) atStep(k job.TensorID) error {
	if v.step[k] == nil {
		err := v.proveStep(&v.c.job.Tensors[k])
		v.step[k] = &err
	}
	return *v.step[k]
}

func (v *versions) proveStep(t *job.Tensor) error {
	c, g := v.c, v.c.compute
	writers := t.Updaters
	if len(writers) == 0 {
		if v.next {
			return v.proveApart(t)
		}
		// Each barrier op waits for the transfers: one between the reads will do.
		var err error
		for _, o := range v.barrier {
			if err = v.between(t, o); err == nil {
				return nil
			}
		}
		return err
	}
	for _, o := range writers {
		if v.next || !slices.ContainsFunc(v.barrier, func(b job.OpID) bool { return g.precedes(b, o) }) {
			return fmt.Errorf("%s may update it before its transfers are done: no op of the barrier precedes it", c.op(o))
		}
		if err := v.between(t, o); err != nil {
			return err
		}
	}
	return nil
}

// between: o follows all reads of its iteration and precedes all of the next.
func (v *versions) between(t *job.Tensor, o job.OpID) error {
	c, g := v.c, v.c.compute
	for _, r := range t.Readers {
		if r == o || !g.precedes(r, o) {
			return fmt.Errorf("%s may still read the old value when %s updates it", c.op(r), c.op(o))
		}
		if g.before(r)[g.lane[o]] < g.pos[o] {
			return fmt.Errorf("%s of the next iteration may read it before %s updates it", c.op(r), c.op(o))
		}
	}
	return nil
}

// atRead proves it for updates in front of the tensor's first reader.
func (v *versions) atRead(k job.TensorID) error {
	if v.read[k] == nil {
		t := &v.c.job.Tensors[k]
		err := v.proveApart(t)
		if len(t.Readers) == 0 {
			err = errors.New("no op reads it, so there is no read to update it at")
		}
		v.read[k] = &err
	}
	return *v.read[k]
}

// proveApart: all reads of an iteration precede all reads of the next.
func (v *versions) proveApart(t *job.Tensor) error {
	c, g := v.c, v.c.compute
	for _, r := range t.Readers {
		before := g.before(r)
		for _, last := range t.Readers {
			if before[g.lane[last]] < g.pos[last] {
				return fmt.Errorf("%s may still read the old value when %s of the next iteration reads the new one", c.op(last), c.op(r))
			}
		}
	}
	return nil
}

// enoughBuffers is rule 4.
func (c *checker) enoughBuffers() (string, error) {
	p := c.plan
	for s, t := range c.slots {
		if t.reduces() && !slices.ContainsFunc(t.Gates, func(g Gate) bool { return g.Kind == GradientReady }) {
			return "", fmt.Errorf("%s (%s of bucket %d) may start while its gradients are still written: it has no gradient gate", c.place(s), t.Kind, t.Bucket)
		}
	}
	need := c.buffers()
	if p.Buffers < need.count {
		return "", fmt.Errorf("iteration %d writes the gradient of tensor %s to buffer %d, and the plan states %d: generations are applied no sooner than needed (%s)",
			need.iteration, c.job.Tensors[need.tensor].Name, need.count, p.Buffers, need.live)
	}
	return fmt.Sprintf("%d gradient buffers needed, %d stated", need.count, p.Buffers), nil
}

type buffers struct {
	count     int
	iteration int // of the period, in which so many are live
	tensor    job.TensorID
	live      string // the generations, in words
}

// buffers counts the gradient buffers that some iteration needs of one tensor:
// one for each generation from its first iteration until the one it is applied
// in, or a further one where its application need not precede the first write
// of the next iteration.
func (c *checker) buffers() buffers {
	p := c.plan
	type interval struct{ from, to int }
	live := make([][]interval, len(c.job.Tensors))
	late := c.lateWrites()
	for i := range p.Updates {
		u := &p.Updates[i]
		for _, k := range c.tensors(u) {
			to := u.Iteration
			if late(k, u.At) {
				to++
			}
			live[k] = append(live[k], interval{p.Generations[u.Generation].First, to})
		}
	}
	most := buffers{count: 1}
	count := make([]int, p.Period+1)
	for k, all := range live {
		clear(count)
		for _, x := range all {
			n, rest := divide(x.to+1-x.from, p.Period) // n whole periods, and some iterations
			count[0] += n
			count[p.Period] -= n
			for _, part := range [][2]int{{x.from, min(x.from+rest, p.Period)}, {0, x.from + rest - p.Period}} {
				if part[0] < part[1] {
					count[part[0]]++
					count[part[1]]--
				}
			}
		}
		n := 0
		for i, d := range count[:p.Period] {
			if n += d; n > most.count {
				most = buffers{count: n, iteration: i, tensor: job.TensorID(k)}
			}
		}
	}
	var words []string
	for _, x := range live[most.tensor] {
		words = append(words, fmt.Sprintf("written from iteration %d, in use until the end of iteration %d", x.from, x.to))
	}
	const shown = 3
	if len(words) > shown {
		words = append(words[:shown], "...")
	}
	most.live = fmt.Sprint(words)
	return most
}

// lateWrites tells of which tensors the gradient of the next iteration may be
// written before an update at the given point has read this one's.
func (c *checker) lateWrites() func(k job.TensorID, at Point) bool {
	g := c.compute
	barrier, next := barrierOps(c.job, g)
	type key struct {
		tensor job.TensorID
		at     Point
	}
	known := map[key]bool{}
	return func(k job.TensorID, at Point) bool {
		late, ok := known[key{k, at}]
		if ok {
			return late
		}
		t := &c.job.Tensors[k]
		for _, w := range t.Producers {
			if at == AtRead {
				late = late || !slices.ContainsFunc(t.Readers, func(r job.OpID) bool { return g.precedes(r, w) })
				continue
			}
			before := g.before(w)
			done := func(o job.OpID) bool { return before[g.lane[o]] >= g.pos[o] }
			if len(t.Updaters) > 0 {
				late = late || slices.ContainsFunc(t.Updaters, func(o job.OpID) bool { return !done(o) })
			} else if !next {
				late = late || !slices.ContainsFunc(barrier, done)
			}
		}
		known[key{k, at}] = late
		return late
	}
}

// flushes is rule 7. At an agreed boundary the iterations that remain do not
// run: gates on their ops and ends count as open, and what is outstanding is
// dispatched in program order. Rules 1 and 2 make that terminate: the waits
// among transfers are a part of the constraints of rule 2. It remains to show
// that each generation is applied to every tensor.
func (c *checker) flushes() (string, error) {
	p := c.plan
	applied := make([][]bool, len(p.Generations))
	for _, u := range p.Updates {
		if applied[u.Generation] == nil {
			applied[u.Generation] = make([]bool, len(c.job.Tensors))
		}
		for _, k := range c.tensors(&u) {
			applied[u.Generation][k] = true
		}
	}
	for r, tensors := range applied {
		if tensors == nil {
			return "", fmt.Errorf("%s: generation %d is never applied: its gradients are dropped", p.Generations[r].iterations(), r)
		}
		if k := slices.Index(tensors, false); k >= 0 {
			return "", fmt.Errorf("%s: generation %d is never applied to tensor %s: its gradient is dropped", p.Generations[r].iterations(), r, c.job.Tensors[k].Name)
		}
	}
	if p.MaxDelay == 0 {
		return "no generation is outstanding at the end of its iterations; a read completes what is pending, on its rank alone", nil
	}
	return "at an agreed boundary, outstanding generations are drained in program order and applied, oldest first", nil
}
