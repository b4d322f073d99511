package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weft/internal/fault"
	"weft/job"
)

// oneVersion is rule 3.
func (c *checker) oneVersion() (string, error) {
	p := c.plan
	c.noteUnknown()
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
			name := c.tensor(k)
			for _, x := range points[k] {
				if x.generation == u.Generation {
					return "", fmt.Errorf("%s: generation %d is applied twice to tensor %s: by update %d and by update %d", g.iterations(), u.Generation, name, x.update, i)
				}
			}
			points[k] = append(points[k], point{u.Iteration, u.At, u.Generation, i})
			if err := v.prove(updatePlace{k, u.At}); err != nil {
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
					c.tensor(job.TensorID(k)), b.generation, b.iteration, b.update, a.generation, a.iteration, a.update)
			}
		}
	}
	return "every update lies between the last read of one iteration and the first of the next", nil
}

// updatePlace is where an update stands: of a tensor, at a point.
type updatePlace struct {
	tensor job.TensorID
	at     Point
}

// versions proves, once for each place, that the updates applied there separate
// the reads of two iterations.
type versions struct {
	c       *checker
	barrier []job.OpID
	next    bool // the barrier stands in the next iteration
	known   map[updatePlace]error
}

func (c *checker) versions() *versions {
	v := &versions{c: c, known: map[updatePlace]error{}}
	v.barrier, v.next = c.job.BarrierOps(c.compute.lanes)
	return v
}

func (v *versions) prove(at updatePlace) error {
	err, ok := v.known[at]
	if !ok {
		switch t := v.c.touched(at.tensor); at.at {
		case AtStep:
			err = v.proveStep(t)
		case AtRead:
			err = v.proveRead(t)
		}
		v.known[at] = err
	}
	return err
}

// proveStep is for updates at the tensor's update ops, behind the barrier. A
// tensor without update ops is updated at the barrier.
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
		if !g.holds(g.before(g.done(r)), o) {
			return fmt.Errorf("%s of the next iteration may read it before %s updates it", c.op(r), c.op(o))
		}
	}
	return nil
}

// proveRead is for updates in front of the tensor's first reader.
func (v *versions) proveRead(t *job.Tensor) error {
	if len(t.Readers) == 0 {
		return errors.New("the job does not say which op reads it: update it at the step")
	}
	return v.proveApart(t)
}

// proveApart: all reads of an iteration precede all reads of the next.
func (v *versions) proveApart(t *job.Tensor) error {
	c, g := v.c, v.c.compute
	for _, r := range t.Readers {
		before := g.before(g.done(r))
		for _, last := range t.Readers {
			if !g.holds(before, last) {
				return fmt.Errorf("%s may still read the old value when %s of the next iteration reads the new one", c.op(last), c.op(r))
			}
		}
	}
	return nil
}

// touched is a tensor with the ops that touch its memory. In a job with a device
// those run there: a host op launches or hands over, and runs ahead of them.
func (c *checker) touched(k job.TensorID) *job.Tensor {
	t := c.job.Tensors[k]
	if c.device {
		t.Readers, t.Producers, t.Updaters = c.onDevice(t.Readers), c.onDevice(t.Producers), c.onDevice(t.Updaters)
	}
	return &t
}

func (c *checker) onDevice(ops []job.OpID) (device []job.OpID) {
	for _, o := range ops {
		if c.job.Lanes[c.job.Ops[o].Lane].Kind == job.Device {
			device = append(device, o)
		}
	}
	return device
}

// noteUnknown says for how many tensors the job names only the host's part.
func (c *checker) noteUnknown() {
	n := 0
	for k := range c.job.Tensors {
		t, d := &c.job.Tensors[k], c.touched(job.TensorID(k))
		if len(t.Readers) > 0 && len(d.Readers) == 0 || len(t.Producers) > 0 && len(d.Producers) == 0 || len(t.Updaters) > 0 && len(d.Updaters) == 0 {
			n++
		}
	}
	if n > 0 {
		c.notes = append(c.notes, fmt.Sprintf("of %s the job names host ops alone where device ops read, make or write it: these are taken to keep their order", times(n, "tensor")))
	}
}

// enoughBuffers is rule 4.
func (c *checker) enoughBuffers() (string, error) {
	p := c.plan
	for s, t := range c.slots {
		if t.reduces() && !slices.ContainsFunc(t.Gates, func(g Gate) bool { return g.Kind == GradientReady }) {
			return "", fmt.Errorf("%s (%s of bucket %d) may start while its gradients are still written: it has no gradient gate", c.place(s), t.Kind, t.Bucket)
		}
	}
	need, err := c.buffers()
	if err != nil {
		return "", err
	}
	if p.Buffers < need.count {
		return "", fmt.Errorf("iteration %d writes gradients of tensor %s while those of %s are in use: this takes %d buffers, the plan states %d",
			need.iteration, c.tensor(need.tensor), strings.Join(need.others, ", "), need.count, p.Buffers)
	}
	return fmt.Sprintf("gradient buffers: %d needed, %d stated", need.count, p.Buffers), nil
}

