// Package live measures real trainings in the lab: models, coverage rates and
// schedules, in turns, each beside what the simulator predicts of it.
//
// Trainings run as a user runs them: this program is started again, as weft lab and
// weft run. What has been measured lies in files, and is not measured again.
package live

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"gonum.org/v1/gonum/stat"

	"weft/bound"
	"weft/cluster"
	"weft/examples"
	"weft/internal/atomicfile"
	"weft/internal/median"
	"weft/job"
	"weft/lab"
	"weft/launch"
	"weft/pilot"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/policy/fusion"
	"weft/sim"
	"weft/timeline"
)

// Lab is where trainings run, and how.
type Lab struct {
	Weft, Python string // programs
	Dir          string // for all files
	Hosts        int    // one worker each, of one thread
	Models       []string
	Rails        []float64  // rates of further rails, by that of the first
	Schedules    []Schedule // the first is what the others are compared with
	// Step is told of each training before it starts; calls do not overlap.
	Step func(done, total int)
}

// Models are those of examples/train.py.
var Models = []string{"resnet18", "gpt", "mlp"}

// Config says what to measure.
type Config struct {
	Lab
	Coverages []float64 // time of the gradients on the wire of the first rail, by that of the computation alone
	Turns     int       // of each schedule
	Steps     int       // of a turn
}

// Schedule is how workers communicate.
type Schedule struct {
	Name    string // as on the command line
	library string // as examples/train.py names it
	policy  string // empty: none
	spread  bool   // over all rails
	limits  plan.Limits
}

const (
	// DDP is the name of DistributedDataParallel over gloo, with which all are compared.
	DDP = "torch"
	// Loaded is the name of the control: workers train alone, while another process on
	// each host moves as many bytes in every iteration.
	Loaded = "loaded"
)

// libraries are what trains by schedules that are no policy.
var libraries = map[string]string{DDP: "ddp", Loaded: "loaded"}

const spread = "+spread"

// ParseSchedule reads torch, loaded, or a policy. A policy may be allowed a delay, as
// deft:1, and held to an update rate, as deft:1:0.5. That of a policy for one link, behind
// which comes +spread, is spread over all.
func ParseSchedule(s string) (Schedule, error) {
	if library, ok := libraries[s]; ok {
		return Schedule{Name: s, library: library, limits: plan.DefaultLimits}, nil
	}
	x := Schedule{Name: s, library: "weft", limits: plan.DefaultLimits}
	name, allowed, delayed := strings.Cut(s, ":")
	if delayed {
		delay, rate, rated := strings.Cut(allowed, ":")
		d, err := strconv.Atoi(delay)
		if err != nil || d < 1 {
			return x, fmt.Errorf("%q: after the colon comes the delay that is allowed, in iterations", s)
		}
		x.limits = plan.DelayLimits(d)
		if rated {
			r, err := strconv.ParseFloat(rate, 64)
			if err != nil || !(r > 0 && r <= 1) {
				return x, fmt.Errorf("%q: after the second colon comes the least update rate, above 0 and at most 1", s)
			}
			x.limits.MinUpdateRate = r
		}
	}
	name, x.spread = strings.CutSuffix(name, spread)
	p, err := all.Lookup(name)
	if err == nil && p.Class == policy.Servers {
		err = fmt.Errorf("%s needs parameter servers, which a training does not have", name)
	}
	x.policy = name
	return x, err
}

// several says whether a schedule may use more rails than the first.
func (s *Schedule) several() bool { return s.spread || s.policy == "auto" }

// Case is a model at a rate.
type Case struct {
	Model    string
	Alone    float64 // iteration without others, seconds
	Bytes    int64   // of gradients
	Coverage float64
	Rate     float64   // of each host's line, on the first rail, bits a second
	Rails    []float64 // rates of further rails, by that of the first
	Rows     []Row     // by schedule
}

// Row is a schedule in a case.
type Row struct {
	Schedule  Schedule
	Times     []float64 // of an iteration, seconds: the mean of each turn
	Predicted float64   // likewise; NaN where nothing is
	Bound     float64   // likewise, of all plans of its plan's class and limits on the job and cluster that were measured; NaN where nothing is predicted
	Timeline  string    // file of what is simulated; empty: there is none
	Measured  string    // likewise, of the last turn
	Refused   string    // why there is nothing
}

// Time is the median of the turns; NaN: there is none.
func (r *Row) Time() float64 { return middle(r.Times) }

