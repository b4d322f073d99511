package kineto

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"weft/internal/interval"
	"weft/internal/median"
	"weft/job"
)

// TensorInfo is one line of a tensors file: a parameter's name, its elements
// and its element type, in named_parameters() order.
type TensorInfo struct {
	Name     string
	Elements int64
	DType    job.DType
}

// JobOptions say what the trace cannot.
type JobOptions struct {
	Tensors []TensorInfo // nil: none
	Update  *job.Mode    // nil: as recognised
	// Step chooses the times: 0 takes per-op medians over the recorded steps,
	// i > 0 those of the i-th recorded step alone (for replay).
	Step int
	// Overlap is by how much a transfer slowed the recorded computation. The
	// part of an op's time during which one was active counts 1/(1+Overlap), so
	// that the job holds what computation takes alone, as cluster.Overlap assumes.
	Overlap float64
}

// Job derives the job that the trace recorded; docs/import.md says what comes
// from what. What a trace does not tell is in the job's notes, or, where no job
// is possible without it, in the error, an [*Error].
func (t *Trace) Job(o JobOptions) (*job.Job, error) {
	v, err := newView(t)
	if err != nil {
		return nil, err
	}
	if o.Step < 0 || o.Step > len(v.steps) {
		return nil, t.fail("there is no step %d: the trace has %d", o.Step, len(v.steps))
	}
	if err := v.checkParallel(); err != nil {
		return nil, err
	}
	d := &deriver{v: v, o: o}
	if o.Step > 0 {
		d.g = v.graphOf(o.Step - 1)
		d.samples = []sample{v.sampleOf(d.g, o.Overlap)}
	} else {
		d.align()
	}
	for _, n := range d.g.notes {
		d.note("%s", n)
	}
	return d.derive()
}

// checkParallel refuses what is not plain data parallelism, naming what the
// trace has.
func (v *view) checkParallel() error {
	counts, gradients := map[string]int{}, 0
	for n := range v.collectives {
		c := &v.collectives[n]
		if v.stepOf(c) < 0 {
			continue
		}
		if c.gradient {
			gradients++
		}
		inOptimizer := v.under(c.issue, isOptimizer) >= 0
		switch c.kind {
		case "all-reduce", "barrier":
		case "broadcast", "all-gather":
			if inOptimizer {
				counts[c.kind+" of parameters in the optimizer"]++
			}
		default:
			counts[c.kind]++
		}
		if c.gradient && c.kind != "all-reduce" {
			counts[c.kind+" of gradients"]++
		}
	}
	var list []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, fmt.Sprintf("%s (%d)", what, counts[what]))
	}
	switch {
	case len(list) > 0:
		return v.t.fail("not plain data parallelism: the steps have %s; parameters are sharded or split over the ranks, and plans for that are not supported; inspect works", strings.Join(list, ", "))
	case len(v.collectives) == 0:
		return v.t.fail("no collectives in this trace: record a step of DistributedDataParallel on at least two ranks")
	case gradients == 0:
		return v.t.fail("no collective carries gradients: none is issued where autograd hands gradients over, as DistributedDataParallel does; record a step of it")
	}
	return nil
}

// deriver makes the job.
type deriver struct {
	v       *view
	o       JobOptions
	g       *graph   // whose structure the job has
	samples []sample // of the steps with that structure, g's first
	notes   []string
	job     *job.Job
}

// sample is the times of one step, in microseconds.
type sample struct {
	ops, collectives []float64
	sampling         int // see graph
}

func (v *view) sampleOf(g *graph, overlap float64) sample {
	s := sample{ops: make([]float64, len(g.ops)), collectives: make([]float64, len(g.collectives)), sampling: g.sampling}
	for n := range g.ops {
		s.ops[n] = g.ops[n].Time / 1e3
	}
	if overlap > 0 {
		v.alone(g, overlap, s.ops)
	}
	for n := range g.collectives {
		s.collectives[n] = us(g.collectives[n].end - g.collectives[n].start)
	}
	return s
}

// alone takes out of the times of computing ops what overlapped transfers added.
func (v *view) alone(g *graph, overlap float64, times []float64) {
	var active []stretch
	for n := range g.collectives {
		active = append(active, stretch{Start: g.collectives[n].start, End: g.collectives[n].end})
	}
	active = interval.Union(active)
	for n := range g.ops {
		o := &g.ops[n]
		if o.end <= o.start || !v.computes[o.Lane] {
			continue
		}
		from := sort.Search(len(active), func(i int) bool { return active[i].End > o.start })
		to := sort.Search(len(active), func(i int) bool { return active[i].Start >= o.end })
		if from < to {
			shared := interval.Overlap(active[from:to], []stretch{{Start: o.start, End: o.end}})
			share := float64(shared) / float64(o.end-o.start)
			times[n] *= 1 - share*overlap/(1+overlap)
		}
	}
}

