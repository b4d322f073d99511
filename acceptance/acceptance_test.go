// Package acceptance holds importer and simulator to real recordings: the
// replay of recorded steps, and the prediction of runs that the job was not
// recorded from. Its tables are those of docs/validation.md:
//
//	go test ./acceptance -v
package acceptance

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/fusion"
	"weft/sim"
	"weft/trace/kineto"
)

var traces = filepath.Join("..", "testdata", "traces")

func load(t *testing.T, path string) *kineto.Trace {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := kineto.Read(context.Background(), f, kineto.ReadOptions{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func shaped(t *testing.T) *cluster.Cluster {
	t.Helper()
	name := filepath.Join(traces, "shaped.yaml")
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := cluster.Read(f, name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func simulate(t *testing.T, j *job.Job, c *cluster.Cluster, p *plan.Plan) float64 {
	t.Helper()
	r, err := sim.Run(context.Background(), j, c, p, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Time
}

// recording is one bucket size over the shaped link: the job as each rank
// recorded it, and the median step.
type recording struct {
	cap  string
	jobs [2]*job.Job
	step float64 // of the slower rank, microseconds
}

func recordings(t *testing.T, overlap float64) []recording {
	var out []recording
	for _, size := range []string{"1mb", "25mb", "all"} {
		r := recording{cap: size}
		for rank := range r.jobs {
			x := load(t, filepath.Join(traces, "shaped-"+size, fmt.Sprintf("rank%d.json.gz", rank)))
			seen, err := x.Inspect()
			if err != nil {
				t.Fatal(err)
			}
			r.step = max(r.step, seen.Median.Time)
			if r.jobs[rank], err = x.Job(kineto.JobOptions{Overlap: overlap}); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, r)
	}
	return out
}

// predict simulates the job of recording a with the buckets of recording b: the
// slower of the two ranks' jobs, because a collective waits for it. Gloo runs
// two transfers at once, and DDP copies gradients into buckets and out.
func predict(t *testing.T, a, b recording, c *cluster.Cluster) float64 {
	t.Helper()
	var slower float64
	for rank := range a.jobs {
		source, err := fusion.Recorded.Build(context.Background(), b.jobs[rank], c, policy.Options{InFlight: 2, Copies: true})
		if err != nil {
			t.Fatal(err)
		}
		if source.Tensors != a.jobs[rank].TensorsFingerprint() {
			t.Fatalf("recordings %s and %s have different tensors", a.cap, b.cap)
		}
		slower = max(slower, simulate(t, a.jobs[rank], c, source))
	}
	return slower
}

// within is the largest relative error that the prediction may have.
const within = 0.10

func TestHeldOutPrediction(t *testing.T) {
	c := shaped(t)
	all := recordings(t, c.Overlap)
	for _, a := range all {
		for _, b := range all {
			if a.cap == b.cap {
				continue
			}
			got := predict(t, a, b, c)
			off := got/b.step - 1
			t.Logf("job of %-4s with the buckets of %-4s: predicted %6.1f ms, measured %6.1f ms, %+5.1f %%", a.cap, b.cap, got/1000, b.step/1000, 100*off)
			if math.Abs(off) > within {
				t.Errorf("job of %s with the buckets of %s: %+.1f %%, want within %.0f %%", a.cap, b.cap, 100*off, 100*within)
			}
		}
	}
}

// The test above must notice transfers of half or double the time: for each,
// some pair is then off by more than it allows.
func TestHeldOutPredictionHasPower(t *testing.T) {
	for _, factor := range []float64{0.5, 2} {
		c := shaped(t)
		all := recordings(t, c.Overlap)
		for i := range c.Links[0].Curve {
			c.Links[0].Curve[i].Time *= factor
		}
		failed := 0
		for _, a := range all {
			for _, b := range all {
				if a.cap == b.cap {
					continue
				}
				off := predict(t, a, b, c)/b.step - 1
				if math.Abs(off) > within {
					failed++
				}
				t.Logf("transfers x %.1f: job of %-4s with the buckets of %-4s: %+6.1f %%", factor, a.cap, b.cap, 100*off)
			}
		}
		if failed == 0 {
			t.Errorf("with transfer times x %v every prediction still holds", factor)
		}
	}
}

// TestReplay runs each recorded step from durations alone, never start times,
// on as many transfer lanes as were recorded.
func TestReplay(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(traces, "*", "rank*.json.gz"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings in %s: %v", traces, err)
	}
	if shared := sharedTrace(); shared != "" {
		paths = append(paths, shared)
	} else {
		t.Log("the shared ResNet-50 trace is not there (WEFT_SHARED names the directory that holds data/kineto): left out")
	}
	c := cluster.Uniform(1, 1, cluster.Link{Name: "none", Bandwidth: 1e9})
	for _, path := range paths {
		x := load(t, path)
		seen, err := x.Inspect()
		if err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for i, step := range seen.Steps {
			j, err := x.Job(kineto.JobOptions{Step: i + 1, Tensors: tensors(t, path)})
			if err != nil {
				t.Fatal(err)
			}
			off := simulate(t, j, c, nil)/step.Time - 1
			if math.Abs(off) > math.Abs(worst) {
				worst = off
			}
			if math.Abs(off) > 0.03 {
				t.Errorf("%s, step %d: replayed %+.2f %% off, want within 3 %%", path, step.Step, 100*off)
			}
		}
		t.Logf("%-50s %d steps, worst %+.2f %%", filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path)), len(seen.Steps), 100*worst)
	}
}

func sharedTrace() string {
	dir := os.Getenv("WEFT_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared")
	}
	path := filepath.Join(dir, "data", "kineto", "resnet50-ddp-2xa100.json.gz")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// tensors reads the file beside a recording.
func tensors(t *testing.T, trace string) []kineto.TensorInfo {
	t.Helper()
	f, err := os.Open(filepath.Join(filepath.Dir(trace), "tensors.txt"))
	if err != nil {
		return nil
	}
	defer f.Close()
	list, err := kineto.ReadTensors(f, f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return list
}
