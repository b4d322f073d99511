package caramel

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"weft/bound"
	"weft/internal/splitmix"
	"weft/job"
)

// graph is what must precede what in any compute order. Its nodes are the ops of
// a stripped job, then a node for the beginning of each stretch, which follows all
// ops of the stretch before it on its lane, then the collectives.
type graph struct {
	job   *job.Job
	preds rows
	order []int32 // all nodes, each after its predecessors and, on a lane, as recorded
	at    []int32 // by node: position in order
	moves []bool  // by op: in a stretch of the backward pass with others
}

// rows are lists in one array.
type rows struct{ first, all []int32 }

func (r *rows) of(i int32) []int32 { return r.all[r.first[i]:r.first[i+1]] }

// newRows gathers, for each of n rows, the values of its pairs, in their order.
func newRows(n int, pairs func(yield func(row, value int32))) rows {
	r := rows{first: make([]int32, n+1)}
	pairs(func(row, _ int32) { r.first[row+1]++ })
	for i := range n {
		r.first[i+1] += r.first[i]
	}
	r.all = make([]int32, r.first[n])
	fill := slices.Clone(r.first)
	pairs(func(row, value int32) {
		r.all[fill[row]] = value
		fill[row]++
	})
	return r
}

// newGraph returns nil if no op of the backward pass may move.
func newGraph(j *job.Job) *graph {
	stretch := bound.Stretches(j)
	if stretch == nil {
		return nil
	}
	n := int32(len(j.Ops))
	stretches := 1 + slices.Max(stretch)
	size, backward := make([]int, stretches), make([]bool, stretches)
	for o, s := range stretch {
		size[s]++
		backward[s] = backward[s] || j.Ops[o].Phase == job.Backward
	}
	g := &graph{job: j, moves: make([]bool, n)}
	for o, s := range stretch {
		g.moves[o] = size[s] > 1 && backward[s]
	}
	if !slices.Contains(g.moves, true) {
		return nil
	}
	nodes := int(n+stretches) + len(j.Collectives)
	edges := func(yield func(from, to int32)) {
		for i := range j.Ops {
			yield(n+stretch[i], int32(i))
			for _, d := range j.Ops[i].Deps {
				yield(d, int32(i))
			}
		}
		next := slices.Repeat([]int32{-1}, len(j.Lanes)) // by lane: the stretch last met, from the end
		following := make([]int32, stretches)
		for i := len(j.Ops) - 1; i >= 0; i-- {
			l, s := j.Ops[i].Lane, stretch[i]
			if next[l] != s {
				following[s], next[l] = next[l], s
			}
			if f := following[s]; f >= 0 {
				yield(int32(i), n+f)
			}
		}
		for i := range j.Collectives {
			c := n + stretches + int32(i)
			for _, o := range j.Collectives[i].After {
				yield(o, c)
			}
			for _, o := range j.Collectives[i].Before {
				yield(c, o)
			}
		}
	}
	g.preds = newRows(nodes, func(yield func(row, value int32)) {
		edges(func(from, to int32) { yield(to, from) })
	})
	g.sort(nodes, edges)
	return g
}

// sort finds an order of all nodes that keeps that of the lanes.
func (g *graph) sort(nodes int, edges func(yield func(from, to int32))) {
	recorded := func(yield func(from, to int32)) {
		edges(yield)
		last := slices.Repeat([]int32{-1}, len(g.job.Lanes))
		for i := range g.job.Ops {
			l := g.job.Ops[i].Lane
			if last[l] >= 0 {
				yield(last[l], int32(i))
			}
			last[l] = int32(i)
		}
	}
	next := newRows(nodes, recorded)
	left := make([]int32, nodes)
	recorded(func(_, to int32) { left[to]++ })
	for v := range left {
		if left[v] == 0 {
			g.order = append(g.order, int32(v))
		}
	}
	g.at = make([]int32, nodes)
	for i := 0; i < len(g.order); i++ {
		v := g.order[i]
		g.at[v] = int32(i)
		for _, w := range next.of(v) {
			if left[w]--; left[w] == 0 {
				g.order = append(g.order, w)
			}
		}
	}
}

// ancestors visits the nodes that are not yet done and that the given ones need,
// themselves included, and marks them done.
func ancestors(preds *rows, from []int32, done []bool, stack []int32, visit func(v int32)) []int32 {
	push := func(v int32) {
		if !done[v] {
			done[v] = true
			stack = append(stack, v)
		}
	}
	for _, v := range from {
		push(v)
	}
	for len(stack) > 0 {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		visit(v)
		for _, p := range preds.of(v) {
			push(p)
		}
	}
	return stack
}

