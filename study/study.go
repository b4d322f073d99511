// Package study reproduces, in simulated time, the shape of the headline
// experiments of the papers whose schedules are policies here. A study is data:
// cases, the schedules that run on each, and what the paper claims of them. One
// engine runs them all, so that another study is another entry of a table.
//
// No assumption of a study was chosen to meet a paper's number.
package study

import (
	"fmt"
	"slices"

	"weft/cluster"
	"weft/internal/fault"
	"weft/internal/near"
	"weft/job"
	"weft/policy"
	"weft/policy/deft"
	"weft/zoo"
)

// Study is one experiment: every schedule runs on every case.
type Study struct {
	Name        string // as on the command line
	Title       string // what is compared
	Paper, Link string
	// Claims are what the paper's abstract claims, and what of ours stands beside it.
	Claims []Claim
	// Assumptions are ours: what the paper does not say, or the simulator does not know.
	Assumptions []string
	// Differences say why ours is not what the paper claims.
	Differences []string

	Setting   string // what tells the cases of a model apart, and its unit
	Cases     []Case
	Schedules []Schedule
	Subject   string // the schedule whose gain over the others is shown
	Ranked    bool   // the order of the schedules is a result too
	// Training is what is assumed of it where updates are late, for what that is
	// expected to cost; nil: nothing is.
	Training *deft.Statistics
	Plot     Plot
}

// Case is what schedules are compared on.
type Case struct {
	Model   string  // what computes, as tables name it
	Setting string  // the rest, as tables name it
	X       float64 // Setting as a number, for the axis of a line chart
	Jobs    []Source
	Cluster cluster.Cluster
	// Coverage, if not 0, sets the bandwidth of the first link, so that the wire
	// time of all-reducing all gradients there is this many times the computation.
	Coverage float64
}

// String names the case.
func (c *Case) String() string { return c.Model + ", " + c.Setting }

// Source is where a job comes from: the zoo, or Job itself.
type Source struct {
	Model, Device string
	Options       zoo.Options
	Job           *job.Job
	// Inference leaves only the forward pass any time.
	Inference bool
}

func (s Source) load() (*job.Job, error) {
	j, err := s.Job, error(nil)
	if j == nil {
		j, err = zoo.Job(s.Model, s.Device, s.Options)
	}
	if err != nil || !s.Inference {
		return j, err
	}
	forward := *j
	forward.Ops = slices.Clone(j.Ops)
	for i := range forward.Ops {
		if forward.Ops[i].Phase != job.Forward {
			forward.Ops[i].Time = 0
		}
	}
	return &forward, nil
}

// Schedule is what runs on a case: a policy's plan, or what Run does.
type Schedule struct {
	Name   string // as tables name it
	Policy string
	Custom *policy.Policy // in place of Policy: one that package all does not name
	// Tries are options of the policy, of which those count that make the case
	// fastest, the first of equals. None: the defaults.
	Tries []policy.Options
	// Spread cuts each bucket over all links of the cluster (policy.Spread).
	Spread bool
	// Seeds, if not 0, runs the case under as many seeds of its cluster.
	Seeds int
	Run   Runner
}

// Plot says what a study's chart shows.
type Plot struct {
	Kind PlotKind
	// Models and Schedules are all that is shown; none: all there are.
	Models, Schedules []string
	// Log makes the axis of settings logarithmic, in a line chart.
	Log bool
}

// PlotKind is the form of a chart and what it measures.
type PlotKind uint8

const (
	GainBars  PlotKind = iota // the subject's gain over each of the others, a group a case
	TimeBars                  // iteration times
	TimeLines                 // iteration times over the setting, a line a model and schedule
	GainLines                 // likewise gains
)

// Claim is a statement of a paper's abstract about a schedule: its gain over
// others, which is how many more iterations a second it runs, as a fraction.
type Claim struct {
	Text string // in the paper's terms
	Of   string // a schedule
	// Over are the others. None: not a gain, but the spread of Of is claimed, the most
	// less the least time over the mean.
	Over    []string
	Fastest bool   // only over the fastest of these
	Where   string // part of the names of the cases that it is about; "": all
}

// check finds names that stand for nothing.
func (s *Study) check() error {
	known := func(what, name string) error {
		if s.Index(name) < 0 {
			return fmt.Errorf("%s: there is no schedule %q", what, name)
		}
		return nil
	}
	if s.Subject != "" {
		if err := known("subject", s.Subject); err != nil {
			return err
		}
	}
	for _, c := range s.Claims {
		for _, name := range append([]string{c.Of}, c.Over...) {
			if err := known("claim "+c.Text, name); err != nil {
				return err
			}
		}
	}
	for i := range s.Cases {
		if c := &s.Cases[i]; len(c.Jobs) == 0 || len(c.Cluster.Links) == 0 {
			return fmt.Errorf("%v: no job, or no link", c)
		}
	}
	return nil
}

// All lists the studies.
func All() []Study { return studies }

// Names lists the names of the studies.
func Names() []string {
	out := make([]string, len(studies))
	for i := range studies {
		out[i] = studies[i].Name
	}
	return out
}

// Lookup finds a study by name. The error names a near one.
func Lookup(name string) (*Study, error) {
	for i := range studies {
		if studies[i].Name == name {
			return &studies[i], nil
		}
	}
	return nil, fmt.Errorf("no study %q%s", fault.Short(name), near.Hint(name, Names()))
}
