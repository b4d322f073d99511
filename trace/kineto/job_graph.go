package kineto

import (
	"cmp"
	"slices"
	"strings"

	"weft/job"
)

// graph is one recorded step as ops on lanes, before tensors are named and
// steps are merged. Its structure depends on the order of events alone, so that
// steps which did the same have equal structures.
type graph struct {
	*passes
	step        int // position in view.steps
	ops         []gop
	collectives []gcollective // of the step, in order
	handOver    []int32       // op by gradient
	spans       []opSpan
	spanOf      map[int32]int32 // by the event that opens it
	barrier     []int32
	waits       []wait
	sampling    int // syncs of the library's own timers, dropped
}

// gop is an op of a graph.
type gop struct {
	job.Op           // Tensor: -1 or the copied gradient's tensor; Deps as in the job
	from       int32 // event: the outermost op that it is part of; -1: none
	event      int32 // of a device op, its event; -1
	start, end int64 // as recorded; of a host op, after its wait
	optimizer  bool  // part of the optimizer's step
}

// gcollective is a collective of the step. One that carries gradients is an op
// on a transfer lane as well.
type gcollective struct {
	id            int32 // position in view.collectives
	op            int32 // -1: it carries no gradient, or its transfer was not recorded
	start, end    int64 // from when its transfer could start to when it was done
	after, before []int32
}

// opSpan collects the ops that come from a range of events.
type opSpan struct {
	ops         []int32 // that compute
	first, next int32   // op: the first from its start on, the first after its end; -1: not reached
}

// span is the span that an event opens, nil if there is none.
func (g *graph) span(open int32) *opSpan {
	if n, ok := g.spanOf[open]; ok {
		return &g.spans[n]
	}
	return nil
}

// find is the position in the graph of a collective of the trace; -1: it is of
// another step.
func (g *graph) find(id int32) int32 {
	if n, ok := slices.BinarySearchFunc(g.collectives, id, func(c gcollective, id int32) int { return cmp.Compare(c.id, id) }); ok {
		return int32(n)
	}
	return -1
}

// wait is a host thread waiting for a collective.
type wait struct {
	collective int32 // position in graph.collectives
	from, to   int64
}

// mark is the start or end of an event on a host thread.
type mark struct {
	at     int64
	event  int32
	thread int32
	open   bool
}

// marksOf lists the starts and ends of a step's host events in the order of
// time. Host threads of one process hand control to each other: while the
// backward pass runs on autograd's thread, the caller waits.
func (v *view) marksOf(s *stepSpan) []mark {
	lists := make([][]mark, len(v.threads))
	total := 0
	for k := range v.threads {
		var open []int32
		add := func(i int32, opening bool) {
			at := v.event(i).Start
			if !opening {
				at = min(v.event(i).End(), s.end)
			}
			if n := len(lists[k]); n > 0 {
				at = max(at, lists[k][n-1].at)
			}
			lists[k] = append(lists[k], mark{at: at, event: i, thread: int32(k), open: opening})
		}
		for _, i := range v.within(v.threads[k], s.start, s.end) {
			for len(open) > 0 && open[len(open)-1] != v.parent[i] {
				add(open[len(open)-1], false)
				open = open[:len(open)-1]
			}
			add(i, true)
			open = append(open, i)
		}
		for len(open) > 0 {
			add(open[len(open)-1], false)
			open = open[:len(open)-1]
		}
		total += len(lists[k])
	}
	if len(lists) == 1 {
		return lists[0]
	}
	out := make([]mark, 0, total)
	current := 0
	for range total {
		for k := range lists {
			if len(lists[k]) > 0 && (len(lists[current]) == 0 || lists[k][0].at < lists[current][0].at) {
				current = k
			}
		}
		out = append(out, lists[current][0])
		lists[current] = lists[current][1:]
	}
	return out
}

