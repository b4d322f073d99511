package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weft/cluster"
	"weft/job"
)

// oracle executes a plan op by op, transfer by transfer, over several periods,
// in any order that lanes, deps, programs, gates and windows allow (pick
// chooses), and watches what the plan rules promise. It shares no code with the
// checker: it holds values, where the checker argues.
type oracle struct {
	j       *job.Job
	p       *Plan
	periods int
	pick    func(n int) int

	lanes   [][]job.OpID
	next    []int           // by lane: events begun, over all iterations
	done    map[event]bool  // ops
	links   []linkState     // by program
	written map[part]int    // contributions to the gradient of a generation
	taken   map[part]int    // of them, in the transfer that reduces it
	back    map[part]bool   // reduced and on every worker
	scatter map[part]bool   // reduced, not yet back
	applied map[applied]int // updates done
	version []int           // by tensor: generations applied
	seen    map[event]int   // by tensor (op) and iteration: version read
	using   []map[int]bool  // by tensor: generations whose buffer is in use
	faults  map[int]string  // by rule: the first
}

type (
	event   struct{ iteration, op int }
	part    struct{ generation, tensor, element int }
	applied struct{ generation, tensor int }
)

type linkState struct {
	sent     int
	inFlight []int
	done     map[int]bool
}

func execute(j *job.Job, p *Plan, periods int, pick func(n int) int) map[int]string {
	o := &oracle{
		j: j, p: p, periods: periods, pick: pick,
		lanes: make([][]job.OpID, len(j.Lanes)), next: make([]int, len(j.Lanes)), done: map[event]bool{},
		links: make([]linkState, len(p.Programs)), written: map[part]int{}, taken: map[part]int{}, back: map[part]bool{},
		scatter: map[part]bool{}, applied: map[applied]int{}, version: make([]int, len(j.Tensors)), seen: map[event]int{},
		using: make([]map[int]bool, len(j.Tensors)), faults: map[int]string{},
	}
	for i := range j.Ops {
		o.lanes[j.Ops[i].Lane] = append(o.lanes[j.Ops[i].Lane], job.OpID(i))
	}
	for l := range o.links {
		o.links[l].done = map[int]bool{}
	}
	for k := range o.using {
		o.using[k] = map[int]bool{}
	}
	for o.step() {
	}
	o.judge()
	return o.faults
}

func (o *oracle) fault(rule int, format string, args ...any) {
	if _, ok := o.faults[rule]; !ok {
		o.faults[rule] = fmt.Sprintf(format, args...)
	}
}

// step does one of the things that can happen; false if none can.
func (o *oracle) step() bool {
	var can []func()
	for l, ops := range o.lanes {
		if len(ops) == 0 || o.next[l] >= len(ops)*o.periods*o.p.Period {
			continue
		}
		i, op := o.next[l]/len(ops), ops[o.next[l]%len(ops)]
		if o.mayRun(i, op) {
			can = append(can, func() { o.run(i, op); o.next[l]++ })
		}
	}
	for l := range o.links {
		s, x := &o.links[l], &o.p.Programs[l]
		if s.sent < len(x.Transfers)*o.periods && o.mayDispatch(l, s.sent) {
			can = append(can, func() { o.dispatch(l) })
		}
		for k := range s.inFlight {
			can = append(can, func() { o.complete(l, k) })
		}
	}
	if len(can) == 0 {
		return false
	}
	can[o.pick(len(can))]()
	return true
}

// opDone: what lies before the run has happened, what lies behind never does.
func (o *oracle) opDone(i int, op job.OpID) bool { return i < 0 || o.done[event{i, int(op)}] }

// floor is division that rounds down.
func floor(a, b int) int {
	for n := -a; ; n++ {
		if (n+1)*b > a && n*b <= a {
			return n
		}
		if n > a+1 && n > 1 {
			panic("floor")
		}
	}
}

// generation is the one that instance at of a program carries, counted from
// the start of the run.
func (o *oracle) generation(l, at int) int {
	n := len(o.p.Programs[l].Transfers)
	return at/n*len(o.p.Generations) + o.p.Programs[l].Transfers[at%n].Generation
}

