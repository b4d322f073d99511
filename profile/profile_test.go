package profile

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"weft/job"
)

// tied is a job as profiles are: three layers, of which the last uses the first one's
// weight again, and the tensor that says what was used.
//
// Its ops take 1, 2, 3, ... microseconds, in order: 9 of forward (1..4 and the batch
// before), 26 of backward, 17 of update.
func tied() *job.Job {
	j := &job.Job{Name: "tied", World: 2, Lanes: []job.Lane{{Name: "host", Kind: job.Host}}}
	for i, o := range []struct {
		name  string
		phase job.Phase
	}{
		{"next batch", job.Forward}, {"embed", job.Forward}, {"hidden", job.Forward}, {"head", job.Forward},
		{"loss", job.Forward}, {"backward hidden", job.Backward}, {"backward embed", job.Backward}, {"end of backward", job.Backward},
		{"averages", job.Update}, {"step", job.Update},
	} {
		x := job.Op{Name: o.name, Phase: o.phase, Tensor: -1, Time: float64(i + 1)}
		if i > 0 {
			x.Deps = []job.OpID{job.OpID(i - 1)}
		}
		j.Ops = append(j.Ops, x)
	}
	j.Tensors = []job.Tensor{
		{Name: "weft.used", Elements: 4, Readers: []job.OpID{4}, Producers: []job.OpID{7}, Updaters: []job.OpID{8, 9}},
		{Name: "embed.weight", Elements: 100, Readers: []job.OpID{1, 3}, Producers: []job.OpID{6}, Updaters: []job.OpID{8, 9}},
		{Name: "hidden.weight", Elements: 10, Readers: []job.OpID{2}, Producers: []job.OpID{5}, Updaters: []job.OpID{8, 9}},
	}
	return j
}

// of is what a rank reports that computes a job.
func of(j *job.Job) Report {
	r := Report{Iterations: 10, Kept: 10, Phases: map[string]float64{}}
	for _, o := range j.Ops {
		r.Ops = append(r.Ops, Op{Name: o.Name, Phase: o.Phase.String(), Micro: o.Micro, Time: o.Time})
		r.Phases[o.Phase.String()] += o.Time
		r.Compute += o.Time
	}
	for k := range j.Tensors {
		for _, o := range j.Tensors[k].Readers {
			if j.Tensors[k].Name == "weft.used" {
				continue
			}
			r.Ops[o].Reads = append(r.Ops[o].Reads, job.TensorID(k))
		}
		for _, o := range j.Tensors[k].Producers {
			r.Ops[o].Gives = append(r.Ops[o].Gives, job.TensorID(k))
		}
	}
	return r
}

func TestJob(t *testing.T) {
	want := tied()
	got, err := Job("tied", want.Tensors, []Report{of(want), of(want)})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

// The time of an op is the longest of all ranks, and all ops together take what the
// longest iteration does.
func TestLongest(t *testing.T) {
	j := tied()
	a, b := of(j), of(j)
	a.Ops[2].Time, b.Ops[5].Time = 30, 60 // so forward sums to 1+2+30+4+5 = 42, backward to 60+7+8 = 75
	a.Phases = map[string]float64{"forward": 84, "backward": 75, "update": 19}
	b.Phases = map[string]float64{"forward": 40, "backward": 75, "update": 19}
	a.Compute, b.Compute = 178, 89
	got, err := Job("", j.Tensors, []Report{a, b})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]float64{0: 2, 2: 60, 5: 60, 6: 7, 9: 10} { // forward twice as long
		if math.Abs(got.Ops[i].Time-want) > 1e-9 {
			t.Errorf("op %d (%s) takes %v us, want %v", i, got.Ops[i].Name, got.Ops[i].Time, want)
		}
	}
	if a.Compute = 356; true { // all are twice as long then
		got, err = Job("", j.Tensors, []Report{a, b})
		if err != nil || math.Abs(got.Ops[9].Time-20) > 1e-9 {
			t.Errorf("the step takes %v us, want 20 (%v)", got.Ops[9].Time, err)
		}
	}
}