// builder walks through a step's marks and cuts host time into ops.
//
// What an op waits for is a list of references: an op's position, or of a
// collective of the graph the complement of its position.
type builder struct {
	*graph
	v *view

	// Where host time stands: all before prev is in ops; carried time belongs to
	// the next op; content tells whether an op ran since prev, for gaps between
	// ops are part of the op that follows.
	thread  int32
	prev    int64
	carried int64
	content bool
	last    int64 // time of the mark before
	best    int32 // outermost op with the most time since prev
	bestFor int64

	phase job.Phase
	micro int32
	role  job.Role
	grad  int32 // in hand between its evaluation's start and end; -1
	issue int32 // event: the issue of a collective in hand; -1
	ended int   // backward passes

	host     int32              // last host op
	pendHost []int32            // for the next host op
	pendNext []int32            // for the next device op, on whichever stream
	pend     [][]int32          // for the next op of a device lane
	lastOn   []int32            // last reference by row of the trace; -1
	stream   []int32            // current row by thread; -1
	records  map[uint32][]int32 // lastOn by correlation of a recorded event
	free     []int64            // end of the last transfer by row
	queue    []int32            // collectives that nobody has waited for
	waited   int32              // number of ops when the last gradient collective was waited for

	closes    map[int32][]int32 // spans by the event that closes them
	hostWaits map[int32][]int32 // collectives that the host waits for before an event
	copyOf    map[int32]int32   // gradient by copy out of a bucket
	lastCopy  int32             // event; -1
}

// graphOf derives one step.
func (v *view) graphOf(step int) *graph {
	s := &v.steps[step]
	p := v.passesOf(step)
	g := &graph{passes: p, step: step, handOver: slices.Repeat([]int32{-1}, len(p.grads)), spanOf: map[int32]int32{}}
	b := &builder{
		graph: g, v: v,
		prev: s.start, last: s.start, best: -1, grad: -1, issue: -1, host: -1, waited: -1, lastCopy: -1,
		pend:    make([][]int32, len(v.lanes)),
		lastOn:  slices.Repeat([]int32{-1}, len(v.t.Rows)),
		stream:  slices.Repeat([]int32{-1}, len(v.threads)),
		free:    slices.Repeat([]int64{s.start}, len(v.t.Rows)),
		records: map[uint32][]int32{},
	}
	from, to := v.collectivesOf(step)
	for c := from; c < to; c++ {
		x := gcollective{id: int32(c), op: -1}
		if e := v.collectives[c].transfer; e >= 0 {
			x.start, x.end = v.event(e).Start, v.event(e).End()
		}
		g.collectives = append(g.collectives, x)
	}
	b.planCopies()
	b.planWaits(s)
	b.planSpans(s)

	for _, m := range v.marksOf(s) {
		if m.thread != b.thread {
			b.hand(m)
		}
		if m.open {
			b.open(m.event, m.at)
		} else {
			b.close(m.event, m.at)
		}
		b.last = m.at
	}
	b.cut(s.end)
	b.findBarrier()
	return g
}

// planCopies says which gradient each copy out of a bucket is of: they come
// bucket by bucket, in the order in which the gradients were handed over.
func (b *builder) planCopies() {
	var grads []int32
	for _, k := range b.buckets {
		grads = append(grads, k.grads...)
	}
	b.copyOf = map[int32]int32{}
	for k, i := range b.copies {
		b.lastCopy = i
		b.copyOf[i] = -1
		if len(grads) == len(b.copies) {
			b.copyOf[i] = grads[k]
		}
	}
}

// planWaits says before which event the host waits for each transfer that runs
// on a thread. DDP waits for a bucket when backward and the copies out of the
// bucket before are done, and for broadcast buffers before it takes them apart.
// Of anything else, an idle time of the host in which the transfer ends tells.
func (b *builder) planWaits(s *stepSpan) {
	v, p := b.v, b.passes
	b.hostWaits = map[int32][]int32{}
	events := v.within(v.threads[0], s.start, s.end)
	after := func(at int64, c class) int32 {
		for _, i := range events[v.from(events, at):] {
			if c == 0 || v.is(i, c) {
				return i
			}
		}
		return -1
	}
	copied, bucket, apart := 0, 0, s.start
	for n := range b.collectives {
		c := &v.collectives[b.collectives[n].id]
		before := copied
		if c.gradient {
			copied += len(p.buckets[bucket].grads)
			bucket++
		}
		if c.transfer < 0 || v.event(c.transfer).Cat.Device() {
			continue
		}
		at := int32(-1)
		if c.gradient && len(p.runs) > 0 {
			from := p.runs[len(p.runs)-1].end
			if 0 < before && before <= len(p.copies) {
				from = v.event(p.copies[before-1]).End()
			}
			at = after(from, 0)
		} else if at = after(max(v.event(c.issue).End(), apart), isUnflatten); at >= 0 {
			apart = v.event(at).Start + 1
		} else if end := v.event(c.transfer).End(); v.idle(events, end) {
			at = after(end, 0)
		}
		if at >= 0 {
			// Its thread may note the end later than the host goes on.
			x := &b.collectives[n]
			x.end = max(x.start, min(x.end, v.event(at).Start))
			b.hostWaits[at] = append(b.hostWaits[at], int32(n))
		}
	}
}

