package kineto

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
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
