package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/timeline"
)

// Options of a run.
type Options struct {
	// Iterations to simulate; 0: twelve periods of the plan, and of a plan with
	// delay whose transfers fall behind from period to period as many more as it
	// takes until computation waits for them.
	Iterations int
	// Timeline asks for the spans of the run, not only its times.
	Timeline bool
	// Ranks bounds how many different workers the timeline shows; 0: all.
	Ranks int
	// Everyone simulates every worker even where several behave alike.
	Everyone bool
}

// Result of a run. Times are microseconds.
type Result struct {
	// Iterations holds the length of each iteration: from the end of the one
	// before (or the start of the run) until all its ops are done on all workers.
	Iterations []float64
	// Steady is the first iteration counted in Time, the mean over the rest: the
	// second half of the run, in whole periods.
	Steady int
	Time   float64
	// Mean says where the time of an iteration goes, on the mean over all workers,
	// Worst of the one that waits longest, the lowest of several, which is WorstRank.
	Mean, Worst timeline.Breakdown
	WorstRank   int
	// Timeline is nil unless asked for.
	Timeline *timeline.Timeline
}

// Faster reports whether time a is less than b, microseconds, in the whole
// nanoseconds that the simulator counts in: times that differ by less are equal,
// and share a rank.
func Faster(a, b float64) bool { return math.Round(nsPerUs*a) < math.Round(nsPerUs*b) }

const (
	defaultPeriods = 12
	maxPeriods     = 500 // of a run whose iterations are not given
)

// What a run may come to. Beyond it memory or patience would end first.
const (
	maxOps   = 1 << 34 // ops run, over workers and iterations
	maxSpans = 1 << 26 // of a timeline
	maxTable = 1 << 24 // ops of a period; transfers of a run
)

// Run executes the plan p of job j on cluster c. With p nil it replays the
// recorded iteration instead: all ops, those of the recorded library included,
// with their recorded times, whatever the cluster's links.
//
// It returns an error when the arguments do not fit together, when the plan
// stops moving (it names what waits for what), or when ctx ends.
func Run(ctx context.Context, j *job.Job, c *cluster.Cluster, p *plan.Plan, o Options) (*Result, error) {
	prog, err := compile(j, c, p)
	if err != nil {
		return nil, err
	}
	if o.Iterations > 0 || p == nil {
		return execute(ctx, prog, c, cmp.Or(max(0, o.Iterations), defaultPeriods*prog.period), o)
	}
	n := defaultPeriods * prog.period
	r, err := execute(ctx, prog, c, n, o)
	if err != nil || p.MaxDelay == 0 {
		return r, err
	}
	if more := prog.settled(r.Time, p.MaxDelay); more > n {
		return execute(ctx, prog, c, more, o)
	}
	return r, nil
}

// RunLegal is [Run] of a plan that the checker must find legal within limits.
func RunLegal(ctx context.Context, j *job.Job, c *cluster.Cluster, p *plan.Plan, l plan.Limits, o Options) (*Result, error) {
	if err := plan.Check(p, j, l).Err(); err != nil {
		return nil, fmt.Errorf("the plan is not legal for this job: %w", err)
	}
	return Run(ctx, j, c, p, o)
}

// settled is after how many iterations a plan with delay settles that took so
// long an iteration at first: where its links need longer, their backlog grows
// by the difference, until it is all that the delay covers. The first half of a
// run does not count. A backlog that would take longer to grow than maxPeriods
// makes a difference of no more than (delay + 2) / maxPeriods.
func (p *program) settled(time float64, delay int) int {
	behind := p.pace()/nsPerUs - time
	if behind <= 0 {
		return 0
	}
	periods := math.Ceil(2 * float64(delay+2) * time / behind / float64(p.period))
	return int(min(defaultPeriods+periods, maxPeriods)) * p.period
}

// execute runs n iterations.
func execute(ctx context.Context, prog *program, c *cluster.Cluster, n int, o Options) (*Result, error) {
	group := workers(c, len(prog.lanes), o.Everyone)
	if transfers := float64(prog.periods(n)) * float64(prog.transferCount()); transfers > maxTable {
		return nil, fmt.Errorf("simulating %s: %.1e transfers are too many: ask for fewer iterations, or a plan whose transfers lie closer to their generation", prog.name, transfers)
	}
	shown := len(group)
	if o.Ranks > 0 {
		shown = min(shown, o.Ranks)
	}
	size := float64(n) * float64(len(group))
	if ops := size * float64(prog.placed()); ops > maxOps {
		return nil, fmt.Errorf("simulating %s: %d iterations of %d different workers are %.1e ops: ask for fewer iterations", prog.name, n, len(group), ops)
	}
	if spans := float64(n) * float64(shown) * float64(prog.spans()); o.Timeline && spans > maxSpans {
		return nil, fmt.Errorf("simulating %s: the timeline of %d iterations of %d different workers has %.1e spans: ask for fewer iterations", prog.name, n, shown, spans)
	}
	m := newMachine(prog, c, group, n)
	if o.Timeline {
		m.rec = newRecorder(m, shown)
	}
	if err := m.run(ctx); err != nil {
		return nil, fmt.Errorf("simulating %s: %w", prog.name, err)
	}
	return m.result(), nil
}