// window of iterations of a generation of the run, which may be negative.
func (o *oracle) window(g int) (first, last int) {
	n := floor(g, len(o.p.Generations))
	x := o.p.Generations[g-n*len(o.p.Generations)]
	return n*o.p.Period + x.First, n*o.p.Period + x.First + x.Length - 1
}

// instances yields the transfers of a generation that bring tensor k back; -1: any tensor.
func (o *oracle) ready(g, k int) bool {
	if g < 0 {
		return true
	}
	for l := range o.p.Programs {
		// One more period than is run: those never complete.
		for at := range len(o.p.Programs[l].Transfers) * (o.periods + 8) {
			t := o.p.Programs[l].Transfers[at%len(o.p.Programs[l].Transfers)]
			if t.Bucket < 0 || o.generation(l, at) != g || t.Kind == cluster.ReduceScatter || t.Kind == cluster.Push {
				continue
			}
			has := k < 0
			for _, s := range o.p.Buckets[t.Bucket].Slices {
				has = has || int(s.Tensor) == k
			}
			if has && !o.links[l].done[at] {
				return false
			}
		}
	}
	return true
}

func (o *oracle) barrier() []job.OpID {
	if len(o.j.Barrier) > 0 {
		return o.j.Barrier
	}
	var out []job.OpID
	for _, ops := range o.lanes {
		for _, op := range ops {
			if o.j.Ops[op].Phase == job.Update {
				out = append(out, op)
				break
			}
		}
	}
	return out
}

// due yields the updates at a point of an iteration: update and generation of the run.
func (o *oracle) due(at Point, iteration int, yield func(u *Update, g int)) {
	for n := -8; n < o.periods+8; n++ {
		for i := range o.p.Updates {
			u := &o.p.Updates[i]
			if u.At == at && u.Iteration+n*o.p.Period == iteration && n >= 0 {
				yield(u, n*len(o.p.Generations)+u.Generation)
			}
		}
	}
}

func (o *oracle) mayRun(i int, op job.OpID) bool {
	for _, d := range o.j.Ops[op].Deps {
		if !o.opDone(i, d) {
			return false
		}
	}
	for c, x := range o.j.Collectives {
		if !slices.Contains(x.Before, op) {
			continue
		}
		for l := range o.p.Programs {
			n := len(o.p.Programs[l].Transfers)
			for at := range n * (o.periods + 8) {
				t := o.p.Programs[l].Transfers[at%n]
				if t.Bucket < 0 && t.Collective == c && at/n*o.p.Period+t.Iteration == i && !o.links[l].done[at] {
					return false
				}
			}
		}
	}
	ok := true
	if slices.Contains(o.barrier(), op) {
		o.due(AtStep, i, func(_ *Update, g int) { ok = ok && o.ready(g, -1) })
	}
	o.due(AtRead, i-1, func(u *Update, g int) {
		for k := range o.j.Tensors {
			if o.applies(u, k) && slices.Contains(o.j.Tensors[k].Readers, op) {
				ok = ok && o.ready(g, k)
			}
		}
	})
	return ok
}

func (o *oracle) applies(u *Update, k int) bool {
	return u.Tensors == nil || slices.Contains(u.Tensors, job.TensorID(k))
}

func (o *oracle) run(i int, op job.OpID) {
	for k := range o.j.Tensors {
		t := &o.j.Tensors[k]
		if slices.Contains(t.Readers, op) {
			o.due(AtRead, i-1, func(u *Update, g int) {
				if o.applies(u, k) && o.applied[applied{g, k}] == 0 {
					o.apply(g, k)
					delete(o.using[k], g)
				}
			})
			if v, ok := o.seen[event{i, k}]; ok && v != o.version[k] {
				o.fault(3, "op %d reads version %d of tensor %d in iteration %d, another read %d", op, o.version[k], k, i, v)
			}
			o.seen[event{i, k}] = o.version[k]
		}
		if slices.Contains(t.Producers, op) {
			g := 0
			for _, last := o.window(g); last < i; _, last = o.window(g) {
				g++
			}
			o.using[k][g] = true
			if len(o.using[k]) > o.p.Buffers {
				o.fault(4, "iteration %d: buffers of tensor %d hold generations %v", i, k, slices.Sorted(maps.Keys(o.using[k])))
			}
			for e := range int(t.Elements) {
				o.written[part{g, k, e}]++
			}
		}
		if at := slices.Index(t.Updaters, op); at >= 0 {
			o.due(AtStep, i, func(u *Update, g int) {
				if !o.applies(u, k) {
					return
				}
				if at == 0 {
					o.apply(g, k)
				}
				if at == len(t.Updaters)-1 {
					delete(o.using[k], g)
				}
			})
		}
	}
	o.done[event{i, int(op)}] = true
}

