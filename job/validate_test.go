package job

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// Each case breaks the job of ddp() in one place.
func TestValidateMessages(t *testing.T) {
	for _, c := range []struct {
		damage func(j *Job)
		want   string
	}{
		{func(j *Job) { j.Mode = 2 }, "job: mode: unknown update mode 2"},
		{func(j *Job) { j.World = -1 }, "job: world: negative number of workers -1"},
		{func(j *Job) { j.Optimizer = -1 }, "job: optimizer: negative size -1"},
		{func(j *Job) { j.Ops[3].Output = -1 }, "job: ops[3].output: negative size -1"},
		{func(j *Job) { j.Ops[3].Output, j.Ops[5].Output = math.MaxInt64, 1 }, "job: ops[5].output: the outputs up to here exceed 9223372036854775807 bytes"},
		{func(j *Job) { j.World = 1e12 }, "job: world: 1000000000000 workers, more than 1048576"},
		{func(j *Job) { j.Lanes[1].Kind = 9 }, "job: lanes[1].kind: unknown lane kind 9"},
		{func(j *Job) { j.Lanes[1].Name = "host" }, `job: lanes[1].name: "host" is already the name of lane 0`},
		{func(j *Job) { j.Lanes = make([]Lane, MaxLanes+1) }, "job: lanes: 1025 lanes, more than 1024"},
		{func(j *Job) { j.Ops[3].Lane = 3 }, "job: ops[3].lane: there is no lane 3; there are 3, from 0"},
		{func(j *Job) { j.Ops[3].Lane = -1 }, "job: ops[3].lane: there is no lane -1; there are 3, from 0"},
		{func(j *Job) { j.Ops[3].Phase = 4 }, "job: ops[3].phase: unknown phase 4"},
		{func(j *Job) { j.Ops[3].Role = 5 }, "job: ops[3].role: unknown role 5"},
		{func(j *Job) { j.Ops[3].Role = Library }, `job: ops[3].role: "library" on a backward op; only runtime ops have a role`},
		{func(j *Job) { j.Ops[6].Role = NoRole }, "job: ops[6].role: missing: a runtime op states what it does, one of [copy-in copy-out collective library]"},
		{func(j *Job) { j.Ops[3].Lane = 2 }, `job: ops[3].lane: "comm" is a comm lane: it holds only runtime ops with role "collective"`},
		{func(j *Job) { j.Ops[5].Lane = 1 }, `job: ops[5].lane: "device" is a device lane: an op with role "collective" is on a comm lane`},
		{func(j *Job) { j.Ops[3].Micro = -1 }, "job: ops[3].micro: negative micro-batch -1"},
		{func(j *Job) { j.Ops[4].Tensor = 2 }, "job: ops[4].tensor: a copy-in op names the tensor that it copies; there is no tensor 2, there are 2, from 0"},
		{func(j *Job) { j.Ops[3].Tensor = 0 }, "job: ops[3].tensor: 0 on an op that is no copy; leave it out (-1)"},
		{func(j *Job) { j.Ops[3].Deps = []OpID{1, 11} }, "job: ops[3].deps[1]: there is no op 11; there are 11, from 0"},
		{func(j *Job) { j.Ops[3].Deps = []OpID{3} }, `job: ops[3].deps[0]: op 3 "b" depends on itself`},
		{func(j *Job) { j.Ops[3].Time = -1 }, "job: ops[3].time: negative time -1 us"},
		{func(j *Job) { j.Ops[3].Time = math.NaN() }, "job: ops[3].time: NaN is not a time"},
		{func(j *Job) { j.Ops[3].Time = math.Inf(1) }, "job: ops[3].time: +Inf is not a time"},
		{func(j *Job) { j.Ops[2].Time, j.Ops[3].Time = 6e11, 6e11 }, "job: ops[3].time: the times up to here sum to more than 1e+12 us"},
		{func(j *Job) { j.Tensors[1].Name = "w" }, `job: tensors[1].name: "w" is already the name of tensor 0`},
		{func(j *Job) { j.Tensors[1].Grad = 99 }, "job: tensors[1].grad: unknown element type 99"},
		{func(j *Job) { j.Tensors[1].Elements = 0 }, `job: tensors[1].elements: "x" has 0 elements; a tensor has at least one`},
		// 2^61-1 float32 elements are 2^63-4 bytes; "w" has 8 bytes already.
		{func(j *Job) { j.Tensors[1].Elements = 1<<61 - 1 }, `job: tensors[1].elements: the gradients up to "x" exceed 9223372036854775807 bytes`},
		{func(j *Job) { j.Tensors[1].Producers = nil }, `job: tensors[1].producers: no op produces the gradient of "x"`},
		{func(j *Job) { j.Tensors[1].Producers = []OpID{4} }, `job: tensors[1].producers[0]: op 4 "in0" is in phase runtime; gradients are produced in backward`},
		{func(j *Job) { j.Tensors[1].Readers = []OpID{2, 9} }, `job: tensors[1].readers[1]: op 9 "update" is in phase update; parameters are read in forward or backward`},
		{func(j *Job) { j.Tensors[1].Readers = []OpID{3, 2} }, "job: tensors[1].readers[1]: op 2 after op 3; list ops in ascending order"},
		{func(j *Job) { j.Tensors[1].Readers = []OpID{2, 2} }, "job: tensors[1].readers[1]: op 2 is listed twice"},
		{func(j *Job) { j.Tensors[1].Updaters = []OpID{-1} }, "job: tensors[1].updaters[0]: there is no op -1; there are 11, from 0"},
		{func(j *Job) { j.Barrier = []OpID{5} }, `job: barrier[0]: op 5 "all-reduce" is on a comm lane; a barrier holds back compute lanes`},
		{func(j *Job) { j.Collectives = []Collective{{Name: "c"}} }, "job: collectives[0].kind: missing"},
		{func(j *Job) { j.Collectives = []Collective{{Kind: "broadcst"}} }, `job: collectives[0].kind: unknown kind of collective "broadcst"; did you mean "broadcast"?`},
		{func(j *Job) { j.Collectives = []Collective{{Kind: "push"}} }, `job: collectives[0].kind: unknown kind of collective "push"; known: [all-reduce reduce-scatter all-gather broadcast]`},
		{func(j *Job) { j.Collectives = []Collective{{Kind: "broadcast", Bytes: -1}} }, "job: collectives[0].bytes: negative size -1"},
		{func(j *Job) { j.Collectives = []Collective{{Kind: "broadcast", Time: -1}} }, "job: collectives[0].time: negative time -1 us"},
		{func(j *Job) { j.Collectives = []Collective{{Kind: "broadcast", After: []OpID{99}}} }, "job: collectives[0].after[0]: there is no op 99; there are 11, from 0"},
		{func(j *Job) {
			j.Collectives = []Collective{{Name: "c", Kind: "broadcast", After: []OpID{3}, Before: []OpID{2}}}
		}, `job: ops[2]: cycle: op 2 "f" -> (lane order) op 3 "b" -> (after) collective 0 "c" -> (before) op 2 "f"`},
		// From in0 on the device by lane order over out0 and out1 to step.
		{func(j *Job) { j.Ops[4].Deps = []OpID{10} }, `job: ops[4]: cycle: op 4 "in0" -> (dep) op 5 "all-reduce" -> (dep) op 10 "step" -> (dep) op 4 "in0"`},
		{func(j *Job) { j.Ops[10].Deps, j.Ops[4].Deps = nil, []OpID{10} }, `job: ops[4]: cycle: op 4 "in0" -> (dep) op 5 "all-reduce" -> (dep) op 8 "out1" -> (lane order) op 10 "step" -> (dep) op 4 "in0"`},
		{func(j *Job) { j.Recorded.Buckets[0].Op = 4 }, `job: recorded.buckets[0].op: op 4 "in0" has not the role "collective"`},
		{func(j *Job) { j.Recorded.Buckets[0].Op = 11 }, "job: recorded.buckets[0].op: there is no op 11; there are 11, from 0"},
		{func(j *Job) { j.Recorded.Buckets[0].Tensors = []TensorID{2} }, "job: recorded.buckets[0].tensors[0]: there is no tensor 2; there are 2, from 0"},
		{func(j *Job) { j.Recorded.Buckets[0].Tensors = []TensorID{1, 1} }, `job: recorded.buckets[0].tensors[1]: tensor 1 "x" is already in recorded.buckets[0]`},
		{func(j *Job) { j.Recorded.Buckets = append(j.Recorded.Buckets, j.Recorded.Buckets[0]) }, `job: recorded.buckets[1].tensors[0]: tensor 0 "w" is already in recorded.buckets[0]`},
		{func(j *Job) { j.Barrier = []OpID{3} }, `job: barrier[0]: op 3 "b" waits for all gradients, but itself adds to that of "w"`},
		// f precedes b on the device, forward launches f, and backward launches b.
		{func(j *Job) { j.Barrier = []OpID{2} }, `job: barrier[0]: op 2 "f" waits for all gradients, but precedes op 3 "b", which adds to that of "w"`},
		{func(j *Job) { j.Barrier = []OpID{0, 9} }, `job: barrier[0]: op 0 "forward" waits for all gradients, but precedes op 3 "b", which adds to that of "w"`},
		{func(j *Job) { j.Recorded.Buckets[0].Bytes = -1 }, "job: recorded.buckets[0].bytes: negative size -1"},
		// The update on the host before the forward that reads.
		{func(j *Job) {
			j.Ops[0].Phase, j.Ops[9].Phase = Update, Forward
			j.Tensors[0].Updaters = []OpID{0}
		}, `job: tensors[0].readers[0]: op 2 "f" reads the value of "w", but runs after op 0 "forward", which writes the value that the next iteration reads`},
		{func(j *Job) {
			j.Ops[1].Phase = Update
			j.Tensors[0].Updaters = []OpID{1}
		}, `job: tensors[0].producers[0]: op 3 "b" adds to the gradient of "w", but runs after op 1 "backward", which writes the value that the next iteration reads`},
	} {
		j := ddp()
		c.damage(j)
		if err := j.Validate(); err == nil || err.Error() != c.want {
			t.Errorf(" got %v\nwant %v", err, c.want)
		}
	}
}

