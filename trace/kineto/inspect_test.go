package kineto

import (
	"math"
	"strings"
	"testing"
)

func checkSum(t *testing.T, s *StepTime) {
	t.Helper()
	if sum := s.Computation + s.Copies + s.Exposed + s.HostBound + s.Idle; math.Abs(sum-s.Time) > 0.01 {
		t.Errorf("step %d: its parts sum to %.3f us of %.3f: %+v", s.Step, sum, s.Time, *s)
	}
}

func TestInspectShared(t *testing.T) {
	x, err := load(t, resnet50(t)).Inspect()
	if err != nil {
		t.Fatal(err)
	}
	// Holistic Trace Analysis on the same file.
	if h := x.HTA; math.Abs(h.Communication-46876.5) > 0.05 || math.Abs(h.Overlapped-7317.0) > 0.05 || math.Abs(h.Exposed-39559.5) > 0.05 {
		t.Errorf("HTA %+v, want 46876.5, 7317.0, 39559.5", *h)
	}
	if x.Backend != "nccl" || x.World != 2 || len(x.Steps) != 3 || len(x.Buckets) != 5 {
		t.Errorf("%s, %d ranks, %d steps, %d buckets", x.Backend, x.World, len(x.Steps), len(x.Buckets))
	}
	var kernels float64
	for k := range x.Steps {
		s := &x.Steps[k]
		t.Logf("%+v", *s)
		checkSum(t, s)
		kernels += s.Computation + s.Copies
		if s.Exposed > 0.001*s.Time {
			t.Errorf("step %d: %.1f us exposed, want under 0.1 %%", s.Step, s.Exposed)
		}
		if share := s.HostBound / s.Time; share < 0.80 || share > 0.83 {
			t.Errorf("step %d: the device waits for the host for %.1f %% of the step, want about 82", s.Step, 100*share)
		}
	}
	// Kernels take 115.7 ms of the three steps, copies and sets 2.7 ms.
	if math.Abs(kernels-118_310) > 100 {
		t.Errorf("streams busy for %.0f us, want 118310", kernels)
	}
}

func TestInspectRecorded(t *testing.T) {
	for _, c := range recorded(t) {
		x, err := load(t, c.path).Inspect()
		if err != nil {
			t.Fatal(err)
		}
		for k := range x.Steps {
			checkSum(t, &x.Steps[k])
		}
		if x.HTA != nil || x.Backend != "gloo" {
			t.Errorf("%s: backend %q, HTA %v", c.name, x.Backend, x.HTA)
		}
		if strings.HasPrefix(c.name, "shaped-all") && x.Median.Exposed < 0.9*x.Buckets[0].Time {
			t.Errorf("%s: %.0f us exposed of a single transfer of %.0f", c.name, x.Median.Exposed, x.Buckets[0].Time)
		}
	}
}

// The worked step of TestDevice. The stream runs 28-128, 130-230, 230-240, is
// idle until 402 and runs to 406 and 407-410, is idle until 530 and runs to
// 600. It waits for launches from 0 to 28 (launched at 30), 128 to 130 (launched
// at 120: idle), 406 to 407 (launched at 255: idle), 410 to 525 (host), 525 to
// 530 (idle), and from 600 to the end (host). From 240 to 400 it waits for the
// transfer; the copy starts 2 us later.
func TestInspectDevice(t *testing.T) {
	x, err := gpu().done().Inspect()
	if err != nil {
		t.Fatal(err)
	}
	want := StepTime{
		Step: 7, Time: 1000,
		Computation: 100 + 100 + 3 + 70, Copies: 10 + 4, Exposed: 160,
		HostBound: 28 + 115 + 400, Idle: 2 + 2 + 1 + 5,
		Communication: 158, Hidden: 0,
	}
	if x.Steps[0] != want {
		t.Errorf("got  %+v\nwant %+v", x.Steps[0], want)
	}
	// The kernel starts 2 us after the stream is idle.
	if b := x.Buckets[0]; b.Bytes != 80 || b.Tensors != 1 || b.Time != 158 || b.Exposed != 160 {
		t.Errorf("bucket %+v", b)
	}
	if h := *x.HTA; h != (HTA{Communication: 158, Exposed: 158}) {
		t.Errorf("HTA %+v", h)
	}
}

