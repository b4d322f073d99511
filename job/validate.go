package job

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weft/internal/fault"
	"weft/internal/near"
)

// Limits of a job. They keep sums of times and sizes exact enough to work with
// and the work of a hostile file bounded.
const (
	MaxOps     = 1 << 24
	MaxTensors = 1 << 22
	MaxLanes   = 1 << 10
	MaxWorld   = 1 << 20 // workers
	MaxTime    = 1e12    // microseconds, all ops and collectives of an iteration together: 11 days
)

func faultf(path, format string, args ...any) error {
	return fault.New("job", path, format, args...)
}

// Validate reports the first thing that is wrong with the job, or nil. It
// checks that references are in range, lists ascending, times and sizes finite
// and not negative, ops on lanes that may hold them, and that the iteration can
// run: the order of the lanes, the dependencies and the collectives form no
// cycle, every gradient has a producer, no op adds to a gradient after a barrier
// op, and no op reads a parameter or adds to a gradient after the update of the
// same iteration. The time is linear in the size of the job, times the number of
// lanes that hold updates.
func (j *Job) Validate() error {
	g, err := j.runnable()
	if err != nil {
		return err
	}
	return cmp.Or(j.checkBarrier(g), j.checkUpdates(g))
}

// runnable is the graph of a job that can run, or what is wrong with it.
func (j *Job) runnable() (*graph, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	g := j.graph()
	if len(g.order) < len(j.Ops)+len(j.Collectives) {
		return nil, j.cycle(g)
	}
	return g, nil
}

// check is the part of Validate that looks at one element at a time. After it,
// every reference is in range.
func (j *Job) check() error {
	switch {
	case int(j.Mode) >= len(modeNames):
		return faultf("mode", "unknown update mode %d", j.Mode)
	case j.World < 0:
		return faultf("world", "negative number of workers %d", j.World)
	case j.World > MaxWorld:
		return faultf("world", "%d workers, more than %d", j.World, MaxWorld)
	case len(j.Ops) > MaxOps:
		return faultf("ops", "%d ops, more than %d", len(j.Ops), MaxOps)
	case len(j.Tensors) > MaxTensors:
		return faultf("tensors", "%d tensors, more than %d", len(j.Tensors), MaxTensors)
	case len(j.Collectives) > MaxOps:
		return faultf("collectives", "%d collectives, more than %d", len(j.Collectives), MaxOps)
	case j.Optimizer < 0:
		return faultf("optimizer", "negative size %d", j.Optimizer)
	}
	if err := j.checkLanes(); err != nil {
		return err
	}
	var total float64
	var outputs int64
	for i := range j.Ops {
		if err := j.checkOp(i); err != nil {
			return err
		}
		if j.Ops[i].Output > math.MaxInt64-outputs {
			return faultf(fmt.Sprintf("ops[%d].output", i), "the outputs up to here exceed %d bytes", int64(math.MaxInt64))
		}
		outputs += j.Ops[i].Output
		if total += j.Ops[i].Time; total > MaxTime {
			return faultf(fmt.Sprintf("ops[%d].time", i), "the times up to here sum to more than %g us", MaxTime)
		}
	}
	if err := j.checkTensors(); err != nil {
		return err
	}
	for i := range j.Collectives {
		if err := j.checkCollective(i); err != nil {
			return err
		}
		if total += j.Collectives[i].Time; total > MaxTime {
			return faultf(fmt.Sprintf("collectives[%d].time", i), "the times up to here sum to more than %g us", MaxTime)
		}
	}
	onCompute := func(o *Op) string {
		if j.Lanes[o.Lane].Kind == Comm {
			return "is on a comm lane; a barrier holds back compute lanes"
		}
		return ""
	}
	if err := j.checkList("barrier", -1, "", j.Barrier, onCompute); err != nil {
		return err
	}
	return j.checkRecorded()
}