// Against is the time by that of another row, turn by turn: the median.
func (r *Row) Against(other *Row) float64 {
	var all []float64
	for i := range min(len(r.Times), len(other.Times)) {
		all = append(all, r.Times[i]/other.Times[i])
	}
	return middle(all)
}

// Less is the time less that of another row, turn by turn, seconds: the mean, and half the width
// of its 95 % confidence interval; NaN of fewer than two turns, and of a row and itself.
func (r *Row) Less(other *Row) (mean, half float64) {
	var all []float64
	for i := range min(len(r.Times), len(other.Times)) {
		all = append(all, r.Times[i]-other.Times[i])
	}
	if r == other || len(all) < 2 {
		return math.NaN(), math.NaN()
	}
	return pilot.Interval(all)
}

// Error is by what share the prediction differs from the time.
func (r *Row) Error() float64 { return r.Predicted/r.Time() - 1 }

// Gap is the time over the bound, less 1: what no schedule can gain more than.
func (r *Row) Gap() float64 { return r.Time()/r.Bound - 1 }

// Errors are the predictions' errors of all cases, whichever their sign, by size.
func Errors(cases []Case) (out []float64) {
	for i := range cases {
		for k := range cases[i].Rows {
			if e := math.Abs(cases[i].Rows[k].Error()); !math.IsNaN(e) {
				out = append(out, e)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Fastest are the fastest exact schedules on the first of several rails and over all; nil:
// there is none. The control is none: its workers wait for no gradient.
func (x *Case) Fastest() (one, several *Row) {
	if len(x.Rails) == 0 {
		return nil, nil
	}
	for i := range x.Rows {
		r, best := &x.Rows[i], &one
		if r.Schedule.several() {
			best = &several
		}
		if r.Schedule.Name != Loaded && r.Schedule.limits.MaxDelay == 0 && len(r.Times) > 0 && (*best == nil || r.Time() < (*best).Time()) {
			*best = r
		}
	}
	return one, several
}

// middle is the median; NaN of nothing.
func middle(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	return median.Of(x)
}

// study is trainings under way.
type study struct {
	Lab
	done, total int
}

// Run measures all cases.
func Run(ctx context.Context, c Config) ([]Case, error) {
	s := &study{Lab: c.Lab}
	s.total = len(c.Models) * (1 + len(c.Coverages)*(1+c.Turns*len(c.Schedules)))
	if err := s.scripts(); err != nil {
		return nil, err
	}
	settings := fmt.Sprintf("--hosts %d --steps %d", c.Hosts, c.Steps)
	for _, by := range c.Rails {
		settings += fmt.Sprintf(" --rails %g", by)
	}
	leave, err := s.enter(ctx, "live", settings)
	if err != nil {
		return nil, err
	}
	defer leave()
	var out []Case
	for _, model := range c.Models {
		steps := []string{s.file("train.py"), model, "--steps", strconv.Itoa(c.Steps)}
		alone, err := s.train(ctx, model, "alone", 0, nil, slices.Concat(steps, []string{"--with", "alone"}))
		if err != nil {
			return nil, err
		}
		for _, coverage := range c.Coverages {
			x := Case{Model: model, Alone: stat.Mean(alone.Times, nil), Bytes: alone.Bytes, Coverage: coverage, Rails: s.Rails}
			if x.Rate, err = s.rate(x.Bytes, x.Alone, coverage); err != nil {
				return nil, fmt.Errorf("%s: %w", model, err)
			}
			if err := s.measure(ctx, &x, c.Turns, steps); err != nil {
				return nil, fmt.Errorf("%s at coverage %g: %w", model, coverage, err)
			}
			out = append(out, x)
		}
	}
	return out, nil
}

// scripts writes what is trained.
func (s *study) scripts() error {
	if err := os.MkdirAll(s.Dir, 0o777); err != nil {
		return err
	}
	return fs.WalkDir(examples.Scripts, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(examples.Scripts, name)
		if err != nil {
			return err
		}
		return os.WriteFile(s.file(name), b, 0o666)
	})
}

func (s *study) file(parts ...string) string { return filepath.Join(s.Dir, strings.Join(parts, "-")) }

// rate of the hosts' lines, bits a second, at which gradients of so many bytes take coverage
// times as long on the wire as the iteration does alone, seconds.
func (s *study) rate(bytes int64, alone, coverage float64) (float64, error) {
	n := float64(s.Hosts)
	rate := math.Round(2 * (n - 1) / n * float64(bytes) * 8 / lab.Payload / (coverage * alone))
	for _, by := range append([]float64{1}, s.Rails...) {
		if x := rate * by; !(x >= lab.MinRate && x <= lab.MaxRate) {
			return 0, fmt.Errorf("coverage %g needs lines of %.4g bit/s, and a lab has %g to %g", coverage, x, float64(lab.MinRate), float64(lab.MaxRate))
		}
	}
	return rate, nil
}

// profiled is a model that was measured at a rate.
type profiled struct{ job, cluster string } // files

// profile measures what a script trains, unless its profile is there already.
func (s *study) profile(ctx context.Context, rate float64, name string, script ...string) (profiled, error) {
	s.step()
	p := profiled{s.file(name, "job.json"), s.file(name, "cluster.yaml")}
	if _, err := os.Stat(p.cluster); err == nil {
		return p, nil
	}
	return p, s.lab(ctx, rate, append([]string{s.Weft, "profile", "-n", "1", "-o", p.job, "--cluster", p.cluster, "--", s.Python}, script...)...)
}

// run starts workers with a schedule; nil: the lab does.
func (x *Schedule) run(weft string, p profiled) []string {
	if x.Name == DDP {
		return nil
	}
	run := []string{weft, "run", "-n", "1"}
	if x.policy != "" {
		run = append(run, "--policy", x.policy, "--job", p.job, "--cluster", p.cluster)
	}
	if x.spread {
		run = append(run, "--spread")
	}
	if l := x.limits; l.MaxDelay > 0 {
		run = append(run, "--max-delay", strconv.Itoa(l.MaxDelay), "--max-staleness", strconv.Itoa(l.MaxStaleness), "--min-update-rate", fmt.Sprint(l.MinUpdateRate))
	}
	return append(run, "--")
}

// measure profiles a case, and lets the schedules take turns.
func (s *study) measure(ctx context.Context, x *Case, turns int, steps []string) error {
	at := fmt.Sprintf("coverage%g", x.Coverage)
	profile, err := s.profile(ctx, x.Rate, x.Model+"-"+at, s.file("train.py"), x.Model, "--steps", "30")
	if err != nil {
		return err
	}
	for _, schedule := range s.Schedules {
		x.Rows = append(x.Rows, Row{Schedule: schedule, Predicted: math.NaN(), Bound: math.NaN()})
	}
	for i := range x.Rows {
		r := &x.Rows[i]
		if r.Schedule.Name == Loaded {
			continue
		}
		result, least, err := predict(ctx, r.Schedule, profile)
		if errors.Is(err, policy.ErrUnsuitable) {
			r.Refused = err.Error()
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.Schedule.Name, err)
		}
		if r.Schedule.policy != "" {
			r.Predicted, r.Bound = result.Time/1e6, least.Time/1e6
		}
		r.Timeline = s.file(x.Model, at, r.Schedule.Name, "simulated-timeline.json")
		err = atomicfile.Write(ctx, r.Timeline, func(w io.Writer) error { return timeline.WriteChrome(w, result.Timeline) })
		if err != nil {
			return err
		}
	}
	for turn := range turns {
		order := make([]*Row, len(x.Rows))
		for i := range x.Rows {
			order[i] = &x.Rows[i]
		}
		if turn%2 == 1 {
			slices.Reverse(order)
		}
		for _, r := range order {
			if r.Refused != "" {
				s.step()
				continue
			}
			name := fmt.Sprintf("%s-%s-turn%d", at, r.Schedule.Name, turn)
			run := r.Schedule.run(s.Weft, profile)
			measured := s.file(x.Model, at, r.Schedule.Name, "measured-timeline.json")
			if r.Schedule.policy != "" {
				run = slices.Insert(run, len(run)-1, "--timeline", measured)
			}
			script := slices.Concat(steps, []string{"--with", r.Schedule.library})
			t, err := s.train(ctx, x.Model, name, x.Rate, run, script)
			if err != nil {
				return fmt.Errorf("%s: %w", r.Schedule.Name, err)
			}
			if _, err := os.Stat(measured); err == nil {
				r.Measured = measured
			}
			r.Times = append(r.Times, stat.Mean(t.Times, nil))
		}
	}
	return nil
}

// predict is what the simulator says of a schedule, and what bounds it; of
// DistributedDataParallel, of its buckets, on the agents' link.
func predict(ctx context.Context, s Schedule, measured profiled) (result *sim.Result, least bound.Bound, err error) {
	jobText, err := os.ReadFile(measured.job)
	if err != nil {
		return nil, least, err
	}
	j, err := job.Read(bytes.NewReader(jobText))
	if err != nil {
		return nil, least, fmt.Errorf("%s: %w", measured.job, err)
	}
	clusterText, err := os.ReadFile(measured.cluster)
	if err != nil {
		return nil, least, err
	}
	c, err := cluster.Read(bytes.NewReader(clusterText), measured.cluster)
	if err != nil {
		return nil, least, err
	}
	p, err := all.Lookup(cmp.Or(s.policy, fusion.DDP.Name))
	if err != nil {
		return nil, least, err
	}
	o := policy.Options{Limits: s.limits, Spread: s.spread}
	made, err := p.Plan(ctx, j, c, o)
	if err != nil {
		return nil, least, err
	}
	if least, err = bound.Of(bound.ClassOf(made), j, c, o.Limits); err != nil {
		return nil, least, err
	}
	result, err = sim.RunLegal(ctx, j, c, made, o.Limits, sim.Options{Timeline: true})
	return result, least, err
}

// trained is what a training writes.
type trained struct {
	Bytes   int64     `json:"bytes"` // of gradients
	Times   []float64 `json:"times"` // of iterations, seconds
	Tests   []Test    `json:"tests"`
	Weights string    `json:"weights"` // their digest at the end
}

// train runs a training script, unless its result is there already. name tells it from others of the model.
func (s *study) train(ctx context.Context, model, name string, rate float64, run, script []string) (*trained, error) {
	s.step()
	out := s.file(model, name+".json")
	t, err := readTrained(out)
	if !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	part := out + ".part"
	command := slices.Concat(run, []string{s.Python}, script, []string{"--out", part})
	if err := s.lab(ctx, rate, command...); err != nil {
		return nil, err
	}
	if t, err = readTrained(part); err != nil {
		return nil, fmt.Errorf("the training has not written its times: %w", err)
	}
	return t, os.Rename(part, out)
}

// readTrained reads what a training has written. Where there is no file the error is
// [fs.ErrNotExist].
func readTrained(name string) (*trained, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	t := new(trained)
	if err = json.Unmarshal(b, t); err == nil && len(t.Times) == 0 {
		err = errors.New("there are none")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: a training's times cannot be read (%w): remove it, and the training runs again", name, err)
	}
	return t, nil
}

// enter takes the directory for one study, until leave. Trainings of a kind go on in it only
// with the settings with which they began, as flags: the names of files do not tell them apart.
func (s *study) enter(ctx context.Context, kind, settings string) (leave func() error, err error) {
	dir, err := os.Open(s.Dir)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		err = fmt.Errorf("another study is writing to %s: give another --out, or wait for it", s.Dir)
	} else {
		err = s.settled(ctx, kind, "--python "+s.Python+" "+settings)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir.Close, nil
}

// settled notes the settings of the first study of a kind in the directory, and refuses others.
func (s *study) settled(ctx context.Context, kind, settings string) error {
	name := s.file(kind, "settings")
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return atomicfile.Write(ctx, name, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, settings)
			return err
		})
	}
	if began := strings.TrimSpace(string(b)); err == nil && began != settings {
		err = fmt.Errorf("trainings in %s were made with %s, not %s: give another --out, or these", s.Dir, began, settings)
	}
	return err
}

