package plan

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"weft/internal/fault"
	"weft/job"
)

// The constraint graph of rule 2. Its nodes stand for one event in every
// period: a transfer's dispatch (and, at zero cost, its completion), the start
// of an op that waits for transfers, the end of a lane's iteration. An edge
// u -> v with shift n says: v of a period needs u of n periods before.
// Execution gets stuck if and only if some cycle has a total shift of 0 or
// less, for then an event needs itself, or a later copy of itself.
//
// Ops that wait for no transfer are not nodes: compute tells what they pass on.
// Windows are not edges: a dispatched transfer completes whatever comes later,
// so a window delays but never blocks.
type constraints struct {
	c     *checker
	nodes []node
	edges []edge
	waits []place // by iteration of the period
	ends  [][]int // by iteration, then lane: the node; -1 for a lane without ops
	slots [][]int // by link, then index: the node
}

type nodeKind uint8

const (
	dispatch nodeKind = iota
	waiting
	laneEnd
)

type node struct {
	kind      nodeKind
	slot      slot
	iteration int // relative to the period
	op        job.OpID
	lane      int
}

type reason uint8

const (
	inOrder    reason = iota // the program's order
	computing                // lane order and deps
	gradients                // GradientReady
	opGate                   // OpDone
	doneGate                 // TransferDone
	boundary                 // Boundary
	inputs                   // a collective's After
	updating                 // an op waits for an update
	collecting               // an op waits for a collective
)

// In messages: the event that waits, the reason, what it waits for.
var reasons = []string{
	inOrder:    "follows",
	computing:  "comes after",
	gradients:  "needs its gradients, hence",
	opGate:     "needs the op of its gate, hence",
	doneGate:   "waits for",
	boundary:   "needs the end of an iteration, hence",
	inputs:     "needs its inputs, hence",
	updating:   "needs the update that waits for",
	collecting: "waits for",
}

type edge struct {
	from, to int
	shift    int // periods
	why      reason
}

// place is one iteration of the period: its waiting ops by lane, in order.
type place struct {
	waits map[job.OpID]int // node
	lanes [][]int          // by lane: nodes by position
}

// noCircle is rule 2.
func (c *checker) noCircle() (string, error) {
	comp, err := newCompute(c.job, c.order)
	if err != nil {
		var x *circle
		if errors.As(err, &x) {
			return "", fmt.Errorf("circular wait in the compute order: %s", c.path(x.ops))
		}
		return "", err
	}
	c.compute = comp
	g := &constraints{c: c}
	g.build()
	if cycle := g.stuck(); cycle != nil {
		return "", fmt.Errorf("circular wait: %s", g.words(cycle))
	}
	return fmt.Sprintf("%d events and %d constraints a period, no cycle", len(g.nodes), len(g.edges)), nil
}

// path names ops of which each precedes the next, and the last the first.
func (c *checker) path(ops []job.OpID) string {
	var b strings.Builder
	b.WriteString(c.op(ops[0]))
	link := ""
	for i := len(ops) - 1; i >= 0; i-- {
		how := "comes after"
		if to := ops[(i+1)%len(ops)]; slices.Contains(c.job.Ops[to].Deps, ops[i]) {
			how = "needs"
		}
		fmt.Fprintf(&b, "%s %s %s", link, how, c.op(ops[i]))
		link = ", which"
	}
	return b.String()
}

func (g *constraints) node(n node) int {
	g.nodes = append(g.nodes, n)
	return len(g.nodes) - 1
}

func (g *constraints) edge(from, to, shift int, why reason) {
	g.edges = append(g.edges, edge{from, to, shift, why})
}

func (g *constraints) build() {
	c, p := g.c, g.c.plan
	for l := range p.Programs {
		g.slots = append(g.slots, nil)
		for i := range p.Programs[l].Transfers {
			g.slots[l] = append(g.slots[l], g.node(node{kind: dispatch, slot: slot{l, i}}))
		}
	}
	g.waits = make([]place, p.Period)
	for i := range g.waits {
		g.waits[i] = place{map[job.OpID]int{}, make([][]int, len(c.job.Lanes))}
	}
	g.updates()
	for s, t := range c.slots {
		if t.Bucket < 0 {
			n, i := divide(t.Iteration, p.Period)
			for _, o := range c.job.Collectives[t.Collective].Before {
				g.edge(g.slots[s.link][s.index], g.wait(i, o), n, collecting)
			}
		}
	}
	g.lanes()
	for s, t := range c.slots {
		g.transfer(s, t)
	}
}

