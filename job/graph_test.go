package job

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Validate finds a cycle, or an update before a read, exactly where the
// transitive closure has one.
func TestValidateAgainstClosure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := genJob(t, rapid.Bool().Draw(t, "wild"))
		m := newMatrix(j)
		m.close()
		early := false
		for i := range j.Tensors {
			x := &j.Tensors[i]
			for _, u := range x.Updaters {
				for _, v := range slices.Concat(x.Readers, x.Producers) {
					early = early || m[u][v]
				}
			}
		}
		err := j.Validate()
		switch {
		case m.cyclic():
			if err == nil || !strings.Contains(err.Error(), "cycle: ") {
				t.Fatalf("a cycle, and Validate says %v", err)
			}
		case early:
			if err == nil || !strings.Contains(err.Error(), "which writes the value") {
				t.Fatalf("an update before a read, and Validate says %v", err)
			}
		case err != nil:
			t.Fatal(err)
		}
	})
}

// Schedule is the least fixed point of: no op starts before the ends of what
// precedes it.
func TestScheduleAgainstRelaxation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := genJob(t, false)
		start, end, err := j.Schedule()
		if err != nil {
			t.Fatal(err)
		}
		m := newMatrix(j)
		length := func(v int) float64 {
			if v < len(j.Ops) {
				return j.Ops[v].Time
			}
			return j.Collectives[v-len(j.Ops)].Time
		}
		want := make([]float64, len(m))
		for range m {
			for a := range m {
				for b := range m {
					if m[a][b] {
						want[b] = max(want[b], want[a]+length(a))
					}
				}
			}
		}
		for v := range j.Ops {
			if start[v] != want[v] || end[v] != want[v]+length(v) {
				t.Fatalf("op %d runs %v to %v, want %v to %v", v, start[v], end[v], want[v], want[v]+length(v))
			}
		}
	})
}

// A barrier op is refused if a producer is it, or follows it by what binds a plan:
// all but the order of comm lanes.
func TestBarrierAgainstMatrix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := genJob(t, false)
		var computes []OpID // on a comm lane it is refused for that
		for v := range j.Ops {
			if j.Lanes[j.Ops[v].Lane].Kind != Comm {
				computes = append(computes, OpID(v))
			}
		}
		b := rapid.SampledFrom(computes).Draw(t, "the barrier")
		j.Barrier = []OpID{b}
		m := newMatrix(j)
		for v := range j.Ops {
			for w := range j.Ops {
				if j.Ops[v].Lane == j.Ops[w].Lane && j.Lanes[j.Ops[v].Lane].Kind == Comm && !slices.Contains(j.Ops[w].Deps, OpID(v)) {
					m[v][w] = false
				}
			}
		}
		m.close()
		stuck := false
		for k := range j.Tensors {
			for _, p := range j.Tensors[k].Producers {
				stuck = stuck || p == b || m[b][p]
			}
		}
		if err := j.Validate(); (err != nil) != stuck {
			t.Fatalf("got %v; a producer follows op %d: %v", err, b, stuck)
		}
	})
}

// Strip leaves the order that remains when the removed ops are eliminated one
// by one, each handing its predecessors to its successors.
func TestStripAgainstElimination(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := genJob(t, false)
		copies := rapid.Bool().Draw(t, "copies")
		stays := func(v int) bool {
			if v >= len(j.Ops) {
				return true
			}
			o := &j.Ops[v]
			return o.Phase != Runtime || copies && (o.Role == CopyIn || o.Role == CopyOut)
		}
		m := newMatrix(j)
		for a := range j.Ops {
			for b := range j.Ops {
				onComm := j.Ops[a].Lane == j.Ops[b].Lane && j.Lanes[j.Ops[a].Lane].Kind == Comm
				if onComm && !slices.Contains(j.Ops[b].Deps, OpID(a)) ||
					stays(b) && j.Ops[b].Role == CopyOut && j.Ops[a].Role == GradCollective {
					m[a][b] = false
				}
			}
		}
		isColl := func(v int) bool { return v >= len(j.Ops) }
		for k := range j.Ops {
			if stays(k) {
				continue
			}
			for a := range m {
				for b := range m {
					if m[a][k] && m[k][b] && !(isColl(a) && isColl(b)) {
						m[a][b] = true
					}
				}
			}
			for v := range m {
				m[v][k], m[k][v] = false, false
			}
		}
		m.close()

		s, origin := j.Strip(copies)
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		var want []OpID
		for v := range j.Ops {
			if stays(v) {
				want = append(want, OpID(v))
			}
		}
		if !slices.Equal(origin, want) {
			t.Fatalf("%v stay, want %v", origin, want)
		}
		if s.Name != j.Name || s.World != j.World || s.Mode != j.Mode || s.Optimizer != j.Optimizer {
			t.Fatalf("%q of %d workers, %v, optimizer %d; want %q, %d, %v, %d", s.Name, s.World, s.Mode, s.Optimizer, j.Name, j.World, j.Mode, j.Optimizer)
		}
		got := newMatrix(s)
		got.close()
		old := func(v int) int {
			if v < len(origin) {
				return int(origin[v])
			}
			return v - len(origin) + len(j.Ops)
		}
		for a := range got {
			for b := range got {
				if got[a][b] != m[old(a)][old(b)] {
					t.Fatalf("%v before %v: %v", old(a), old(b), got[a][b])
				}
			}
		}
		for v, o := range s.Ops {
			if o.Phase == Runtime && o.Role == GradCollective {
				t.Fatalf("op %d stays", v)
			}
			d := slices.Clone(o.Deps)
			slices.Sort(d)
			direct := j.Ops[origin[v]].Deps
			if len(slices.Compact(d)) < len(o.Deps) && len(direct) == len(slices.Compact(slices.Sorted(slices.Values(direct)))) {
				t.Fatalf("op %d lists a dependency twice: %v", v, o.Deps)
			}
		}
		for i, x := range j.Tensors {
			if y := s.Tensors[i]; len(y.Readers) != len(x.Readers) || len(y.Producers) != len(x.Producers) || len(y.Updaters) != len(x.Updaters) {
				t.Fatalf("tensor %d lost ops", i)
			}
		}
		var barrier []OpID
		for _, b := range j.Barrier {
			for v, from := range origin {
				if from >= b && j.Ops[from].Lane == j.Ops[b].Lane {
					barrier = append(barrier, OpID(v))
					break
				}
			}
		}
		slices.Sort(barrier)
		if barrier = slices.Compact(barrier); !slices.Equal(s.Barrier, barrier) {
			t.Fatalf("barrier %v, want %v", s.Barrier, barrier)
		}
	})
}