// median is the median over the samples of one of their times.
func (d *deriver) median(of func(*sample) float64) float64 {
	times := make([]float64, len(d.samples))
	for k := range d.samples {
		times[k] = of(&d.samples[k])
	}
	return median.Of(times)
}

func (d *deriver) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(d.notes, n) {
		d.notes = append(d.notes, n)
	}
}

// align finds the structure that most steps have.
func (d *deriver) align() {
	type group struct {
		first   *graph
		samples []sample
		steps   []string
	}
	var groups []*group
	for s := range d.v.steps {
		g := d.v.graphOf(s)
		k := slices.IndexFunc(groups, func(x *group) bool { return d.v.sameStructure(x.first, g) })
		if k < 0 {
			k = len(groups)
			groups = append(groups, &group{first: g})
		}
		groups[k].samples = append(groups[k].samples, d.v.sampleOf(g, d.o.Overlap))
		groups[k].steps = append(groups[k].steps, fmt.Sprint(d.v.steps[s].number))
	}
	most := slices.MaxFunc(groups, func(a, b *group) int { return cmp.Compare(len(a.steps), len(b.steps)) })
	d.g, d.samples = most.first, most.samples
	var others []string
	for _, g := range groups {
		if g != most {
			others = append(others, g.steps...)
		}
	}
	if len(others) > 0 {
		d.note("left out, because their ops differ from those of most steps: step %s", strings.Join(others, ", "))
	}
}

// sameStructure reports whether two steps did the same. Which of several
// transfer threads carried a collective does not matter.
func (v *view) sameStructure(a, b *graph) bool {
	return slices.EqualFunc(a.ops, b.ops, func(x, y gop) bool {
		comm := x.Role == job.GradCollective && y.Role == job.GradCollective
		return (x.Lane == y.Lane || comm) && x.Phase == y.Phase && x.Role == y.Role && x.Micro == y.Micro &&
			x.Tensor == y.Tensor && slices.Equal(x.Deps, y.Deps)
	}) && slices.EqualFunc(a.collectives, b.collectives, func(x, y gcollective) bool {
		c, e := &v.collectives[x.id], &v.collectives[y.id]
		return x.op == y.op && c.kind == e.kind && c.elements == e.elements && slices.Equal(x.after, y.after) && slices.Equal(x.before, y.before)
	}) && slices.EqualFunc(a.spans, b.spans, func(x, y opSpan) bool { return slices.Equal(x.ops, y.ops) }) &&
		slices.Equal(a.handOver, b.handOver) && slices.Equal(a.barrier, b.barrier)
}

// derive puts the job together.
func (d *deriver) derive() (*job.Job, error) {
	v := d.v
	if len(d.g.grads) == 0 || len(d.g.buckets) == 0 {
		return nil, v.t.fail("step %d hands no gradients over: record a whole step", v.steps[d.g.step].number)
	}
	_, name := filepath.Split(v.t.Name) // where the file lay is no matter of the job's
	d.job = &job.Job{Name: name, World: v.t.World, Lanes: v.lanes, Mode: d.mode(), Barrier: d.g.barrier}
	d.addOps()
	if err := d.addTensors(); err != nil {
		return nil, err
	}
	d.addCollectives()
	d.addRecorded()
	d.remark()
	d.job.Notes = d.notes
	if err := d.job.Validate(); err != nil {
		return nil, &Error{Name: v.t.Name, Offset: -1, Msg: "the trace gives no valid job: " + err.Error(), Err: err}
	}
	return d.job, nil
}

// addOps takes the ops, each with the median of its times. A median leaves out
// the slow executions, of other ops in other steps, so that medians sum to less
// than a step takes. Hence they are rescaled, so that they sum to the median of
// what they took together: first the ops of each phase on a lane, then all ops
// of a lane but the library's, for phases too are slow in different steps.
func (d *deriver) addOps() {
	d.job.Ops = make([]job.Op, len(d.g.ops))
	for n := range d.g.ops {
		o := &d.job.Ops[n]
		*o = d.g.ops[n].Op
		o.Time = d.median(func(s *sample) float64 { return s.ops[n] })
		o.Name = d.v.opName(&d.g.ops[n])
	}
	d.rescale(func(o *job.Op) job.Phase { return o.Phase })
	d.rescale(func(o *job.Op) job.Phase {
		if o.Phase == job.Runtime {
			return job.Runtime
		}
		return job.Forward
	})
}

