package kineto

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft/cluster"
	"weft/internal/median"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/policy/fusion"

	"pgregory.net/rapid"
)

// resnet50 is the path of the shared trace; without it the test is skipped.
func resnet50(t testing.TB) string {
	path := shared()
	if path == "" {
		t.Skip("the shared trace is not there: set WEFT_SHARED to the directory that holds data/kineto")
	}
	return path
}

func load(t testing.TB, path string) *Trace {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tr, err := Read(context.Background(), f, ReadOptions{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// tensorsFile reads the file beside a recorded trace.
func tensorsFile(t testing.TB, path string) []TensorInfo {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := ReadTensors(f, path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// traceCase is a real trace and what its derivation may use.
type traceCase struct {
	name, path string
	o          JobOptions
}

// recorded lists the traces that the project ships.
func recorded(t testing.TB) (list []traceCase) {
	paths, err := filepath.Glob(filepath.Join("..", "..", "testdata", "traces", "*", "rank*.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		dir, file := filepath.Split(p)
		name := filepath.Base(dir) + "/" + strings.TrimSuffix(file, ".json.gz")
		c := traceCase{name: name, path: p}
		if strings.Contains(name, "torch1.13") {
			c.o.Tensors = tensorsFile(t, filepath.Join(dir, "tensors.txt"))
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		t.Fatal("no recorded traces in testdata/traces")
	}
	return list
}

// TestReplay executes each recorded step from durations alone and compares its
// length with the recorded one.
func TestReplay(t *testing.T) {
	replay := func(c traceCase) func(*testing.T) {
		return func(t *testing.T) {
			tr := load(t, c.path)
			v, err := newView(tr)
			if err != nil {
				t.Fatal(err)
			}
			for k, s := range v.steps {
				o := c.o
				o.Step = k + 1
				j, err := tr.Job(o)
				if err != nil {
					t.Fatal(err)
				}
				got, want := hostEnd(t, j), float64(s.end-s.start)/1e3
				off := 100 * (got - want) / want
				t.Logf("step %d: %d ops, recorded %9.1f us, replayed %9.1f us, %+.2f %%", s.number, len(j.Ops), want, got, off)
				if math.Abs(off) > 3 {
					t.Errorf("step %d: replayed in %.1f us, recorded %.1f us: %+.1f %%, want within 3 %%", s.number, got, want, off)
				}
			}
		}
	}
	for _, c := range recorded(t) {
		t.Run(c.name, replay(c))
	}
	t.Run("resnet50", func(t *testing.T) {
		replay(traceCase{path: resnet50(t)})(t)
	})
}

// hostEnd is when the first host lane has done its part of an iteration.
func hostEnd(t *testing.T, j *job.Job) (end float64) {
	_, ends, err := j.Schedule()
	if err != nil {
		t.Fatal(err)
	}
	for n := range j.Ops {
		if j.Ops[n].Lane == 0 {
			end = max(end, ends[n])
		}
	}
	return end
}

// tied is a step of an embedding and a linear layer that share a 5 x 4 matrix,
// on the CPU. Its micro-batches are 1000 us apart; the last one reduces.
func tied(micros int64) *Trace { return reduced(micros, false) }

// reduced is tied with a reduction in every micro-batch, or in the last alone.
func reduced(micros int64, every bool) *Trace {
	f := newFake()
	end := 1000 * micros
	f.add(mainRow, 0, end, "ProfilerStep#7", more{cat: Annotation})
	weight := []int64{5, 4}
	for m := range micros {
		at, seq := 1000*m, int32(100*m)
		f.add(mainRow, at+10, at+20, "aten::embedding", more{seq: seq + 10, dims: [][]int64{weight, {2}}})
		f.add(mainRow, at+30, at+60, "aten::linear", more{seq: seq + 11, dims: [][]int64{{2, 4}, weight}})
		f.add(mainRow, at+31, at+32, "aten::t", more{seq: seq + 11, dims: [][]int64{weight}})
		f.add(mainRow, at+33, at+59, "aten::mm", more{seq: seq + 12})
		f.add(mainRow, at+100, at+150, evalMark+"MmBackward0", more{seq: seq + 12})
		f.add(mainRow, at+151, at+155, evalMark+"TBackward0", more{seq: seq + 11})
		f.add(mainRow, at+160, at+200, evalMark+"EmbeddingBackward0", more{seq: seq + 10})
		if m < micros-1 && !every {
			f.add(mainRow, at+201, at+205, accumulate, more{})
			f.add(mainRow, at+202, at+205, "torch::autograd::AccumulateGrad", more{dims: [][]int64{weight}})
			continue
		}
		f.gradient(at+201, 20, weight...)
		f.add(glooRow, at+221, at+400, "gloo:all_reduce", more{cat: Annotation, dims: [][]int64{{20}}})
		f.add(mainRow, at+402, at+410, "torch.distributed.ddp.reducer::copy_bucket_to_grad", more{dims: [][]int64{weight}})
		if m < micros-1 {
			continue
		}
		f.add(mainRow, at+500, at+600, "Optimizer.step#SGD.step", more{cat: Annotation})
		f.add(mainRow, at+510, at+590, "aten::add_", more{dims: [][]int64{weight, weight}})
	}
	return f.done()
}

// line is one op of a job in short.
func line(j *job.Job, n int) string {
	o := &j.Ops[n]
	s := fmt.Sprintf("%s %s %d %g %s", j.Lanes[o.Lane].Kind, o.Phase, o.Micro, o.Time, o.Name)
	if o.Role != job.NoRole {
		s += " [" + o.Role.String() + "]"
	}
	if len(o.Deps) > 0 {
		s += fmt.Sprint(" after ", o.Deps)
	}
	return s
}

func checkOps(t *testing.T, j *job.Job, want string) {
	t.Helper()
	var got []string
	for n := range j.Ops {
		got = append(got, line(j, n))
	}
	if got := strings.Join(got, "\n"); got != strings.TrimSpace(want) {
		t.Errorf("ops:\n%s\nwant:\n%s", got, strings.TrimSpace(want))
	}
}

func checkTensors(t *testing.T, j *job.Job, want ...string) {
	t.Helper()
	var got []string
	for _, x := range j.Tensors {
		got = append(got, fmt.Sprint(x.Name, " ", x.Elements, " read ", x.Readers, " made ", x.Producers, " written ", x.Updaters))
	}
	if !slices.Equal(got, want) {
		t.Errorf("tensors:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Gaps go to the op that follows. The hand-over ends at 206, the copy into the
// bucket at 218 where the issue starts, and the transfer starts at 221 within
// it. The issue goes on to 228 and the hook to 231; from there the host waits
// until 400, and the copy out of the bucket ends at 410.
func TestTiedWeight(t *testing.T) {
	j, err := tied(1).Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkOps(t, j, `
host forward 0 20 aten::embedding
host forward 0 40 aten::linear
host backward 0 90 MmBackward0
host backward 0 5 TBackward0
host backward 0 45 EmbeddingBackward0
host backward 0 6 torch::autograd::AccumulateGrad
host runtime 0 12 copy into bucket [copy-in]
host runtime 0 3 c10d::allreduce_ [library]
comm runtime 0 179 gloo:all_reduce [collective] after [7]
host runtime 0 10 c10d::allreduce_ [library]
host runtime 0 10 copy out of bucket [copy-out] after [8]
host update 0 180 aten::add_
host update 0 410 between ops`)
	// The linear layer's gradient is part of the one that the embedding's node
	// hands over; its backward op 2 reads the weight, a transposition does not.
	checkTensors(t, j, "embedding.0.weight 20 read [0 1 2] made [3 4 5] written [11]")
	if end := hostEnd(t, j); end != 1000 {
		t.Errorf("replayed in %g us, want 1000", end)
	}
	if fmt.Sprint(j.Barrier) != "[11]" {
		t.Errorf("barrier %v, want the op after the copies, 11", j.Barrier)
	}
}

// Which parameter the linear layer shares is not known if there are two of its
// shape, or no shapes: then it is said that a reader is missing.
func TestUnclearTie(t *testing.T) {
	two := &fake{tied(1)}
	two.gradient(240, 0, 5, 4)
	unshaped := tied(1)
	for k := range unshaped.Extras {
		unshaped.Extras[k].Dims = nil
	}
	for name, tr := range map[string]*Trace{"two": two.done(), "no shapes": unshaped} {
		j, err := tr.Job(JobOptions{Tensors: []TensorInfo{{Name: "w", Elements: 20}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range j.Tensors {
			if fmt.Sprint(x.Readers) != "[0]" {
				t.Errorf("%s: %s is read by %v, want the embedding alone", name, x.Name, x.Readers)
			}
		}
		if want := "aten::linear may read a parameter that another op reads too"; !strings.Contains(strings.Join(j.Notes, "\n"), want) {
			t.Errorf("%s: notes %q lack %q", name, j.Notes, want)
		}
	}
}

// Two micro-batches: the parameter is read and its gradient made in both.
func TestMicroBatches(t *testing.T) {
	j, err := tied(2).Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkTensors(t, j, "embedding.0.weight 20 read [0 1 2 6 7 8] made [3 4 5 9 10 11] written [17]")
	for n, o := range j.Ops {
		if want := int32(min(n/6, 1)); o.Micro != want {
			t.Errorf("op %d (%s) is of micro-batch %d, want %d", n, o.Name, o.Micro, want)
		}
	}
	if end := hostEnd(t, j); end != 2000 {
		t.Errorf("replayed in %g us, want 2000", end)
	}
}

// Without no_sync every micro-batch reduces. The job reduces once, as a plan does.
func TestMicroBatchesReducedEach(t *testing.T) {
	j, err := reduced(2, true).Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(j.Recorded.Buckets); n != 1 {
		t.Errorf("%d recorded buckets, want the last micro-batch's one", n)
	}
	if want := "every micro-batch"; !strings.Contains(strings.Join(j.Notes, "\n"), want) {
		t.Errorf("notes %q lack %q", j.Notes, want)
	}
	c := cluster.Uniform(2, 1, cluster.Link{Name: "net", Bandwidth: 1e9})
	p, err := fusion.Recorded.Build(context.Background(), j, c, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r := plan.Check(p, j, plan.DefaultLimits); !r.OK() {
		t.Fatal(r)
	}
}

// gpu is a step on a device: forward on the main thread, backward on another,
// a bucket over NCCL, a .item() that waits for the device, a fused optimizer.
func gpu() *fake {
	f := newFake()
	weight := [][]int64{{5, 4}}
	launch := func(row uint16, at, end int64, corr uint32) {
		f.add(row, at, end, "cudaLaunchKernel", more{cat: Runtime, corr: corr})
	}
	kernel := func(start, end int64, corr uint32) {
		f.add(streamRow, start, end, "kernel", more{cat: Kernel, corr: corr})
	}
	f.add(mainRow, 0, 1000, "ProfilerStep#7", more{cat: Annotation})
	f.add(mainRow, 10, 50, "aten::mm", more{seq: 11})
	launch(mainRow, 20, 30, 1)
	kernel(28, 128, 1)
	f.add(autogradRow, 100, 140, evalMark+"MmBackward0", more{seq: 11})
	launch(autogradRow, 110, 120, 2)
	kernel(130, 230, 2)
	f.add(autogradRow, 150, 190, accumulate, more{})
	f.add(autogradRow, 152, 155, "torch::autograd::AccumulateGrad", more{dims: weight})
	f.add(autogradRow, 160, 175, "torch::distributed::reducer::mul_out", more{dims: weight})
	launch(autogradRow, 165, 170, 3)
	kernel(230, 240, 3)
	f.add(autogradRow, 176, 188, "c10d::allreduce_", more{})
	f.add(autogradRow, 177, 178, "cudaStreamWaitEvent", more{cat: Runtime, corr: 100})
	launch(autogradRow, 180, 184, 4)
	f.add(ncclRow, 242, 400, "ncclKernel_AllReduce(x)", more{cat: Kernel, corr: 4, elements: 20})
	f.add(autogradRow, 195, 196, "cudaStreamWaitEvent", more{cat: Runtime, corr: 101})
	f.add(autogradRow, 200, 220, "torch.distributed.ddp.reducer::copy_bucket_to_grad", more{})
	f.add(autogradRow, 205, 210, "cudaMemcpyAsync", more{cat: Runtime, corr: 5})
	f.add(streamRow, 402, 406, "Memcpy DtoD", more{cat: Memcpy, corr: 5, bytes: 80})
	f.add(mainRow, 240, 420, "aten::item", more{})
	f.add(mainRow, 250, 255, "cudaMemcpyAsync", more{cat: Runtime, corr: 6})
	f.add(streamRow, 407, 410, "Memcpy DtoH", more{cat: Memcpy, corr: 6, bytes: 4})
	f.add(mainRow, 256, 415, "cudaStreamSynchronize", more{cat: Runtime, corr: 102})
	f.add(mainRow, 500, 600, "Optimizer.step#SGD.step", more{cat: Annotation})
	f.add(mainRow, 510, 560, "aten::_foreach_add_", more{})
	launch(mainRow, 520, 525, 7)
	kernel(530, 600, 7)
	return f
}

// Host ops end with their launch. The stream waits for the collective before
// the copy out of the bucket, the host for the stream after .item(): of its
// sync, 256 to 415, the time to 410 is waiting. 1 us before and 5 + 85 after it,
// until the optimizer's step, are the host's.
func TestDevice(t *testing.T) {
	j, err := gpu().done().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkOps(t, j, `
host forward 0 30 aten::mm
device forward 0 100 aten::mm after [0]
host forward 0 70 aten::mm
host backward 0 20 MmBackward0 after [2]
device backward 0 100 MmBackward0 after [3]
host backward 0 35 torch::autograd::AccumulateGrad
host runtime 0 15 copy into bucket [copy-in]
device runtime 0 10 copy into bucket [copy-in] after [6]
host runtime 0 14 c10d::allreduce_ [library]
comm runtime 0 158 ncclKernel_AllReduce [collective] after [8 7]
host runtime 0 4 c10d::allreduce_ [library]
host runtime 0 22 copy out of bucket [copy-out]
device runtime 0 4 copy out of bucket [copy-out] after [11 9]
host runtime 0 10 copy out of bucket [copy-out]
host update 0 35 aten::item after [13]
device update 0 3 aten::item after [14]
host update 0 91 aten::item after [15]
host update 0 25 aten::_foreach_add_
device update 0 70 aten::_foreach_add_ after [17]
host update 0 475 aten::_foreach_add_`)
	checkTensors(t, j, "mm.0.weight 20 read [1 4] made [4 5] written [18]")
	if fmt.Sprint(j.Barrier) != "[15]" {
		t.Errorf("barrier %v, want the first device op after the copies, 15", j.Barrier)
	}
	// Device: 30-130, 130-230, 230-240; transfer 240-398; copy 398-402, to host
	// 402-405. The host goes on at 405: 405 + 91 + 25 + 475 = 996.
	if end := hostEnd(t, j); end != 996 {
		t.Errorf("replayed in %g us, want 996", end)
	}
}

// A copy that ends within its call has blocked the host, here from 250 to 410.
// What is left of the call, 5 us, and the time to the next launch, 85 + 25, belong
// to the op that follows.
func TestBlockingCopy(t *testing.T) {
	f := gpu()
	f.Events = slices.DeleteFunc(f.Events, func(e Event) bool { return f.Names[e.Name] == "cudaStreamSynchronize" })
	for k := range f.Events {
		if e := &f.Events[k]; e.Cat == Runtime && e.Corr == 6 {
			e.Dur = 165_000
		}
	}
	j, err := f.done().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range []string{
		"host update 0 30 aten::item after [13]",
		"device update 0 3 aten::item after [14]",
		"host update 0 115 aten::_foreach_add_ after [15]",
	} {
		if got := line(j, 14+k); got != want {
			t.Errorf("op %d: %s, want %s", 14+k, got, want)
		}
	}
}

// A transfer is active from 242 to 400, in 18 of the 20 us of a kernel. At an
// overlap of 0.25 these count 1/1.25: 2 + 18/1.25 = 16.4 us. Other ops stay.
func TestOverlap(t *testing.T) {
	f := gpu()
	f.add(autogradRow, 190, 195, "aten::relu", more{})
	f.add(autogradRow, 191, 194, "cudaLaunchKernel", more{cat: Runtime, corr: 8})
	f.add(streamRow, 382, 402, "kernel", more{cat: Kernel, corr: 8})
	tr := f.done()
	plain, err := tr.Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	j, err := tr.Job(JobOptions{Overlap: 0.25})
	if err != nil {
		t.Fatal(err)
	}
	for n := range j.Ops {
		want := plain.Ops[n].Time
		if o := &j.Ops[n]; o.Name == "aten::relu" && j.Lanes[o.Lane].Kind == job.Device {
			want = 16.4
		}
		if got := j.Ops[n].Time; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %g us, want %g", line(j, n), got, want)
		}
	}
}

// With synchronisation events it is known what a stream waits for: here 7 for
// what was on 9 at the record, the first of its two kernels.
func TestRecordedWaits(t *testing.T) {
	f := gpu()
	f.Rows = append(f.Rows, Row{Tid: "9", Device: true})
	const otherRow = ncclRow + 1
	call := func(at int64, name string, corr uint32) {
		f.add(mainRow, at, at+2, name, more{cat: Runtime, corr: corr})
	}
	call(60, "cudaLaunchKernel", 20)
	f.add(otherRow, 70, 75, "kernel", more{cat: Kernel, corr: 20})
	call(64, "cudaEventRecord", 21)
	call(68, "cudaLaunchKernel", 22)
	f.add(otherRow, 75, 95, "kernel", more{cat: Kernel, corr: 22})
	call(72, "cudaStreamWaitEvent", 23)
	f.add(streamRow, 128, 129, "Stream Wait Event", more{cat: Sync, corr: 23, elements: 1})
	f.Extras[len(f.Extras)-1] = Extra{Stream: 9, Waits: 21}
	j, err := f.done().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := slices.IndexFunc(j.Ops, func(o job.Op) bool { return o.Phase == job.Backward && j.Lanes[o.Lane].Kind == job.Device })
	// Op 3 is the first kernel on stream 9, after the launch 2 from 30 to 62.
	if got, want := line(j, n), fmt.Sprintf("device backward 0 100 MmBackward0 after [%d 3]", n-1); got != want {
		t.Errorf("op %d: %s, want %s", n, got, want)
	}
	if got, want := line(j, 3), "device forward 0 5 between ops after [2]"; got != want {
		t.Errorf("op 3: %s, want %s", got, want)
	}
}

// twoStreams is a step of two layers, each with its own stream and bucket. Waits
// are recorded as calls only: stream 9 is made to wait for 7 in forward, 7 for 9
// in backward, and 7 for each bucket after it.
func twoStreams() *Trace {
	f := newFake()
	f.Rows = append(f.Rows, Row{Tid: "9", Device: true})
	const otherRow = ncclRow + 1
	weight := [][]int64{{5, 4}}
	corr := uint32(0)
	launch := func(thread uint16, at int64, stream uint16, kernel string, start, end int64) {
		corr++
		f.add(thread, at, at+5, "cudaLaunchKernel", more{cat: Runtime, corr: corr})
		f.add(stream, start, end, kernel, more{cat: Kernel, corr: corr, elements: 20})
	}
	wait := func(thread uint16, at int64) {
		f.add(thread, at, at+2, "cudaStreamWaitEvent", more{cat: Runtime})
	}
	layer := func(at int64, seq int32, stream uint16) {
		f.add(autogradRow, at, at+40, evalMark+"MmBackward0", more{seq: seq})
		launch(autogradRow, at+10, stream, "kernel", at+20, at+40)
		f.add(autogradRow, at+50, at+90, accumulate, more{})
		f.add(autogradRow, at+52, at+55, "torch::autograd::AccumulateGrad", more{dims: weight})
		f.add(autogradRow, at+60, at+70, "torch::distributed::reducer::mul_out", more{dims: weight})
		launch(autogradRow, at+62, stream, "kernel", at+70, at+75)
		f.add(autogradRow, at+71, at+88, "c10d::allreduce_", more{})
		launch(autogradRow, at+75, ncclRow, "ncclKernel_AllReduce", at+80, at+90)
	}
	f.add(mainRow, 0, 1000, "ProfilerStep#7", more{cat: Annotation})
	f.add(mainRow, 10, 40, "aten::mm", more{seq: 11})
	launch(mainRow, 20, streamRow, "kernel", 30, 50)
	wait(mainRow, 50)
	f.add(mainRow, 60, 90, "aten::mm", more{seq: 12})
	launch(mainRow, 70, otherRow, "kernel", 80, 99)
	layer(100, 12, otherRow)
	wait(autogradRow, 195)
	layer(200, 11, streamRow)
	for at := int64(300); at < 400; at += 50 {
		wait(autogradRow, at)
		f.add(autogradRow, at+5, at+20, "torch.distributed.ddp.reducer::copy_bucket_to_grad", more{})
		launch(autogradRow, at+10, streamRow, "kernel", at+15, at+20)
	}
	f.add(mainRow, 500, 600, "Optimizer.step#SGD.step", more{cat: Annotation})
	f.add(mainRow, 510, 560, "aten::_foreach_add_", more{})
	launch(mainRow, 520, streamRow, "kernel", 530, 600)
	return f.done()
}

// A wait is for the stream that gets the next op, and in the backward pass not
// for a bucket. What no event shows is assumed: the update waits for the other
// stream, and that for the update. So the plans of all policies are legal.
func TestTwoStreams(t *testing.T) {
	j, err := twoStreams().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for n := range j.Ops {
		if o := &j.Ops[n]; j.Lanes[o.Lane].Kind == job.Device {
			got = append(got, fmt.Sprint(n, " ", j.Lanes[o.Lane].Name, " ", line(j, n)))
		}
	}
	want := []string{
		"1 stream 7 device forward 0 20 aten::mm after [0]",
		"3 stream 9 device forward 0 19 aten::mm after [2 1]",
		"6 stream 9 device backward 0 20 MmBackward0 after [5]",
		"9 stream 9 device runtime 0 5 copy into bucket [copy-in] after [8]",
		"14 stream 7 device backward 0 20 MmBackward0 after [13 9]",
		"17 stream 7 device runtime 0 5 copy into bucket [copy-in] after [16]",
		"22 stream 7 device runtime 0 5 copy out of bucket [copy-out] after [21 11]",
		"24 stream 7 device runtime 0 5 copy out of bucket [copy-out] after [23 19]",
		"27 stream 7 device update 0 70 aten::_foreach_add_ after [26 6]",
		"29 stream 9 device update 0 0 end of step after [27]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("device ops:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	checkTensors(t, j, "mm.0.weight 20 read [1 14] made [14 15] written [27]", "mm.1.weight 20 read [3 6] made [6 7] written [27]")
	if note := "parameters are used on several streams"; !strings.Contains(strings.Join(j.Notes, "\n"), note) {
		t.Errorf("notes %q lack %q", j.Notes, note)
	}
	c := cluster.Uniform(2, 1, cluster.Link{Name: "eth", Latency: 10, Bandwidth: 1e10})
	for _, x := range all.Policies() {
		p, err := x.Build(context.Background(), j, c.WithServers(), policy.Options{})
		if errors.Is(err, policy.ErrUnsuitable) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Check(p, j, plan.DefaultLimits).Err(); err != nil {
			t.Errorf("%s: %v", x.Name, err)
		}
	}
}

// A node that launches nothing, the transposition of a linear layer's weight,
// feeds a gradient that the node before it has made on the device: op 4. Its host
// part is op 5, the hand-over 6.
func TestGradientOfView(t *testing.T) {
	f := gpu()
	f.add(autogradRow, 142, 146, evalMark+"TBackward0", more{seq: 11})
	j, err := f.done().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkTensors(t, j, "mm.0.weight 20 read [1 4] made [4 6] written [19]")
}

// resnet50Sizes lists the parameters of torchvision's ResNet-50 in the order of
// their use, from its definition: bottleneck blocks of 3, 4, 6 and 3, the
// shortcut of each stage's first block last.
func resnet50Sizes() (sizes []int64) {
	add := func(n ...int64) { sizes = append(sizes, n...) }
	add(3*64*7*7, 64, 64)
	in := int64(64)
	for stage, blocks := range []int{3, 4, 6, 3} {
		w := int64(64) << stage
		for b := range blocks {
			add(in*w, w, w, w*w*9, w, w, w*4*w, 4*w, 4*w)
			if b == 0 {
				add(in*4*w, 4*w, 4*w)
			}
			in = 4 * w
		}
	}
	add(2048*1000, 1000)
	return sizes
}

func TestSharedJob(t *testing.T) {
	tr := load(t, resnet50(t))
	j, err := tr.Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int64
	for _, x := range j.Tensors {
		sizes = append(sizes, x.Elements)
		var forward, device int
		for _, n := range x.Readers {
			if j.Lanes[j.Ops[n].Lane].Kind != job.Device {
				t.Errorf("%s: read by op %d, which is no device op", x.Name, n)
			}
			if j.Ops[n].Phase == job.Forward {
				forward++
			}
		}
		for _, n := range x.Producers {
			if j.Lanes[j.Ops[n].Lane].Kind == job.Device {
				device++
			}
		}
		// One device op makes each gradient, one host op hands it over.
		if forward == 0 || len(x.Producers) != 2 || device != 1 {
			t.Errorf("%s: %d forward readers, producers %v", x.Name, forward, x.Producers)
		}
		// SGD with momentum over all tensors: three foreach ops of three kernels.
		if len(x.Updaters) != 9 {
			t.Errorf("%s: %d updaters, want 9", x.Name, len(x.Updaters))
		}
	}
	if !slices.Equal(sizes, resnet50Sizes()) {
		t.Errorf("sizes %v, want %v", sizes, resnet50Sizes())
	}
	// An op that creates no node shows the number of the next: batch norm's
	// counter, an add_, that of the batch norm.
	kinds := map[string]int{}
	for _, x := range j.Tensors {
		kind, _, _ := strings.Cut(x.Name, ".")
		kinds[kind]++
	}
	if want := map[string]int{"conv2d": 53, "batch_norm": 2 * 53, "linear": 2}; !maps.Equal(kinds, want) {
		t.Errorf("read by %v, want %v", kinds, want)
	}
	// As in the oracle of papers/overlap-scheduling.md, section 2.
	var tensors, bytes []int
	for _, b := range j.Recorded.Buckets {
		tensors, bytes = append(tensors, len(b.Tensors)), append(bytes, int(b.Bytes))
	}
	if fmt.Sprint(tensors, bytes) != "[2 15 12 51 81] [8196000 31502336 26255360 26550272 9724160]" {
		t.Errorf("buckets of %v tensors, %v bytes", tensors, bytes)
	}
	// Batch norm has 53 layers: 53120 floats of statistics, 53 counters.
	if len(j.Collectives) != 2 || j.Collectives[0].Bytes != 4*53120 || j.Collectives[1].Bytes != 8*53 {
		t.Errorf("collectives %+v", j.Collectives)
	}
	for _, c := range j.Collectives {
		if c.Kind != "broadcast" || len(c.After) == 0 || len(c.Before) == 0 {
			t.Errorf("collective %+v", c)
		}
	}
	if j.World != 2 || j.Mode != job.PerTensor || len(j.Barrier) != 1 || j.Ops[j.Barrier[0]].Phase != job.Update {
		t.Errorf("world %d, mode %v, barrier %v", j.World, j.Mode, j.Barrier)
	}
	if !slices.ContainsFunc(j.Notes, func(n string) bool { return strings.Contains(n, "CudaTimer") }) {
		t.Errorf("notes do not say that DDP's timers are dropped: %q", j.Notes)
	}
	// Every step: the copies sum to the buckets.
	for s := range 3 {
		one, err := tr.Job(JobOptions{Step: s + 1})
		if err != nil {
			t.Fatal(err)
		}
		for k := range one.Tensors {
			if one.Tensors[k].Elements != sizes[k] {
				t.Errorf("step %d: %s has %d elements, want %d", s, one.Tensors[k].Name, one.Tensors[k].Elements, sizes[k])
			}
		}
	}
}

// TestRecordedJobs compares with what the recording program wrote down.
func TestRecordedJobs(t *testing.T) {
	for _, c := range recorded(t) {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Dir(c.path)
			file := tensorsFile(t, filepath.Join(dir, "tensors.txt"))
			c.o.Tensors = file
			j, err := load(t, c.path).Job(c.o)
			if err != nil {
				t.Fatal(err)
			}
			if j.Name != filepath.Base(c.path) {
				t.Errorf("name %s: want the file's, without its directory", j.Name)
			}
			elements := map[string]int64{}
			for _, x := range file {
				elements[x.Name] = x.Elements
			}
			for k, x := range j.Tensors {
				if x.Elements != elements[x.Name] {
					t.Errorf("%s has %d elements, want %d", x.Name, x.Elements, elements[x.Name])
				}
				if strings.Contains(c.name, "gpt") && x.Name != file[k].Name {
					t.Errorf("tensor %d is %s, want %s", k, x.Name, file[k].Name)
				}
				if len(x.Readers) == 0 || len(x.Updaters) != 1 {
					t.Errorf("%s: readers %v, updaters %v", x.Name, x.Readers, x.Updaters)
				}
			}
			var meta struct {
				Buckets []int64 `json:"bucket_bytes"`
			}
			text, err := os.ReadFile(filepath.Join(dir, "meta.json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &meta); err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, b := range j.Recorded.Buckets {
				got = append(got, b.Bytes)
			}
			if strings.Contains(c.name, "resnet18-gloo-torch1.13") {
				// It has no sizes, and ResNet does not use its parameters in their order.
				if !slices.ContainsFunc(j.Notes, func(n string) bool { return strings.Contains(n, "assumption") }) {
					t.Errorf("no note on the assumed order: %q", j.Notes)
				}
			} else if !slices.Equal(got, meta.Buckets) {
				t.Errorf("buckets of %v bytes, want %v", got, meta.Buckets)
			}
			for _, copies := range []bool{false, true} {
				s, _ := j.Strip(copies)
				if err := s.Validate(); err != nil {
					t.Errorf("stripped, copies %v: %v", copies, err)
				}
				if len(s.Barrier) == 0 {
					t.Errorf("stripped, copies %v: no barrier", copies)
				}
			}
		})
	}
}

// The broadcasts of batch-norm buffers have sizes in traces of PyTorch 2.6 and
// none in those of 1.13, which a note says.
func TestUnsizedCollectives(t *testing.T) {
	for _, c := range recorded(t) {
		j, err := load(t, c.path).Job(c.o)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.HasPrefix(c.name, "resnet18-gloo-torch1.13")
		note := "2 of 2 collectives without gradients have no recorded size: they cost nothing under a plan"
		if slices.Contains(j.Notes, note) != want {
			t.Errorf("%s: %d collectives, notes %q; a note on their size: want %v", c.name, len(j.Collectives), j.Notes, want)
		}
	}
}

// TestReplayPower shows that replay depends on the transfers: over a slow link
// half or twice their time is noticed.
func TestReplayPower(t *testing.T) {
	for _, dir := range []string{"shaped-all", "shaped-25mb"} {
		tr := load(t, filepath.Join("..", "..", "testdata", "traces", dir, "rank0.json.gz"))
		j, err := tr.Job(JobOptions{Step: 1})
		if err != nil {
			t.Fatal(err)
		}
		want := hostEnd(t, j)
		for _, factor := range []float64{0.5, 2} {
			j, err := tr.Job(JobOptions{Step: 1})
			if err != nil {
				t.Fatal(err)
			}
			for n := range j.Ops {
				if j.Ops[n].Role == job.GradCollective {
					j.Ops[n].Time *= factor
				}
			}
			off := 100 * (hostEnd(t, j)/want - 1)
			t.Logf("%s: transfers times %g: %+.1f %%", dir, factor, off)
			if math.Abs(off) <= 3 {
				t.Errorf("%s: with %g times the transfers' time the step changes by %.1f %% only", dir, factor, off)
			}
		}
	}
}

// rename replaces a name in a trace.
func rename(tr *Trace, old, new string) *Trace {
	for k := range tr.Names {
		if tr.Names[k] == old {
			tr.Names[k] = new
		}
	}
	return tr
}

func TestJobErrors(t *testing.T) {
	noCollectives := func() *Trace {
		tr := tied(1)
		tr.Events = slices.DeleteFunc(tr.Events, func(e Event) bool {
			return strings.HasPrefix(tr.Names[e.Name], "c10d::") || e.Row == glooRow
		})
		return tr
	}
	noSizes := func() *Trace {
		tr := tied(1)
		for k := range tr.Extras {
			tr.Extras[k].Dims = nil
		}
		return tr
	}
	gather := tied(1)
	f := &fake{gather}
	f.add(mainRow, 560, 570, "c10d::_allgather_base_", more{})
	f.done()
	for _, c := range []struct {
		name string
		tr   *Trace
		o    JobOptions
		want string
	}{
		{"steps", rename(tied(1), "ProfilerStep#7", "warmup"), JobOptions{}, "fake: no steps in this trace"},
		{"step", tied(1), JobOptions{Step: 2}, "fake: there is no step 2: the trace has 1"},
		{"collectives", noCollectives(), JobOptions{}, "fake: no collectives in this trace"},
		{"sizes", noSizes(), JobOptions{}, "fake: no collective sizes in this trace"},
		{"sharded", rename(tied(1), "c10d::allreduce_", "c10d::_reduce_scatter_base_"), JobOptions{}, "reduce-scatter (1)"},
		{"zero", gather, JobOptions{}, "all-gather of parameters in the optimizer (1)"},
		{"elsewhere", rename(tied(1), accumulate, evalMark+"SyncBatchNormBackward0"), JobOptions{}, "fake: no collective carries gradients"},
	} {
		_, err := c.tr.Job(c.o)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an *Error with %q", c.name, err, c.want)
		}
	}
	for _, c := range recorded(t) {
		if strings.Contains(c.name, "torch1.13") {
			if _, err := load(t, c.path).Job(JobOptions{}); err == nil || !strings.Contains(err.Error(), "no collective sizes in this trace") || !strings.Contains(err.Error(), "--tensors") {
				t.Errorf("%s without tensors file: %v", c.name, err)
			}
		}
	}
}

// Sizes come from the next source when one is missing: of the copies on the
// device, 80 bytes are 20 floats; without them the bucket is shared.
func TestSizes(t *testing.T) {
	drop := func(f *fake, name string) *Trace {
		for k := range f.Events {
			if e := &f.Events[k]; f.Names[e.Name] == name {
				e.Extra = -1
			}
		}
		return f.done()
	}
	const handOver = "torch::autograd::AccumulateGrad"
	copies := drop(gpu(), handOver)
	neither := drop(&fake{drop(gpu(), handOver)}, "Memcpy DtoD")
	file := []TensorInfo{{Name: "w", Elements: 20}}
	wrong := []TensorInfo{{Name: "w", Elements: 21}}
	for _, c := range []struct {
		name string
		tr   *Trace
		o    JobOptions
		want string // tensor
		note string
	}{
		{"shapes", gpu().done(), JobOptions{}, "mm.0.weight 20", ""},
		{"shapes, names", gpu().done(), JobOptions{Tensors: file}, "w 20", ""},
		{"shapes, other names", gpu().done(), JobOptions{Tensors: wrong}, "mm.0.weight 20", "the tensors file does not fit"},
		{"copies", copies, JobOptions{}, "mm.0.weight 20", ""},
		{"file", neither, JobOptions{Tensors: file}, "w 20", "on the assumption"},
		{"wrong file", neither, JobOptions{Tensors: wrong}, "mm.0.weight 20", "does not give the recorded bucket sizes"},
		{"shares", neither, JobOptions{}, "mm.0.weight 20", "each bucket is shared out equally"},
	} {
		j, err := c.tr.Job(c.o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := fmt.Sprint(j.Tensors[0].Name, " ", j.Tensors[0].Elements); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if !strings.Contains(strings.Join(j.Notes, "\n"), c.note) {
			t.Errorf("%s: notes %q lack %q", c.name, j.Notes, c.note)
		}
	}
}

func TestUpdateMode(t *testing.T) {
	global := job.Global
	perTensor := job.PerTensor
	with := func(start int64, name string) *Trace {
		f := &fake{tied(1)}
		f.add(mainRow, start, start+5, name, more{})
		return f.done()
	}
	for _, c := range []struct {
		name string
		tr   *Trace
		o    JobOptions
		want job.Mode
	}{
		{"plain", tied(1), JobOptions{}, job.PerTensor},
		{"norm", with(450, "aten::_foreach_norm"), JobOptions{}, job.Global},
		{"scaler", with(450, "aten::_amp_foreach_non_finite_check_and_unscale_"), JobOptions{}, job.Global},
		{"norm in forward", with(70, "aten::norm"), JobOptions{}, job.PerTensor},
		{"norm in the optimizer", with(592, "aten::linalg_vector_norm"), JobOptions{}, job.PerTensor},
		{"asked for", tied(1), JobOptions{Update: &global}, job.Global},
		{"asked against", with(450, "aten::_foreach_norm"), JobOptions{Update: &perTensor}, job.PerTensor},
	} {
		j, err := c.tr.Job(c.o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if j.Mode != c.want {
			t.Errorf("%s: %v, want %v", c.name, j.Mode, c.want)
		}
	}
}

// Steps that did something else are left out of the medians, and said.
func TestOddStep(t *testing.T) {
	f := newFake()
	for s := range int64(4) {
		at := 1000 * s
		f.add(mainRow, at, at+1000, fmt.Sprintf("ProfilerStep#%d", 3+s), more{cat: Annotation})
		f.add(mainRow, at+10, at+20+s, "aten::mm", more{seq: int32(10 * (s + 1))})
		f.add(mainRow, at+100, at+150, evalMark+"MmBackward0", more{seq: int32(10 * (s + 1))})
		f.gradient(at+201, 20, 5, 4)
		if s == 1 { // and hands another gradient over, in the same bucket
			f.gradient(at+250, 0, 5, 4)
		}
		f.add(glooRow, at+221, at+400, "gloo:all_reduce", more{cat: Annotation, dims: [][]int64{{20}}})
		f.add(mainRow, at+402, at+410, "torch.distributed.ddp.reducer::copy_bucket_to_grad", more{})
	}
	j, err := f.done().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "left out, because their ops differ from those of most steps: step 4"; !slices.Contains(j.Notes, want) {
		t.Errorf("notes %q lack %q", j.Notes, want)
	}
	// The first op lasts 20, 22 and 23 us in the others.
	if j.Ops[0].Time != 22 {
		t.Errorf("first op lasts %g us, want the median 22", j.Ops[0].Time)
	}
}

// uneven is three steps of three forward ops, of 10 us each but the step's
// own, which takes 100.
func uneven() *Trace {
	f := newFake()
	for s := range int64(3) {
		at, seq := 1000*s, int32(10*s)
		f.add(mainRow, at, at+1000, fmt.Sprintf("ProfilerStep#%d", s), more{cat: Annotation})
		end := at
		for k := range int64(3) {
			start := end
			if end += 10; k == s {
				end += 90
			}
			f.add(mainRow, start, end, "aten::mm", more{seq: seq + int32(k) + 1})
		}
		for k := range int64(3) {
			f.add(mainRow, at+200+50*k, at+210+50*k, evalMark+"MmBackward0", more{seq: seq + 3 - int32(k)})
			f.gradient(at+210+50*k, 60*(k/2), 5, 4) // the last one's hand-over issues the transfer
		}
		f.add(glooRow, at+330, at+400, "gloo:all_reduce", more{cat: Annotation, dims: [][]int64{{60}}})
		for k := range int64(3) {
			f.add(mainRow, at+402+8*k, at+410+8*k, "torch.distributed.ddp.reducer::copy_bucket_to_grad", more{})
		}
	}
	return f.done()
}

// Of an op that is slow in one step of three the median tells nothing: 10 us
// each. But a step's forward pass takes 120 us, so each op counts four times
// its median. What takes the same in every step is as it was.
func TestMediansSumToSteps(t *testing.T) {
	tr := uneven()
	j, err := tr.Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one, err := tr.Job(JobOptions{Step: 1})
	if err != nil {
		t.Fatal(err)
	}
	for n := range j.Ops {
		want := one.Ops[n].Time
		switch {
		case j.Ops[n].Phase == job.Forward:
			want = 40
		case j.Ops[n].Phase == job.Backward && n == 3:
			want = 10 + 80 // after the forward pass: 200 - 120, and the node
		}
		if got := j.Ops[n].Time; math.Abs(got-want) > 1e-9 {
			t.Errorf("op %d, %s: %g us, want %g", n, line(j, n), got, want)
		}
	}
	if got := []float64{one.Ops[0].Time, one.Ops[1].Time, one.Ops[2].Time}; !slices.Equal(got, []float64{100, 10, 10}) {
		t.Errorf("the first step alone has forward ops of %v us, want 100, 10, 10", got)
	}
}

// A recorded job computes as long as the median of the steps it is made of. The
// log says by how much its ops' medians alone would miss that.
func TestRecordedComputation(t *testing.T) {
	for _, c := range recorded(t) {
		for _, overlap := range []float64{0, 0.46} {
			t.Run(fmt.Sprint(c.name, " overlap ", overlap), func(t *testing.T) {
				tr := load(t, c.path)
				c.o.Overlap = overlap
				j, err := tr.Job(c.o)
				if err != nil {
					t.Fatal(err)
				}
				v, err := newView(tr)
				if err != nil {
					t.Fatal(err)
				}
				d := &deriver{v: v, o: c.o}
				d.align()
				times := make([][]float64, len(j.Ops)) // by op, over the steps
				var steps []float64
				for k := range v.steps {
					if !v.sameStructure(d.g, v.graphOf(k)) {
						continue // left out
					}
					o := c.o
					o.Step = k + 1
					one, err := tr.Job(o)
					if err != nil {
						t.Fatal(err)
					}
					for n := range times {
						times[n] = append(times[n], one.Ops[n].Time)
					}
					steps = append(steps, computation(one))
				}
				got, want := computation(j), median.Of(steps)
				for n := range j.Ops {
					j.Ops[n].Time = median.Of(times[n])
				}
				t.Logf("a step computes %.1f us, the job %.1f us; medians sum to %.1f us, %+.1f %%", want, got, computation(j), 100*(computation(j)-want)/want)
				if math.Abs(got-want) > 0.01*want {
					t.Errorf("the job computes %.1f us, a step %.1f us, want within 1 %%", got, want)
				}
			})
		}
	}
}

// computation is the time of all computing ops but the library's.
func computation(j *job.Job) (sum float64) {
	for n := range j.Ops {
		if o := &j.Ops[n]; o.Phase != job.Runtime && j.Computes(o.Lane) {
			sum += o.Time
		}
	}
	return sum
}

// checkpointed ends a step that has one gradient, and derives its job.
func checkpointed(t *testing.T, f *fake) *job.Job {
	f.add(mainRow, 0, 1000, "ProfilerStep#7", more{cat: Annotation})
	f.gradient(170, 20, 5, 4)
	f.add(glooRow, 190, 400, "gloo:all_reduce", more{cat: Annotation, dims: [][]int64{{20}}})
	f.add(mainRow, 402, 410, "torch.distributed.ddp.reducer::copy_bucket_to_grad", more{})
	f.add(mainRow, 500, 600, "Optimizer.step#SGD.step", more{cat: Annotation})
	f.add(mainRow, 510, 590, "aten::add_", more{})
	j, err := f.done().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// An activation checkpoint: the forward part runs without autograd, and again
// within the backward pass, where another backward pass is nested.
func TestRecomputedForward(t *testing.T) {
	f := newFake()
	weight := [][]int64{{2, 4}, {5, 4}}
	f.add(mainRow, 10, 20, "aten::mm", more{dims: weight})
	f.add(mainRow, 30, 40, "aten::sum", more{seq: 5})
	f.add(mainRow, 100, 300, evalMark+"CheckpointFunctionBackward", more{seq: 4})
	f.add(mainRow, 101, 299, "CheckpointFunctionBackward", more{seq: 4})
	f.add(mainRow, 110, 130, "aten::mm", more{seq: 7, dims: weight})
	f.add(mainRow, 140, 160, evalMark+"MmBackward0", more{seq: 7})
	j := checkpointed(t, f)
	if len(j.Tensors) != 1 {
		t.Fatalf("%d tensors", len(j.Tensors))
	}
	var readers []string
	for _, n := range j.Tensors[0].Readers {
		readers = append(readers, line(j, int(n)))
	}
	// 0-20 is the first run; 20-40 the sum; then a gap to 110 and 20 us again.
	want := []string{"host forward 0 20 aten::mm", "host forward 0 20 aten::mm", "host backward 0 30 MmBackward0"}
	if !slices.Equal(readers, want) {
		t.Errorf("read by %q, want %q", readers, want)
	}
}

// A checkpoint that keeps the graph of the first run: the op runs again within its
// own node, from 110 to 130. That is forward; what is around it is backward and
// reads the parameter, as the first run does.
func TestRepeatedForward(t *testing.T) {
	f := newFake()
	weight := [][]int64{{2, 4}, {5, 4}}
	f.add(mainRow, 10, 20, "aten::mm", more{seq: 7, dims: weight})
	f.add(mainRow, 100, 160, evalMark+"MmBackward0", more{seq: 7})
	f.add(mainRow, 110, 130, "aten::mm", more{seq: 20, dims: weight})
	j := checkpointed(t, f)
	for n, want := range []string{
		"host forward 0 20 aten::mm",
		"host backward 0 90 MmBackward0",
		"host forward 0 20 aten::mm",
		"host backward 0 30 MmBackward0",
	} {
		if got := line(j, n); got != want {
			t.Errorf("op %d: %s, want %s", n, got, want)
		}
	}
	checkTensors(t, j, "mm.0.weight 20 read [0 1 3] made [3 4] written [10]")
}

func TestMatchSizes(t *testing.T) {
	// The block of 7, 5, 5 is used first and listed last.
	if got, want := matchSizes([]int64{9, 7, 5, 5, 8, 6, 6}, []int64{9, 8, 6, 6, 7, 5, 5}), []int{0, 4, 5, 6, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := matchSizes([]int64{1, 2}, []int64{1, 3}); got != nil {
		t.Errorf("sizes that differ are matched: %v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOf(rapid.Int64Range(1, 4)).Draw(t, "a")
		b := rapid.Permutation(a).Draw(t, "b")
		at := matchSizes(a, b)
		if len(at) != len(a) {
			t.Fatalf("%d of %d matched", len(at), len(a))
		}
		used := map[int]bool{}
		for i, j := range at {
			if used[j] || a[i] != b[j] {
				t.Fatalf("%v to %v: %v", a, b, at)
			}
			used[j] = true
		}
		for i, j := range matchSizes(a, a) {
			if i != j {
				t.Fatalf("%v is not matched to itself", a)
			}
		}
	})
}

// A synchronous all-reduce outside the hand-over, as SyncBatchNorm has, while a
// bucket is under way: the wait that follows is for it, the next for the bucket.
func TestPlainCollectiveIsWaitedForFirst(t *testing.T) {
	f := gpu()
	f.add(autogradRow, 191, 194, "c10d::allreduce_", more{})
	f.add(autogradRow, 192, 193, "cudaLaunchKernel", more{cat: Runtime, corr: 8})
	f.add(ncclRow, 400, 401, "ncclKernel_AllReduce(x)", more{cat: Kernel, corr: 8, elements: 1})
	f.add(autogradRow, 196, 197, "cudaLaunchKernel", more{cat: Runtime, corr: 9})
	f.add(streamRow, 401, 402, "kernel", more{cat: Kernel, corr: 9})
	f.add(autogradRow, 198, 199, "cudaStreamWaitEvent", more{cat: Runtime, corr: 103})
	j, err := f.done().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bucket := j.Recorded.Buckets[0].Op
	if len(j.Collectives) != 1 || len(j.Collectives[0].Before) != 1 {
		t.Fatalf("collectives %+v", j.Collectives)
	}
	c := j.Collectives[0]
	if next := &j.Ops[c.Before[0]]; c.Bytes != 4 || next.Time != 1 || slices.Contains(next.Deps, bucket) {
		t.Errorf("the collective of %d bytes is waited for by %s", c.Bytes, line(j, int(c.Before[0])))
	}
	for n := range j.Ops {
		if o := &j.Ops[n]; slices.Contains(o.Deps, bucket) && o.Role != job.CopyOut {
			t.Errorf("the bucket is waited for by %s", line(j, n))
		}
	}
}

// DDP reads its timers now and then: two syncs, then the time between them. The
// syncs take 8 us of the first op's 30.
func TestSampledTimers(t *testing.T) {
	f := gpu()
	f.add(mainRow, 1, 60, "DistributedDataParallel.forward", more{})
	f.add(mainRow, 2, 7, "cudaEventSynchronize", more{cat: Runtime, corr: 110})
	f.add(mainRow, 7, 10, "cudaEventSynchronize", more{cat: Runtime, corr: 111})
	f.add(mainRow, 11, 12, "cudaEventElapsedTime", more{cat: Runtime, corr: 112})
	j, err := f.done().Job(JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := line(j, 0); got != "host forward 0 22 aten::mm" {
		t.Errorf("first op: %s", got)
	}
	if want := "dropped: 2 host syncs"; !strings.Contains(strings.Join(j.Notes, "\n"), want) {
		t.Errorf("notes %q lack %q", j.Notes, want)
	}
}

// Whatever a trace holds, it gives a valid job or an error, and can be inspected
// if it has steps. The reader keeps threads and streams apart.
func TestMangledTraces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := []func() *Trace{
			func() *Trace { return tied(2) },
			func() *Trace { return gpu().done() },
		}[rapid.IntRange(0, 1).Draw(t, "trace")]()
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			k := rapid.IntRange(0, len(tr.Events)-1).Draw(t, "event")
			e := &tr.Events[k]
			switch rapid.IntRange(0, 7).Draw(t, "change") {
			case 0:
				e.Name = uint32(rapid.IntRange(0, len(tr.Names)-1).Draw(t, "name"))
			case 1:
				if row := rapid.IntRange(0, len(tr.Rows)-1).Draw(t, "row"); tr.Rows[row].Device == e.Cat.Device() {
					e.Row = uint16(row)
				}
			case 2:
				e.Start += rapid.Int64Range(-300_000, 300_000).Draw(t, "shift")
			case 3:
				e.Dur = rapid.Int64Range(0, 500_000).Draw(t, "duration")
			case 4:
				e.Corr = uint32(rapid.IntRange(0, 8).Draw(t, "correlation"))
			case 5:
				e.Seq = int32(rapid.IntRange(-1, 13).Draw(t, "sequence"))
			case 6:
				e.Extra = int32(rapid.IntRange(-1, len(tr.Extras)-1).Draw(t, "extra"))
			case 7:
				if c := Category(rapid.IntRange(0, int(Record)).Draw(t, "category")); c.Device() == e.Cat.Device() {
					e.Cat = c
				}
			}
		}
		tr = (&fake{tr}).done()
		if j, err := tr.Job(JobOptions{}); err == nil {
			if err := j.Validate(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := j.Schedule(); err != nil {
				t.Fatal(err)
			}
		} else if e := new(Error); !errors.As(err, &e) {
			t.Fatalf("not an *Error: %v", err)
		}
		x, err := tr.Inspect()
		if err != nil {
			return
		}
		for _, s := range x.Steps {
			for _, p := range s.columns() {
				if !(*p >= 0) {
					t.Fatalf("negative time in %+v", s)
				}
			}
		}
	})
}

// Without sequence numbers, forward ops and backward nodes are joined by arrows.
func TestFlows(t *testing.T) {
	number := regexp.MustCompile(`"Sequence number": *\d+, *`)
	for _, dir := range []string{"gpt-gloo-torch2.6", "gpt-accum2-gloo-torch2.6", "resnet18-gloo-torch2.6"} {
		t.Run(dir, func(t *testing.T) {
			path := filepath.Join("..", "..", "testdata", "traces", dir, "rank0.json.gz")
			want, err := load(t, path).Job(JobOptions{})
			if err != nil {
				t.Fatal(err)
			}
			_, data := unzipped(t, path)
			stripped := number.ReplaceAll(data, nil)
			if bytes.Contains(stripped, []byte("Sequence number")) {
				t.Fatal("some sequence numbers are left")
			}
			tr, err := read(string(stripped))
			if err != nil {
				t.Fatal(err)
			}
			got, err := tr.Job(JobOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.Tensors, want.Tensors) {
				t.Errorf("tensors:\n%v\nwant, as with numbers:\n%v", got.Tensors, want.Tensors)
			}
			if got.OpsFingerprint() != want.OpsFingerprint() {
				t.Error("the ops are not those with numbers")
			}
		})
	}
}