// A job of two buckets as DDP records it, by hand: two tensors, copies in and
// out, the host waiting in a library op before the update.
//
//	host   0 forward  1 backward   6 wait          9 update
//	device 2 f        3 b  4 in0   7 out0  8 out1  10 step
//	comm                     5 all-reduce
func ddp() *Job {
	const host, device, comm = 0, 1, 2
	op := func(name string, lane LaneID, phase Phase, deps ...OpID) Op {
		return Op{Name: name, Lane: lane, Phase: phase, Tensor: -1, Time: 1, Deps: deps}
	}
	lib := func(name string, lane LaneID, role Role, tensor TensorID, deps ...OpID) Op {
		return Op{Name: name, Lane: lane, Phase: Runtime, Role: role, Tensor: tensor, Time: 1, Deps: deps}
	}
	return &Job{
		Lanes: []Lane{{"host", Host}, {"device", Device}, {"comm", Comm}},
		Ops: []Op{
			op("forward", host, Forward),
			op("backward", host, Backward),
			op("f", device, Forward, 0),
			op("b", device, Backward, 1),
			lib("in0", device, CopyIn, 0),
			lib("all-reduce", comm, GradCollective, -1, 4),
			lib("wait", host, Library, -1, 5),
			lib("out0", device, CopyOut, 0, 5, 6),
			lib("out1", device, CopyOut, 1, 5),
			op("update", host, Update),
			op("step", device, Update, 9, 5),
		},
		Tensors: []Tensor{
			{Name: "w", Elements: 2, Readers: []OpID{2}, Producers: []OpID{3}, Updaters: []OpID{10}},
			{Name: "x", Elements: 2, Readers: []OpID{2}, Producers: []OpID{3}, Updaters: []OpID{10}},
		},
		Barrier:  []OpID{6, 7},
		Recorded: &Recorded{Library: "ddp", Backend: "nccl", Buckets: []RecordedBucket{{Tensors: []TensorID{0, 1}, Bytes: 16, Op: 5}}},
	}
}

func TestStripByHand(t *testing.T) {
	j := ddp()
	if err := j.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		copies  bool
		origin  []OpID
		deps    map[string][]OpID // of the stripped job, by op name; others keep theirs
		barrier []OpID
	}{
		// The update waits for what the host's wait waited for, through the
		// collective and the copy: b. The step on the device follows b anyway.
		{false, []OpID{0, 1, 2, 3, 9, 10},
			map[string][]OpID{"forward": nil, "backward": nil, "f": {0}, "b": {1}, "update": {3}, "step": {4}},
			[]OpID{4, 5}}, // wait -> update, out0 -> step
		// out0 keeps its wait for the host (what preceded "wait" there: backward,
		// and, through it, in0 on its own lane) and loses the collective.
		{true, []OpID{0, 1, 2, 3, 4, 7, 8, 9, 10},
			map[string][]OpID{"forward": nil, "backward": nil, "f": {0}, "b": {1}, "in0": nil, "out0": {1}, "out1": nil, "update": {4}, "step": {7}},
			[]OpID{5, 7}}, // wait -> update, out0 stays
	} {
		s, origin := j.Strip(c.copies)
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(origin, c.origin) || !slices.Equal(s.Barrier, c.barrier) {
			t.Errorf("copies %v: origin %v, barrier %v; want %v, %v", c.copies, origin, s.Barrier, c.origin, c.barrier)
		}
		for _, o := range s.Ops {
			if !slices.Equal(o.Deps, c.deps[o.Name]) {
				t.Errorf("copies %v: %s waits for %v, want %v", c.copies, o.Name, o.Deps, c.deps[o.Name])
			}
		}
		if len(s.Lanes) != 2 || s.Recorded.Buckets[0].Op != -1 || j.Recorded.Buckets[0].Op != 5 {
			t.Errorf("copies %v: lanes %v, recorded %v, of the original %v", c.copies, s.Lanes, s.Recorded, j.Recorded)
		}
	}
}