// wait is the node of an op that waits in an iteration of the period.
func (g *constraints) wait(iteration int, o job.OpID) int {
	at := &g.waits[iteration]
	n, ok := at.waits[o]
	if !ok {
		n = g.node(node{kind: waiting, iteration: iteration, op: o, lane: int(g.c.compute.lane[o])})
		at.waits[o] = n
		at.lanes[g.nodes[n].lane] = append(at.lanes[g.nodes[n].lane], n)
	}
	return n
}

// updates makes ops wait for the transfers that complete what is applied before them.
func (g *constraints) updates() {
	c := g.c
	finals := c.finals()
	whole := make([][]slot, len(finals))
	for s, t := range c.slots {
		if t.Completes() {
			whole[c.residue(t)] = append(whole[c.residue(t)], s)
		}
	}
	barrier, next := c.job.BarrierOps(c.compute.lanes)
	copyOuts := copiesOut(c.job)
	for u := range c.plan.Updates {
		u := &c.plan.Updates[u]
		switch u.At {
		case AtStep:
			i := u.Iteration
			if next {
				i++
			}
			for _, o := range barrier {
				g.awaits(i, o, u.Generation, whole[u.Generation])
			}
			for _, k := range c.tensors(u) {
				for _, o := range copyOuts[k] {
					g.awaits(u.Iteration, o, u.Generation, finals[u.Generation][k])
				}
			}
		case AtRead:
			for _, k := range c.tensors(u) {
				for _, o := range firstByLane(c.compute, c.job.Tensors[k].Readers) {
					g.awaits(u.Iteration+1, o, u.Generation, finals[u.Generation][k])
				}
			}
		}
	}
}

// awaits makes op o of an iteration wait for the given transfers, which carry
// a generation of this period.
func (g *constraints) awaits(iteration int, o job.OpID, generation int, slots []slot) {
	n, i := divide(iteration, g.c.plan.Period)
	to := g.wait(i, o)
	for _, s := range slots {
		carried := (generation - g.c.at(s).Generation) / len(g.c.plan.Generations)
		g.edge(g.slots[s.link][s.index], to, n-carried, updating)
	}
}

// lanes joins the waiting ops and the ends of iterations by what computation
// passes on.
func (g *constraints) lanes() {
	comp := g.c.compute
	for i := range g.waits {
		row := make([]int, len(comp.lanes))
		for l, ops := range comp.lanes {
			row[l] = -1
			if len(ops) > 0 {
				row[l] = g.node(node{kind: laneEnd, iteration: i, lane: l})
			}
			at := g.waits[i].lanes[l]
			sort.Slice(at, func(a, b int) bool { return comp.pos[g.nodes[at[a]].op] < comp.pos[g.nodes[at[b]].op] })
		}
		g.ends = append(g.ends, row)
	}
	for i := range g.waits {
		for l, ops := range comp.lanes {
			for _, n := range g.waits[i].lanes[l] {
				before := comp.done(g.nodes[n].op)
				before[l]-- // the op itself is what waits
				g.after(n, before, i, l, computing)
			}
			if len(ops) > 0 {
				g.after(g.ends[i][l], comp.done(ops[len(ops)-1]), i, l, computing)
			}
		}
	}
}

// after makes node n need a cut of an iteration, which is relative to the
// period of n. own is the lane of n if it is an op: the iteration before binds
// it even where it is the first of its lane.
func (g *constraints) after(n int, done cut, iteration, own int, why reason) {
	comp := g.c.compute
	periods, i := divide(iteration, g.c.plan.Period)
	earlier, h := divide(iteration-1, g.c.plan.Period)
	for l, pos := range done {
		if pos < 0 && l != own {
			continue
		}
		at := g.waits[i].lanes[l]
		k := sort.Search(len(at), func(k int) bool { return comp.pos[g.nodes[at[k]].op] > pos })
		if k > 0 {
			g.edge(at[k-1], n, -periods, why)
		} else {
			g.edge(g.ends[h][l], n, -earlier, why)
		}
	}
}

