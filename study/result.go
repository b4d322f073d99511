package study

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"weft/bound"
	"weft/cluster"
	"weft/job"
	"weft/sim"
	"weft/timeline"
)

// Result of a study.
type Result struct {
	Study    *Study
	Rows     []Row // one a case
	Findings []Finding
	Notes    []string
}

// Row is what became of a case.
type Row struct {
	Case    *Case
	Cluster *cluster.Cluster // the case's, at the bandwidth that its coverage asks for
	// Coverage is the wire time of moving all gradients once, by one all-reduce or
	// through the servers if there are some, over the computation: of the first link.
	Coverage float64
	Outcomes []Outcome // one a schedule
}

// Outcome of a schedule on a case. Times are microseconds.
type Outcome struct {
	Refusal string // why there is none: the rest is then zero
	// Time of an iteration in steady state. Of several runs, Time is their mean,
	// and Least and Most are the extremes; of one, all are the same.
	Time, Least, Most float64
	Mean              timeline.Breakdown // of Time, over the workers; of several runs the last's
	Class             bound.Class        // of the plan
	Bound             bound.Bound        // of all plans of the class that are no later
	Gap               float64            // Time over the bound, less 1; 0: there is no bound
	Transfers         float64            // of buckets, an iteration
	Delay, Staleness  int
	Rate              float64 // updates an iteration
	Generations       []int   // their lengths in a period; nil if synchronous
	// Loss is the expected loss after as many iterations as a period has, over that
	// of synchronous training; 0: none is assumed.
	Loss  float64
	Notes []string
}

// Finding is what stands beside a claim: the least and the most of all cases.
type Finding struct {
	Claim       *Claim
	Least, Most float64
	// Worst and Best are the cases that they are of; nil where no case has an outcome.
	Worst, Best *Case
}

// Index is the position of a schedule, or -1.
func (s *Study) Index(schedule string) int {
	return slices.IndexFunc(s.Schedules, func(x Schedule) bool { return x.Name == schedule })
}

// Gain is how many more iterations a second the subject runs than a schedule, as
// a fraction; NaN where one of them has no outcome, or there is no subject.
func (r *Result) Gain(row, schedule int) float64 {
	o := r.Rows[row].Outcomes
	if r.Study.Subject == "" {
		return math.NaN()
	}
	return gain(&o[r.Study.Index(r.Study.Subject)], &o[schedule])
}

// Rank is the place of a schedule among those of a case, the fastest 1; those of
// which none is faster ([sim.Faster]) share a place. 0: it has no outcome.
func (r *Result) Rank(row, schedule int) int {
	o := r.Rows[row].Outcomes
	if o[schedule].Refusal != "" {
		return 0
	}
	place := 1
	for i := range o {
		if o[i].Refusal == "" && sim.Faster(o[i].Time, o[schedule].Time) {
			place++
		}
	}
	return place
}

// gain is one's over another; NaN where one of them has no outcome, or takes no
// time.
func gain(one, other *Outcome) float64 {
	if one.Refusal != "" || other.Refusal != "" || one.Time == 0 {
		return math.NaN()
	}
	return other.Time/one.Time - 1
}

// Spread is how much the times of several runs differ, as a fraction of their
// mean; NaN where there are none.
func (o *Outcome) Spread() float64 {
	if o.Refusal != "" || o.Time == 0 {
		return math.NaN()
	}
	return (o.Most - o.Least) / o.Time
}

func (r *Result) find(c *Claim) Finding {
	f := Finding{Claim: c}
	for i := range r.Rows {
		row := &r.Rows[i]
		if !strings.Contains(row.Case.String(), c.Where) {
			continue
		}
		of := &row.Outcomes[r.Study.Index(c.Of)]
		var all []float64
		for _, other := range c.Over {
			all = append(all, gain(of, &row.Outcomes[r.Study.Index(other)]))
		}
		if len(c.Over) == 0 {
			all = append(all, of.Spread())
		}
		all = slices.DeleteFunc(all, math.IsNaN)
		if len(all) == 0 {
			continue
		}
		least, most := slices.Min(all), slices.Max(all)
		if c.Fastest {
			most = least
		}
		if f.Worst == nil || least < f.Least {
			f.Least, f.Worst = least, row.Case
		}
		if f.Best == nil || most > f.Most {
			f.Most, f.Best = most, row.Case
		}
	}
	return f
}

var figure = regexp.MustCompile(`[0-9][0-9.e+-]*`)

// notes are those of jobs and plans and all refusals: each with the schedules that
// have it, and the number of its cases where these are not all. Of notes that
// differ in their figures the first stands for all.
func (r *Result) notes(jobs [][]*job.Job) []string {
	type note struct {
		text      string
		schedules []string
		cases     map[int]bool
		several   bool // figures
	}
	var all []*note
	byText := map[string]*note{}
	add := func(row int, schedule, text string) {
		key := figure.ReplaceAllString(text, "#")
		n := byText[key]
		if n == nil {
			n = &note{text: text, cases: map[int]bool{}}
			byText[key] = n
			all = append(all, n)
		}
		n.several = n.several || n.text != text
		if schedule != "" && !slices.Contains(n.schedules, schedule) {
			n.schedules = append(n.schedules, schedule)
		}
		n.cases[row] = true
	}
	for i := range r.Rows {
		for _, n := range jobs[i][0].Notes {
			add(i, "", n)
		}
	}
	for s := range r.Study.Schedules {
		for i := range r.Rows {
			o, name := &r.Rows[i].Outcomes[s], r.Study.Schedules[s].Name
			if o.Refusal != "" {
				add(i, name, o.Refusal)
			}
			for _, n := range o.Notes {
				add(i, name, n)
			}
		}
	}
	out := make([]string, len(all))
	for i, n := range all {
		if out[i] = n.text; len(n.schedules) > 0 {
			out[i] = strings.Join(n.schedules, "; ") + ": " + n.text
		}
		var where []string
		if n.several {
			where = append(where, "figures of the first")
		}
		if len(n.cases) < len(r.Rows) {
			where = append(where, fmt.Sprintf("%d of %d cases", len(n.cases), len(r.Rows)))
		}
		if len(where) > 0 {
			out[i] += " (" + strings.Join(where, "; ") + ")"
		}
	}
	return out
}