// A long way along one lane is one step of the message, and a long cycle is cut.
func TestCycleMessageStaysShort(t *testing.T) {
	ones := slices.Repeat([]float64{1}, 50)
	sizes := slices.Repeat([]int64{4}, 50)
	j := Chain("", ones, ones, sizes)
	j.Ops[0].Deps = []OpID{49} // f1 waits for f50, over 49 dependencies
	want := `job: ops[0]: cycle: op 0 "f1"` +
		` -> (dep) op 1 "f2" -> (dep) op 2 "f3" -> (dep) op 3 "f4" -> (dep) op 4 "f5" -> (dep) op 5 "f6" -> (dep) op 6 "f7"` +
		` -> (dep) op 7 "f8" -> (dep) op 8 "f9" -> (dep) op 9 "f10" -> (dep) op 10 "f11" -> (dep) op 11 "f12" -> (dep) op 12 "f13"` +
		` -> ... -> (dep) op 0 "f1"`
	if err := j.Validate(); err == nil || err.Error() != want {
		t.Errorf(" got %v\nwant %v", err, want)
	}
	for i := range j.Ops {
		j.Ops[i].Deps = nil
	}
	j.Ops[0].Deps = []OpID{49}
	want = `job: ops[0]: cycle: op 0 "f1" -> (lane order) op 49 "f50" -> (dep) op 0 "f1"`
	if err := j.Validate(); err == nil || err.Error() != want {
		t.Errorf(" got %v\nwant %v", err, want)
	}
}