func (o *oracle) apply(g, k int) {
	if o.applied[applied{g, k}]++; o.applied[applied{g, k}] > 1 {
		o.fault(3, "generation %d is applied twice to tensor %d", g, k)
	}
	for h := range g {
		if o.applied[applied{h, k}] == 0 {
			o.fault(3, "generation %d is applied to tensor %d before generation %d", g, k, h)
		}
	}
	o.version[k]++
	for e := range int(o.j.Tensors[k].Elements) {
		if !o.back[part{g, k, e}] {
			o.fault(3, "generation %d is applied to tensor %d, whose element %d is not reduced", g, k, e)
		}
	}
}

func (o *oracle) mayDispatch(l, at int) bool {
	x := &o.p.Programs[l]
	n := len(x.Transfers)
	t := x.Transfers[at%n]
	period := at / n
	if !o.exists(l, at) {
		return true
	}
	if w := x.Window.Transfers; w > 0 && len(o.links[l].inFlight) >= w {
		return false
	}
	if t.Bucket < 0 {
		for _, op := range o.j.Collectives[t.Collective].After {
			if !o.opDone(period*o.p.Period+t.Iteration, op) {
				return false
			}
		}
	}
	for _, g := range t.Gates {
		switch g.Kind {
		case GradientReady:
			_, last := o.window(o.generation(l, at))
			for _, s := range o.p.Buckets[t.Bucket].Slices {
				for _, op := range o.j.Tensors[s.Tensor].Producers {
					if !o.opDone(last, op) {
						return false
					}
				}
			}
		case OpDone:
			if !o.opDone(period*o.p.Period+g.Iteration, g.Op) {
				return false
			}
		case Boundary:
			for op := range o.j.Ops {
				if !o.opDone(period*o.p.Period+g.Iteration, job.OpID(op)) {
					return false
				}
			}
		case TransferDone:
			m := len(o.p.Programs[g.Link].Transfers)
			// The instance that carries the same generation, wherever it is.
			for q := -8; q < o.periods+16; q++ {
				if q*len(o.p.Generations)+o.p.Programs[g.Link].Transfers[g.Transfer].Generation == o.generation(l, at) && q >= 0 {
					if !o.links[g.Link].done[q*m+g.Transfer] {
						return false
					}
				}
			}
		}
	}
	return true
}

// exists: transfers of what lies before the run are skipped.
func (o *oracle) exists(l, at int) bool {
	n := len(o.p.Programs[l].Transfers)
	if t := o.p.Programs[l].Transfers[at%n]; t.Bucket < 0 {
		return at/n*o.p.Period+t.Iteration >= 0
	}
	return o.generation(l, at) >= 0
}

// parts yields the elements that an instance carries.
func (o *oracle) parts(l, at int, yield func(part)) {
	t := o.p.Programs[l].Transfers[at%len(o.p.Programs[l].Transfers)]
	if t.Bucket < 0 {
		return
	}
	for _, s := range o.p.Buckets[t.Bucket].Slices {
		for e := s.Offset; e < s.Offset+s.Length; e++ {
			yield(part{o.generation(l, at), int(s.Tensor), int(e)})
		}
	}
}

func (o *oracle) dispatch(l int) {
	s := &o.links[l]
	at := s.sent
	s.sent++
	if !o.exists(l, at) {
		s.done[at] = true
		return
	}
	s.inFlight = append(s.inFlight, at)
	t := o.p.Programs[l].Transfers[at%len(o.p.Programs[l].Transfers)]
	o.parts(l, at, func(x part) {
		switch t.Kind {
		case cluster.AllReduce, cluster.ReduceScatter, cluster.Push:
			if _, ok := o.taken[x]; ok {
				o.fault(1, "%v is reduced twice", x)
			}
			o.taken[x] = o.written[x]
			first, last := o.window(x.generation)
			if want := (last - first + 1) * len(o.j.Tensors[x.tensor].Producers); o.written[x] != want {
				o.fault(4, "%v is reduced with %d of %d contributions", x, o.written[x], want)
			}
		case cluster.AllGather, cluster.Pull:
			if !o.scatter[x] {
				o.fault(1, "%v is brought back before it is reduced", x)
			}
		}
	})
}