// idle reports whether no op runs at a time.
func (v *view) idle(events []int32, at int64) bool {
	for _, i := range slices.Backward(events[:v.from(events, at+1)]) {
		if o := v.outer[i]; o >= 0 {
			return v.event(o).End() <= at
		}
	}
	return true
}

// planSpans says which events' ops are wanted later: forward ops that read
// parameters, backward nodes, and the optimizer's ops on single tensors.
func (b *builder) planSpans(s *stepSpan) {
	b.closes = map[int32][]int32{}
	add := func(open, close int32) {
		if open < 0 || b.span(open) != nil {
			return
		}
		n := int32(len(b.spans))
		b.spans = append(b.spans, opSpan{first: -1, next: -1})
		b.spanOf[open] = n
		b.closes[close] = append(b.closes[close], n)
	}
	reads := map[int32]bool{}
	for n := range b.grads {
		g := &b.grads[n]
		if b.v.streams { // on the host the hand-over is an op of its own
			add(g.handOver, g.handOver)
		}
		for _, k := range [2]int32{g.node, g.also} {
			if k >= 0 {
				x := &b.nodes[k]
				reads[x.fwd] = true
				add(x.fwd, x.fwd)
				add(x.first, x.first)
				add(x.eval, x.eval)
			}
		}
	}
	for n := range b.nodes {
		if x := &b.nodes[n]; x.fwd >= 0 && reads[x.fwd] {
			add(x.eval, x.eval)
		}
	}
	for _, g := range b.v.updateGroups(s, len(b.order)) {
		add(g.first, g.last)
	}
}

// updateGroup is the optimizer's ops on one parameter.
type updateGroup struct {
	first, last int32
	elements    int64 // 0: unknown
}

// updateGroups finds the optimizer's ops parameter by parameter, in the
// optimizer's order; nil if it updates several at once.
func (v *view) updateGroups(s *stepSpan, tensors int) (groups []updateGroup) {
	var ops []int32
	for i := range v.during(s.start, s.end) {
		if v.outer[i] != i || v.under(i, isOptimizer) < 0 {
			continue
		}
		name := v.name(i)
		if strings.Contains(name, "_foreach_") || strings.Contains(name, "_fused_") {
			return nil
		}
		if strings.HasSuffix(name, "_") && !slices.Contains([]string{"aten::copy_", "aten::zero_", "aten::fill_"}, name) {
			ops = append(ops, i)
		}
	}
	if tensors == 0 || len(ops) == 0 || len(ops)%tensors != 0 {
		return nil
	}
	each := len(ops) / tensors
	for k := 0; k < len(ops); k += each {
		g := updateGroup{first: ops[k], last: ops[k+each-1]}
		for _, i := range ops[k : k+each] {
			for _, shape := range v.extra(i).Dims {
				if shape != nil {
					g.elements = max(g.elements, volume(shape))
				}
			}
		}
		groups = append(groups, g)
	}
	return groups
}

// hand passes control to the thread of a mark. The time before the called
// thread's first event is the caller's, that after its last one as well.
func (b *builder) hand(m mark) {
	at := m.at
	if m.thread == 0 {
		at = b.last
	}
	if b.content || b.prev < at {
		b.cut(at)
	}
	b.thread = m.thread
}

// soft ends the op in hand if it has content; a gap alone goes to the next.
func (b *builder) soft(at int64) {
	if b.content {
		b.cut(at)
	}
}

