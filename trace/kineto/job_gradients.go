package kineto

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// passes is what the forward and backward passes of one step did to
// parameters.
type passes struct {
	runs  []run
	nodes []node
	// grads are the gradients handed over, in that order; those of one
	// micro-batch follow each other.
	grads []gradient
	// order lists the gradients of the last micro-batch by the forward use of
	// their parameter: what it says of a position is true of a tensor.
	order   []int32
	buckets []bucket
	copies  []int32         // events: copies out of buckets
	gradOf  map[int32]int32 // gradient by evaluation
	notes   []string
}

// run is the backward pass of one micro-batch.
type run struct {
	first, last int32 // evaluation events
	start, end  int64
}

// node is one backward node that autograd evaluated.
type node struct {
	eval  int32
	kind  string // ConvolutionBackward0
	micro int32
	fwd   int32 // outermost forward op that it belongs to; -1: not found
	// first is fwd, or if that was recomputed during the backward pass, the op
	// that it repeats; -1: not found.
	first int32
	seq   int32
	feeds int // gradients that it handed over
}

// gradient is one gradient handed over to its parameter.
type gradient struct {
	eval     int32
	handOver int32 // the part of eval before the library's hook
	micro    int32
	node     int32 // that fed it last
	also     int32 // another node that contributed, of a parameter used twice; -1: none
	shape    []int64
	tensor   int32 // position in forward-use order
	bucket   int32 // -1: none
}

// bucket is the gradients that one collective carried, in the order in which
// they were handed over.
type bucket struct {
	collective int32
	grads      []int32
}

// evals lists the evaluations of backward nodes in a step, by start.
func (v *view) evals(s *stepSpan) []int32 {
	var out []int32
	for i := range v.during(s.start, s.end) {
		if v.is(i, isEval) {
			out = append(out, i)
		}
	}
	v.byStart(out)
	return out
}

func (v *view) byStart(events []int32) {
	slices.SortStableFunc(events, func(a, b int32) int { return cmp.Compare(v.event(a).Start, v.event(b).Start) })
}

// forwardOp reports whether an event is an op of a forward pass. Kineto gives
// such ops a sequence number, or draws an arrow from an op within; of other
// writers' ops, those outside the backward pass count, see findRuns.
func (v *view) forwardOp(i int32) bool {
	e, o := v.event(i), v.outer[i]
	return e.Cat == CPUOp && o >= 0 && !v.is(o, isEval|isIssue|isCopyOut) &&
		v.under(o, isOptimizer) < 0 && (e.Seq >= 0 || !v.t.Kineto && o == i)
}

// someOps is how many ops between two backward nodes make, without sequence
// numbers, a forward pass. A node's own ops may lie beside it by rounding.
const someOps = 8

// findRuns splits the evaluations into backward passes: a forward op between
// two of them starts another. It returns the pass of each.
func (v *view) findRuns(s *stepSpan, evals []int32) (runs []run, micro []int32) {
	var fwd []int32
	for i := range v.during(s.start, s.end) {
		if v.forwardOp(i) {
			fwd = append(fwd, i)
		}
	}
	v.byStart(fwd)
	enough := 1
	if !v.t.Kineto {
		enough = someOps
	}
	n := 0
	for _, i := range evals {
		e, between := v.event(i), 0
		for ; n < len(fwd) && v.event(fwd[n]).Start < e.Start; n++ {
			between++
		}
		if len(runs) == 0 || between >= enough {
			runs = append(runs, run{first: i, start: e.Start})
		}
		r := &runs[len(runs)-1]
		if end := e.End(); end >= r.end {
			r.last, r.end = i, end
		}
		micro = append(micro, int32(len(runs)-1))
	}
	return runs, micro
}

// passesOf derives a step's passes.
func (v *view) passesOf(step int) *passes {
	s := &v.steps[step]
	evals := v.evals(s)
	runs, micro := v.findRuns(s, evals)
	p := &passes{runs: runs, gradOf: map[int32]int32{}}
	for k, i := range evals {
		if !v.is(i, isAccumulate) {
			p.nodes = append(p.nodes, node{eval: i, kind: strings.TrimPrefix(v.name(i), evalMark), micro: micro[k], fwd: -1, first: -1, seq: v.event(i).Seq})
			continue
		}
		g := gradient{eval: i, handOver: i, micro: micro[k], node: int32(len(p.nodes) - 1), also: -1, bucket: -1}
		if g.node >= 0 {
			p.nodes[g.node].feeds++
		}
		p.gradOf[i] = int32(len(p.grads))
		p.grads = append(p.grads, g)
	}
	v.findShapes(s, p)
	v.findForward(s, p)
	v.findRepeated(s, p)
	v.orderTensors(p)
	v.findBuckets(step, p)
	v.findTies(p)
	return p
}