func (o *oracle) complete(l, k int) {
	s := &o.links[l]
	at := s.inFlight[k]
	s.inFlight = slices.Delete(s.inFlight, k, k+1)
	s.done[at] = true
	t := o.p.Programs[l].Transfers[at%len(o.p.Programs[l].Transfers)]
	o.parts(l, at, func(x part) {
		switch t.Kind {
		case cluster.AllReduce:
			o.back[x] = true
		case cluster.ReduceScatter, cluster.Push:
			o.scatter[x] = true
		case cluster.AllGather, cluster.Pull:
			if o.back[x] {
				o.fault(1, "%v is brought back twice", x)
			}
			o.back[x] = true
		}
	})
}

// judge looks at what has not happened. Near the end of the run it cannot.
func (o *oracle) judge() {
	const margin = 6 // periods
	for i := range (o.periods - margin) * o.p.Period {
		for op := range o.j.Ops {
			if !o.opDone(i, job.OpID(op)) {
				o.fault(2, "op %d of iteration %d never runs", op, i)
			}
		}
	}
	for l := range o.links {
		for at := range (o.periods - margin) * len(o.p.Programs[l].Transfers) {
			if !o.links[l].done[at] {
				o.fault(2, "transfer %d of link %d never happens", at, l)
			}
		}
	}
	if _, stuck := o.faults[2]; stuck {
		return
	}
	for g := 0; ; g++ {
		if _, last := o.window(g); last >= (o.periods-margin)*o.p.Period {
			break
		}
		for k := range o.j.Tensors {
			for e := range int(o.j.Tensors[k].Elements) {
				if !o.back[part{g, k, e}] {
					o.fault(1, "element %d of tensor %d of generation %d is never reduced", e, k, g)
				}
			}
			if o.applied[applied{g, k}] == 0 {
				o.fault(7, "generation %d is never applied to tensor %d", g, k)
			}
		}
	}
}

// draw makes small choices.
type draw struct{ t *rapid.T }

func (d draw) int(from, to int) int { return rapid.IntRange(from, to).Draw(d.t, "n") }

// often is true in about nine cases of ten.
func (d draw) often() bool { return d.int(0, 9) > 0 }

// job: layers with forward, backward and update, on one lane or over several;
// now and then a dependency is missing.
func (d draw) job() *job.Job {
	j := &job.Job{Name: "random"}
	tensors, lanes := d.int(1, 3), d.int(1, 2)
	for l := range lanes {
		j.Lanes = append(j.Lanes, job.Lane{Name: fmt.Sprint("lane", l)})
	}
	for k := range tensors {
		j.Tensors = append(j.Tensors, job.Tensor{Name: fmt.Sprint("t", k), Elements: int64(d.int(1, 4))})
	}
	add := func(name string, phase job.Phase) job.OpID {
		x := job.Op{Name: name, Phase: phase, Tensor: -1, Time: 1}
		if lanes > 1 && !d.often() {
			x.Lane = job.LaneID(d.int(0, lanes-1))
		}
		o := job.OpID(len(j.Ops))
		if o > 0 && d.often() {
			x.Deps = []job.OpID{o - 1}
		}
		j.Ops = append(j.Ops, x)
		return o
	}
	for k := range tensors {
		j.Tensors[k].Readers = append(j.Tensors[k].Readers, add(fmt.Sprint("f", k), job.Forward))
	}
	for k := tensors - 1; k >= 0; k-- {
		o := add(fmt.Sprint("b", k), job.Backward)
		j.Tensors[k].Producers = append(j.Tensors[k].Producers, o)
		if d.int(0, 1) == 0 {
			j.Tensors[k].Readers = append(j.Tensors[k].Readers, o)
		}
	}
	if d.int(0, 3) == 0 { // tied weights
		j.Tensors[0].Producers = append(j.Tensors[0].Producers, add("tied", job.Backward))
	}
	for k := range tensors {
		if k > 0 && d.int(0, 1) == 0 {
			j.Tensors[k].Updaters = j.Tensors[k-1].Updaters
			continue
		}
		j.Tensors[k].Updaters = []job.OpID{add(fmt.Sprint("u", k), job.Update)}
	}
	if d.int(0, 3) == 0 {
		j.Mode = job.Global
	}
	if d.int(0, 2) == 0 {
		j.Collectives = []job.Collective{{Name: "stats", Kind: "broadcast", After: []job.OpID{0}, Before: []job.OpID{1}}}
	}
	return j
}