// cut ends the op in hand and returns it.
func (b *builder) cut(at int64) int32 {
	n := int32(len(b.ops))
	o := gop{from: b.best, event: -1, start: b.prev, end: at, optimizer: b.phase == job.Update && b.inOptimizer()}
	o.Lane = b.thread
	o.Time = float64(at - b.prev + b.carried)
	b.label(&o)
	if b.host >= 0 && b.ops[b.host].Lane != o.Lane {
		b.need(n, &o, []int32{b.host})
	}
	b.need(n, &o, b.pendHost)
	b.ops = append(b.ops, o)
	b.pendHost = b.pendHost[:0]
	b.host, b.prev, b.carried, b.content, b.best, b.bestFor = n, at, 0, false, -1, 0
	return n
}

func (b *builder) inOptimizer() bool { return b.best >= 0 && b.v.under(b.best, isOptimizer) >= 0 }

// label gives an op the phase and role that hold.
func (b *builder) label(o *gop) {
	o.Phase, o.Micro, o.Tensor = b.phase, b.micro, -1
	if b.role == job.NoRole {
		return
	}
	o.Phase, o.Role = job.Runtime, b.role
	if b.role == job.CopyIn || b.role == job.CopyOut {
		o.Tensor = b.grads[b.grad].tensor
	}
}

// need makes op n wait for references.
func (b *builder) need(n int32, o *gop, refs []int32) {
	for _, r := range refs {
		if r < 0 {
			c := &b.collectives[^r]
			if c.op < 0 {
				if !slices.Contains(c.before, n) {
					c.before = append(c.before, n)
				}
				continue
			}
			r = c.op
		}
		if !slices.Contains(o.Deps, r) {
			o.Deps = append(o.Deps, r)
		}
	}
}

func (b *builder) open(i int32, at int64) {
	v := b.v
	e := v.event(i)
	if colls := b.hostWaits[i]; colls != nil {
		b.awaitTransfers(colls, at)
	}
	span := b.span(i)
	n, isGrad := b.gradOf[i]
	switch {
	case b.ended < len(b.runs) && b.runs[b.ended].first == i:
		b.soft(at)
		b.phase, b.micro = job.Backward, int32(b.ended)
	case v.is(i, isOptimizer):
		b.soft(at)
		b.phase = job.Update
	case isGrad || span != nil && !v.streams:
		b.soft(at)
	case v.is(i, isSync) && e.Cat == Runtime:
		if b.sampled(i) {
			return
		}
		b.soft(at)
	}
	if v.recomputed(i) == i {
		if b.best < 0 {
			b.best = v.outer[i] // which has not closed yet
		}
		b.soft(at)
		b.phase = job.Forward
	}
	if n, ok := b.copyOf[i]; ok && n >= 0 {
		b.grad, b.role = n, job.CopyOut
	}
	if isGrad {
		b.grad = n
	}
	if c, ok := v.issued[i]; ok {
		b.soft(at)
		b.issue = i
		if v.collectives[c].gradient {
			b.role = job.Library
		}
	}
	if span != nil {
		span.first = int32(len(b.ops))
	}
	if e.Cat == CPUOp || e.Cat == Runtime {
		b.content = true
	}
}

func (b *builder) close(i int32, at int64) {
	v := b.v
	e := v.event(i)
	if v.outer[i] >= 0 && (v.outer[i] == i || e.Cat == Runtime) {
		if spent := at - max(v.event(v.outer[i]).Start, b.prev); spent > b.bestFor || b.best < 0 {
			b.best, b.bestFor = v.outer[i], spent
		}
	}
	if e.Cat == Runtime {
		b.call(i, at)
	}
	b.closeGradient(i, at)
	if b.issue == i {
		b.issued(i, at)
	}
	if _, ok := b.copyOf[i]; ok {
		b.best = i
		if i == b.lastCopy {
			b.cut(at)
			b.grad, b.role = -1, job.NoRole
		} else {
			b.soft(at)
			b.grad, b.role = -1, job.Library
		}
	}
	if spans := b.closes[i]; spans != nil {
		if !v.streams {
			b.best = i
			b.cut(at)
		}
		for _, s := range spans {
			b.collect(&b.spans[s])
		}
	}
	if v.recomputed(i) == i {
		b.best = i
		b.soft(at)
		b.phase = job.Backward
	}
	if b.ended < len(b.runs) && b.runs[b.ended].last == i {
		b.soft(at)
		b.ended++
		b.phase, b.micro = b.between()
		if b.lastCopy >= 0 && b.ended == len(b.runs) {
			b.role = job.Library
		}
	}
	if v.is(i, isOptimizer) {
		b.soft(at)
		b.phase, b.micro = b.between()
	}
}

