package compare

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"weft/bound"
	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"

	"go.uber.org/goleak"
)

// No comparison leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// example is the running example of the policies' descriptions, whose times are
// known by hand: cmd/weft/testdata/scripts/compare.txt shows the arithmetic.
func example() (*job.Job, *cluster.Cluster, Options) {
	j := job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
	c := cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 1, Bandwidth: 8e6})
	var chosen []policy.Policy
	for _, name := range []string{
		"recorded", "wfbp", "ddp", "horovod", "mg-wfbp", "mg-wfbp-exact", "asc-wfbp", "p3", "bytescheduler", "us-byte", "dear",
	} {
		p, err := all.Lookup(name)
		if err != nil {
			panic(err)
		}
		chosen = append(chosen, p)
	}
	return j, c, Options{Policies: chosen, Policy: policy.Options{FirstBucket: 1, Bucket: 5, Cycle: 5}}
}

func names(x *Comparison) []string {
	var out []string
	for _, b := range x.Blocks {
		for _, r := range b.Rows {
			if r.served() {
				out = append(out, fmt.Sprint(r.Policy.Name, " ", r.Time))
			}
		}
	}
	return out
}

func TestRank(t *testing.T) {
	j, c, o := example()
	x, err := Run(t.Context(), j, c, o)
	if err != nil {
		t.Fatal(err)
	}
	// The tensors are smaller than every slice, partition, unit and group that is
	// tried, so they travel whole:
	// p3, wires 4 8-15, 2 15-17, 3 17-20, 1 20-21, done 2 later: 9 + 23 = 32;
	// bytescheduler the same, with a credit that never binds;
	// us-byte 4 8-17, 2 17-21, then 1 21-24, 3 24-29: forward waits until 24 for 1 and
	// until 29 for 3: 29 + 1 + 4 = 34;
	// dear, a tensor a group: reduce-scatters until 1.5 after the backward pass, then
	// gathers 1.5, 2, 2.5, 4.5, of which the last ends 7 + 5 later: 18 + 12 + 4 = 34.
	want := []string{
		"asc-wfbp 32", "p3 32", "bytescheduler 32", "us-byte 34", "dear 34", "mg-wfbp 35", "mg-wfbp-exact 35", "ddp 36", "wfbp 38", "horovod 38",
	}
	if !slices.Equal(names(x), want) {
		t.Errorf("got %q, want %q", names(x), want)
	}
	block := x.Blocks[0]
	if len(block.Floors) != 1 || block.Floors[0].Class != bound.InOrder || block.Floors[0].Time != 30 {
		t.Errorf("bounds %v, want 30 for synchronous plans", block.Floors)
	}
	last := block.Rows[9]
	ddp, horovod, floor := 36.0, 38.0, 30.0
	if last.Speedup != ddp/horovod || last.Gap != horovod/floor-1 || last.Transfers != 3 || last.Largest != 10 {
		t.Errorf("horovod: speedup %g, gap %g, %g transfers, largest %d", last.Speedup, last.Gap, last.Transfers, last.Largest)
	}
}