func TestFingerprints(t *testing.T) {
	base := ddp()
	for _, c := range []struct {
		what         string
		change       func(j *Job)
		tensors, ops bool // which fingerprint changes
	}{
		{"nothing", func(*Job) {}, false, false},
		{"times", func(j *Job) { j.Ops[0].Time = 7 }, false, false},
		{"parameter type", func(j *Job) { j.Tensors[0].Param = Float64 }, false, false},
		{"readers", func(j *Job) { j.Tensors[0].Readers = nil }, false, false},
		{"tensor name", func(j *Job) { j.Tensors[0].Name = "v" }, true, false},
		{"elements", func(j *Job) { j.Tensors[0].Elements++ }, true, false},
		{"gradient type", func(j *Job) { j.Tensors[0].Grad = Float16 }, true, false},
		{"order of tensors", func(j *Job) { slices.Reverse(j.Tensors) }, true, false},
		{"names run together", func(j *Job) { j.Ops[0].Name, j.Ops[1].Name = "forwardb", "ackward" }, false, true},
		{"lane", func(j *Job) { j.Ops[0].Lane = 1 }, false, true},
		{"lane name", func(j *Job) { j.Lanes[0].Name = "h" }, false, true},
		{"lane kind", func(j *Job) { j.Lanes[0].Kind = Device }, false, true},
		{"phase", func(j *Job) { j.Ops[0].Phase = Backward }, false, true},
		{"micro-batch", func(j *Job) { j.Ops[0].Micro = 1 }, false, true},
		{"dependency", func(j *Job) { j.Ops[3].Deps = []OpID{0, 1} }, false, true},
	} {
		j := ddp()
		c.change(j)
		if got := j.TensorsFingerprint() != base.TensorsFingerprint(); got != c.tensors {
			t.Errorf("%s: tensors fingerprint changed: %v, want %v", c.what, got, c.tensors)
		}
		if got := j.OpsFingerprint() != base.OpsFingerprint(); got != c.ops {
			t.Errorf("%s: ops fingerprint changed: %v, want %v", c.what, got, c.ops)
		}
	}
	// echo -n with the documented bytes, through sha256sum: one tensor "w" of
	// 2 float32 elements is
	// 01 00.. 'w' 02 00.. 07 00.. 'float32'.
	one := &Job{Tensors: base.Tensors[:1]}
	if got, want := one.TensorsFingerprint(), "9394d8f822ffccefee9201deb56feeb4"; got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
}