// closeGradient ends the hand-over of the gradient in hand, after which the
// library's hook runs, or the whole evaluation.
func (b *builder) closeGradient(i int32, at int64) {
	if b.v.is(i, isHandOver) && b.grad >= 0 && b.grads[b.grad].handOver == i {
		b.best = b.v.outer[i]
		b.handOver[b.grad] = b.handedOver(at)
		b.role = job.Library
		if b.grads[b.grad].bucket >= 0 && len(b.copies) > 0 {
			b.role = job.CopyIn
		}
	}
	n, ok := b.gradOf[i]
	if !ok {
		return
	}
	if b.grads[n].handOver == i {
		b.handOver[n] = b.handedOver(at) // an evaluation of which no part was recorded
	} else {
		b.soft(at)
	}
	b.grad, b.role = -1, job.NoRole
}

// handedOver ends the op that hands a gradient over; it is backward whatever is
// around it.
func (b *builder) handedOver(at int64) int32 {
	phase := b.phase
	b.phase, b.role = job.Backward, job.NoRole
	n := b.cut(at)
	b.phase = phase
	return n
}

// between is the phase outside backward passes and optimizer.
func (b *builder) between() (job.Phase, int32) {
	if b.ended > 0 && b.ended == len(b.runs) {
		return job.Update, int32(b.ended - 1)
	}
	return job.Forward, int32(b.ended)
}

// collect keeps the ops of a span that ends.
func (b *builder) collect(s *opSpan) {
	if s.first < 0 {
		return
	}
	for n := s.first; int(n) < len(b.ops); n++ {
		if o := &b.ops[n]; b.v.computes[o.Lane] && o.Phase != job.Runtime {
			s.ops = append(s.ops, n)
		}
	}
	s.next = int32(len(b.ops))
}

// awaitTransfers makes the host wait, from the mark before to the end of the
// transfers, or to at if they end later.
func (b *builder) awaitTransfers(colls []int32, at int64) {
	b.soft(b.last)
	if b.host >= 0 && b.ops[b.host].Lane == b.thread {
		b.ops[b.host].Time += float64(b.last - b.prev) // what follows comes after the wait
		b.prev = b.last
	}
	from := b.last
	for _, n := range colls {
		c := &b.v.collectives[b.collectives[n].id]
		to := min(max(b.collectives[n].end, from), at)
		b.waits = append(b.waits, wait{collective: n, from: from, to: to})
		from = to
		b.pendHost = append(b.pendHost, ^n)
		if c.gradient {
			b.waited = int32(len(b.ops))
		}
	}
	b.skip(b.last, from)
}

// skip takes the time from..to out of the op in hand: the host waits.
func (b *builder) skip(from, to int64) {
	b.carried += from - b.prev
	b.prev = to
}

// issued ends the host part of a collective. Transfers on threads start within
// it, or at its end if their thread was busy; those on streams have started with
// their launch.
func (b *builder) issued(i int32, at int64) {
	gradient := b.role == job.Library
	for n := range b.collectives {
		c := &b.v.collectives[b.collectives[n].id]
		if c.issue == i && c.transfer >= 0 && !b.v.event(c.transfer).Cat.Device() {
			b.best = i
			from := min(max(b.v.event(c.transfer).Start, b.prev), at)
			h := b.cut(from)
			b.start(int32(n), []int32{h}, from)
		}
	}
	b.best = i
	b.cut(at)
	b.issue = -1
	if !gradient {
		b.role = job.NoRole
	}
}

// start begins a collective after references. It takes from then on, or from
// the end of the one before on its thread or stream: that a thread wakes up
// late is part of the transfer.
func (b *builder) start(n int32, after []int32, from int64) {
	c := &b.collectives[n]
	x := &b.v.collectives[c.id]
	e := b.v.event(x.transfer)
	c.start = min(max(from, b.free[e.Row]), e.Start)
	b.free[e.Row] = e.End()
	b.queue = append(b.queue, n)
	if !x.gradient {
		for _, r := range after {
			if r >= 0 {
				c.after = append(c.after, r)
			}
		}
		return
	}
	o := gop{from: x.transfer, event: -1, start: c.start, end: c.end}
	o.Op = job.Op{
		Lane: b.v.commLane[e.Row], Phase: job.Runtime, Role: job.GradCollective,
		Micro: b.micro, Tensor: -1, Time: float64(c.end - c.start),
	}
	c.op = int32(len(b.ops))
	b.need(c.op, &o, after)
	b.ops = append(b.ops, o)
}