// The outcome does not depend on how many policies run at once.
func TestDeterministic(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	j, c, o := example()
	var first *Comparison
	for _, procs := range []int{1, 2, 8} {
		runtime.GOMAXPROCS(procs)
		for range 10 {
			x, err := Run(t.Context(), j, c, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range x.Blocks {
				for i := range b.Rows {
					b.Rows[i].Policy.Build = nil // functions do not compare
				}
			}
			if first == nil {
				first = x
			}
			if !reflect.DeepEqual(x, first) {
				t.Fatalf("with %d processors: %v, before: %v", procs, names(x), names(first))
			}
		}
	}
}

func TestProgress(t *testing.T) {
	j, c, o := example()
	var got []int
	o.Progress = func(done, total int) {
		if total != len(o.Policies) {
			t.Errorf("%d of %d", done, total)
		}
		got = append(got, done)
	}
	if _, err := Run(t.Context(), j, c, o); err != nil {
		t.Fatal(err)
	}
	for i, done := range got {
		if done != i+1 {
			t.Fatalf("progress %v: one more each time", got)
		}
	}
	if len(got) != len(o.Policies) {
		t.Errorf("told of %d policies, want %d", len(got), len(o.Policies))
	}
}

// A policy that refuses, one whose plan forgets a gradient, one that is fine.
func made(name string, build func(context.Context, *job.Job, *cluster.Cluster, policy.Options) (*plan.Plan, error)) policy.Policy {
	return policy.Policy{Name: name, Build: build}
}

func TestRefusals(t *testing.T) {
	j, c, o := example()
	j.Notes = []string{"sizes are invented"}
	broken := errors.New("not for global updates")
	refuses := made("refuses", func(context.Context, *job.Job, *cluster.Cluster, policy.Options) (*plan.Plan, error) {
		return nil, broken
	})
	fine, err := all.Lookup("wfbp")
	if err != nil {
		t.Fatal(err)
	}

	o.Policies = []policy.Policy{refuses, fine}
	x, err := Run(t.Context(), j, c, o)
	if err != nil {
		t.Fatal(err)
	}
	if rows := x.Blocks[0].Rows; len(rows) != 2 || rows[0].Policy.Name != "wfbp" || rows[0].Speedup != 0 || rows[1].Refusal != broken {
		t.Errorf("rows %v", names(x))
	}
	want := []string{"sizes are invented", "refuses is not compared: not for global updates"}
	if !slices.Equal(x.Notes, want) {
		t.Errorf("notes %q, want %q", x.Notes, want)
	}

	o.Policies = []policy.Policy{refuses}
	if _, err := Run(t.Context(), j, c, o); !errors.Is(err, broken) {
		t.Errorf("all refuse: %v, want %v", err, broken)
	}
}

func TestWrongPlan(t *testing.T) {
	j, c, o := example()
	fine, err := all.Lookup("wfbp")
	if err != nil {
		t.Fatal(err)
	}
	o.Policies = []policy.Policy{fine, made("forgets", func(ctx context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		p, err := fine.Build(ctx, j, c, o)
		p.Programs[0].Transfers = p.Programs[0].Transfers[1:]
		return p, err
	})}
	_, err = Run(t.Context(), j, c, o)
	if err == nil || !strings.Contains(err.Error(), "policy forgets: the plan is not legal for this job: plan rule 1") {
		t.Errorf("got %v", err)
	}
}

func TestCancelled(t *testing.T) {
	j, c, o := example()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, j, c, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestNothing(t *testing.T) {
	j, c, o := example()
	o.Policies = nil
	if _, err := Run(t.Context(), j, c, o); err == nil {
		t.Error("no error")
	}
}

// The memory that a refusal names is enough for a plan, and a byte less is not.
func TestMemory(t *testing.T) {
	for _, copies := range []bool{false, true} {
		j, c, o := example()
		for i := range j.Ops {
			j.Ops[i].Output = 1000 // of the last, which nobody needs, too: in some order it is not there
		}
		o.Policy.Copies = copies
		o.Policy.Limits = plan.DefaultLimits
		o.Policy.Limits.MaxMemory = 1
		_, err := Run(t.Context(), j, c, o)
		e, ok := errors.AsType[*plan.MemoryError](err)
		if !ok {
			t.Fatalf("got %v", err)
		}
		need := e.Need.Total()
		for _, x := range []struct {
			most int64
			fits bool
		}{{need, true}, {need - 1, false}} {
			o.Policy.Limits.MaxMemory = x.most
			if _, err := Run(t.Context(), j, c, o); (err == nil) != x.fits {
				t.Errorf("copies %v: %d bytes are needed, and with %d: %v", copies, need, x.most, err)
			}
		}
	}
}

// Links that were measured for some kinds of transfer alone serve the policies
// that make do with those; the others say what is missing.
func TestUnpriced(t *testing.T) {
	for _, x := range []struct {
		kinds          [][]cluster.Kind // by link
		served, missed string
	}{
		{[][]cluster.Kind{{cluster.AllReduce}}, "ddp", "ps"},
		{[][]cluster.Kind{{cluster.AllReduce}, {cluster.Push}}, "ddp", "ps"},
		{[][]cluster.Kind{{cluster.Push, cluster.Pull}}, "ps", "ddp"},
		{[][]cluster.Kind{{cluster.Push, cluster.Pull, cluster.ReduceScatter}}, "ps", "ddp"}, // half of what reduces
	} {
		j, c, o := example()
		c.Links = nil
		for l, kinds := range x.kinds {
			on := cluster.Link{Name: fmt.Sprint("net", l)}
			for _, k := range kinds {
				on.Curve = append(on.Curve, cluster.Point{Kind: k, Bytes: 1000, Time: 3000})
			}
			c.Links = append(c.Links, on)
		}
		o.Policies = nil
		for _, name := range []string{"ddp", "ps"} {
			p, err := all.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			o.Policies = append(o.Policies, p)
		}
		got, err := Run(t.Context(), j, c, o)
		if err != nil {
			t.Errorf("%v: %v", x.kinds, err)
			continue
		}
		if len(got.Blocks) != 1 || len(got.Blocks[0].Rows) != 1 || got.Blocks[0].Rows[0].Policy.Name != x.served {
			t.Errorf("%v: got %v, want %s alone", x.kinds, names(got), x.served)
		}
		if !slices.ContainsFunc(got.Notes, func(n string) bool {
			return strings.HasPrefix(n, x.missed+" is not compared: ") && strings.Contains(n, "neither a measured curve")
		}) {
			t.Errorf("%v: no note on %s: %q", x.kinds, x.missed, got.Notes)
		}
	}
}

func TestUnusedLink(t *testing.T) {
	j, c, o := example()
	c.Links = append(c.Links, cluster.Link{Name: "second", Latency: 1, Bandwidth: 8e6})
	x, err := Run(t.Context(), j, c, o)
	if err != nil {
		t.Fatal(err)
	}
	if want := "no policy uses link second, which the bound counts"; !slices.Contains(x.Notes, want) {
		t.Errorf("notes %q lack %q", x.Notes, want)
	}
	for _, n := range x.Notes {
		if strings.Contains(n, "link net") {
			t.Errorf("note %q: it is used", n)
		}
	}
}

// A device that waits 10 of 20 for its host, before each op.
func TestHostBound(t *testing.T) {
	j := &job.Job{
		Lanes: []job.Lane{{Name: "host", Kind: job.Host}, {Name: "gpu", Kind: job.Device}},
		Ops: []job.Op{
			{Name: "launch f", Time: 5000, Tensor: -1},
			{Name: "f", Lane: 1, Time: 5000, Tensor: -1, Deps: []job.OpID{0}},
			{Name: "wait", Phase: job.Backward, Tensor: -1, Deps: []job.OpID{1}},
			{Name: "launch b", Phase: job.Backward, Time: 5000, Tensor: -1, Deps: []job.OpID{2}},
			{Name: "b", Lane: 1, Phase: job.Backward, Time: 5000, Tensor: -1, Deps: []job.OpID{3}},
			{Name: "step", Phase: job.Update, Tensor: -1, Deps: []job.OpID{4}},
		},
		Tensors: []job.Tensor{{Name: "w", Elements: 1, Readers: []job.OpID{1}, Producers: []job.OpID{4}, Updaters: []job.OpID{5}}},
	}
	_, c, o := example()
	x, err := Run(t.Context(), j, c, o)
	if err != nil {
		t.Fatal(err)
	}
	want := "host-bound: 10.0 ms of each iteration the device waits for the host, not for the network; no schedule of communication recovers that"
	if !slices.Contains(x.Notes, want) {
		t.Errorf("notes %q lack %q", x.Notes, want)
	}
}

// 300 tensors, 16 workers, every policy, auto's search included.
func BenchmarkRun(b *testing.B) {
	const n = 300
	fwd, bwd, bytes := make([]float64, n), make([]float64, n), make([]int64, n)
	for i := range n {
		fwd[i], bwd[i], bytes[i] = float64(50+i%7*30), float64(100+i%5*60), int64(4*(64+i*i*3))
	}
	j := job.Chain("wide", fwd, bwd, bytes)
	c := cluster.Uniform(16, 1, cluster.Link{Name: "net", Latency: 25, Bandwidth: 10e9})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Run(b.Context(), j, c, Options{Policies: all.Policies()}); err != nil {
			b.Fatal(err)
		}
	}
}
