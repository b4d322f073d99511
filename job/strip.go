package job

import "slices"

// Strip returns the job without what the recorded communication library did:
// its runtime ops and its comm lanes, so that a plan can put its own
// communication in their place. If copies is true, CopyIn and CopyOut ops stay.
// origin gives for every op of the result its id in j, which must be valid.
//
// What waited for a removed op waits for what that op waited for: of each lane
// for the last such op that stays, the removed op's own lane included unless it
// is a comm lane (the order of recorded collectives binds nobody else). A
// CopyOut op that stays does not wait for what its collective waited for: it
// waits for the plan's transfer of its tensor. A removed barrier op is replaced
// by the next op of its lane that stays. Recorded buckets stay, their Op is -1.
func (j *Job) Strip(copies bool) (stripped *Job, origin []OpID) {
	s := newStripper(j, copies)
	for _, v := range j.graph().order {
		if !s.stays(v) {
			s.heirs[v] = slices.Clone(s.inherited(v))
		}
	}

	r := &Job{Name: j.Name, World: j.World, Mode: j.Mode, Optimizer: j.Optimizer, Notes: slices.Clone(j.Notes)}
	lane := make([]LaneID, len(j.Lanes))
	for l, x := range j.Lanes {
		if lane[l] = LaneID(len(r.Lanes)); x.Kind != Comm {
			r.Lanes = append(r.Lanes, x)
		}
	}
	now := make([]OpID, len(j.Ops)) // new id of the op, or of the next in its lane that stays; -1: none
	for v := range j.Ops {
		if s.stays(OpID(v)) {
			now[v] = OpID(len(origin))
			origin = append(origin, OpID(v))
		}
	}
	following := slices.Repeat([]OpID{-1}, len(j.Lanes))
	for v := len(j.Ops) - 1; v >= 0; v-- {
		if l := j.Ops[v].Lane; s.stays(OpID(v)) {
			following[l] = now[v]
		} else {
			now[v] = following[l]
		}
	}
	renumber := func(ids []OpID) []OpID {
		var out []OpID
		for _, v := range ids {
			if s.stays(v) {
				out = append(out, now[v])
			}
		}
		return out
	}

	n := len(j.Ops)
	r.Collectives = slices.Clone(j.Collectives)
	for c := range r.Collectives {
		x := &r.Collectives[c]
		x.Before = renumber(x.Before)
		x.After = renumber(x.After)
		for _, u := range s.inherited(int32(n + c)) {
			if int(u) < n {
				x.After = append(x.After, now[u])
			}
		}
		x.After = ascending(x.After)
	}
	r.Ops = make([]Op, len(origin))
	for v, old := range origin {
		o := &r.Ops[v]
		*o = j.Ops[old]
		o.Lane = lane[o.Lane]
		o.Deps = renumber(o.Deps)
		direct := len(o.Deps)
		for _, u := range s.inherited(old) {
			if int(u) >= n {
				before := &r.Collectives[int(u)-n].Before
				*before = append(*before, OpID(v))
				continue
			}
			l := j.Ops[u].Lane
			implied := func(d OpID) bool { return d >= now[u] && j.Ops[origin[d]].Lane == l }
			if l != j.Ops[old].Lane && !slices.ContainsFunc(o.Deps[:direct], implied) {
				o.Deps = append(o.Deps, now[u])
			}
		}
	}
	for c := range r.Collectives {
		r.Collectives[c].Before = ascending(r.Collectives[c].Before)
	}
	r.Tensors = slices.Clone(j.Tensors)
	for i := range r.Tensors {
		t := &r.Tensors[i]
		t.Readers, t.Producers, t.Updaters = renumber(t.Readers), renumber(t.Producers), renumber(t.Updaters)
	}
	for _, v := range j.Barrier {
		if now[v] >= 0 {
			r.Barrier = append(r.Barrier, now[v])
		}
	}
	r.Barrier = ascending(r.Barrier)
	if j.Recorded != nil {
		rec := *j.Recorded
		rec.Buckets = slices.Clone(rec.Buckets)
		for b := range rec.Buckets {
			rec.Buckets[b].Op = -1
		}
		r.Recorded = &rec
	}
	return r, origin
}

func ascending(ids []OpID) []OpID {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// stripper finds what is left of a node's predecessors when ops are removed.
// Of the predecessors on one lane only the last matters, so a set of them has
// at most one op a lane, however many ops were removed.
type stripper struct {
	j      *Job
	copies bool
	prev   []OpID             // op before it in its lane; -1: none
	before map[OpID][]int32   // collectives (nodes) that an op waits for
	heirs  [][]int32          // of a removed op: what its dependents wait for instead
	last   []OpID             // scratch of inherited, by lane
	lanes  []LaneID           // scratch: lanes that last holds an op of
	coll   map[int32]struct{} // scratch: collectives found
	out    []int32            // scratch: result
}

func newStripper(j *Job, copies bool) *stripper {
	s := &stripper{
		j: j, copies: copies,
		prev:   make([]OpID, len(j.Ops)),
		before: map[OpID][]int32{},
		heirs:  make([][]int32, len(j.Ops)),
		last:   slices.Repeat([]OpID{-1}, len(j.Lanes)),
		coll:   map[int32]struct{}{},
	}
	for v := range j.Ops {
		l := j.Ops[v].Lane
		s.prev[v], s.last[l] = s.last[l], OpID(v)
	}
	for l := range s.last {
		s.last[l] = -1
	}
	for c := range j.Collectives {
		for _, v := range j.Collectives[c].Before {
			s.before[v] = append(s.before[v], int32(len(j.Ops)+c))
		}
	}
	return s
}

// stays reports whether a node is part of the stripped job.
func (s *stripper) stays(v int32) bool {
	if int(v) >= len(s.j.Ops) {
		return true
	}
	o := &s.j.Ops[v]
	return o.Phase != Runtime || s.copies && (o.Role == CopyIn || o.Role == CopyOut)
}

// inherited lists, for a node that stays, what it waits for in place of its
// removed predecessors, and for a removed op all that it waits for. The result
// is valid until the next call.
func (s *stripper) inherited(v int32) []int32 {
	ops, kept := s.j.Ops, s.stays(v)
	add := func(u int32) {
		switch {
		case int(u) >= len(ops):
			s.coll[u] = struct{}{}
		case s.last[ops[u].Lane] < 0:
			s.lanes = append(s.lanes, ops[u].Lane)
			fallthrough
		default:
			s.last[ops[u].Lane] = max(s.last[ops[u].Lane], u)
		}
	}
	visit := func(u int32) {
		if !s.stays(u) {
			if kept && int(v) < len(ops) && ops[v].Role == CopyOut && ops[u].Role == GradCollective {
				return
			}
			for _, w := range s.heirs[u] {
				add(w)
			}
		} else if !kept {
			add(u)
		}
	}
	if c := int(v) - len(ops); c >= 0 {
		for _, u := range s.j.Collectives[c].After {
			visit(u)
		}
	} else {
		for _, u := range ops[v].Deps {
			visit(u)
		}
		if u := s.prev[v]; u >= 0 && s.j.Lanes[ops[v].Lane].Kind != Comm {
			visit(u)
		}
		for _, u := range s.before[v] {
			visit(u)
		}
	}

	s.out = s.out[:0]
	for _, l := range s.lanes {
		s.out = append(s.out, s.last[l])
		s.last[l] = -1
	}
	s.lanes = s.lanes[:0]
	for u := range s.coll {
		s.out = append(s.out, u)
	}
	clear(s.coll)
	slices.Sort(s.out)
	return s.out
}
