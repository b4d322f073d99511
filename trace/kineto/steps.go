package kineto

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strconv"
	"strings"

	"weft/job"
)

// class is what an event's name says about it; names are few, so it is worked
// out once a name.
type class uint32

const (
	isStep        class = 1 << iota // the profiler's mark around a step
	isEval                          // autograd runs a backward node
	isAccumulate                    // ... which hands a gradient to its parameter
	isHandOver                      // the part of it that does so; the library's hook follows
	isCopyOut                       // of one gradient out of its bucket
	isUnflatten                     // the library takes a broadcast buffer apart again
	isIssue                         // host part of a collective
	isTransfer                      // a collective on a thread of its own
	isNCCL                          // a collective on a stream
	isOptimizer                     // the optimizer's step
	isModule                        // a span around ops, no op itself
	isStreamWait                    // a stream waits for an event
	isEventRecord                   // an event is recorded on a stream
	isSync                          // the host waits for the device
	isElapsedTime                   // reads a timer of two events
	isNorm                          // a norm, of all gradients when between backward and update
	isScalerCheck                   // a loss scaler looks for infinities
)

// classes gives the class of a name by its beginning, or by all of it where a
// rule ends with "$". A name may have several.
var classes = []struct {
	rule string
	class
}{
	{stepMark, isStep},
	{evalMark, isEval},
	{evalMark + "torch::autograd::AccumulateGrad", isAccumulate},
	{"torch::autograd::AccumulateGrad", isHandOver},
	{"torch.distributed.ddp.reducer::copy_bucket_to_grad", isCopyOut},
	{"aten::unflatten_dense_tensors", isUnflatten},
	{"c10d::", isIssue},
	{"record_param_comms", isIssue},
	{"nccl:", isIssue},
	{"nccl", isNCCL},
	{"gloo:", isTransfer},
	{"Optimizer.step#", isOptimizer},
	{"DistributedDataParallel.forward", isModule},
	{"nn.Module:", isModule},
	{"cudaStreamWaitEvent", isStreamWait},
	{"hipStreamWaitEvent", isStreamWait},
	{"cudaEventRecord", isEventRecord},
	{"hipEventRecord", isEventRecord},
	{"cudaDeviceSynchronize", isSync},
	{"cudaStreamSynchronize", isSync},
	{"cudaEventSynchronize", isSync},
	{"hipDeviceSynchronize", isSync},
	{"hipStreamSynchronize", isSync},
	{"hipEventSynchronize", isSync},
	{"cudaEventElapsedTime", isElapsedTime},
	{"hipEventElapsedTime", isElapsedTime},
	{"aten::_foreach_norm", isNorm},
	{"aten::linalg_vector_norm", isNorm},
	{"aten::norm$", isNorm},
	{"aten::_amp_foreach_non_finite_check_and_unscale_", isScalerCheck},
}

const evalMark = "autograd::engine::evaluate_function: "

func classify(name string) (c class) {
	for _, r := range classes {
		if rule, whole := strings.CutSuffix(r.rule, "$"); whole && name == rule || !whole && strings.HasPrefix(name, rule) {
			c |= r.class
		}
	}
	return c
}

// view is a trace arranged for derivation: its steps, the host threads that
// compute, the nesting of their events, the streams, and the collectives.
type view struct {
	t     *Trace
	class []class // by name

	steps   []stepSpan
	threads [][]int32 // that compute: their events by start, an enclosing one before those in it; the first has the step marks
	parent  []int32   // by event of those threads: the event around it, or -1
	outer   []int32   // by event of those threads: the outermost op around it or itself; -1: it is a span around ops
	device  []int32   // events on streams but annotations, by correlation, then start
	syncs   []int32   // recorded waits of streams, by correlation

	lanes    []job.Lane // of the threads, in their order; then of streams, then of transfers
	lane     []int32    // of a row as host or device lane; -1
	commLane []int32    // of a row as lane of transfers; -1
	computes []bool     // by lane, as job.Job.Computes
	streams  bool       // computation is on streams

	collectives []collective
	issued      map[int32]int32 // issuing event -> its first collective
	transfer    map[int32]int32 // device event or transfer span -> its collective
}

// stepSpan is one marked step.
type stepSpan struct {
	number     int // as in its mark
	start, end int64
}

