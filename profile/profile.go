// Package profile turns what the ranks of a training measured of its iterations
// into a job and a cluster. The workers' half is python/weft/_profile.py,
// docs/profile.md says what is measured how.
package profile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"weft/internal/fault"
	"weft/job"
)

// Report is what one rank measured. Times are microseconds, medians over
// iterations.
type Report struct {
	Iterations int `json:"iterations"`    // measured; 0: none, and nothing else is there
	Kept       int `json:"kept,omitzero"` // of them, whose events came in the commonest order; the others do not count
	// Global says that gradients were read between the backward pass and the step.
	Global bool `json:"global,omitzero"`
	// Ops are what an iteration computes, in this order, and Compute all of it; Phases are
	// its parts, by phase. Medians of parts sum to less than the median of a whole.
	Ops     []Op               `json:"ops,omitzero"`
	Compute float64            `json:"compute,omitzero"`
	Phases  map[string]float64 `json:"phases,omitzero"`
	Buffers *Buffers           `json:"buffers,omitzero"`
	// Of the iterations in which transfers overlap with computation: how long one takes,
	// Waited of it for others, and Overlapped its backward pass. 0: there were none.
	Iteration  float64 `json:"iteration,omitzero"`
	Waited     float64 `json:"waited,omitzero"`
	Overlapped float64 `json:"overlapped,omitzero"`
	// Descent is of iterations before those that are measured; nil: not asked for, or not known.
	Descent *Descent `json:"descent,omitzero"`
	// C10D is what torch.distributed takes; nil: it is not used.
	C10D *C10D `json:"c10d,omitzero"`
	// Times are how long all iterations took since the report before this one, but for the
	// first.
	Times []float64 `json:"times,omitzero"`
}

// C10D is what all-reduces through torch.distributed take, as the rank that took longest
// has it, by size; and some of them beside some of the agents': how long the slower ones
// took Alone, both Together, and both on a medium as fast as the faster of the two.
type C10D struct {
	Points   []Sized `json:"points"`
	Alone    float64 `json:"alone"`
	Together float64 `json:"together"`
	Shared   float64 `json:"shared"`
}

// Sized is how long so many bytes take.
type Sized struct {
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"time"`
}

// Op is one computation step. Reads and Gives are numbers of tensors.
type Op struct {
	Name  string         `json:"name"`
	Phase string         `json:"phase"` // forward, backward or update
	Micro int32          `json:"micro,omitzero"`
	Reads []job.TensorID `json:"reads,omitzero"`
	Gives []job.TensorID `json:"gives,omitzero"` // whose gradients it adds to
	Time  float64        `json:"time"`
}

// Buffers are tensors that rank 0 broadcasts in every iteration.
type Buffers struct {
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"time"`
}

// Slowest are the times of the iterations since the reports before these: of each, that
// of the rank that took longest.
func Slowest(reports []Report) []float64 {
	var out []float64
	for rank := range reports {
		for i, t := range reports[rank].Times {
			if i == len(out) {
				out = append(out, t)
			}
			out[i] = max(out[i], t)
		}
	}
	return out
}

// ErrUnmeasured is why there is no job of a training that no rank has measured an
// iteration of. torch.compile leaves out the hooks that would.
var ErrUnmeasured = errors.New("no iteration was measured: of a model on a GPU, or one that torch.compile runs, none can be yet")