// findShapes looks into the hand-overs, and for the copies out of buckets.
func (v *view) findShapes(s *stepSpan, p *passes) {
	for i := range v.during(s.start, s.end) {
		if v.is(i, isCopyOut) && v.outer[i] == i {
			p.copies = append(p.copies, i)
		}
		if !v.is(i, isHandOver) {
			continue
		}
		n, ok := p.gradOf[v.under(i, isAccumulate)]
		if !ok {
			continue
		}
		g := &p.grads[n]
		g.handOver = i
		if x := v.extra(i); len(x.Dims) > 0 && g.shape == nil {
			if g.shape = x.Dims[0]; g.shape == nil {
				g.shape = []int64{} // a scalar
			}
		}
	}
	v.byStart(p.copies)
}

// findForward finds the forward op of every node: the last outermost op with
// the node's sequence number, because an op that creates no node shows the
// number of the next. Without numbers, the nth-last node of a kind belongs to
// the nth op of that kind: autograd runs the newest node first.
func (v *view) findForward(s *stepSpan, p *passes) {
	type key struct {
		micro int32
		what  string
	}
	bySeq, again := map[int32]int32{}, map[int32]int32{}
	kinds := map[string]bool{}
	for n := range p.nodes {
		kinds[forwardName(p.nodes[n].kind)] = true
	}
	byKind := map[key][]int32{}
	micro := func(at int64) (m int32) { // whose backward pass comes next
		for int(m) < len(p.runs)-1 && at >= p.runs[m].start {
			m++
		}
		return m
	}
	for k := len(v.threads) - 1; k >= 0; k-- { // the first thread's numbers win: they count per thread
		for _, i := range v.within(v.threads[k], s.start, s.end) {
			e := v.event(i)
			if e.Cat != CPUOp || v.outer[i] < 0 || v.under(i, isOptimizer) >= 0 {
				continue
			}
			if v.is(v.outer[i], isEval) {
				if r := v.recomputed(i); r >= 0 {
					again[e.Seq] = r
				}
				continue
			}
			if e.Seq >= 0 {
				bySeq[e.Seq] = v.outer[i]
			} else if !v.t.Kineto && kinds[v.name(i)] && !v.inside(i, kinds) {
				id := key{micro(e.Start), v.name(i)}
				byKind[id] = append(byKind[id], v.outer[i])
			}
		}
	}
	seen := map[key]int{}
	for n := range p.nodes {
		x := &p.nodes[n]
		if x.seq >= 0 {
			numbers := bySeq
			if v.parent[x.eval] >= 0 && v.under(v.parent[x.eval], isEval) >= 0 {
				numbers = again // a backward pass within the backward pass
			}
			if f, ok := numbers[x.seq]; ok {
				x.fwd, x.first = f, f
			}
			continue
		}
		id := key{x.micro, forwardName(x.kind)}
		seen[id]++
		if ops := byKind[id]; seen[id] <= len(ops) {
			x.fwd = ops[len(ops)-seen[id]]
			x.first = x.fwd
		}
	}
}

// recomputed is the outermost op of a forward part that runs again within the
// backward pass (activation checkpointing) around an event, or the event
// itself; -1: none. Such ops have sequence numbers, other than the node's.
func (v *view) recomputed(i int32) (root int32) {
	root = -1
	if v.outer[i] < 0 || !v.is(v.outer[i], isEval) {
		return -1
	}
	eval := v.under(i, isEval)
	for ; i >= 0 && i != eval; i = v.parent[i] {
		if e := v.event(i); e.Cat == CPUOp && e.Seq >= 0 && e.Seq != v.event(eval).Seq {
			root = i
		}
	}
	return root
}

// findRepeated finds the first execution of recomputed forward ops, which ran
// without autograd and so without number: checkpointed parts are recomputed
// from the last to the first, each in its order.
func (v *view) findRepeated(s *stepSpan, p *passes) {
	key := func(i int32) string { return fmt.Sprint(v.name(i), v.extra(i).Dims) }
	type part struct {
		around int32 // the node that recomputes
		ops    []int32
	}
	var parts []part
	wanted := map[string][]int32{}
	seen := map[int32]bool{}
	var repeated []int32
	for n := range p.nodes {
		if f := p.nodes[n].fwd; f >= 0 && !seen[f] && v.is(v.outer[f], isEval) {
			seen[f] = true
			repeated = append(repeated, f)
			wanted[key(f)] = nil
		}
	}
	if len(repeated) == 0 {
		return
	}
	v.byStart(repeated)
	for _, f := range repeated {
		if n := len(parts); n == 0 || parts[n-1].around != v.outer[f] {
			parts = append(parts, part{around: v.outer[f]})
		}
		last := &parts[len(parts)-1]
		last.ops = append(last.ops, f)
	}
	for i := range v.during(s.start, s.end) {
		if e := v.event(i); e.Cat == CPUOp && v.outer[i] == i && e.Seq < 0 && !v.is(i, isEval) {
			if list, ok := wanted[key(i)]; ok {
				wanted[key(i)] = append(list, i)
			}
		}
	}
	first := map[int32]int32{}
	for _, part := range parts {
		for k := len(part.ops) - 1; k >= 0; k-- {
			id := key(part.ops[k])
			list := wanted[id]
			at := len(list) - 1
			for at >= 0 && v.event(list[at]).Start >= v.event(part.around).Start {
				at-- // of a later micro-batch
			}
			if at >= 0 {
				first[part.ops[k]] = list[at]
				list = slices.Delete(list, at, at+1)
			}
			wanted[id] = list
		}
	}
	missing := 0
	for n := range p.nodes {
		x := &p.nodes[n]
		if x.fwd < 0 || !seen[x.fwd] {
			continue
		}
		if f, ok := first[x.fwd]; ok {
			x.first = f
		} else {
			x.first = -1
			missing++
		}
	}
	if missing > 0 {
		p.notes = append(p.notes, fmt.Sprintf("of %d recomputed forward ops the first execution was not found: they count as read in the backward pass alone", missing))
	}
}

