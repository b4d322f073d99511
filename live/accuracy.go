package live

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat"

	"weft/internal/median"
)

// Goal is what a model of the accuracy study learns, and when two trainings are as good as
// each other.
type Goal struct {
	Model, Data string // what it is called; the data that it needs
	Score       string // what a test measures, with its unit
	Higher      bool   // is better
	Seeds       int    // of each schedule, unless told otherwise
	tolerance   float64
	relative    bool // the tolerance is a share
}

// Kinds of data.
const (
	MNIST = "mnist"
	Text  = "text"
)

// Goals are those of examples/learn.py.
var Goals = []Goal{
	{Model: "cnn", Data: MNIST, Score: "accuracy, %", Higher: true, Seeds: 5, tolerance: 0.2},
	{Model: "gpt", Data: Text, Score: "loss, nats", Seeds: 3, tolerance: 0.01, relative: true},
	{Model: "resnet18", Data: MNIST, Score: "accuracy, %", Higher: true, Seeds: 5, tolerance: 0.2},
}

// given reports what is missing in a directory of data.
func given(kind, dir string) error {
	if kind == MNIST {
		for _, name := range []string{"train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"} {
			if _, err := os.Stat(filepath.Join(dir, name+"-ubyte.gz")); err != nil {
				return fmt.Errorf("--%s: %w", kind, err)
			}
		}
		return nil
	}
	found := false
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if found = err == nil && !d.IsDir() && strings.HasSuffix(name, ".go"); found {
			return fs.SkipAll
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("--%s: %s: %w", kind, dir, err)
	case !found:
		return fmt.Errorf("--%s: there is no Go source in %s", kind, dir)
	}
	return nil
}

// Tolerance is by how much a score may be worse than one that it is compared with.
func (g *Goal) Tolerance(score float64) float64 {
	if g.relative {
		return g.tolerance * score
	}
	return g.tolerance
}

// Accuracy says what to train in [RunAccuracy].
type Accuracy struct {
	Lab
	Data     map[string]string // directory of each kind
	Coverage float64
	Seeds    int // 0: as each goal says
	Steps    int // 0: as the script says
}

// Test is the score of a model in training.
type Test struct {
	Step  int     `json:"step"`
	Time  float64 `json:"time"` // of training, without tests, seconds
	Score float64 `json:"score"`
}

// Learned is a model, trained by every schedule from the same seeds.
type Learned struct {
	Goal     Goal
	Alone    float64 // iteration without others, seconds
	Coverage float64
	Rate     float64 // of each host's line, bits a second
	Rows     []Trained
}

// Trained is a schedule's trainings, one a seed.
type Trained struct {
	Schedule Schedule
	Time     float64 // of an iteration, seconds: the median over seeds of the mean
	Tests    [][]Test
	weights  []string
}

// Score is the mean of the last tests, and the standard deviation over seeds.
func (t *Trained) Score() (mean, deviation float64) {
	var all []float64
	for _, x := range t.Tests {
		all = append(all, x[len(x)-1].Score)
	}
	if len(all) == 1 {
		return all[0], math.NaN()
	}
	return stat.MeanStdDev(all, nil)
}

// Same is of how many seeds the weights at the end are those of another schedule, bit for bit.
func (t *Trained) Same(other *Trained) (n int) {
	for i, w := range t.weights {
		if w == other.weights[i] {
			n++
		}
	}
	return n
}

// Target is the score that counts as that of the first schedule.
func (l *Learned) Target() float64 {
	score, _ := l.Rows[0].Score()
	if l.Goal.Higher {
		return score - l.Goal.Tolerance(score)
	}
	return score + l.Goal.Tolerance(score)
}

// Reached reports whether a schedule's score is the target or better.
func (l *Learned) Reached(t *Trained) bool {
	score, _ := t.Score()
	return l.good(score)
}

func (l *Learned) good(score float64) bool {
	if l.Goal.Higher {
		return score >= l.Target()
	}
	return score <= l.Target()
}