// Job is what all ranks do in an iteration, of the reports by rank. Of other jobs
// than this one, tensors tells names, elements and types. The time of an op is the
// longest of all ranks: who is first waits for the last.
func Job(name string, tensors []job.Tensor, reports []Report) (*job.Job, error) {
	for rank := range reports {
		if err := reports[rank].check(len(tensors)); err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	like, first := alike(reports)
	if len(like) == 0 {
		return nil, ErrUnmeasured
	}
	j := &job.Job{Name: name, World: len(reports), Lanes: []job.Lane{{Name: "host", Kind: job.Host}}, Tensors: slices.Clone(tensors)}
	j.Notes = notes(reports, like)
	r := &reports[first]
	for k := range j.Tensors {
		t := &j.Tensors[k]
		t.Readers, t.Producers, t.Updaters = nil, nil, nil
	}
	var updaters []job.OpID
	for i, o := range r.Ops {
		id, phase := job.OpID(i), phases[o.Phase]
		j.Ops = append(j.Ops, job.Op{Name: o.Name, Phase: phase, Micro: o.Micro, Tensor: -1})
		for _, rank := range like {
			j.Ops[i].Time = max(j.Ops[i].Time, reports[rank].Ops[i].Time)
		}
		if i > 0 {
			j.Ops[i].Deps = []job.OpID{id - 1}
		}
		for _, k := range o.Reads {
			j.Tensors[k].Readers = append(j.Tensors[k].Readers, id)
		}
		for _, k := range o.Gives {
			j.Tensors[k].Producers = append(j.Tensors[k].Producers, id)
		}
		if phase == job.Update {
			updaters = append(updaters, id)
		}
	}
	last := slices.IndexFunc(j.Ops, func(o job.Op) bool { return o.Phase == job.Backward }) - 1
	for k := range j.Tensors {
		t := &j.Tensors[k]
		if strings.HasPrefix(t.Name, own) && last >= 0 {
			t.Readers = []job.OpID{job.OpID(last)}
		}
		if len(t.Readers) > 0 {
			t.Updaters = updaters
		}
	}
	for _, rank := range like {
		if reports[rank].Global {
			j.Mode = job.Global
		}
	}
	scale(j, reports, like)
	if b := r.Buffers; b != nil && len(updaters) > 0 && updaters[0] > 0 {
		j.Collectives = []job.Collective{{Name: "buffers", Kind: "broadcast", Bytes: b.Bytes, Time: b.Time, After: []job.OpID{updaters[0] - 1}, Before: []job.OpID{updaters[0]}}}
	}
	return j, j.Validate()
}

var phases = map[string]job.Phase{"forward": job.Forward, "backward": job.Backward, "update": job.Update}

// own begins the names of tensors that are the client's, not the model's. No op reads
// them, but any update may wait for them, and that is before the next backward pass.
const own = "weft."

// maxName bounds what a worker may call an op, bytes.
const maxName = 1 << 10

// check refuses a report that no worker sends. What is wrong with the graph is the
// job's to find.
func (r *Report) check(tensors int) error {
	for i, t := range r.Times {
		if err := checkTime(t); err != nil {
			return fmt.Errorf("its report's iteration %d: %w", i, err)
		}
	}
	if r.Iterations == 0 {
		return nil
	}
	if r.Iterations < 0 || r.Kept < 1 || r.Kept > r.Iterations {
		return fmt.Errorf("its report is of %d iterations, %d of them kept", r.Iterations, r.Kept)
	}
	times := map[string]float64{"compute": r.Compute, "iteration": r.Iteration, "waited": r.Waited, "overlapped": r.Overlapped}
	for phase, t := range r.Phases {
		if _, ok := phases[phase]; !ok {
			return fmt.Errorf("its report has a time of phase %q", fault.Short(phase))
		}
		times["phase "+phase] = t
	}
	if r.Buffers != nil {
		times["buffers"] = r.Buffers.Time
		if r.Buffers.Bytes <= 0 {
			return fmt.Errorf("its report has buffers of %d bytes", r.Buffers.Bytes)
		}
	}
	for what, t := range times {
		if err := checkTime(t); err != nil {
			return fmt.Errorf("its report's %s: %w", what, err)
		}
	}
	if len(r.Ops) > job.MaxOps {
		return fmt.Errorf("its report has %d ops, more than %d", len(r.Ops), job.MaxOps)
	}
	for i, o := range r.Ops {
		bad := func(err error) error { return fmt.Errorf("its report, op %d (%s): %w", i, fault.Short(o.Name), err) }
		if err := checkTime(o.Time); err != nil {
			return bad(err)
		}
		if _, ok := phases[o.Phase]; !ok {
			return bad(fmt.Errorf("there is no phase %q", fault.Short(o.Phase)))
		}
		if len(o.Name) > maxName {
			return bad(fmt.Errorf("a name of %d bytes, more than %d", len(o.Name), maxName))
		}
		for _, list := range [][]job.TensorID{o.Reads, o.Gives} {
			for n, k := range list {
				if k < 0 || int(k) >= tensors {
					return bad(fmt.Errorf("there is no tensor %d; there are %d, from 0", k, tensors))
				}
				if n > 0 && k <= list[n-1] {
					return bad(fmt.Errorf("tensor %d after tensor %d; list tensors in ascending order", k, list[n-1]))
				}
			}
		}
	}
	return nil
}

func checkTime(us float64) error {
	if !(us >= 0 && us <= job.MaxTime) {
		return fmt.Errorf("%v us is not a time, 0 to %g", us, job.MaxTime)
	}
	return nil
}

// alike are the ranks that compute the commonest row of ops, and the first of them.
func alike(reports []Report) (ranks []int, first int) {
	by := map[string][]int{}
	for rank := range reports {
		if r := &reports[rank]; r.Iterations > 0 {
			f := r.form()
			by[f] = append(by[f], rank)
		}
	}
	for _, of := range by {
		if len(of) > len(ranks) || len(of) == len(ranks) && of[0] < first {
			ranks, first = of, of[0]
		}
	}
	return ranks, first
}

// form is all of the ops but their times.
func (r *Report) form() string {
	var b strings.Builder
	for _, o := range r.Ops {
		fmt.Fprintf(&b, "%q %s %d %v %v\n", o.Name, o.Phase, o.Micro, o.Reads, o.Gives)
	}
	return b.String()
}

// scale makes the ops take together what was measured of all together: medians of
// ops leave out that in each iteration some other one is slow. First by phase, for
// phases are slow at different times, too.
func scale(j *job.Job, reports []Report, like []int) {
	longest := func(of func(*Report) float64) (most float64) {
		for _, rank := range like {
			most = max(most, of(&reports[rank]))
		}
		return most
	}
	to := func(want float64, which func(*job.Op) bool) {
		sum := 0.0
		for i := range j.Ops {
			if which(&j.Ops[i]) {
				sum += j.Ops[i].Time
			}
		}
		if want <= 0 || sum <= 0 {
			return
		}
		for i := range j.Ops {
			if which(&j.Ops[i]) {
				j.Ops[i].Time *= want / sum
			}
		}
	}
	for name, phase := range phases {
		to(longest(func(r *Report) float64 { return r.Phases[name] }), func(o *job.Op) bool { return o.Phase == phase })
	}
	to(longest(func(r *Report) float64 { return r.Compute }), func(*job.Op) bool { return true })
	for i := range j.Ops {
		j.Ops[i].Time = math.Round(j.Ops[i].Time*1e3) / 1e3 // nobody measures less
	}
}

func notes(reports []Report, like []int) (out []string) {
	if left := len(reports) - len(like); left > 0 {
		out = append(out, fmt.Sprintf("%d of %d ranks compute other ops, or in another order, than rank %d: their times do not count", left, len(reports), like[0]))
	}
	rank := slices.MinFunc(like, func(a, b int) int { return cmp.Compare(share(&reports[a]), share(&reports[b])) })
	if r := &reports[rank]; r.Kept < r.Iterations {
		out = append(out, fmt.Sprintf("on rank %d, %d of %d iterations had other ops, or another order, than most: they do not count", rank, r.Iterations-r.Kept, r.Iterations))
	}
	return out
}

func share(r *Report) float64 { return float64(r.Kept) / float64(max(r.Iterations, 1)) }