// lanes are the orders of the lanes when the gradients of the given tensors are
// made one after the other, each with what it still needs in recorded order. A
// lane whose order is as recorded is nil; so is the result if all are.
func (g *graph) lanes(ready [][]job.OpID, tensors []job.TensorID) [][]job.OpID {
	done := make([]bool, len(g.order))
	var ops, stack []int32
	add := func(from []int32) {
		start := len(ops)
		stack = ancestors(&g.preds, from, done, stack, func(v int32) {
			if int(v) < len(g.job.Ops) {
				ops = append(ops, v)
			}
		})
		slices.SortFunc(ops[start:], func(a, b int32) int { return int(g.at[a] - g.at[b]) })
	}
	for _, k := range tensors {
		add(ready[k])
	}
	add(g.order)

	lanes := make([][]job.OpID, len(g.job.Lanes))
	for _, o := range ops {
		l := g.job.Ops[o].Lane
		lanes[l] = append(lanes[l], o)
	}
	moved := false
	for l := range lanes {
		if slices.IsSorted(lanes[l]) {
			lanes[l] = nil
		}
		moved = moved || lanes[l] != nil
	}
	if !moved {
		return nil
	}
	return lanes
}

// classes groups nodes that the same gradients need: such nodes are all done with
// the first of these gradients. Times are whole nanoseconds, so that what is
// subtracted in any order leaves nothing.
type classes struct {
	sets  [][]uint64 // by class: the tensors that need it
	time  []int64    // of its ops that move
	preds rows
	of    []int32 // by node; 0: the class that no gradient needs
}

// maxWords bounds the memory of the sets.
const maxWords = 1 << 24

// newClasses returns nil if the sets become too many. ready are the ops after
// which each gradient may travel.
func newClasses(g *graph, ready [][]job.OpID) *classes {
	words := (len(ready) + 63) / 64
	c := &classes{of: make([]int32, len(g.order))}
	u := unions{classes: c, known: map[uint64]int32{}, pairs: map[[2]int32]int32{}}
	u.add(make([]uint64, words))
	own := newRows(len(g.order), func(yield func(row, value int32)) {
		for k, ops := range ready {
			for _, o := range ops {
				yield(o, int32(k))
			}
		}
	})
	for _, v := range slices.Backward(g.order) {
		if len(own.of(v)) > 0 {
			set := slices.Clone(c.sets[c.of[v]])
			for _, k := range own.of(v) {
				set[k/64] |= 1 << (k % 64)
			}
			c.of[v] = u.add(set)
		}
		for _, p := range g.preds.of(v) {
			c.of[p] = u.join(c.of[p], c.of[v])
		}
		if len(c.sets)*words > maxWords {
			return nil
		}
	}
	c.time = make([]int64, len(c.sets))
	for o := range g.job.Ops {
		if g.moves[o] {
			c.time[c.of[o]] += int64(math.Round(g.job.Ops[o].Time * 1000))
		}
	}
	type edge struct{ from, to int32 }
	var edges []edge
	for v := range g.order {
		for _, p := range g.preds.of(int32(v)) {
			if a, b := c.of[p], c.of[v]; a != b && b != 0 {
				edges = append(edges, edge{a, b})
			}
		}
	}
	slices.SortFunc(edges, func(x, y edge) int { return cmp.Or(cmp.Compare(x.to, y.to), cmp.Compare(x.from, y.from)) })
	edges = slices.Compact(edges)
	c.preds = newRows(len(c.sets), func(yield func(row, value int32)) {
		for _, e := range edges {
			yield(e.to, e.from)
		}
	})
	return c
}

// tensors calls yield for each tensor that needs class i.
func (c *classes) tensors(i int32, yield func(k job.TensorID)) {
	for w, m := range c.sets[i] {
		for ; m != 0; m &= m - 1 {
			yield(job.TensorID(64*w + bits.TrailingZeros64(m)))
		}
	}
}

// unions finds sets by value.
type unions struct {
	*classes
	known map[uint64]int32   // by hash; where two sets have the same, the later is at the next free one
	pairs map[[2]int32]int32 // of two classes
}

func (u *unions) add(set []uint64) int32 {
	h := uint64(len(set))
	for _, w := range set {
		h = splitmix.Mix(h + w + splitmix.Step)
	}
	for {
		i, ok := u.known[h]
		if !ok {
			break
		}
		if slices.Equal(u.sets[i], set) {
			return i
		}
		h++
	}
	u.known[h] = int32(len(u.sets))
	u.sets = append(u.sets, set)
	return u.known[h]
}

func (u *unions) join(a, b int32) int32 {
	if a > b {
		a, b = b, a
	}
	if a == b || a == 0 {
		return b
	}
	i, ok := u.pairs[[2]int32{a, b}]
	if !ok {
		set := slices.Clone(u.sets[a])
		for w, m := range u.sets[b] {
			set[w] |= m
		}
		i = u.add(set)
		u.pairs[[2]int32{a, b}] = i
	}
	return i
}
