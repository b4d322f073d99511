package kineto

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"weft/job"
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
func tensorsFile(t testing.TB, path string) (list []TensorInfo) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var x TensorInfo
		var dtype string
		if _, err := fmt.Sscan(s.Text(), &x.Name, &x.Elements, &dtype); err != nil {
			t.Fatalf("%s: %q: %v", path, s.Text(), err)
		}
		if x.DType, err = job.ParseDType(dtype); err != nil {
			t.Fatal(err)
		}
		list = append(list, x)
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
func tied(micros int64) *Trace {
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
		if m < micros-1 {
			f.add(mainRow, at+201, at+205, accumulate, more{})
			f.add(mainRow, at+202, at+205, "torch::autograd::AccumulateGrad", more{dims: [][]int64{weight}})
			continue
		}
		f.gradient(at+201, 20, weight...)
		f.add(glooRow, at+221, at+400, "gloo:all_reduce", more{cat: Annotation, dims: [][]int64{{20}}})
		f.add(mainRow, at+402, at+410, "torch.distributed.ddp.reducer::copy_bucket_to_grad", more{dims: [][]int64{weight}})
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