func (v *view) event(i int32) *Event { return &v.t.Events[i] }
func (v *view) name(i int32) string  { return v.t.Names[v.t.Events[i].Name] }
func (v *view) is(i int32, c class) bool {
	return i >= 0 && v.class[v.t.Events[i].Name]&c != 0
}

// extra is the event's less common arguments, empty if it has none.
func (v *view) extra(i int32) *Extra {
	if x := v.t.Events[i].Extra; x >= 0 {
		return &v.t.Extras[x]
	}
	return &noExtra
}

var noExtra = Extra{Stream: -1}

// fail is an error about the whole trace.
func (t *Trace) fail(format string, args ...any) error {
	return &Error{Name: t.Name, Offset: -1, Msg: fmt.Sprintf(format, args...)}
}

func newView(t *Trace) (*view, error) {
	v := &view{t: t, class: make([]class, len(t.Names))}
	for i, name := range t.Names {
		v.class[i] = classify(name)
		if !t.Kineto && v.class[i] == 0 && !strings.Contains(name, "::") && !strings.Contains(name, "Backward") {
			v.class[i] = isModule // such writers mark user spans by nothing else
		}
	}
	mainRow := v.findSteps()
	if len(v.steps) == 0 {
		return nil, t.fail("no steps in this trace: call the profiler's step() after every iteration, with a schedule or without, and record it again")
	}
	v.findRows(mainRow)
	v.nest()
	v.findCollectives()
	return v, nil
}

// findSteps lists the marked steps and returns the thread that they are on.
func (v *view) findSteps() (row uint16) {
	for i := range v.t.Events {
		e := &v.t.Events[i]
		if e.Cat > Annotation || v.class[e.Name]&isStep == 0 || len(v.steps) > 0 && e.Row != row {
			continue
		}
		row = e.Row
		n, _ := strconv.Atoi(strings.TrimPrefix(v.t.Names[e.Name], stepMark))
		v.steps = append(v.steps, stepSpan{number: n, start: e.Start, end: e.End()})
	}
	for i := 1; i < len(v.steps); i++ { // marks rounded to microseconds may overlap
		v.steps[i-1].end = min(v.steps[i-1].end, v.steps[i].start)
	}
	return row
}

// findRows sorts out which rows compute, which carry transfers, and gives them
// lanes: host threads, then streams, then transfers.
func (v *view) findRows(mainRow uint16) {
	type content struct {
		ops, transfers, nccl, device bool
		events                       int
	}
	rows := make([]content, len(v.t.Rows))
	for i := range v.t.Events {
		e, r := &v.t.Events[i], &rows[v.t.Events[i].Row]
		c := v.class[e.Name]
		r.events++
		switch {
		case e.Cat <= Annotation && c&isTransfer != 0:
			r.transfers = true
		case e.Cat == CPUOp:
			r.ops = true
		case e.Cat == Kernel && c&isNCCL != 0:
			r.nccl = true
		case e.Cat == Kernel || e.Cat == Memcpy || e.Cat == Memset:
			r.device = true
		case e.Cat == Sync:
			v.syncs = append(v.syncs, int32(i))
		}
		if e.Cat >= Kernel && e.Cat <= Memset {
			v.device = append(v.device, int32(i))
		}
	}
	byCorr := func(a, b int32) int { return cmp.Compare(v.event(a).Corr, v.event(b).Corr) }
	slices.SortStableFunc(v.device, byCorr)
	slices.SortStableFunc(v.syncs, byCorr)

	v.lane = slices.Repeat([]int32{-1}, len(rows))
	v.commLane = slices.Repeat([]int32{-1}, len(rows))
	add := func(lanes []int32, row int, kind job.LaneKind, name string) {
		lanes[row] = int32(len(v.lanes))
		v.lanes = append(v.lanes, job.Lane{Name: name, Kind: kind})
	}
	hosts := []int{int(mainRow)}
	for r := range rows {
		if rows[r].ops && !rows[r].transfers && r != int(mainRow) {
			hosts = append(hosts, r)
		}
	}
	for i, r := range hosts {
		name := "host"
		if i > 0 {
			name = "host " + v.t.Rows[r].Tid
		}
		add(v.lane, r, job.Host, name)
		v.threads = append(v.threads, make([]int32, 0, rows[r].events))
	}
	for i := range v.t.Events {
		e := &v.t.Events[i]
		if k := v.lane[e.Row]; k >= 0 && e.Cat <= Runtime && v.class[e.Name]&isStep == 0 {
			v.threads[k] = append(v.threads[k], int32(i))
		}
	}
	for r := range rows {
		if rows[r].device {
			add(v.lane, r, job.Device, "stream "+v.t.Rows[r].Tid)
		}
	}
	for r := range rows {
		switch {
		case rows[r].nccl:
			add(v.commLane, r, job.Comm, "transfers on stream "+v.t.Rows[r].Tid)
		case rows[r].transfers:
			add(v.commLane, r, job.Comm, "transfers on thread "+v.t.Rows[r].Tid)
		}
	}
	j := job.Job{Lanes: v.lanes}
	v.streams = j.HasDevice()
	for l := range v.lanes {
		v.computes = append(v.computes, j.Computes(job.LaneID(l)))
	}
}