// TimeTo is the training time to the first test that meets the target, seconds: the median
// over seeds; NaN unless all have met it.
func (l *Learned) TimeTo(t *Trained) float64 {
	var all []float64
	for _, tests := range t.Tests {
		at := math.NaN()
		for _, x := range tests {
			if l.good(x.Score) {
				at = x.Time
				break
			}
		}
		if math.IsNaN(at) {
			return at
		}
		all = append(all, at)
	}
	return median.Of(all)
}

// RunAccuracy trains every model by every schedule, from several seeds, with the same data,
// hyper-parameters and number of steps.
func RunAccuracy(ctx context.Context, c Accuracy) ([]Learned, error) {
	s := &study{Lab: c.Lab}
	var out []Learned
	for _, g := range Goals {
		for _, model := range c.Models {
			if model == g.Model {
				if err := given(g.Data, c.Data[g.Data]); err != nil {
					return nil, err
				}
				if c.Seeds > 0 {
					g.Seeds = c.Seeds
				}
				out = append(out, Learned{Goal: g, Coverage: c.Coverage})
				s.total += 2 + g.Seeds*len(c.Schedules)
			}
		}
	}
	if err := s.scripts(); err != nil {
		return nil, err
	}
	leave, err := s.enter(ctx, "accuracy", fmt.Sprintf("--hosts %d", c.Hosts))
	if err != nil {
		return nil, err
	}
	defer leave()
	for i := range out {
		if err := s.learn(ctx, &out[i], c.Data[out[i].Goal.Data], c.Steps); err != nil {
			return nil, fmt.Errorf("%s: %w", out[i].Goal.Model, err)
		}
	}
	return out, nil
}

func (s *study) learn(ctx context.Context, l *Learned, data string, steps int) error {
	model := l.Goal.Model
	script := []string{s.file("learn.py"), model, data}
	short := slices.Concat(script, []string{"--steps", "40", "--tests", "0"})
	alone, err := s.train(ctx, model, "learning-alone", 0, nil, append(short, "--with", "alone"))
	if err != nil {
		return err
	}
	l.Alone = median.Of(alone.Times)
	if l.Rate, err = s.rate(alone.Bytes, l.Alone, l.Coverage); err != nil {
		return err
	}
	at := fmt.Sprintf("learning-coverage%g", l.Coverage)
	profile, err := s.profile(ctx, l.Rate, model+"-"+at, short...)
	if err != nil {
		return err
	}
	if steps > 0 {
		script = append(script, "--steps", strconv.Itoa(steps))
		at += fmt.Sprintf("-steps%d", steps)
	}
	for _, schedule := range s.Schedules {
		l.Rows = append(l.Rows, Trained{Schedule: schedule})
	}
	times := make([][]float64, len(l.Rows))
	for seed := 1; seed <= l.Goal.Seeds; seed++ { // schedules in turns, so that all meet the same machine
		for i := range l.Rows {
			r := &l.Rows[i]
			name := fmt.Sprintf("%s-%s-seed%d", at, r.Schedule.Name, seed)
			script := slices.Concat(script, []string{"--with", r.Schedule.library, "--seed", strconv.Itoa(seed)})
			t, err := s.train(ctx, model, name, l.Rate, r.Schedule.run(s.Weft, profile), script)
			if err == nil && len(t.Tests) == 0 {
				err = fmt.Errorf("the training has not been tested")
			}
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", r.Schedule.Name, seed, err)
			}
			r.Tests, r.weights = append(r.Tests, t.Tests), append(r.weights, t.Weights)
			times[i] = append(times[i], stat.Mean(t.Times, nil))
			r.Time = median.Of(times[i])
		}
	}
	return nil
}

// LookupGoal is the goal of a model; nil: there is none.
func LookupGoal(model string) *Goal {
	for i := range Goals {
		if Goals[i].Model == model {
			return &Goals[i]
		}
	}
	return nil
}