// call takes a call into the device's runtime library.
func (b *builder) call(i int32, at int64) {
	v := b.v
	switch {
	case v.is(i, isSync):
		b.sync(i, at)
	case v.is(i, isEventRecord):
		if len(v.syncs) > 0 {
			b.records[v.event(i).Corr] = slices.Clone(b.lastOn)
		}
	case v.is(i, isStreamWait):
		b.streamWait(i)
	default:
		if launched := v.launched(i); len(launched) > 0 {
			b.launch(i, at, launched)
		}
	}
}

// launch ends a host op with the launch of device work. A copy to the host
// that ends within its call blocked the host.
func (b *builder) launch(i int32, at int64, launched []int32) {
	v := b.v
	start := v.event(i).Start
	blocking := int64(-1)
	for _, d := range launched {
		if e := v.event(d); e.Cat == Memcpy && e.End() <= at && strings.Contains(v.name(d), "DtoH") {
			blocking = max(blocking, e.End())
		}
	}
	if blocking >= 0 {
		at = max(start, b.prev)
	}
	if b.issue >= 0 {
		b.best = b.issue
	} else if v.outer[i] >= 0 {
		b.best = v.outer[i]
	}
	h := b.cut(at)
	for _, d := range launched {
		if id, ok := v.transfer[d]; ok {
			if n := b.find(id); n >= 0 {
				b.startOnStream(n, h)
				continue
			}
		}
		if v.lane[v.event(d).Row] < 0 { // a collective that another launch has claimed
			continue
		}
		n := b.enqueue(d, i, h)
		if blocking >= 0 {
			b.pendHost = append(b.pendHost, n)
		}
	}
	if blocking >= 0 {
		b.skip(at, min(max(blocking, at), v.event(i).End()))
	}
}

// startOnStream begins a collective launched by host op h: after what is on the
// stream that the thread works on.
func (b *builder) startOnStream(n, h int32) {
	e := b.v.event(b.v.collectives[b.collectives[n].id].transfer)
	refs := []int32{h}
	if s := b.current(); s >= 0 && b.lastOn[s] >= 0 {
		refs = append(refs, b.lastOn[s])
	}
	b.start(n, refs, e.Start)
	b.lastOn[e.Row] = ^n
}

// enqueue adds the op of device event d, launched by call i at the end of host
// op h.
func (b *builder) enqueue(d, i, h int32) int32 {
	v := b.v
	e := v.event(d)
	lane := v.lane[e.Row]
	o := gop{from: v.outer[i], event: d, start: e.Start, end: e.End(), optimizer: v.under(i, isOptimizer) >= 0}
	o.Lane, o.Time = lane, float64(e.Dur)
	b.label(&o)
	n := int32(len(b.ops))
	b.need(n, &o, []int32{h})
	b.need(n, &o, b.pend[lane])
	b.pend[lane] = b.pend[lane][:0]
	b.need(n, &o, slices.DeleteFunc(b.pendNext, func(r int32) bool { return r >= 0 && b.ops[r].Lane == lane }))
	b.pendNext = b.pendNext[:0]
	if last := b.lastOn[e.Row]; last < -1 { // a collective on the same stream
		b.need(n, &o, []int32{last})
	}
	b.ops = append(b.ops, o)
	b.lastOn[e.Row] = n
	b.stream[b.thread] = int32(e.Row)
	return n
}

// current is the stream that the thread in hand works on, or else any other
// thread's; -1: none yet.
func (b *builder) current() int32 {
	s := b.stream[b.thread]
	for _, other := range b.stream {
		if s < 0 {
			s = other
		}
	}
	return s
}