// plan draws a plan that is meant to be legal.
func (d draw) plan(j *job.Job) *Plan {
	p := New(j, "random", "eth0", "eth1")
	if d.int(0, 2) == 0 { // generations of several iterations
		p.Generations = nil
		p.Period = 0
		for range d.int(1, 2) {
			n := d.int(1, 2)
			p.Generations = append(p.Generations, Generation{p.Period, n})
			p.Period += n
		}
	}
	var tensors []job.TensorID
	for k := range j.Tensors {
		tensors = append(tensors, job.TensorID(len(j.Tensors)-1-k))
	}
	b := WholeTensors(j, tensors...)
	at := d.int(0, len(b.Slices))
	for _, part := range [][]Slice{b.Slices[:at], b.Slices[at:]} {
		if len(part) > 0 {
			p.AddBucket(Bucket{slices.Clone(part)})
		}
	}
	if x := &p.Buckets[0].Slices[0]; x.Length > 1 && d.int(0, 2) == 0 { // a slice apart
		rest := *x
		x.Length = 1
		rest.Offset, rest.Length = 1, rest.Length-1
		p.AddBucket(Bucket{[]Slice{rest}})
	}
	delay := max(0, d.int(-2, 2))
	p.Updates = nil
	for g, x := range p.Generations {
		for i := range p.Buckets {
			l, gate := d.int(0, 1), Gate{Kind: GradientReady}
			switch d.int(0, 3) {
			case 0:
				p.Add(l, cluster.ReduceScatter, i, gate)
				p.Add(l, cluster.AllGather, i)
			case 1:
				done := Gate{Kind: TransferDone, Link: l, Transfer: p.Add(l, cluster.Push, i, gate)}
				l := d.int(l, 1)
				pulls := []int{i}
				if all := p.Buckets[i].Slices; d.int(0, 2) == 0 && len(all) > 1 { // cut otherwise
					pulls = []int{p.AddBucket(Bucket{all[1:]}), p.AddBucket(Bucket{all[:1]})}
				}
				for _, i := range pulls {
					p.Programs[l].Transfers[p.Add(l, cluster.Pull, i, done)].Generation = g
				}
			default:
				p.Add(l, cluster.AllReduce, i, gate)
			}
			for l := range p.Programs {
				for t := range p.Programs[l].Transfers {
					if x := &p.Programs[l].Transfers[t]; x.Bucket == i && x.Generation == 0 {
						x.Generation = g
					}
				}
			}
		}
		u := Update{Generation: g, Iteration: x.Last() + delay, At: Point(d.int(0, 1))}
		if j.Mode == job.Global {
			u.At = AtStep
		}
		p.Updates = append(p.Updates, u)
		p.MaxDelay, p.MaxStaleness = delay, max(p.MaxStaleness, delay+x.Length-1)
	}
	p.UpdateRate = float64(len(p.Generations)) / float64(p.Period)
	p.Buffers = delay + 1
	if err := p.AddCollectives(j); err != nil {
		d.t.Fatal(err)
	}
	if delay > 0 && d.int(0, 1) == 0 { // in the next period
		for l := range p.Programs {
			for t := range p.Programs[l].Transfers {
				if x := &p.Programs[l].Transfers[t]; x.Bucket >= 0 {
					x.Generation -= len(p.Generations)
				}
			}
		}
	}
	return p
}