// transfer adds what holds a transfer back.
func (g *constraints) transfer(s slot, t *Transfer) {
	c, p, comp := g.c, g.c.plan, g.c.compute
	n := g.slots[s.link][s.index]
	if s.index > 0 {
		g.edge(g.slots[s.link][s.index-1], n, 0, inOrder)
	} else {
		g.edge(g.slots[s.link][len(g.slots[s.link])-1], n, 1, inOrder)
	}
	const none = -1
	if t.Bucket < 0 {
		g.after(n, comp.done(c.job.Collectives[t.Collective].After...), t.Iteration, none, inputs)
	}
	for _, x := range t.Gates {
		switch x.Kind {
		case GradientReady:
			g.after(n, c.ready(t.Bucket), p.LastIteration(t.Generation), none, gradients)
		case OpDone:
			g.after(n, comp.done(c.renumber[x.Op]), x.Iteration, none, opGate)
		case Boundary:
			g.after(n, comp.all(), x.Iteration, none, boundary)
		case TransferDone:
			other := p.Programs[x.Link].Transfers[x.Transfer].Generation
			g.edge(g.slots[x.Link][x.Transfer], n, (other-t.Generation)/len(p.Generations), doneGate)
		}
	}
}

// ready is the cut that makes the gradients of a bucket ready: its producers
// are done, and the copies into the bucket if they are kept.
func (c *checker) ready(bucket int) cut {
	done := c.compute.nothing()
	for _, k := range c.plan.Buckets[bucket].Tensors() {
		done.join(c.compute.done(c.sendable[k]...))
	}
	return done
}

// copiesOut lists, by tensor, the kept ops that copy gradients out of buckets and
// wait for their transfers: not those of a host, which only launch.
func copiesOut(j *job.Job) map[job.TensorID][]job.OpID {
	out := map[job.TensorID][]job.OpID{}
	for o := range j.Ops {
		if x := &j.Ops[o]; x.Role == job.CopyOut && j.Computes(x.Lane) {
			out[x.Tensor] = append(out[x.Tensor], job.OpID(o))
		}
	}
	return out
}

// firstByLane keeps of ops the first of each lane.
func firstByLane(g *compute, ops []job.OpID) []job.OpID {
	var out []job.OpID
	for _, o := range ops {
		i := slices.IndexFunc(out, func(x job.OpID) bool { return g.lane[x] == g.lane[o] })
		switch {
		case i < 0:
			out = append(out, o)
		case g.pos[o] < g.pos[out[i]]:
			out[i] = o
		}
	}
	return out
}

// stuck returns the edges of a cycle with a total shift of 0 or less, each
// ending where the next starts; nil if there is none.
func (g *constraints) stuck() []edge {
	height, cycle := g.heights()
	if cycle != nil {
		return cycle
	}
	// Heights make every shift 0 or more, and the shift of a cycle is the sum
	// of its edges' either way: a cycle of total 0 has level edges only.
	level := make([][]edge, len(g.nodes)) // by from
	needs := make([]int, len(g.nodes))
	for _, e := range g.edges {
		if e.shift+height[e.from]-height[e.to] == 0 {
			level[e.from] = append(level[e.from], e)
			needs[e.to]++
		}
	}
	var free []int
	for n, k := range needs {
		if k == 0 {
			free = append(free, n)
		}
	}
	for i := 0; i < len(free); i++ {
		for _, e := range level[free[i]] {
			if needs[e.to]--; needs[e.to] == 0 {
				free = append(free, e.to)
			}
		}
	}
	if len(free) == len(g.nodes) {
		return nil
	}
	return shortest(level, needs)
}

// heights finds a height for each node such that no edge's shift plus the fall
// along it is negative, by Bellman and Ford's algorithm. If there is none, some
// cycle has a negative total, and it is returned.
func (g *constraints) heights() (height []int, cycle []edge) {
	height = make([]int, len(g.nodes))
	by := make([]int, len(g.nodes)) // edge that last lowered the node; -1: none
	for i := range by {
		by[i] = -1
	}
	for changed := true; changed; {
		changed = false
		for i, e := range g.edges {
			if h := height[e.from] + e.shift; h < height[e.to] {
				height[e.to], by[e.to], changed = h, i, true
			}
		}
		if changed {
			if cycle := g.ring(by); cycle != nil {
				return nil, cycle
			}
		}
	}
	return height, nil
}