// streamWait makes a stream wait. Traces with synchronisation events name both
// streams. In others a wait inside the issue of a collective is the
// collective's for the current stream (see launch). Of any other, the waiting
// stream is taken to be the one that gets the next op, for which the program
// waits; it waits for the first collective that nobody has waited for, or if
// there is none for the other computing streams.
func (b *builder) streamWait(i int32) {
	v := b.v
	if b.issue >= 0 {
		return
	}
	if recorded := v.byCorr(v.syncs, v.event(i).Corr); len(recorded) > 0 {
		for _, s := range recorded {
			at, lane := b.records[v.extra(s).Waits], v.lane[v.event(s).Row]
			if at == nil || lane < 0 {
				continue
			}
			for row, ref := range at {
				if v.streamOf(row) == v.extra(s).Stream && ref != -1 {
					b.pend[lane] = append(b.pend[lane], ref)
					b.waitedFor(ref)
				}
			}
		}
		return
	}
	if n := b.outstanding(); n >= 0 {
		b.pendNext = append(b.pendNext, ^n)
		b.waitedFor(^n)
		return
	}
	for row, ref := range b.lastOn {
		if ref >= 0 && v.lane[row] >= 0 {
			b.pendNext = append(b.pendNext, ref)
		}
	}
}

// outstanding is the first collective that nobody has waited for; -1: none. DDP
// waits for gradients when the backward pass is done, and for others at once.
func (b *builder) outstanding() int32 {
	for _, n := range b.queue {
		if !b.v.collectives[b.collectives[n].id].gradient {
			return n
		}
	}
	if len(b.queue) > 0 && b.ended == len(b.runs) {
		return b.queue[0]
	}
	return -1
}

// waitedFor notes that a collective has been waited for.
func (b *builder) waitedFor(ref int32) {
	if ref >= 0 {
		return
	}
	if k := slices.Index(b.queue, ^ref); k >= 0 {
		b.queue = slices.Delete(b.queue, k, k+1)
	}
	if b.v.collectives[b.collectives[^ref].id].gradient {
		b.waited = int32(len(b.ops))
	}
}

// streamOf is the number of a row's stream; -2 if it has none.
func (v *view) streamOf(row int) int64 {
	var n int64
	for _, c := range v.t.Rows[row].Tid {
		if c < '0' || c > '9' || n > 1<<40 {
			return -2
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

// sync makes the host wait for the device. The library's own timers are
// sampled now and then, by pairs of syncs and a reading: they are dropped.
func (b *builder) sync(i int32, at int64) {
	v := b.v
	start := max(v.event(i).Start, b.prev)
	if b.sampled(i) {
		b.sampling++
		b.skip(start, at)
		return
	}
	end := start
	everything := strings.Contains(v.name(i), "Device")
	current := b.current()
	for row, ref := range b.lastOn {
		if ref == -1 || !everything && int32(row) != current {
			continue
		}
		e := int64(0)
		if ref < 0 {
			e = b.collectives[^ref].end
		} else {
			for ref > 0 && (b.ops[ref].Lane != v.lane[row] || b.ops[ref].end > at) {
				ref--
			}
			if b.ops[ref].Lane != v.lane[row] {
				continue
			}
			e = b.ops[ref].end
		}
		end = max(end, e)
		b.pendHost = append(b.pendHost, ref)
	}
	b.skip(start, min(end, at))
}

// sampled reports whether a sync belongs to DDP's own timers.
func (b *builder) sampled(i int32) bool {
	v := b.v
	if !strings.Contains(v.name(i), "EventSynchronize") || v.under(i, isModule) < 0 {
		return false
	}
	events := v.threads[b.thread]
	events = events[v.from(events, v.event(i).Start):]
	return slices.ContainsFunc(events[:min(len(events), 4)], func(i int32) bool { return v.is(i, isElapsedTime) })
}

// findBarrier finds the ops at which the library waited: of each compute lane
// the first op but the library's after the wait for the last gradients.
func (b *builder) findBarrier() {
	if b.waited < 0 {
		return
	}
	seen := make([]bool, len(b.v.lanes))
	for n := int(b.waited); n < len(b.ops); n++ {
		if o := &b.ops[n]; b.v.computes[o.Lane] && o.Phase != job.Runtime && !seen[o.Lane] {
			seen[o.Lane] = true
			b.barrier = append(b.barrier, int32(n))
		}
	}
}