// break changes one thing; it may or may not matter.
func (d draw) mutate(j *job.Job, p *Plan) {
	l := d.int(0, len(p.Programs)-1)
	x := &p.Programs[l]
	if len(x.Transfers) == 0 {
		return
	}
	i := d.int(0, len(x.Transfers)-1)
	t := &x.Transfers[i]
	u := &p.Updates[d.int(0, len(p.Updates)-1)]
	switch d.int(0, 15) {
	case 0:
		x.Transfers = slices.Delete(x.Transfers, i, i+1)
	case 1:
		x.Transfers = append(x.Transfers, *t)
	case 2:
		k := d.int(0, len(x.Transfers)-1)
		x.Transfers[i], x.Transfers[k] = x.Transfers[k], x.Transfers[i]
	case 3:
		t.Generation--
	case 4:
		t.Gates = nil
	case 5:
		t.Gates = append(slices.Clone(t.Gates), Gate{Kind: Boundary, Iteration: d.int(-2, 2)})
	case 6:
		p.Ops = j.OpsFingerprint()
		t.Gates = append(slices.Clone(t.Gates), Gate{Kind: OpDone, Op: job.OpID(d.int(0, len(j.Ops)-1)), Iteration: d.int(-2, 2)})
	case 7:
		m := d.int(0, len(p.Programs)-1)
		if n := len(p.Programs[m].Transfers); n > 0 {
			t.Gates = append(slices.Clone(t.Gates), Gate{Kind: TransferDone, Link: m, Transfer: d.int(0, n-1)})
		}
	case 8:
		u.Iteration += d.int(-2, 2)
	case 9:
		u.At = 1 - u.At
	case 10:
		u.Tensors = []job.TensorID{0}
	case 11:
		p.Buffers = max(1, p.Buffers-1)
	case 12:
		s := &p.Buckets[d.int(0, len(p.Buckets)-1)].Slices[0]
		s.Length = max(1, s.Length+int64(d.int(-1, 1)))
	case 13:
		x.Window.Transfers = d.int(0, 2)
	case 14:
		t.Kind = cluster.Kind(d.int(0, 5))
	case 15:
		t.Iteration += d.int(-1, 1)
	}
}

func describe(j *job.Job, p *Plan) string {
	text, err := p.encode()
	return fmt.Sprintf("lanes %v\nops %+v\ntensors %+v\n%s%v", j.Lanes, j.Ops, j.Tensors, text, err)
}

// TestOracle breaks random plans, and compares the checker's verdict with what
// happens when they are executed. A plan that passes shows no fault in any
// execution; a circular wait is found if and only if an execution gets stuck.
func TestOracle(t *testing.T) {
	broken, seen := map[int]int{}, map[int]int{}
	legal := 0
	wanted := func() bool { // every rule broken, and every rule that an execution can break
		for rule := range rules {
			watched := slices.Contains([]int{1, 2, 3, 4, 7}, rule)
			if rule != 6 && broken[rule] == 0 || watched && seen[rule] == 0 {
				return true
			}
		}
		return legal == 0
	}
	check := func(rt *rapid.T) {
		d := draw{rt}
		j := d.job()
		if err := j.Validate(); err != nil {
			rt.Fatal(err)
		}
		p := d.plan(j)
		for range d.int(0, 2) {
			d.mutate(j, p)
		}
		r := Check(p, j, Limits{MaxDelay: 100, MaxStaleness: 100})
		if !r.Rules[0].OK {
			broken[0]++
			return
		}
		if r.OK() {
			legal++
		}
		for _, x := range r.Rules {
			if x.Witness != "" {
				broken[x.Rule]++
			}
		}
		if !r.Rules[1].OK && p.Period*len(p.Generations) == 0 {
			return
		}
		for range 3 {
			faults := execute(j, p, 12, func(n int) int { return d.int(0, n-1) })
			for rule, what := range faults {
				seen[rule]++
				if r.OK() {
					rt.Fatalf("the checker passes it, but rule %d breaks: %s\n%v\n%s", rule, what, r, describe(j, p))
				}
			}
			if _, stuck := faults[2]; r.Rules[1].OK && stuck == r.Rules[2].OK {
				rt.Fatalf("stuck: %v (%s)\n%v\n%s", stuck, faults[2], r, describe(j, p))
			}
		}
	}
	for round := 0; wanted() && !t.Failed(); round++ {
		if round == 50 {
			t.Fatalf("some rule is never broken; legal: %d; broken by rule: %v; seen in executions: %v", legal, broken, seen)
		}
		rapid.Check(t, check)
	}
	t.Logf("legal: %d; broken by rule: %v; seen in executions: %v", legal, broken, seen)
}
