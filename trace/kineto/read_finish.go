package kineto

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// maxSkew is by how much a device op may seem to start before its launch, in
// nanoseconds. Profilers convert the device's clock to the host's, about 10 us
// wrong in known traces; ten times that is a damaged trace.
const maxSkew = 100_000

// maxOverlap is by how much the marks of consecutive steps may overlap, in
// nanoseconds: older writers round their starts and ends to microseconds.
const maxOverlap = 10_000

// stepMark starts the names of the marks that the profiler puts around steps.
const stepMark = "ProfilerStep#"

// finish puts the events in order and checks what needs all of them.
func (d *reader) finish() (*Trace, error) {
	t := d.trace
	if d.events.n == 0 {
		return nil, &Error{Name: t.Name, Offset: -1, Msg: "no events" + dropped(t.Dropped) + ": record the trace again"}
	}
	t.Events = d.events.take()
	slices.SortFunc(t.Events, func(a, b Event) int {
		switch {
		case a.Start != b.Start:
			return cmp.Compare(a.Start, b.Start)
		case a.Dur != b.Dur:
			return cmp.Compare(b.Dur, a.Dur)
		}
		return cmp.Compare(a.order, b.order)
	})
	d.link()
	if err := d.checkRanks(); err != nil {
		return nil, err
	}
	if err := d.checkLaunches(); err != nil {
		return nil, err
	}
	return t, nil
}

// dropped lists what was not kept.
func dropped(counts map[string]int) string {
	var list []string
	for reason, n := range counts {
		list = append(list, fmt.Sprintf("%s %d", reason, n))
	}
	if list == nil {
		return ""
	}
	slices.Sort(list)
	return fmt.Sprintf(" to use (dropped: %s)", strings.Join(list, ", "))
}

// link gives the ends of each arrow a sequence number, as if they had been
// recorded with it: of two forward ops the later has the higher one. An arrow
// begins at the start of the forward op and ends at that of the node's op, which
// lies in the node's evaluation.
func (d *reader) link() {
	if len(d.flows) == 0 {
		return
	}
	t := d.trace
	slices.SortStableFunc(d.flows, func(a, b flow) int { return cmp.Compare(a.id, b.id) })
	type place struct {
		at  int64
		row uint16
	}
	var arrows [][2]place
	for rest := d.flows; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].id == rest[0].id {
			n++
		}
		start := slices.IndexFunc(rest[:n], func(f flow) bool { return !f.finish })
		finish := slices.IndexFunc(rest[:n], func(f flow) bool { return f.finish })
		if n == 2 && start >= 0 && finish >= 0 {
			arrows = append(arrows, [2]place{{rest[start].at, rest[start].row}, {rest[finish].at, rest[finish].row}})
		} else { // an end whose other end was not recorded, or ends that cannot be told apart
			for range n {
				d.drop("fwdbwd flow")
			}
		}
		rest = rest[n:]
	}
	d.flows = nil
	slices.SortStableFunc(arrows, func(a, b [2]place) int { return cmp.Compare(a[0].at, b[0].at) })
	numbers := map[place]int32{}
	for n, a := range arrows {
		numbers[a[0]], numbers[a[1]] = int32(n), int32(n)
	}
	evals := make([]*Event, len(t.Rows)) // the last evaluation by row
	for i := range t.Events {
		e := &t.Events[i]
		if e.Cat != CPUOp {
			continue
		}
		if strings.HasPrefix(t.Names[e.Name], evalMark) {
			evals[e.Row] = e
		}
		n, ok := numbers[place{e.Start, e.Row}]
		if !ok {
			continue
		}
		e.Seq = n
		if around := evals[e.Row]; around != nil && t.Names[around.Name] == evalMark+t.Names[e.Name] {
			around.Seq = n
		}
	}
}

// checkRanks refuses a file in which several ranks were merged. Only step marks
// tell: forked workers are processes too, but mark no steps. Within one process
// a step ends before the next begins, so marks that overlap are of two, even
// where, as in a bare array, both have the same process id.
func (d *reader) checkRanks() error {
	t := d.trace
	ops := make([]bool, len(t.Rows)) // rows of host threads that ran ops
	mark := make([]bool, len(t.Names))
	for i, name := range t.Names {
		mark[i] = strings.HasPrefix(name, stepMark)
	}
	for i := range t.Events {
		if t.Events[i].Cat == CPUOp {
			ops[t.Events[i].Row] = true
		}
	}
	var last *Event
	for i := range t.Events {
		e := &t.Events[i]
		if e.Cat > Annotation || !mark[e.Name] || !ops[e.Row] {
			continue
		}
		if last == nil {
			last = e
			continue
		}
		if a, b := t.Rows[last.Row].Pid, t.Rows[e.Row].Pid; a != b || e.Start < last.End()-maxOverlap {
			return &Error{Name: t.Name, Offset: -1, Msg: fmt.Sprintf(
				"several ranks in one file: traceEvents[%d] (%.80q, process %.40q) and traceEvents[%d] (%.80q, process %.40q) cannot be steps of one process; give each rank's trace as its own file",
				last.order, t.Names[last.Name], a, e.order, t.Names[e.Name], b)}
		}
		last = e
	}
	return nil
}

// checkLaunches refuses device ops that start before the call that launched
// them, beyond what the clocks explain.
func (d *reader) checkLaunches() error {
	t := d.trace
	type launch struct {
		start int64
		corr  uint32
	}
	var launches []launch
	for i := range t.Events {
		if e := &t.Events[i]; e.Cat == Runtime && e.Corr != 0 {
			launches = append(launches, launch{e.Start, e.Corr})
		}
	}
	slices.SortFunc(launches, func(a, b launch) int {
		return cmp.Or(cmp.Compare(a.corr, b.corr), cmp.Compare(a.start, b.start))
	})
	for i := range t.Events {
		e := &t.Events[i]
		if e.Corr == 0 || e.Cat < Kernel || e.Cat > Memset {
			continue
		}
		at := sort.Search(len(launches), func(i int) bool { return launches[i].corr >= e.Corr })
		if at == len(launches) || launches[at].corr != e.Corr {
			continue
		}
		skew := launches[at].start - e.Start
		if skew > maxSkew {
			return &Error{Name: t.Name, Offset: -1, Msg: fmt.Sprintf(
				"traceEvents[%d] (%.80q) starts %d.%03d us before its launch (correlation %d); clocks differ by at most %d us: record the trace again",
				e.order, t.Names[e.Name], skew/1000, skew%1000, e.Corr, maxSkew/1000)}
		}
	}
	return nil
}