// holding is how long the buffer of a generation is taken, in iterations.
type holding struct {
	generation Generation
	until      int
}

// demand is the most gradient buffers that an iteration needs of a tensor.
type demand struct {
	count     int
	tensor    job.TensorID // that needs so many
	iteration int          // when
	others    []string     // the generations in use then, but the one written
}

// buffers counts the gradient buffers that some iteration needs of one tensor:
// one for each generation from its first iteration until the one it is applied
// in, and one iteration more where writes may come early.
func (c *checker) buffers() (demand, error) {
	p := c.plan
	uses := make([][]holding, len(c.job.Tensors))
	lag := c.lags()
	for i := range p.Updates {
		u := &p.Updates[i]
		for _, k := range c.tensors(u) {
			n, err := lag(k, u.At)
			if err != nil {
				return demand{}, err
			}
			uses[k] = append(uses[k], holding{p.Generations[u.Generation], u.Iteration + n})
		}
	}
	most := demand{count: 1}
	change := make([]int, p.Period+1)
	for k, all := range uses {
		clear(change)
		for _, x := range all {
			// It is in use in n iterations of each residue, and in some once more.
			n, rest := divide(x.until+1-x.generation.First, p.Period)
			change[0] += n
			end := x.generation.First + rest
			change[x.generation.First]++
			change[min(end, p.Period)]--
			if end > p.Period {
				change[0]++
				change[end-p.Period]--
			}
		}
		n := 0
		for i, d := range change[:p.Period] {
			if n += d; n > most.count {
				most = demand{count: n, tensor: job.TensorID(k), iteration: i}
			}
		}
	}
	if len(uses) > 0 {
		c.nameOthers(&most, uses[most.tensor])
	}
	return most, nil
}

// nameOthers finds the generations in use, a few of them, and moves the
// iteration to a period before which they all begin.
func (c *checker) nameOthers(b *demand, uses []holding) {
	const shown = 4
	var others []Generation
	for _, x := range uses {
		g := x.generation
		// Begin with the youngest that started by then.
		n, _ := divide(b.iteration-g.First, c.plan.Period)
		for g.First += n * c.plan.Period; x.until-x.generation.First+g.First >= b.iteration && len(others) < shown; g.First -= c.plan.Period {
			if g.Last() < b.iteration {
				others = append(others, g)
			}
		}
	}
	slices.SortFunc(others, func(g, h Generation) int { return cmp.Compare(g.First, h.First) })
	if len(others) == 0 {
		return
	}
	n, _ := divide(others[0].First, c.plan.Period)
	b.iteration -= n * c.plan.Period
	for _, g := range others {
		g.First -= n * c.plan.Period
		b.others = append(b.others, g.iterations())
	}
}

// lags tells, of a tensor and a point, by how many iterations its gradient may
// be written early: at 0 every write of the iteration after an update at that
// point follows the update, at 1 every write of the one after that. The error
// names an op that nothing holds back.
func (c *checker) lags() func(k job.TensorID, at Point) (int, error) {
	const most = 1
	g := c.compute
	barrier, next := c.job.BarrierOps(g.lanes)
	// applied reports whether an update is done when the iteration has got to
	// cut now, and the one before to cut before.
	applied := func(t *job.Tensor, at Point, now, before cut) bool {
		switch {
		case at == AtRead:
			return slices.ContainsFunc(t.Readers, func(o job.OpID) bool { return g.holds(now, o) })
		case next:
			return true // no op of this iteration ran without it
		case len(t.Updaters) == 0:
			return slices.ContainsFunc(barrier, func(o job.OpID) bool { return g.holds(before, o) })
		}
		return !slices.ContainsFunc(t.Updaters, func(o job.OpID) bool { return !g.holds(before, o) })
	}
	known := map[updatePlace]int{}
	return func(k job.TensorID, at Point) (int, error) {
		lag, ok := known[updatePlace{k, at}]
		if ok {
			return lag, nil
		}
		t := c.touched(k)
		for _, w := range t.Producers {
			n, now := 0, g.done(w)
			for before := g.before(now); !applied(t, at, now, before); n++ {
				if n == most {
					return 0, fmt.Errorf("%s, which writes the gradient of tensor %s, may run ahead of its updates: no order of ops holds it back", c.op(w), fault.Short(t.Name))
				}
				now, before = before, g.before(before)
			}
			lag = max(lag, n)
		}
		known[updatePlace{k, at}] = lag
		return lag, nil
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
			return "", fmt.Errorf("%s: generation %d is never applied to tensor %s: its gradient is dropped", p.Generations[r].iterations(), r, c.tensor(job.TensorID(k)))
		}
	}
	if p.MaxDelay == 0 {
		return "no generation is outstanding at the end of its iterations; a read completes what is pending, on its rank alone", nil
	}
	return "at an agreed boundary, outstanding generations are drained in program order and applied, oldest first", nil
}