// The backward follows the barrier in the recorded run, by the order of two
// transfers. Plans have transfers of their own.
func TestBarrierAcrossRecordedTransfers(t *testing.T) {
	j := &Job{
		Lanes: []Lane{{"stream 7", Device}, {"stream 8", Device}, {"comm", Comm}},
		Ops: []Op{
			{Name: "step", Lane: 0, Phase: Update, Tensor: -1},
			{Name: "first", Lane: 2, Phase: Runtime, Role: GradCollective, Tensor: -1, Deps: []OpID{0}},
			{Name: "second", Lane: 2, Phase: Runtime, Role: GradCollective, Tensor: -1},
			{Name: "b", Lane: 1, Phase: Backward, Tensor: -1, Deps: []OpID{2}},
		},
		Tensors: []Tensor{{Name: "w", Elements: 1, Producers: []OpID{3}}},
		Barrier: []OpID{0},
	}
	if err := j.Validate(); err != nil {
		t.Error(err)
	}
	j.Ops[2].Deps = []OpID{1}
	want := `job: barrier[0]: op 0 "step" waits for all gradients, but precedes op 3 "b", which adds to that of "w"`
	if err := j.Validate(); err == nil || err.Error() != want {
		t.Errorf(" got %v\nwant %v", err, want)
	}
}

// Messages do not quote at length what a file holds.
func TestMessagesAreShort(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for i, damage := range []func(j *Job){
		func(j *Job) { j.Lanes[0].Name, j.Lanes[1].Name = long, long },
		func(j *Job) { j.Lanes[2].Name, j.Ops[3].Lane = long, 2 },
		func(j *Job) { j.Lanes[1].Name, j.Ops[5].Lane = long, 1 },
		func(j *Job) { j.Ops[3].Name, j.Ops[3].Deps = long, []OpID{3} },
		func(j *Job) { j.Ops[4].Name, j.Ops[4].Deps = long, []OpID{10} },
		func(j *Job) { j.Ops[4].Name, j.Tensors[1].Producers = long, []OpID{4} },
		func(j *Job) { j.Tensors[0].Name, j.Tensors[1].Name = long, long },
		func(j *Job) { j.Tensors[1].Name, j.Tensors[1].Elements = long, 0 },
		func(j *Job) { j.Tensors[1].Name, j.Tensors[1].Elements = long, 1<<61-1 },
		func(j *Job) { j.Tensors[1].Name, j.Tensors[1].Producers = long, nil },
		func(j *Job) { j.Tensors[0].Name, j.Barrier = long, []OpID{3} },
		func(j *Job) { j.Tensors[0].Name, j.Recorded.Buckets[0].Tensors = long, []TensorID{0, 0} },
		func(j *Job) { j.Tensors[0].Name, j.Ops[1].Phase, j.Tensors[0].Updaters = long, Update, []OpID{1} },
		func(j *Job) { j.Collectives = []Collective{{Kind: long}} },
	} {
		j := ddp()
		damage(j)
		if err := j.Validate(); err == nil || len(err.Error()) > 500 {
			t.Errorf("case %d: %.600v", i, err)
		}
	}
	for _, text := range []string{
		`{"` + long + `": 1}`, `{"mode": "` + long + `"}`, `{"world": ` + strings.Repeat("9", 1<<16) + `}`, `{"version": "` + long + `"}`,
		`{"tensors": [{"param": "` + long + `"}]}`, `{"ops": [{"time": ` + strings.Repeat("9", 1<<16) + `}]}`, long,
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || len(err.Error()) > 500 {
			t.Errorf("%.60q: %.600v", text, err)
		}
	}
}