// A rank that computes something else does not count, and a note says so; nor does one
// that measured nothing. One rank that reads gradients before the step is enough.
func TestOthers(t *testing.T) {
	j := tied()
	odd, none, global := of(j), Report{}, of(j)
	odd.Ops[2].Name = "other"
	odd.Ops[3].Time = 1e6
	global.Global = true
	global.Kept = 7
	got, err := Job("", j.Tensors, []Report{odd, of(j), none, global})
	if err != nil {
		t.Fatal(err)
	}
	if got.Ops[2].Name != "hidden" || got.Ops[3].Time != 4 || got.Mode != job.Global {
		t.Errorf("%+v", got)
	}
	want := []string{
		"2 of 4 ranks compute other ops, or in another order, than rank 1: their times do not count",
		"on rank 3, 3 of 10 iterations had other ops, or another order, than most: they do not count",
	}
	if !reflect.DeepEqual(got.Notes, want) {
		t.Errorf("notes %q, want %q", got.Notes, want)
	}
	if _, err := Job("", j.Tensors, []Report{none, none}); !errors.Is(err, ErrUnmeasured) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestRefused(t *testing.T) {
	for _, x := range []struct {
		name, want string
		change     func(*Report)
	}{
		{"negative time", "-1 us is not a time", func(r *Report) { r.Ops[3].Time = -1 }},
		{"NaN", "NaN us is not a time", func(r *Report) { r.Ops[3].Time = math.NaN() }},
		{"huge time", "us is not a time", func(r *Report) { r.Compute = 1e300 }},
		{"infinite sum", "us is not a time", func(r *Report) { r.Phases["forward"] = math.Inf(1) }},
		{"phase", `phase "runtime"`, func(r *Report) { r.Ops[0].Phase = "runtime" }},
		{"phase of times", `phase "x"`, func(r *Report) { r.Phases["x"] = 1 }},
		{"other tensors", "there is no tensor 3; there are 3", func(r *Report) { r.Ops[3].Reads = []job.TensorID{3} }},
		{"negative tensor", "there is no tensor -1", func(r *Report) { r.Ops[7].Gives = []job.TensorID{-1} }},
		{"twice", "tensor 0 after tensor 0", func(r *Report) { r.Ops[7].Gives = []job.TensorID{0, 0} }},
		{"no producer", "no op produces the gradient of", func(r *Report) { r.Ops[5].Gives = nil }},
		{"produced in forward", "gradients are produced in backward", func(r *Report) { r.Ops[1].Gives = []job.TensorID{0} }},
		{"read after its update", "runs after", func(r *Report) {
			r.Ops = append(r.Ops, Op{Name: "late", Phase: "forward", Reads: []job.TensorID{1}})
		}},
		{"more kept than measured", "10 iterations, 11 of them kept", func(r *Report) { r.Kept = 11 }},
		{"negative iterations", "-10 iterations", func(r *Report) { r.Iterations = -10 }},
		{"buffers", "buffers of -1 bytes", func(r *Report) { r.Buffers = &Buffers{Bytes: -1} }},
		{"long name", "a name of 2000 bytes", func(r *Report) { r.Ops[0].Name = strings.Repeat("x", 2000) }},
		{"micro", "negative micro-batch", func(r *Report) { r.Ops[0].Micro = -1 }},
	} {
		j := tied()
		r := of(j)
		x.change(&r)
		if _, err := Job("", j.Tensors, []Report{r}); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
	}
}

// What ranks report of a random job gives it back.
func TestRandomJobs(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		n := 1 + r.IntN(12) // tensors
		j := &job.Job{Name: "random", World: 1 + r.IntN(4), Lanes: []job.Lane{{Name: "host", Kind: job.Host}}, Tensors: make([]job.Tensor, n)}
		add := func(name string, phase job.Phase) job.OpID {
			id := job.OpID(len(j.Ops))
			o := job.Op{Name: name, Phase: phase, Tensor: -1, Time: r.ExpFloat64() * 100}
			if id > 0 {
				o.Deps = []job.OpID{id - 1}
			}
			j.Ops = append(j.Ops, o)
			return id
		}
		for range n + r.IntN(5) {
			o := add("f", job.Forward)
			for k := range j.Tensors {
				if r.IntN(n) == 0 {
					j.Tensors[k].Readers = append(j.Tensors[k].Readers, o)
				}
			}
		}
		for range 1 + r.IntN(n+5) {
			o := add("b", job.Backward)
			for k := range j.Tensors {
				if r.IntN(n) == 0 {
					j.Tensors[k].Producers = append(j.Tensors[k].Producers, o)
				}
			}
		}
		last := add("end", job.Backward)
		u := add("step", job.Update)
		for k := range j.Tensors {
			t := &j.Tensors[k]
			t.Name, t.Elements = string(rune('a'+k)), int64(1+r.IntN(1000))
			if len(t.Producers) == 0 {
				t.Producers = []job.OpID{last}
			}
			if len(t.Readers) > 0 {
				t.Updaters = []job.OpID{u}
			}
		}
		reports := make([]Report, j.World)
		for rank := range reports {
			reports[rank] = of(j)
			for i := range reports[rank].Ops { // but one rank is faster here, another there
				if r.IntN(2) == 0 && rank != i%j.World {
					reports[rank].Ops[i].Time *= r.Float64()
				}
			}
		}
		got, err := Job("random", j.Tensors, reports)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i := range got.Ops {
			if want := j.Ops[i].Time; math.Abs(got.Ops[i].Time-want) > 1e-3 {
				t.Fatalf("seed %d: op %d takes %v us, want %v", seed, i, got.Ops[i].Time, want)
			}
			got.Ops[i].Time = j.Ops[i].Time
		}
		if !reflect.DeepEqual(got, j) {
			t.Fatalf("seed %d: got\n%+v\nwant\n%+v", seed, got, j)
		}
	}
}