// nest works out which event lies in which. Older writers round times to
// microseconds: an event without length at the end of another belongs in it,
// and of two with equal times the engine's is the outer one.
func (v *view) nest() {
	v.parent = make([]int32, len(v.t.Events))
	v.outer = make([]int32, len(v.t.Events))
	for _, events := range v.threads {
		slices.SortStableFunc(events, func(a, b int32) int {
			x, y := v.event(a), v.event(b)
			if c := cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(y.Dur, x.Dur)); c != 0 {
				return c
			}
			return -cmp.Compare(v.class[x.Name]&isEval, v.class[y.Name]&isEval)
		})
		var open []int32
		for _, i := range events {
			e := v.event(i)
			for len(open) > 0 {
				if end := v.event(open[len(open)-1]).End(); e.Start < end || e.Start == end && e.Dur == 0 {
					break
				}
				open = open[:len(open)-1]
			}
			v.parent[i], v.outer[i] = -1, -1
			if len(open) > 0 {
				v.parent[i] = open[len(open)-1]
				v.outer[i] = v.outer[v.parent[i]]
			}
			if v.outer[i] < 0 && e.Cat == CPUOp && !v.is(i, isModule|isOptimizer) {
				v.outer[i] = i
			}
			open = append(open, i)
		}
	}
}

// from is the position of the first event at or after a time in a list by start.
func (v *view) from(events []int32, t int64) int {
	n, _ := slices.BinarySearchFunc(events, t, func(i int32, t int64) int { return cmp.Compare(v.event(i).Start, t) })
	return n
}

// within returns the events of a list by start that start in [from, to).
func (v *view) within(events []int32, from, to int64) []int32 {
	first := v.from(events, from)
	return events[first:max(first, v.from(events, to))]
}

// during yields the events of all threads that start in [from, to), thread by
// thread.
func (v *view) during(from, to int64) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for _, events := range v.threads {
			for _, i := range v.within(events, from, to) {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// stepAt is the position of the step that a time lies in; -1: none.
func (v *view) stepAt(t int64) int {
	n := sort.Search(len(v.steps), func(n int) bool { return v.steps[n].start > t })
	if n == 0 || t >= v.steps[n-1].end {
		return -1
	}
	return n - 1
}

// launched lists the device events of a launch, by start.
func (v *view) launched(launch int32) []int32 { return v.byCorr(v.device, v.event(launch).Corr) }

func (v *view) byCorr(events []int32, corr uint32) []int32 {
	if corr == 0 {
		return nil
	}
	n, _ := slices.BinarySearchFunc(events, corr, func(i int32, c uint32) int { return cmp.Compare(v.event(i).Corr, c) })
	m := n
	for m < len(events) && v.event(events[m]).Corr == corr {
		m++
	}
	return events[n:m]
}

// isNCCLKernel reports whether a device event is a collective.
func (v *view) isNCCLKernel(i int32) bool { return v.event(i).Cat == Kernel && v.is(i, isNCCL) }

// under returns the nearest event of the class around i, or i itself; -1: none.
func (v *view) under(i int32, c class) int32 {
	for ; i >= 0; i = v.parent[i] {
		if v.is(i, c) {
			return i
		}
	}
	return -1
}

// volume is the product of a shape.
func volume(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		if d < 0 || d > 0 && n > (1<<62)/d {
			return 0
		}
		n *= d
	}
	return n
}