func (j *Job) checkLanes() error {
	if len(j.Lanes) > MaxLanes {
		return faultf("lanes", "%d lanes, more than %d", len(j.Lanes), MaxLanes)
	}
	seen := make(map[string]int, len(j.Lanes))
	for i, l := range j.Lanes {
		if int(l.Kind) >= len(laneNames) {
			return faultf(fmt.Sprintf("lanes[%d].kind", i), "unknown lane kind %d", l.Kind)
		}
		if first, dup := seen[l.Name]; dup {
			return faultf(fmt.Sprintf("lanes[%d].name", i), "%q is already the name of lane %d", fault.Short(l.Name), first)
		}
		seen[l.Name] = i
	}
	return nil
}

func (j *Job) checkOp(i int) error {
	o := &j.Ops[i]
	bad := func(field, format string, args ...any) error {
		return faultf(fmt.Sprintf("ops[%d].%s", i, field), format, args...)
	}
	switch {
	case o.Lane < 0 || int(o.Lane) >= len(j.Lanes):
		return bad("lane", "there is no lane %d; there are %d, from 0", o.Lane, len(j.Lanes))
	case int(o.Phase) >= len(phaseNames):
		return bad("phase", "unknown phase %d", o.Phase)
	case int(o.Role) >= len(roleNames):
		return bad("role", "unknown role %d", o.Role)
	case o.Micro < 0:
		return bad("micro", "negative micro-batch %d", o.Micro)
	case o.Output < 0:
		return bad("output", "negative size %d", o.Output)
	case o.Phase == Runtime && o.Role == NoRole:
		return bad("role", "missing: a runtime op states what it does, one of %v", roleNames[1:])
	case o.Phase != Runtime && o.Role != NoRole:
		return bad("role", "%q on a %s op; only runtime ops have a role", o.Role, o.Phase)
	case j.Lanes[o.Lane].Kind == Comm && o.Role != GradCollective:
		return bad("lane", "%q is a comm lane: it holds only runtime ops with role %q", fault.Short(j.Lanes[o.Lane].Name), GradCollective)
	case j.Lanes[o.Lane].Kind != Comm && o.Role == GradCollective:
		return bad("lane", "%q is a %s lane: an op with role %q is on a comm lane", fault.Short(j.Lanes[o.Lane].Name), j.Lanes[o.Lane].Kind, GradCollective)
	}
	if o.Role == CopyIn || o.Role == CopyOut {
		if o.Tensor < 0 || int(o.Tensor) >= len(j.Tensors) {
			return bad("tensor", "a %s op names the tensor that it copies; there is no tensor %d, there are %d, from 0", o.Role, o.Tensor, len(j.Tensors))
		}
	} else if o.Tensor != -1 {
		return bad("tensor", "%d on an op that is no copy; leave it out (-1)", o.Tensor)
	}
	for k, d := range o.Deps {
		if d < 0 || int(d) >= len(j.Ops) {
			return bad(fmt.Sprintf("deps[%d]", k), "there is no op %d; there are %d, from 0", d, len(j.Ops))
		}
		if int(d) == i {
			return bad(fmt.Sprintf("deps[%d]", k), "%s depends on itself", j.node(int32(i)))
		}
	}
	return checkTime("ops", i, o.Time)
}

// checkTime, like the other checks, makes text only for a fault: a job has
// millions of fields.
func checkTime(list string, i int, us float64) error {
	var msg string
	switch {
	case math.IsNaN(us) || math.IsInf(us, 0):
		msg = fmt.Sprintf("%v is not a time", us)
	case us < 0:
		msg = fmt.Sprintf("negative time %v us", us)
	case us > MaxTime:
		msg = fmt.Sprintf("%v us is more than %g us", us, MaxTime)
	default:
		return nil
	}
	return faultf(fmt.Sprintf("%s[%d].time", list, i), "%s", msg)
}

