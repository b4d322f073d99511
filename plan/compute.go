package plan

import (
	"fmt"
	"slices"

	"weft/job"
)

// compute answers which ops precede which: within an iteration, and from one
// iteration to the next. Lanes run their ops in order, iteration after
// iteration; deps join ops of one iteration.
//
// It is a vector clock: for each op and lane, the position of the last op of
// the lane that must be done before the op is. An op that learns nothing but
// from its lane shares the row of the op before it.
type compute struct {
	lanes [][]job.OpID // the ops of each lane, in the order that they run in
	lane  []int32      // by op
	pos   []int32      // by op: position in its lane
	rows  [][]int32    // by op, then lane; nil: no other lane precedes
}

// cut is what has been done of an iteration: for each lane the position of the
// last op done, -1 if none. It is closed: with an op all that precede it.
type cut []int32

// maxClock bounds the memory of the clocks, in entries.
const maxClock = 1 << 28

// circle is the error for ops that wait for each other within an iteration.
type circle struct{ ops []job.OpID }

func (c *circle) Error() string { return fmt.Sprintf("ops %v wait for each other", c.ops) }

// newCompute derives the order of ops of a stripped job. order replaces the
// order of lanes where it is not nil; it must be a permutation of their ops. The
// error is a *circle, or tells that the job is too large.
func newCompute(j *job.Job, order [][]job.OpID) (*compute, error) {
	n := len(j.Ops)
	g := &compute{
		lanes: make([][]job.OpID, len(j.Lanes)),
		lane:  make([]int32, n),
		pos:   make([]int32, n),
		rows:  make([][]int32, n),
	}
	for o := range j.Ops {
		l := j.Ops[o].Lane
		g.lane[o] = l
		g.lanes[l] = append(g.lanes[l], job.OpID(o))
	}
	for l, ops := range order {
		if ops != nil {
			g.lanes[l] = ops
		}
	}
	before := make([]int32, n) // predecessors not yet done
	first := make([]int32, n+1)
	for _, ops := range g.lanes {
		for i, o := range ops {
			g.pos[o] = int32(i)
			before[o] = int32(len(j.Ops[o].Deps) + min(i, 1))
		}
	}
	for o := range j.Ops {
		for _, d := range j.Ops[o].Deps {
			first[d+1]++
		}
	}
	for o := range n {
		first[o+1] += first[o]
	}
	succ, fill := make([]job.OpID, first[n]), slices.Clone(first)
	for o := range j.Ops {
		for _, d := range j.Ops[o].Deps {
			succ[fill[d]] = job.OpID(o)
			fill[d]++
		}
	}

	ready := make([]job.OpID, 0, n)
	free := func(o job.OpID) {
		if before[o]--; before[o] == 0 {
			ready = append(ready, o)
		}
	}
	for o := range n {
		if before[o] == 0 {
			ready = append(ready, job.OpID(o))
		}
	}
	entries := 0
	for k := 0; k < len(ready); k++ {
		o := ready[k]
		if g.learn(o, j.Ops[o].Deps) {
			if entries += len(g.lanes); entries > maxClock {
				return nil, fmt.Errorf("the job's %d ops on %d lanes are too many to order", n, len(j.Lanes))
			}
		}
		for _, s := range succ[first[o]:first[o+1]] {
			free(s)
		}
		if at := g.pos[o] + 1; int(at) < len(g.lanes[g.lane[o]]) {
			free(g.lanes[g.lane[o]][at])
		}
	}
	if len(ready) < n {
		return nil, &circle{g.findCircle(j, before)}
	}
	return g, nil
}

// learn computes the row of o and reports whether it needed a new one.
func (g *compute) learn(o job.OpID, deps []job.OpID) (own bool) {
	l := g.lane[o]
	if at := g.pos[o]; at > 0 {
		g.rows[o] = g.rows[g.lanes[l][at-1]]
	}
	for _, d := range deps {
		for m := range g.lanes {
			m := int32(m)
			if at := g.at(d, m); m != l && at > g.at(o, m) {
				if !own {
					g.rows[o], own = g.unshared(g.rows[o]), true
				}
				g.rows[o][m] = at
			}
		}
	}
	return own
}

func (g *compute) unshared(row []int32) []int32 {
	if row != nil {
		return slices.Clone(row)
	}
	row = make([]int32, len(g.lanes))
	for i := range row {
		row[i] = -1
	}
	return row
}

// findCircle walks back from an op that was never free through others, until
// one repeats. The result lists each op before the one that waits for it.
func (g *compute) findCircle(j *job.Job, before []int32) []job.OpID {
	o := job.OpID(slices.IndexFunc(before, func(n int32) bool { return n > 0 }))
	var path []job.OpID
	seen := map[job.OpID]int{}
	for {
		if at, ok := seen[o]; ok {
			path = path[at:]
			slices.Reverse(path)
			return path
		}
		seen[o] = len(path)
		path = append(path, o)
		preds := slices.Clone(j.Ops[o].Deps)
		if at := g.pos[o]; at > 0 {
			preds = append(preds, g.lanes[g.lane[o]][at-1])
		}
		o = preds[slices.IndexFunc(preds, func(p job.OpID) bool { return before[p] > 0 })]
	}
}

// at is the position of the last op of lane l that is done when o is; -1: none.
func (g *compute) at(o job.OpID, l int32) int32 {
	switch {
	case g.lane[o] == l:
		return g.pos[o]
	case g.rows[o] == nil:
		return -1
	}
	return g.rows[o][l]
}

// precedes reports whether a is done when b of the same iteration is; an op
// precedes itself.
func (g *compute) precedes(a, b job.OpID) bool { return g.at(b, g.lane[a]) >= g.pos[a] }

// done is the cut that the given ops bring about.
func (g *compute) done(ops ...job.OpID) cut {
	c := g.nothing()
	for _, o := range ops {
		for l := range c {
			c[l] = max(c[l], g.at(o, int32(l)))
		}
	}
	return c
}

// join makes c the cut of what either has done.
func (c cut) join(d cut) {
	for l, pos := range d {
		c[l] = max(c[l], pos)
	}
}

func (g *compute) nothing() cut { return g.unshared(nil) }

// before is what is done of the previous iteration when c is done: each lane
// that has begun an iteration has ended the one before.
func (g *compute) before(c cut) cut {
	b := g.nothing()
	for l, ops := range g.lanes {
		if c[l] >= 0 {
			b.join(g.done(ops[len(ops)-1]))
		}
	}
	return b
}

// holds reports whether o is part of the cut.
func (g *compute) holds(c cut, o job.OpID) bool { return c[g.lane[o]] >= g.pos[o] }

// all is the cut of a whole iteration.
func (g *compute) all() cut {
	c := g.nothing()
	for l, ops := range g.lanes {
		c[l] = int32(len(ops) - 1)
	}
	return c
}