// inside reports whether an op lies in one of the names: below an op that
// creates a node, autograd records no other.
func (v *view) inside(i int32, names map[string]bool) bool {
	for i = v.parent[i]; i >= 0; i = v.parent[i] {
		if names[v.name(i)] {
			return true
		}
	}
	return false
}

// forwardName is the op that creates a backward node of a kind:
// NativeBatchNormBackward0 comes from aten::native_batch_norm.
func forwardName(kind string) string {
	kind, _, _ = strings.Cut(kind, "Backward")
	out := []byte("aten::")
	for i := 0; i < len(kind); i++ {
		c := kind[i]
		if 'A' <= c && c <= 'Z' {
			if i > 0 && !('A' <= kind[i-1] && kind[i-1] <= 'Z') && !('0' <= kind[i-1] && kind[i-1] <= '9') {
				out = append(out, '_')
			}
			c += 'a' - 'A'
		}
		out = append(out, c)
	}
	return string(out)
}

// orderTensors orders the gradients of each micro-batch by the forward use of
// their parameters and numbers the tensors so.
func (v *view) orderTensors(p *passes) {
	type key struct {
		at   int64 // start of the forward op
		seq  int32 // of the node
		size int64 // a weight before its bias, where one node feeds both
		n    int32
	}
	keys := make([]key, len(p.grads))
	for n := range p.grads {
		g := &p.grads[n]
		k := key{n: int32(n), at: v.event(g.eval).Start, size: volume(g.shape)}
		if g.node >= 0 {
			x := &p.nodes[g.node]
			if k.seq = x.seq; k.seq < 0 {
				k.seq = -g.node // a later node has an earlier number
			}
			if x.first >= 0 {
				k.at = v.event(x.first).Start
			}
		}
		keys[n] = k
	}
	for first := 0; first < len(keys); {
		last := first
		for last < len(keys) && p.grads[last].micro == p.grads[first].micro {
			last++
		}
		slices.SortStableFunc(keys[first:last], func(a, b key) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq), cmp.Compare(b.size, a.size), cmp.Compare(a.n, b.n))
		})
		p.order = p.order[:0]
		for pos, k := range keys[first:last] {
			p.grads[k.n].tensor = int32(pos)
			p.order = append(p.order, k.n)
		}
		first = last
	}
}

// findBuckets tells which gradients each collective carried: those handed over
// since the one before was issued.
func (v *view) findBuckets(step int, p *passes) {
	next := int32(0)
	from, to := v.collectivesOf(step)
	for c := from; c < to; c++ {
		x := &v.collectives[c]
		if !x.gradient {
			continue
		}
		b := bucket{collective: int32(c)}
		if last, ok := p.gradOf[v.under(x.issue, isAccumulate)]; ok {
			for ; next <= last; next++ {
				g := &p.grads[next]
				if g.micro == p.grads[last].micro {
					g.bucket = int32(len(p.buckets))
					b.grads = append(b.grads, next)
				}
			}
		}
		p.buckets = append(p.buckets, b)
	}
}

// matrixAt is which input of an op is a parameter that other ops may read too.
var matrixAt = map[string]int{"aten::linear": 1, "aten::embedding": 0}

// findTies finds parameters that two ops use: the gradient is handed over once,
// after the later node. The other node feeds no gradient although its forward
// op reads a matrix of the same shape.
func (v *view) findTies(p *passes) {
	for n := range p.nodes {
		x := &p.nodes[n]
		if x.feeds > 0 || x.fwd < 0 || x.kind != "TBackward0" && x.kind != "EmbeddingBackward0" {
			continue
		}
		at, ok := matrixAt[v.name(x.fwd)]
		if !ok {
			continue
		}
		var owners []int32
		dims := v.extra(x.fwd).Dims
		known := at < len(dims) && dims[at] != nil
		for k := range p.grads {
			g := &p.grads[k]
			if known && g.micro == x.micro && g.also < 0 && slices.Equal(g.shape, dims[at]) && g.node >= 0 && p.nodes[g.node].eval >= x.eval {
				owners = append(owners, int32(k))
			}
		}
		switch {
		case len(owners) == 1:
			p.grads[owners[0]].also = int32(n)
		case len(owners) > 1 || !known:
			p.notes = append(p.notes, v.name(x.fwd)+" may read a parameter that another op reads too, and no shape tells which: such a reader is missing")
		}
	}
}