// The worked step of TestTiedWeight.
func TestInspectHost(t *testing.T) {
	x, err := tied(1).Inspect()
	if err != nil {
		t.Fatal(err)
	}
	want := StepTime{
		Step: 7, Time: 1000, Computation: 206 + 590, Copies: 12 + 3 + 10 + 10, Exposed: 400 - 231,
		Communication: 179, Hidden: 179 - 169,
	}
	if x.Steps[0] != want {
		t.Errorf("got  %+v\nwant %+v", x.Steps[0], want)
	}
}

// Sharded training gives no job, but can be inspected; so can a single rank.
func TestInspectWithoutJob(t *testing.T) {
	for _, tr := range []*Trace{
		rename(tied(1), "c10d::allreduce_", "c10d::_reduce_scatter_base_"),
		rename(tied(1), accumulate, "aten::other"),
		rename(rename(tied(1), "c10d::allreduce_", "aten::other"), "gloo:all_reduce", "other"),
	} {
		x, err := tr.Inspect()
		if err != nil {
			t.Fatal(err)
		}
		checkSum(t, &x.Steps[0])
	}
}

// Rank 1's clock is 5000 us ahead, and it starts its transfer 100 us later.
func TestMatch(t *testing.T) {
	late := tied(1)
	late.Name, late.Rank = "late", 1
	for k := range late.Events {
		e := &late.Events[k]
		if e.Start += 5_000_000; e.Row == glooRow {
			e.Start, e.Dur = e.Start+100_000, e.Dur-100_000
		}
	}
	m, err := Match(tied(1), late)
	if err != nil {
		t.Fatal(err)
	}
	c := m.Collectives[0]
	if len(m.Collectives) != 1 || c.Step != 7 || c.Name != "all-reduce" || c.Bytes != 80 || c.Transfer != 79 || c.Wait[0] != 100 || c.Wait[1] != 0 || c.Last != 1 {
		t.Errorf("collectives %+v", m.Collectives)
	}
	for r, want := range []RankSkew{
		{Name: "fake", Rank: 0, Wait: 100},
		{Name: "late", Rank: 1, Offset: 5000, Late: 100, Last: 1},
	} {
		if m.Ranks[r] != want {
			t.Errorf("rank %d: %+v, want %+v", r, m.Ranks[r], want)
		}
	}
}

func TestMatchErrors(t *testing.T) {
	rank1 := func(tr *Trace) *Trace {
		tr.Name, tr.Rank = "other", 1
		return tr
	}
	bigger := rank1(tied(1))
	for k := range bigger.Extras {
		if d := bigger.Extras[k].Dims; len(d) == 1 && len(d[0]) == 1 {
			bigger.Extras[k].Dims = [][]int64{{21}}
		}
	}
	for _, c := range []struct {
		name   string
		traces []*Trace
		want   string
	}{
		{"one", []*Trace{tied(1)}, "at least two"},
		{"same rank", []*Trace{tied(1), tied(1)}, "rank 0, as fake is"},
		{"other steps", []*Trace{tied(1), rank1(rename(tied(1), "ProfilerStep#7", "ProfilerStep#8"))}, "no step with collectives is in all"},
		{"other sizes", []*Trace{tied(1), bigger}, "other: step 7, collective 0: all-reduce of 21 elements, in fake all-reduce of 20"},
	} {
		if _, err := Match(c.traces...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// Both ranks of every recording ran on one machine. Kineto's times are those of its
// clock; other writers count from where each rank began to record.
func TestMatchRecorded(t *testing.T) {
	all := recorded(t)
	for k := 0; k+1 < len(all); k += 2 {
		a, b := load(t, all[k].path), load(t, all[k+1].path)
		m, err := Match(a, b)
		if err != nil {
			t.Fatal(err)
		}
		if off := m.Ranks[1].Offset; a.Kineto && math.Abs(off) > 1000 {
			t.Errorf("%s: clocks %.1f us apart, want within 1000", all[k].name, off)
		}
		for _, c := range m.Collectives {
			if c.Wait[c.Last] != 0 || c.Wait[1-c.Last] < 0 {
				t.Errorf("%s: rank %d came last, but waits are %v", all[k].name, c.Last, c.Wait)
			}
		}
	}
}