// rescale makes the times of the ops of one lane and part sum to the median over
// the samples of their sum. Transfers stay as they are.
func (d *deriver) rescale(part func(*job.Op) job.Phase) {
	type group struct {
		lane job.LaneID
		part job.Phase
	}
	groups := map[group][]int{}
	for n := range d.job.Ops {
		if o := &d.job.Ops[n]; d.v.lanes[o.Lane].Kind != job.Comm {
			k := group{o.Lane, part(o)}
			groups[k] = append(groups[k], n)
		}
	}
	for _, ops := range groups {
		sum := func(time func(n int) float64) (sum float64) {
			for _, n := range ops {
				sum += time(n)
			}
			return sum
		}
		now := sum(func(n int) float64 { return d.job.Ops[n].Time })
		want := d.median(func(s *sample) float64 { return sum(func(n int) float64 { return s.ops[n] }) })
		if now > 0 && want > 0 {
			for _, n := range ops {
				d.job.Ops[n].Time *= want / now
			}
		}
	}
}

// opName names an op for people: by the outermost recorded op it is part of.
func (v *view) opName(o *gop) string {
	switch {
	case o.Role == job.CopyIn:
		return "copy into bucket"
	case o.Role == job.CopyOut:
		return "copy out of bucket"
	case o.from < 0:
		return "between ops"
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(v.name(o.from), evalMark), "(")
	return name
}

// mode is global if between backward pass and update something looks at all
// gradients.
func (d *deriver) mode() job.Mode {
	if d.o.Update != nil {
		return *d.o.Update
	}
	v := d.v
	for i := range v.during(d.g.runs[len(d.g.runs)-1].end, v.steps[d.g.step].end) {
		if v.is(i, isScalerCheck) || v.is(i, isNorm) && v.under(i, isOptimizer) < 0 {
			d.note("updates wait for all gradients: %.80s looks at them before the optimizer", v.name(i))
			return job.Global
		}
	}
	return job.PerTensor
}

func (d *deriver) addCollectives() {
	unsized := 0
	for n := range d.g.collectives {
		c := &d.g.collectives[n]
		x := &d.v.collectives[c.id]
		if x.gradient {
			continue
		}
		kind := x.kind
		if kind == "barrier" {
			kind = "all-reduce"
		}
		if x.bytes() == 0 {
			unsized++
		}
		d.job.Collectives = append(d.job.Collectives, job.Collective{
			Name: strings.TrimSuffix(d.v.name(x.issue), "_"), Kind: kind, Bytes: x.bytes(),
			Time:  d.median(func(s *sample) float64 { return s.collectives[n] }),
			After: ascending(c.after), Before: ascending(c.before),
		})
	}
	if unsized > 0 {
		d.note("%d of %d collectives without gradients have no recorded size: they cost nothing under a plan", unsized, len(d.job.Collectives))
	}
}

func ascending(ids []job.OpID) []job.OpID {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// addRecorded describes the buckets. A run without no_sync reduces in every
// micro-batch: then they are those of the last.
func (d *deriver) addRecorded() {
	r := &job.Recorded{Library: "ddp", Backend: d.v.backend()}
	last := map[job.TensorID]int{}
	for k := range d.g.buckets {
		for _, n := range d.g.buckets[k].grads {
			last[d.g.grads[n].tensor] = k
		}
	}
	repeated := 0
	for k := range d.g.buckets {
		b := &d.g.buckets[k]
		if slices.ContainsFunc(b.grads, func(n int32) bool { return last[d.g.grads[n].tensor] != k }) {
			repeated++
			continue
		}
		x := &d.v.collectives[b.collective]
		d.job.World = max(d.job.World, x.group)
		rec := job.RecordedBucket{Bytes: x.bytes(), Op: d.g.collectives[d.g.find(b.collective)].op}
		var sum int64
		for _, n := range b.grads {
			t := d.g.grads[n].tensor
			rec.Tensors = append(rec.Tensors, t)
			sum += d.job.Tensors[t].GradBytes()
		}
		if rec.Bytes == 0 {
			rec.Bytes = sum
		} else if sum != rec.Bytes {
			d.note("bucket %d carried %d bytes, its tensors sum to %d", k, rec.Bytes, sum)
		}
		r.Buckets = append(r.Buckets, rec)
	}
	if repeated > 0 {
		d.note("the run reduced its gradients in every micro-batch, which no_sync avoids: %d collectives of earlier ones are left out of the recorded buckets", repeated)
	}
	d.job.Recorded = r
}

// backend is what carried the collectives.
func (v *view) backend() string {
	if v.t.Backend != "" {
		return v.t.Backend
	}
	for n := range v.collectives {
		if e := v.collectives[n].transfer; e >= 0 {
			name, _, _ := strings.Cut(v.name(e), ":")
			if v.event(e).Cat.Device() {
				name = "nccl"
			}
			return name
		}
	}
	return ""
}

// remark says what a reader of any table should know.
func (d *deriver) remark() {
	if d.v.backend() == "nccl" {
		d.note("recorded NCCL times include waiting for the other ranks: they fit no cost curve")
	}
	sampling := 0
	for k := range d.samples {
		sampling += d.samples[k].sampling
	}
	if sampling > 0 {
		d.note("dropped: %d host syncs by which DDP samples its own timers (CudaTimer, at the start of forward)", sampling)
	}
}