// ring finds a cycle of the edges by, of which each node has at most one.
func (g *constraints) ring(by []int) []edge {
	walk := make([]int, len(by)) // 1 + the node that the walk which saw it began at
	for start := range by {
		n := start
		for walk[n] == 0 && by[n] >= 0 {
			walk[n] = start + 1
			n = g.edges[by[n]].from
		}
		if walk[n] != start+1 || by[n] < 0 {
			continue
		}
		var cycle []edge
		for at := n; len(cycle) == 0 || at != n; at = g.edges[by[at]].from {
			cycle = append(cycle, g.edges[by[at]])
		}
		slices.Reverse(cycle)
		return cycle
	}
	return nil
}

// shortest finds a short cycle of level edges. needs is positive for the nodes
// on cycles, and for those behind them.
func shortest(level [][]edge, needs []int) []edge {
	// Going back from any such node along others ends in a cycle.
	into := make([]int, len(needs))
	for n := range into {
		into[n] = -1
	}
	start := -1
	for n := range level {
		if needs[n] > 0 {
			for _, e := range level[n] {
				if needs[e.to] > 0 {
					into[e.to], start = n, e.to
				}
			}
		}
	}
	seen := make([]bool, len(needs))
	for !seen[start] {
		seen[start] = true
		start = into[start]
	}
	// Breadth first from a node that is on a cycle, back to it.
	came := make([]*edge, len(needs))
	queue := []int{start}
	for i := 0; came[start] == nil; i++ {
		for k := range level[queue[i]] {
			e := &level[queue[i]][k]
			if came[e.to] == nil {
				came[e.to] = e
				queue = append(queue, e.to)
			}
		}
	}
	var cycle []edge
	for at := start; len(cycle) == 0 || at != start; at = came[at].from {
		cycle = append(cycle, *came[at])
	}
	slices.Reverse(cycle)
	return cycle
}

// words tells a cycle from the event that waits to what it waits for, back to itself.
func (g *constraints) words(cycle []edge) string {
	slices.Reverse(cycle) // now each edge starts where the next ends
	// Begin at a transfer, if one takes part, that is not in the middle of a run.
	start := slices.IndexFunc(cycle, func(e edge) bool { return g.nodes[e.to].kind == dispatch && e.why != inOrder })
	if start > 0 {
		cycle = append(slices.Clone(cycle[start:]), cycle[:start]...)
	}
	periods, first := 0, 0
	for _, e := range cycle {
		periods -= e.shift
		first = min(first, periods)
	}
	periods = -first // so that no event has a negative period
	var b strings.Builder
	b.WriteString(g.name(cycle[0].to, periods))
	link := ""
	for i, e := range cycle {
		periods -= e.shift
		// A run along a program, or through computation, is one step.
		if (e.why == inOrder || e.why == computing) && i+1 < len(cycle) && cycle[i+1].why == e.why {
			continue
		}
		fmt.Fprintf(&b, "%s %s %s", link, reasons[e.why], g.name(e.from, periods))
		link = ", which"
	}
	return b.String()
}

// name of a node in the period that is the given number of periods ahead.
func (g *constraints) name(n, periods int) string {
	c, x := g.c, &g.nodes[n]
	iteration := x.iteration + periods*c.plan.Period
	switch x.kind {
	case waiting:
		return fmt.Sprintf("%s of iteration %d", c.op(x.op), iteration)
	case laneEnd:
		return fmt.Sprintf("the end of iteration %d on lane %s", iteration, c.lane(int(x.lane)))
	}
	t := c.at(x.slot)
	if t.Bucket < 0 {
		return fmt.Sprintf("%s (%s of collective %q, iteration %d)", c.place(x.slot), t.Kind, fault.Short(c.job.Collectives[t.Collective].Name), t.Iteration+periods*c.plan.Period)
	}
	n, r := divide(t.Generation, len(c.plan.Generations))
	gen := c.plan.Generations[r]
	gen.First += (n + periods) * c.plan.Period
	return fmt.Sprintf("%s (%s of bucket %d, %s)", c.place(x.slot), t.Kind, t.Bucket, gen.iterations())
}