func (j *Job) checkTensors() error {
	in := func(what string, phases ...Phase) func(*Op) string {
		return func(o *Op) string {
			if !slices.Contains(phases, o.Phase) {
				return fmt.Sprintf("is in phase %s; %s", o.Phase, what)
			}
			return ""
		}
	}
	isReader := in("parameters are read in forward or backward", Forward, Backward)
	isProducer := in("gradients are produced in backward", Backward)
	isUpdater := in("parameters are written in update", Update)

	var bytes int64
	seen := make(map[string]int, len(j.Tensors))
	for i := range j.Tensors {
		t := &j.Tensors[i]
		bad := func(field, format string, args ...any) error {
			return faultf(fmt.Sprintf("tensors[%d].%s", i, field), format, args...)
		}
		first, dup := seen[t.Name]
		seen[t.Name] = i
		switch {
		case dup:
			return bad("name", "%q is already the name of tensor %d", fault.Short(t.Name), first)
		case int(t.Param) >= len(dtypeNames):
			return bad("param", "unknown element type %d", t.Param)
		case int(t.Grad) >= len(dtypeNames):
			return bad("grad", "unknown element type %d", t.Grad)
		case t.Elements <= 0:
			return bad("elements", "%q has %d elements; a tensor has at least one", fault.Short(t.Name), t.Elements)
		case t.Elements > (math.MaxInt64-bytes)/t.Grad.Bytes():
			return bad("elements", "the gradients up to %q exceed %d bytes", fault.Short(t.Name), int64(math.MaxInt64))
		case len(t.Producers) == 0:
			return bad("producers", "no op produces the gradient of %q", fault.Short(t.Name))
		}
		bytes += t.GradBytes()
		if err := cmp.Or(
			j.checkList("tensors", i, "readers", t.Readers, isReader),
			j.checkList("tensors", i, "producers", t.Producers, isProducer),
			j.checkList("tensors", i, "updaters", t.Updaters, isUpdater)); err != nil {
			return err
		}
	}
	return nil
}

// checkList wants the ids of list[i].field (of list itself if i is negative) in
// range and strictly ascending, and no objection to any op.
func (j *Job) checkList(list string, i int, field string, ids []OpID, objection func(*Op) string) error {
	for k, v := range ids {
		at := func(format string, args ...any) error {
			path := list
			if i >= 0 {
				path = fmt.Sprintf("%s[%d].%s", list, i, field)
			}
			return faultf(fmt.Sprintf("%s[%d]", path, k), format, args...)
		}
		switch {
		case v < 0 || int(v) >= len(j.Ops):
			return at("there is no op %d; there are %d, from 0", v, len(j.Ops))
		case k > 0 && v == ids[k-1]:
			return at("op %d is listed twice", v)
		case k > 0 && v < ids[k-1]:
			return at("op %d after op %d; list ops in ascending order", v, ids[k-1])
		}
		if objection != nil {
			if why := objection(&j.Ops[v]); why != "" {
				return at("%s %s", j.node(v), why)
			}
		}
	}
	return nil
}

func (j *Job) checkCollective(i int) error {
	c := &j.Collectives[i]
	if c.Kind == "" {
		return faultf(fmt.Sprintf("collectives[%d].kind", i), "missing")
	}
	if !slices.Contains(collectiveKinds, c.Kind) {
		return faultf(fmt.Sprintf("collectives[%d].kind", i), "unknown kind of collective %q%s", fault.Short(c.Kind), near.Hint(c.Kind, collectiveKinds))
	}
	if c.Bytes < 0 {
		return faultf(fmt.Sprintf("collectives[%d].bytes", i), "negative size %d", c.Bytes)
	}
	return cmp.Or(
		checkTime("collectives", i, c.Time),
		j.checkList("collectives", i, "after", c.After, nil),
		j.checkList("collectives", i, "before", c.Before, nil))
}

