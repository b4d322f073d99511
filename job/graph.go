package job

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"weft/internal/fault"
)

// edges yields every precedence (from, to) of one iteration. Nodes are the ops,
// then the collectives: node len(j.Ops)+c is j.Collectives[c].
func (j *Job) edges() iter.Seq2[int32, int32] {
	return func(yield func(from, to int32) bool) {
		last := make([]OpID, len(j.Lanes))
		for l := range last {
			last[l] = -1
		}
		for v := range j.Ops {
			o, v := &j.Ops[v], OpID(v)
			if u := last[o.Lane]; u >= 0 && !yield(u, v) {
				return
			}
			last[o.Lane] = v
			for _, u := range o.Deps {
				if !yield(u, v) {
					return
				}
			}
		}
		for c := range j.Collectives {
			node := int32(len(j.Ops) + c)
			for _, u := range j.Collectives[c].After {
				if !yield(u, node) {
					return
				}
			}
			for _, v := range j.Collectives[c].Before {
				if !yield(node, v) {
					return
				}
			}
		}
	}
}

// graph holds the successors of every node in one flat array: those of node v
// are next[first[v]:first[v+1]].
type graph struct {
	first []int
	next  []int32
	order []int32 // all nodes, each after its predecessors; shorter if there is a cycle
}

func (g *graph) successors(v int32) []int32 { return g.next[g.first[v]:g.first[v+1]] }

// graph builds the precedence graph of a job whose references are in range.
func (j *Job) graph() *graph {
	n := len(j.Ops) + len(j.Collectives)
	g := &graph{first: make([]int, n+1), order: make([]int32, 0, n)}
	waits := make([]int, n) // predecessors not yet in order
	for from, to := range j.edges() {
		g.first[from]++
		waits[to]++
	}
	total := 0
	for v := range g.first {
		g.first[v], total = total, total+g.first[v]
	}
	g.next = make([]int32, total)
	for from, to := range j.edges() {
		g.next[g.first[from]] = to
		g.first[from]++
	}
	copy(g.first[1:], g.first[:n]) // filling moved every start to its end
	g.first[0] = 0

	for v := range n {
		if waits[v] == 0 {
			g.order = append(g.order, int32(v))
		}
	}
	for i := 0; i < len(g.order); i++ {
		for _, v := range g.successors(g.order[i]) {
			if waits[v]--; waits[v] == 0 {
				g.order = append(g.order, v)
			}
		}
	}
	return g
}

// Schedule executes one iteration without a plan and without stalls: every op
// starts as soon as its lane, its dependencies and the collectives before it
// allow, each for its Time; runtime ops take part like any other. It returns
// the start and end of each op in microseconds from the start of the
// iteration. The error is [Job.Validate]'s, on references and cycles.
func (j *Job) Schedule() (start, end []float64, err error) {
	g, err := j.runnable()
	if err != nil {
		return nil, nil, err
	}
	n := len(j.Ops)
	start = make([]float64, n+len(j.Collectives))
	end = make([]float64, len(start))
	for _, v := range g.order {
		if int(v) < n {
			end[v] = start[v] + j.Ops[v].Time
		} else {
			end[v] = start[v] + j.Collectives[int(v)-n].Time
		}
		for _, w := range g.successors(v) {
			start[w] = max(start[w], end[v])
		}
	}
	return start[:n:n], end[:n:n], nil
}

// Sequence lists the ops so that each follows what it waits for: the ops before
// it on its lane, its dependencies, and those that a collective before it waits
// for. The error is [Job.Validate]'s, on references and cycles.
func (j *Job) Sequence() ([]OpID, error) {
	g, err := j.runnable()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(g.order, func(v int32) bool { return int(v) >= len(j.Ops) }), nil
}

// cycle is the error that names one cycle of a graph whose order is incomplete.
func (j *Job) cycle(g *graph) error {
	const none, any = -1, -2
	// Every node outside the order has a predecessor outside it; walking from
	// one to the next must come back to a node already seen.
	pred := make([]int32, len(g.first)-1)
	for v := range pred {
		pred[v] = any
	}
	for _, v := range g.order {
		pred[v] = none
	}
	var at int32
	for from, to := range j.edges() {
		if pred[from] != none && pred[to] != none {
			pred[to], at = from, to // dependencies come after the lane's own edge, and win
		}
	}
	seen := make([]bool, len(pred))
	for ; !seen[at]; at = pred[at] {
		seen[at] = true
	}
	first := at
	for v := pred[at]; v != at; v = pred[v] {
		first = min(first, v)
	}
	path := []int32{first}
	for v := pred[first]; v != first; v = pred[v] {
		path = append(path, v)
	}
	path = append(path, first)
	slices.Reverse(path) // now every node precedes the next

	const shown = 12
	var b strings.Builder
	b.WriteString(j.node(first))
	steps := 0
	for i := 1; i < len(path); i++ {
		how := j.why(path[i-1], path[i])
		if how == "lane order" { // a run along one lane is one step of the message
			for i+1 < len(path) && j.why(path[i], path[i+1]) == how {
				i++
			}
		}
		if steps++; steps <= shown || i == len(path)-1 {
			fmt.Fprintf(&b, " -> (%s) %s", how, j.node(path[i]))
		} else if steps == shown+1 {
			b.WriteString(" -> ...")
		}
	}
	// A collective is never alone on a cycle, so the first node is an op.
	return faultf(fmt.Sprintf("ops[%d]", first), "cycle: %s", b.String())
}

// why names the edge between two nodes.
func (j *Job) why(from, to int32) string {
	n := int32(len(j.Ops))
	switch {
	case from >= n:
		return "before"
	case to >= n:
		return "after"
	case slices.Contains(j.Ops[to].Deps, from):
		return "dep"
	}
	return "lane order"
}

// node names an op or collective in messages.
func (j *Job) node(v int32) string {
	if c := int(v) - len(j.Ops); c >= 0 {
		return fmt.Sprintf("collective %d %q", c, fault.Short(j.Collectives[c].Name))
	}
	return fmt.Sprintf("op %d %q", v, fault.Short(j.Ops[v].Name))
}