func (s *study) step() {
	if s.Step != nil {
		s.Step(s.done, s.total)
	}
	s.done++
}

// rates are those of all rails, as flags have them.
func (s *study) rates(first float64) string {
	var out []string
	for _, by := range append([]float64{1}, s.Rails...) {
		out = append(out, strconv.FormatFloat(first*by, 'f', 0, 64)+"bit")
	}
	return strings.Join(out, ",")
}

// lab runs a command on each host of a lab. Its output is told only if it fails.
func (s *study) lab(ctx context.Context, rate float64, command ...string) error {
	args := []string{"lab", "--hosts", strconv.Itoa(s.Hosts)}
	if rate > 0 {
		args = append(args, "--rails", strconv.Itoa(1+len(s.Rails)), "--rate", s.rates(rate))
	}
	x := exec.CommandContext(ctx, s.Weft, append(append(args, "--"), command...)...)
	x.Cancel = func() error { return x.Process.Signal(syscall.SIGINT) }
	x.WaitDelay = 10 * time.Second
	x.SysProcAttr = launch.Bound() // if the study is killed, the lab ends by itself
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var said bytes.Buffer
	x.Stdout, x.Stderr = &said, &said
	if err := x.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("%s: %w\n%s", strings.Join(x.Args, " "), err, strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
	return nil
}
