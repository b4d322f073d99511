package study

import (
	"context"
	"errors"
	"maps"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// example is a study of the running example of the policies' descriptions, whose
// times are known by hand (sim/testdata/script/rx.txt shows the arithmetic). At a
// coverage of 26/27 a byte takes 2 where it took 1 (13 bytes, 27 of computation).
func example() *Study {
	rx := job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
	c := workers(2, cluster.Link{Name: "net", Latency: 1, Bandwidth: 8e6})
	return &Study{
		Name: "example", Title: "schedules of the running example", Setting: "network",
		Cases: []Case{
			{Model: "rx", Setting: "1 MB/s", X: 1, Jobs: []Source{{Job: rx}}, Cluster: c},
			{Model: "rx", Setting: "throttled", X: 2, Jobs: []Source{{Job: rx}}, Cluster: c, Coverage: 26. / 27},
		},
		Schedules: []Schedule{
			{Name: "mg-wfbp", Policy: "mg-wfbp"},
			{Name: "ddp", Policy: "ddp", Tries: []policy.Options{{FirstBucket: 1, Bucket: 1}, {FirstBucket: 1, Bucket: 5}, {FirstBucket: 1, Bucket: 4}}},
			{Name: "wfbp", Policy: "wfbp"},
			{Name: "horovod", Policy: "horovod", Tries: []policy.Options{{Cycle: 5}}},
		},
		Subject: "mg-wfbp",
		Claims: []Claim{
			{Text: "faster", Of: "mg-wfbp", Over: []string{"ddp", "wfbp"}, Where: "1 MB/s"},
			{Text: "faster than all", Of: "mg-wfbp", Over: []string{"ddp", "wfbp"}, Fastest: true},
			{Text: "varies", Of: "mg-wfbp"},
		},
	}
}

func TestRun(t *testing.T) {
	r, err := Run(t.Context(), example(), nil)
	if err != nil {
		t.Fatal(err)
	}
	// At half the speed, c = 2 + 2s = (4, 6, 8, 16), ready at 18, 14, 10, 8.
	// mg-wfbp, the recursion of section 4: l = 4: 10 - 8 = 2 is not < alpha, close;
	// l = 3: 24 > 14, merge; l = 2: 24 > 18, merge. {4} 8-24, {3,2,1} 24-38: T = 9 + 38.
	// ddp, of whose tries the second is the fastest and the first as wfbp: 24-36, {1} 36-40. wfbp: 8-24, 24-32, 32-38, 38-42.
	// horovod: at 10 {4,3} 10-32, at 15 {2} 32-38, at 20 {1} 38-42.
	want := [][]float64{{35, 36, 38, 38}, {47, 49, 51, 51}}
	for i := range r.Rows {
		var got []float64
		for _, o := range r.Rows[i].Outcomes {
			got = append(got, o.Time)
			if o.Least != o.Time || o.Most != o.Time || o.Rate != 1 || o.Delay != 0 {
				t.Errorf("case %d: %+v", i, o)
			}
		}
		if !slices.Equal(got, want[i]) {
			t.Errorf("case %d: times %v, want %v", i, got, want[i])
		}
	}
	// The floor is F + B + alpha + beta·s_1: 9 + 18 + 2 + 1.
	if o := r.Rows[0].Outcomes[0]; o.Bound.Time != 30 || o.Gap != o.Time/30-1 {
		t.Errorf("bound %v, gap %v", o.Bound.Time, o.Gap)
	}
	if got, want := r.Rows[0].Coverage, 13./27; math.Abs(got-want) > 1e-12 {
		t.Errorf("coverage %v, want %v", got, want)
	}
	if got, want := r.Rows[1].Cluster.Links[0].Bandwidth, 4e6; math.Abs(got-want) > 1e-6 {
		t.Errorf("throttled to %v bits/s, want %v", got, want)
	}
	mg, ddp, wfbp := 35., 36., 38.
	mgSlow, ddpSlow := 47., 49.
	if got, want := r.Gain(0, 1), ddp/mg-1; got != want {
		t.Errorf("gain over ddp %v, want %v", got, want)
	}
	for k, want := range []int{1, 2, 3, 3} {
		if got := r.Rank(0, k); got != want {
			t.Errorf("%s: rank %d, want %d", r.Study.Schedules[k].Name, got, want)
		}
	}
	f := r.Findings[0]
	if f.Least != ddp/mg-1 || f.Most != wfbp/mg-1 || f.Best != &r.Study.Cases[0] || f.Worst != f.Best {
		t.Errorf("finding %+v", f)
	}
	// Over the fastest of the others: 36/35, and 49/47 at half the speed.
	if f := r.Findings[1]; f.Least != ddp/mg-1 || f.Most != ddpSlow/mgSlow-1 || f.Worst != &r.Study.Cases[0] || f.Best != &r.Study.Cases[1] {
		t.Errorf("finding %+v", f)
	}
	if f := r.Findings[2]; f.Least != 0 || f.Most != 0 {
		t.Errorf("it varies: %+v", f)
	}
}

// Of several seeds the extremes tell how steady a schedule is.
func TestSpread(t *testing.T) {
	s := example()
	var mu sync.Mutex
	seen := map[uint64]int{}
	seeded := policy.Policy{Name: "seeded", Build: func(ctx context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		mu.Lock()
		seen[c.Seed]++
		mu.Unlock()
		// WFBP, ddp and one transfer: 38, 36 and 42.
		o.FirstBucket, o.Bucket = []int64{1, 1, 100}[c.Seed], []int64{1, 5, 100}[c.Seed]
		ddp, err := all.Lookup("ddp")
		if err != nil {
			return nil, err
		}
		return ddp.Build(ctx, j, c, o)
	}}
	s.Cases = s.Cases[:1]
	s.Schedules[0] = Schedule{Name: "mg-wfbp", Custom: &seeded, Seeds: 3}
	r, err := Run(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	o := r.Rows[0].Outcomes[0]
	mean := (38 + 36 + 42) / 3.
	if o.Time != mean || o.Least != 36 || o.Most != 42 || math.Abs(o.Gap-(mean/30-1)) > 1e-12 {
		t.Errorf("outcome %+v", o)
	}
	if f := r.Findings[2]; f.Least != 6/mean || f.Most != 6/mean {
		t.Errorf("finding %+v", f)
	}
	if want := map[uint64]int{0: 1, 1: 1, 2: 1}; !maps.Equal(seen, want) {
		t.Errorf("seeds %v, want %v", seen, want)
	}
}

func TestRefusal(t *testing.T) {
	s := example()
	global := *s.Cases[0].Jobs[0].Job
	global.Mode = job.Global
	s.Cases[0].Jobs = []Source{{Job: &global}}
	s.Schedules[0] = Schedule{Name: "mg-wfbp", Policy: "p3"}
	r, err := Run(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if o := r.Rows[0].Outcomes[0]; o.Refusal == "" || o.Time != 0 {
		t.Errorf("outcome %+v", o)
	}
	if !math.IsNaN(r.Gain(0, 1)) || r.Rank(0, 0) != 0 || r.Rank(0, 1) != 1 {
		t.Errorf("gain %v, ranks %d, %d", r.Gain(0, 1), r.Rank(0, 0), r.Rank(0, 1))
	}
	if f := r.Findings[0]; f.Best != nil {
		t.Errorf("a finding without outcomes: %+v", f)
	}
	if !slices.ContainsFunc(r.Notes, func(n string) bool {
		return strings.HasPrefix(n, "mg-wfbp: ") && strings.Contains(n, "global") && strings.HasSuffix(n, "(1 of 2 cases)")
	}) {
		t.Errorf("notes %q", r.Notes)
	}
}

// A plan that is not legal is an error, and so is a model that there is not.
func TestErrors(t *testing.T) {
	s := example()
	s.Schedules[1] = Schedule{Name: "ddp", Run: func(ctx context.Context, jobs []*job.Job, c *cluster.Cluster) (Outcome, error) {
		return prove(ctx, jobs[0], c, plan.New(jobs[0], "empty", "net"), plan.DefaultLimits)
	}}
	if _, err := Run(t.Context(), s, nil); err == nil || !strings.Contains(err.Error(), "study example: rx, 1 MB/s, ddp: the plan is not legal") {
		t.Errorf("got %v", err)
	}
	s = example()
	s.Cases[0].Jobs = []Source{{Model: "resnet5", Device: "v100"}}
	if _, err := Run(t.Context(), s, nil); err == nil || !strings.Contains(err.Error(), "resnet50") {
		t.Errorf("got %v", err)
	}
	for what, spoil := range map[string]func(s *Study){
		"unknown policy":     func(s *Study) { s.Schedules[0].Policy = "none" },
		"unknown subject":    func(s *Study) { s.Subject = "none" },
		"claim of nothing":   func(s *Study) { s.Claims[0].Of = "none" },
		"claim over nothing": func(s *Study) { s.Claims[0].Over = []string{"wfbp", "none"} },
		"no job":             func(s *Study) { s.Cases[0].Jobs = nil },
		"no link":            func(s *Study) { s.Cases[0].Cluster.Links = nil },
		"coverage of nothing": func(s *Study) {
			s.Cases[1].Jobs = []Source{{Job: job.Chain("still", []float64{0}, []float64{0}, []int64{4})}}
		},
		"coverage by no worker": func(s *Study) { s.Cases[1].Cluster.Nodes = 1 },
	} {
		s := example()
		spoil(s)
		if _, err := Run(t.Context(), s, nil); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func TestDeterministic(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := example()
	var first *Result
	for _, procs := range []int{1, 2, 8} {
		runtime.GOMAXPROCS(procs)
		for range 5 {
			r, err := Run(t.Context(), s, nil)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = r
			}
			if !reflect.DeepEqual(r, first) {
				t.Fatalf("with %d processors: %+v, before: %+v", procs, r, first)
			}
		}
	}
}

func TestProgress(t *testing.T) {
	var got []int
	if _, err := Run(t.Context(), example(), func(done, total int) {
		if total != 8 {
			t.Errorf("%d of %d", done, total)
		}
		got = append(got, done)
	}); err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 2, 3, 4, 5, 6, 7, 8}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// In the midst of the first cell; no other begins.
	cells := 0
	s := example()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for i := range s.Schedules {
		s.Schedules[i].Run = func(context.Context, []*job.Job, *cluster.Cluster) (Outcome, error) {
			cells++
			cancel()
			return Outcome{}, nil
		}
	}
	if _, err := Run(ctx, s, nil); !errors.Is(err, context.Canceled) || cells != 1 {
		t.Errorf("got %v after %d cells", err, cells)
	}
}

func TestLookup(t *testing.T) {
	for i := range studies {
		if s, err := Lookup(studies[i].Name); err != nil || s != &studies[i] {
			t.Errorf("%s: %v", studies[i].Name, err)
		}
	}
	if _, err := Lookup("us-bite"); err == nil || !strings.Contains(err.Error(), `did you mean "us-byte"?`) {
		t.Errorf("got %v", err)
	}
}

// What the table of studies must hold.
func TestStudies(t *testing.T) {
	names := map[string]bool{}
	for i := range studies {
		s := &studies[i]
		t.Run(s.Name, func(t *testing.T) {
			if names[s.Name] {
				t.Error("there are two of this name")
			}
			names[s.Name] = true
			if s.Title == "" || s.Paper == "" || s.Link == "" || s.Setting == "" {
				t.Error("no title, paper, link or setting")
			}
			if len(s.Claims) == 0 || len(s.Assumptions) == 0 || len(s.Differences) == 0 {
				t.Errorf("%d claims, %d assumptions, %d differences", len(s.Claims), len(s.Assumptions), len(s.Differences))
			}
			if err := s.check(); err != nil {
				t.Error(err)
			}
			for _, c := range s.Claims {
				if !slices.ContainsFunc(s.Cases, func(x Case) bool { return strings.Contains(x.String(), c.Where) }) {
					t.Errorf("claim %q: no case %s", c.Text, c.Where)
				}
			}
			if s.Subject == "" && (s.Plot.Kind == GainBars || s.Plot.Kind == GainLines) {
				t.Error("gains of nothing are plotted")
			}
			for k := range s.Schedules {
				if _, err := s.Schedules[k].runner(); err != nil || s.Index(s.Schedules[k].Name) != k {
					t.Errorf("schedule %s: %v, first at %d", s.Schedules[k].Name, err, s.Index(s.Schedules[k].Name))
				}
			}
			cases := map[[2]string]bool{}
			for k := range s.Cases {
				c := &s.Cases[k]
				at := [2]string{c.Model, c.Setting}
				if cases[at] || cases[[2]string{c.Model}] && s.Cases[k-1].Model != c.Model {
					t.Errorf("case %v: twice, or apart from the others of its model", at)
				}
				cases[at], cases[[2]string{c.Model}] = true, true
				if err := c.Cluster.Validate(); err != nil {
					t.Errorf("%s, %s: %v", c.Model, c.Setting, err)
				}
			}
			for _, m := range s.Plot.Models {
				if !slices.ContainsFunc(s.Cases, func(c Case) bool { return c.Model == m }) {
					t.Errorf("no case of model %s, which is plotted", m)
				}
			}
			for _, n := range s.Plot.Schedules {
				if s.Index(n) < 0 {
					t.Errorf("no schedule %s, which is plotted", n)
				}
			}
		})
	}
}
