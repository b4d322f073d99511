package kineto

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	"weft/job"
)

// collective is one recorded collective.
type collective struct {
	kind     string // all-reduce, broadcast, ...
	elements int64  // that enter it; 0: unknown
	dtype    job.DType
	group    int
	issue    int32 // event: its host part
	gradient bool  // it carries gradients
	transfer int32 // event: the kernel, or the span on a thread of its own; -1: not found
}

// bytes is the size of the collective's input, 0 if unknown.
func (c *collective) bytes() int64 { return c.elements * c.dtype.Bytes() }

// kinds translates the names that PyTorch and its backends give to collectives,
// spelled without punctuation, by their beginnings. "": not a collective of
// data.
var kinds = []struct{ prefix, kind string }{
	{"allreduce", "all-reduce"},
	{"broadcast", "broadcast"},
	{"reducescatter", "reduce-scatter"},
	{"allgather", "all-gather"},
	{"alltoall", "all-to-all"},
	{"reduce", "reduce"},
	{"gather", "gather"},
	{"scatter", "scatter"},
	{"send", "send"},
	{"recv", "recv"},
	{"barrier", "barrier"},
}

var notLetters = strings.NewReplacer("c10d::", "", "nccl:", "", "gloo:", "", "_", "")

func kindOf(name string) string {
	name = notLetters.Replace(strings.ToLower(name))
	for _, k := range kinds {
		if strings.HasPrefix(name, k.prefix) {
			return k.kind
		}
	}
	return ""
}

// findCollectives lists the collectives in the order of their issue and finds
// what carried each: the kernel launched by its issue, or the next span of the
// same kind and size on a transfer thread.
func (v *view) findCollectives() {
	v.issued, v.transfer = map[int32]int32{}, map[int32]int32{}
	var spans []int32 // on transfer threads, by start
	for i := range v.t.Events {
		if e := &v.t.Events[i]; e.Cat <= Annotation && v.is(int32(i), isTransfer) && v.commLane[e.Row] >= 0 {
			spans = append(spans, int32(i))
		}
	}
	for k := range v.threads {
		v.findIssues(v.threads[k])
	}
	slices.SortStableFunc(v.collectives, func(a, b collective) int {
		return cmp.Compare(v.event(a.issue).Start, v.event(b.issue).Start)
	})
	for n := range v.collectives {
		c := &v.collectives[n]
		if c.transfer < 0 {
			spans = v.claim(c, spans)
		}
		if _, ok := v.issued[c.issue]; !ok {
			v.issued[c.issue] = int32(n)
		}
		if c.transfer >= 0 {
			v.transfer[c.transfer] = int32(n)
		}
	}
}

// stepOf is the position of the step that issued a collective; -1: none.
func (v *view) stepOf(c *collective) int { return v.stepAt(v.event(c.issue).Start) }

// collectivesOf is the range of a step's collectives.
func (v *view) collectivesOf(step int) (from, to int) {
	at := func(t int64) int {
		return sort.Search(len(v.collectives), func(n int) bool { return v.event(v.collectives[n].issue).Start >= t })
	}
	from = at(v.steps[step].start)
	return from, max(from, at(v.steps[step].end))
}

// findIssues adds the collectives that a thread issues.
func (v *view) findIssues(events []int32) {
	for k := 0; k < len(events); k++ {
		i := events[k]
		e := v.event(i)
		switch {
		case v.is(i, isIssue):
		case e.Cat == Runtime && slices.ContainsFunc(v.launched(i), v.isNCCLKernel):
		default:
			continue
		}
		c := collective{issue: i, transfer: -1, gradient: v.under(i, isAccumulate) >= 0}
		var kernels []int32
		first := k
		for ; k < len(events) && (k == first || v.event(events[k]).Start < e.End()); k++ {
			v.describe(&c, events[k])
			if v.event(events[k]).Cat == Runtime {
				for _, d := range v.launched(events[k]) {
					if v.isNCCLKernel(d) {
						kernels = append(kernels, d)
					}
				}
			}
		}
		k--
		if c.kind == "" && len(kernels) == 0 {
			continue // a wait, or bookkeeping
		}
		for _, d := range kernels {
			c := c
			c.transfer = d
			if v.extra(d).Elements > 0 {
				c.elements = 0
			}
			v.describe(&c, d)
			v.collectives = append(v.collectives, c)
		}
		if len(kernels) == 0 {
			v.collectives = append(v.collectives, c)
		}
	}
}

// describe takes from an event what it tells about a collective and is not yet
// known.
func (v *view) describe(c *collective, i int32) {
	x := v.extra(i)
	if c.kind == "" {
		if x.Collective != "" {
			c.kind = kindOf(x.Collective)
		} else if v.is(i, isIssue|isTransfer) {
			c.kind = kindOf(v.name(i))
		}
	}
	if c.elements == 0 && x.Elements > 0 {
		c.elements = x.Elements
		if d, err := job.ParseDType(x.DType); err == nil {
			c.dtype = d
		}
	}
	if c.elements == 0 && v.is(i, isIssue|isTransfer) {
		for k, shape := range x.Dims {
			if shape == nil {
				continue
			}
			c.elements += volume(shape)
			if d, err := job.ParseDType(x.Types[k]); err == nil {
				c.dtype = d
			}
		}
	}
	c.group = max(c.group, x.Group)
}

// claim finds the span that carried a collective and takes it out of the spans
// that are left.
func (v *view) claim(c *collective, spans []int32) []int32 {
	issued := v.event(c.issue).Start
	for k, s := range spans {
		if v.event(s).Start < issued {
			continue
		}
		var span collective
		v.describe(&span, s)
		if span.kind != c.kind || span.elements > 0 && c.elements > 0 && span.elements != c.elements {
			continue
		}
		c.transfer = s
		if c.elements == 0 {
			c.elements, c.dtype = span.elements, span.dtype
		}
		return slices.Delete(spans, k, k+1)
	}
	return spans
}