func (j *Job) checkRecorded() error {
	if j.Recorded == nil {
		return nil
	}
	in := map[TensorID]int{}
	for i, b := range j.Recorded.Buckets {
		path := fmt.Sprintf("recorded.buckets[%d]", i)
		if b.Bytes < 0 {
			return faultf(path+".bytes", "negative size %d", b.Bytes)
		}
		for k, t := range b.Tensors {
			if t < 0 || int(t) >= len(j.Tensors) {
				return faultf(fmt.Sprintf("%s.tensors[%d]", path, k), "there is no tensor %d; there are %d, from 0", t, len(j.Tensors))
			}
			if first, dup := in[t]; dup {
				return faultf(fmt.Sprintf("%s.tensors[%d]", path, k), "tensor %d %q is already in recorded.buckets[%d]", t, fault.Short(j.Tensors[t].Name), first)
			}
			in[t] = i
		}
		switch {
		case b.Op == -1: // the job no longer holds it; see Strip
		case b.Op < 0 || int(b.Op) >= len(j.Ops):
			return faultf(path+".op", "there is no op %d; there are %d, from 0", b.Op, len(j.Ops))
		case j.Ops[b.Op].Role != GradCollective:
			return faultf(path+".op", "%s has not the role %q", j.node(b.Op), GradCollective)
		}
	}
	return nil
}

// checkBarrier wants no barrier op to precede a producer: it waits for all
// gradients, so both would wait forever. The order of recorded transfers on
// their lanes does not count: see [Job.Strip].
func (j *Job) checkBarrier(g *graph) error {
	if len(j.Barrier) == 0 {
		return nil
	}
	const none = -1
	behind := slices.Repeat([]int32{none}, len(j.Ops)+len(j.Collectives)) // position of a barrier op that precedes, or is, the node
	for i, v := range j.Barrier {
		behind[v] = int32(i)
	}
	for _, v := range g.order {
		if behind[v] == none {
			continue
		}
		transfer := int(v) < len(j.Ops) && j.Ops[v].Role == GradCollective
		for _, w := range g.successors(v) {
			if behind[w] == none && !(transfer && j.why(v, w) == "lane order") {
				behind[w] = behind[v]
			}
		}
	}
	for k := range j.Tensors {
		for _, v := range j.Tensors[k].Producers {
			i := behind[v]
			if i == none {
				continue
			}
			b, how := j.Barrier[i], "precedes "+j.node(v)+", which"
			if b == v {
				how = "itself"
			}
			return faultf(fmt.Sprintf("barrier[%d]", i), "%s waits for all gradients, but %s adds to that of %q", j.node(b), how, fault.Short(j.Tensors[k].Name))
		}
	}
	return nil
}

// checkUpdates wants no reader and no producer of a tensor to run after an
// updater of it: the value of this iteration would be read before it exists.
//
// A lane runs in order, so what an op must follow is given, lane by lane, by
// the last op there that precedes it (a vector clock). One pass over the graph
// a lane that holds updates computes it for all ops.
func (j *Job) checkUpdates(g *graph) error {
	lanes := map[LaneID]bool{}
	for i := range j.Tensors {
		for _, u := range j.Tensors[i].Updaters {
			lanes[j.Ops[u].Lane] = true
		}
	}
	clock := make([]OpID, len(j.Ops)+len(j.Collectives))
	for l := range j.Lanes {
		if !lanes[LaneID(l)] {
			continue
		}
		for v := range clock {
			clock[v] = -1
		}
		for _, v := range g.order {
			if int(v) < len(j.Ops) && int(j.Ops[v].Lane) == l {
				clock[v] = v
			}
			for _, w := range g.successors(v) {
				clock[w] = max(clock[w], clock[v])
			}
		}
		for i := range j.Tensors {
			t := &j.Tensors[i]
			k := slices.IndexFunc(t.Updaters, func(u OpID) bool { return int(j.Ops[u].Lane) == l })
			if k < 0 {
				continue
			}
			for what, ids := range [][]OpID{t.Readers, t.Producers} {
				for n, v := range ids {
					if clock[v] < t.Updaters[k] {
						continue
					}
					path := fmt.Sprintf("tensors[%d].%s[%d]", i, []string{"readers", "producers"}[what], n)
					return faultf(path, "%s %s of %q, but runs after %s, which writes the value that the next iteration reads",
						j.node(v), []string{"reads the value", "adds to the gradient"}[what], fault.Short(t.Name), j.node(t.Updaters[k]))
				}
			}
		}
	}
	return nil
}
