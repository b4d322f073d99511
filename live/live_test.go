package live

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/cluster"
	"weft/examples"
	"weft/job"
	"weft/plan"
	"weft/timeline"
	"weft/zoo"
)

func TestParseSchedule(t *testing.T) {
	for s, want := range map[string]Schedule{
		"torch":      {library: "ddp", limits: plan.DefaultLimits},
		"dear":       {library: "weft", policy: "dear", limits: plan.DefaultLimits},
		"deft:1":     {library: "weft", policy: "deft", limits: plan.DelayLimits(1)},
		"deft:2:0.5": {library: "weft", policy: "deft", limits: plan.Limits{MaxDelay: 2, MaxStaleness: 4, MinUpdateRate: 0.5}},
		"p3+spread":  {library: "weft", policy: "p3", spread: true, limits: plan.DefaultLimits},
	} {
		want.Name = s
		if got, err := ParseSchedule(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "nonsense", "deft:0", "deft:x", "ps", "torch:1", "torch+spread", "dear:1+spread", "deft:1:", "deft:1:0", "deft:1:2", "deft:1:NaN", "deft:1:1:1"} {
		if _, err := ParseSchedule(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// schedules are those of some names.
func schedules(t *testing.T, names ...string) (out []Schedule) {
	for _, s := range names {
		x, err := ParseSchedule(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, x)
	}
	return out
}

// The script has the models that the command takes.
func TestModels(t *testing.T) {
	script, err := fs.ReadFile(examples.Scripts, "train.py")
	if err != nil {
		t.Fatal(err)
	}
	batch := regexp.MustCompile(`(?m)^BATCH = .*$`).FindString(string(script))
	if n := strings.Count(batch, ":"); n != len(Models) {
		t.Errorf("%s: want %q", batch, Models)
	}
	for _, model := range Models {
		if !strings.Contains(batch, strconv.Quote(model)) {
			t.Errorf("%s: no %s", batch, model)
		}
	}
}

func TestAgainst(t *testing.T) {
	a, b := Row{Times: []float64{1, 4, 9}}, Row{Times: []float64{2, 2, 3, 100}}
	if got := a.Against(&b); got != 2 { // of 1/2, 2, 3
		t.Error(got)
	}
	if got := new(Row); !math.IsNaN(got.Time()) || !math.IsNaN(got.Against(&b)) {
		t.Error("a row without times has one")
	}
}

// Turns of 3, 6 and 5 s beside 2, 4 and 2: longer by 1, 2 and 3, the mean 2 and the deviation
// 1; t of two degrees of freedom is 4.3027, by the root of 3. A fourth turn has no other.
func TestLess(t *testing.T) {
	a, b := Row{Times: []float64{3, 6, 5, 100}}, Row{Times: []float64{2, 4, 2}}
	if mean, half := a.Less(&b); mean != 2 || math.Abs(half-4.3027/math.Sqrt(3)) > 1e-4 {
		t.Errorf("%v ± %v", mean, half)
	}
	b.Times = b.Times[:1]
	for _, other := range []*Row{&a, &b} {
		if mean, half := a.Less(other); !math.IsNaN(mean) || !math.IsNaN(half) {
			t.Errorf("of itself, or one turn: %v ± %v", mean, half)
		}
	}
}

// Of what is predicted or measured alone there is no error.
func TestErrors(t *testing.T) {
	none := math.NaN()
	cases := []Case{
		{Rows: []Row{{Times: []float64{2}, Predicted: none}, {Times: []float64{2}, Predicted: 1.5}}},
		{Rows: []Row{{Predicted: 1}, {Times: []float64{3, 4, 9}, Predicted: 4.25}}},
	}
	if got := Errors(cases); !slices.Equal(got, []float64{0.0625, 0.25}) {
		t.Error(got)
	}
}

// stage is stageOf a network on two workers.
func stage(t *testing.T, dir string) string {
	t.Helper()
	j, err := zoo.Job("resnet50", "v100", zoo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return stageOf(t, dir, j, cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 50, Bandwidth: 1e9}))
}

// stageOf is a program in place of weft: it notes its arguments, and does what the trainings
// that it is asked for would leave behind, and the profile, which finds a job and a cluster.
func stageOf(t *testing.T, dir string, j *job.Job, c *cluster.Cluster) string {
	t.Helper()
	var files [2]strings.Builder
	if err := job.Write(&files[0], j); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Write(&files[1], c); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"job", "cluster"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(files[i].String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf(`#!/bin/sh
echo "$*" >>%[1]s/said
test -e %[1]s/fail && { echo no luck; exit 3; }
while [ $# -gt 0 ]; do
	case $1 in
	--out) echo '{"bytes": 1000000, "times": [0.5, 1.5]}' >"$2" ;;
	-o) cp %[1]s/job "$2" ;;
	--cluster) test -e "$2" || cp %[1]s/cluster "$2" ;;
	esac
	shift
done
`, dir)
	path := filepath.Join(dir, "weft")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// A study runs each training once, in the order of turns, and what is there already never
// again.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	c := Config{Lab: Lab{Weft: stage(t, dir), Python: "py", Dir: filepath.Join(dir, "out"), Hosts: 2, Models: []string{"gpt"}}, Coverages: []float64{2}, Turns: 2, Steps: 9}
	c.Schedules = schedules(t, "torch", "dear", "deft:1")
	steps := 0
	c.Step = func(done, total int) {
		if done != steps || total != 8 {
			t.Errorf("step %d of %d, want %d of 8", done, total, steps)
		}
		steps++
	}
	cases, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	// 1 MB in an iteration of 1 s, twice as long on the wire: 4 Mbit/s of payload.
	x := cases[0]
	if len(cases) != 1 || x.Alone != 1 || math.Abs(x.Rate-4e6*1514/1448) > 1e3 {
		t.Errorf("%+v", cases)
	}
	for _, r := range x.Rows {
		if len(r.Times) != 2 || r.Time() != 1 || math.IsNaN(r.Predicted) != (r.Schedule.Name == "torch") {
			t.Errorf("%+v", r)
		}
		f, err := os.Open(r.Timeline)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if simulated, err := timeline.ReadChrome(f); err != nil || len(simulated.Spans) == 0 {
			t.Errorf("%s: %v", r.Timeline, err)
		}
	}
	said, err := os.ReadFile(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for line := range strings.Lines(string(said)) {
		switch {
		case strings.Contains(line, "--with alone"):
			order = append(order, "alone")
		case strings.Contains(line, " profile "):
			order = append(order, "profile")
		case strings.Contains(line, "--with ddp"):
			order = append(order, "torch")
		case strings.Contains(line, "--policy dear "):
			order = append(order, "dear")
		case strings.Contains(line, "--policy deft ") && strings.Contains(line, "--max-delay 1 --max-staleness 3 --min-update-rate 0.3333333333333333 "):
			order = append(order, "deft")
		default:
			t.Errorf("%s", line)
		}
	}
	if got := strings.Join(order, " "); got != "alone profile torch dear deft deft dear torch" {
		t.Error(got)
	}

	if err := os.WriteFile(filepath.Join(dir, "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	steps = 0
	again, err := Run(t.Context(), c)
	if err != nil || again[0].Rows[1].Time() != 1 {
		t.Errorf("%+v, %v", again, err)
	}
	c.Step = nil
	other := c
	other.Steps = 5
	if _, err = Run(t.Context(), other); err == nil || !strings.Contains(err.Error(), "were made with --python py --hosts 2 --steps 9, not --python py --hosts 2 --steps 5") {
		t.Errorf("trainings of another number of steps: %v", err)
	}
	other = c
	other.Python = "py3"
	if _, err = Run(t.Context(), other); err == nil || !strings.Contains(err.Error(), "were made with --python py --hosts 2 --steps 9, not --python py3 ") {
		t.Errorf("trainings of another Python: %v", err)
	}
	for _, coverage := range []float64{1e-9, 1000} {
		other = c
		other.Coverages = []float64{coverage}
		if _, err = Run(t.Context(), other); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("gpt: coverage %g needs lines of ", coverage)) {
			t.Errorf("a rate that no lab has: %v", err)
		}
	}
	first := &study{Lab: c.Lab}
	leave, err := first.enter(t.Context(), "live", "--hosts 2 --steps 9")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "another study is writing to "+c.Dir) {
		t.Errorf("two at once: %v", err)
	}
	leave()
	cut := filepath.Join(c.Dir, "gpt-coverage2-dear-turn1.json")
	for _, text := range []string{"", `{"times": []}`} {
		if err := os.WriteFile(cut, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err = Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "gpt-coverage2-dear-turn1.json: a training's times cannot be read") {
			t.Errorf("a result of %q: %v", text, err)
		}
	}
	if err := os.Remove(cut); err != nil {
		t.Fatal(err)
	}
	c.Turns = 3
	if _, err = Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "gpt at coverage 2: dear:") || !strings.Contains(err.Error(), "no luck") {
		t.Errorf("a training that fails: %v", err)
	}
}

// What a schedule takes is set beside the bound of its plan, on the job and the cluster that
// were profiled: by hand. Torch, whose links are not known, has none.
func TestGap(t *testing.T) {
	dir := t.TempDir()
	// Passes of 200 and 500 ms. The last layer's 62.5 MB are 500 ms on the wire, and can be
	// there all the time that the first layer's backward pass takes, 450 ms, and its forward
	// pass, 100 ms. Beside transfers computation runs at 4/5 of its speed: 500 ms / 5 are lost.
	j := job.Chain("hand", []float64{100e3, 100e3}, []float64{450e3, 50e3}, []int64{1, 625e5})
	c := cluster.Uniform(2, 1, cluster.Link{Name: "net", Bandwidth: 1e9})
	c.Overlap = 0.25
	config := Config{Lab: Lab{Weft: stageOf(t, dir, j, c), Python: "py", Dir: filepath.Join(dir, "out"), Hosts: 2, Models: []string{"gpt"}}, Coverages: []float64{1}, Turns: 1, Steps: 9}
	config.Schedules = schedules(t, "torch", "dear", "deft:1")
	cases, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	rows := cases[0].Rows
	if !math.IsNaN(rows[0].Gap()) {
		t.Errorf("torch: %v", rows[0].Gap())
	}
	if got, want := rows[1].Gap(), 1/0.8-1; math.Abs(got-want) > 1e-6 {
		t.Errorf("dear: %v, want %v of trainings of 1 s", got, want)
	}
	// Delayed, an update of three iterations at least: 500/3 ms on the wire, 1/5 of that lost.
	if got, want := rows[2].Gap(), 1/(0.7+0.5/15)-1; math.Abs(got-want) > 1e-6 {
		t.Errorf("deft:1: %v, want %v", got, want)
	}
}

// A second rail of half the rate: trainings and the profile have both, and the fastest
// schedule of those that use one or both is found.
func TestRails(t *testing.T) {
	dir := t.TempDir()
	c := Config{Lab: Lab{Weft: stage(t, dir), Python: "py", Dir: filepath.Join(dir, "out"), Hosts: 2, Models: []string{"gpt"}, Rails: []float64{0.5}}, Coverages: []float64{2}, Turns: 1, Steps: 9}
	c.Schedules = schedules(t, "dear", "p3", "p3+spread")
	cases, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(said), " --rails 2 --rate 4182320bit,2091160bit "); n != 4 {
		t.Errorf("%d of 4 trainings at coverage 2 on both rails:\n%s", n, said)
	}
	if n := strings.Count(string(said), "--policy p3 --job"); n != 2 || strings.Count(string(said), " --spread ") != 1 {
		t.Errorf("want one of 2 trainings by p3 spread:\n%s", said)
	}
	cases[0].Rows[0].Times[0] = 3
	cases[0].Rows = append(cases[0].Rows, Row{Schedule: Schedule{Name: Loaded}, Times: []float64{0.1}})
	if one, several := cases[0].Fastest(); one.Schedule.Name != "p3" || several.Schedule.Name != "p3+spread" {
		t.Errorf("%v and %v", one, several)
	}
}

// A study that is killed does not leave its lab behind. The test is the study's process, too.
func TestKilled(t *testing.T) {
	const study = "WEFT_TEST_STUDY"
	if dir := os.Getenv(study); dir != "" {
		Run(t.Context(), Config{Lab: Lab{Weft: filepath.Join(dir, "weft"), Dir: dir, Hosts: 2, Models: []string{"gpt"}}, Steps: 1})
		return
	}
	dir := t.TempDir()
	told := filepath.Join(dir, "told")
	if err := unix.Mkfifo(told, 0o600); err != nil {
		t.Fatal(err)
	}
	// It holds the fifo open as long as it lives.
	script := fmt.Sprintf("#!/bin/sh\nexec 3>%s\necho $$ >&3\nexec sleep infinity\n", told)
	if err := os.WriteFile(filepath.Join(dir, "weft"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	x := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	x.Env = append(os.Environ(), study+"="+dir)
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.Open(told)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	lab := 0
	if _, err := fmt.Fscanln(fifo, &lab); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(lab, syscall.SIGKILL)
	x.Process.Kill()
	x.Wait()
	if err := fifo.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := fifo.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the lab goes on without its study: %v", err)
	}
}
