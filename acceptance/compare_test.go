//go:build !race

package acceptance

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"weft/cluster"
	"weft/compare"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/trace/kineto"
	"weft/zoo"
)

// Every job of the zoo and every recorded one runs through every policy, with a
// delay of one iteration allowed, on one link and on two: each plan is legal, no
// time is below its bound, and no policy refuses a job but for its kind. These
// are the rankings that users see; -v prints them. Without the race detector,
// which has nothing to find here and takes ten times as long.
func TestCompare(t *testing.T) {
	for name, load := range jobs(t) {
		for links, c := range map[string]*cluster.Cluster{
			"one link": cluster.Uniform(16, 1, cluster.Link{Name: "net", Latency: 25, Bandwidth: 40e9}),
			"two links": {Nodes: 4, PerNode: 1, Scale: 1, Overlap: 0.189, Links: []cluster.Link{
				{Name: "fast", Latency: 10, Bandwidth: 25e9, InFlight: 1}, {Name: "slow", Latency: 50, Bandwidth: 5e9, InFlight: 2},
			}},
		} {
			t.Run(name+" on "+links, func(t *testing.T) {
				t.Parallel()
				ranks(t, load(t), c)
			})
		}
	}
}

// jobs are by name what reads or computes them.
func jobs(t *testing.T) map[string]func(*testing.T) *job.Job {
	out := map[string]func(*testing.T) *job.Job{}
	for _, m := range zoo.Models() {
		out[m.Name] = func(t *testing.T) *job.Job {
			j, err := zoo.Job(m.Name, "a100", zoo.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return j
		}
	}
	paths, err := filepath.Glob(filepath.Join(traces, "*", "rank0.json.gz"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	if shared := os.Getenv("WEFT_SHARED"); shared != "" {
		paths = append(paths, filepath.Join(shared, "data", "kineto", "resnet50-ddp-2xa100.json.gz"))
	}
	for _, path := range paths {
		out[filepath.Base(filepath.Dir(path))+"/"+filepath.Base(path)] = func(t *testing.T) *job.Job {
			var o kineto.JobOptions
			if sizes, err := os.Open(filepath.Join(filepath.Dir(path), "tensors.txt")); err == nil {
				defer sizes.Close()
				if o.Tensors, err = kineto.ReadTensors(sizes, path); err != nil {
					t.Fatal(err)
				}
			}
			j, err := load(t, path).Job(o)
			if err != nil {
				t.Fatal(err)
			}
			return j
		}
	}
	return out
}

func ranks(t *testing.T, j *job.Job, c *cluster.Cluster) {
	x, err := compare.Run(t.Context(), j, c, compare.Options{Policies: all.Policies(), Policy: policy.Options{Limits: plan.DelayLimits(1)}})
	if err != nil {
		t.Fatal(err)
	}
	// Every op and transfer is rounded to a nanosecond.
	rounding := 0.002 * float64(len(j.Ops)+len(j.Tensors))
	if len(x.Blocks) != 2 {
		t.Fatalf("%d blocks, want workers alone and servers", len(x.Blocks))
	}
	for _, b := range x.Blocks {
		for _, r := range b.Rows {
			switch {
			case r.Refusal == nil && -r.Gap*r.Time > rounding:
				t.Errorf("%s takes %g us, below its bound by %g", r.Policy.Name, r.Time, -r.Gap)
			case r.Refusal == nil:
				t.Logf("%-16s %9.2f ms, gap %5.1f %%", r.Policy.Name, r.Time/1000, 100*r.Gap)
			case !errors.Is(r.Refusal, policy.ErrUnsuitable):
				t.Errorf("%s: %v", r.Policy.Name, r.Refusal)
			}
		}
	}
}
