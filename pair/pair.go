// Package pair plans for jobs that share their devices: while one computes, the
// gradients of another travel (CrossoverScheduler, arXiv 2103.07974; section 14
// of the algorithms). It predicts what two jobs gain by that against taking
// turns, iteration by iteration, each of which waits for its own transfers; and
// it chooses which of several jobs to pair.
package pair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/internal/parallel"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/sim"
)

// MaxJobs is how many jobs one call pairs: the matching is exact, and tries
// every set of them.
const MaxJobs = 16

const (
	maxTurns = 8       // of a job in a round
	maxOps   = 1 << 20 // of a round with several turns of a job
)

// Options of a run.
type Options struct {
	Policy   policy.Policy  // of each job's own plan
	Settings policy.Options // its Limits.MaxMemory holds for both jobs of a pair
	// Progress, if set, is told how many of the pairs are done. Calls do not overlap.
	Progress func(done, total int)
}

// Alone is a job that has the devices for itself.
type Alone struct {
	Member
	Time    float64 // of an iteration, microseconds
	Exposed float64 // of it, waiting for transfers: Y
	Memory  plan.Memory
}

// Compute is the rest of an iteration: X.
func (a *Alone) Compute() float64 { return a.Time - a.Exposed }

// Order is how many turns two jobs have in a round, one of them one: first all
// of the one, then all of the other.
type Order struct{ First, Second int }

func (o Order) String() string { return fmt.Sprintf("%d:%d", o.First, o.Second) }

func (o Order) turns() []int {
	return append(make([]int, o.First), slices.Repeat([]int{1}, o.Second)...)
}

// Round is what two jobs do in an order. Times are microseconds.
type Round struct {
	Order   Order
	Period  float64 // of a round, simulated
	Formula float64 // of a round, by [Period]
	InTurn  float64 // of the same iterations without overlap between the jobs
	// Speed of each job, relative to its speed alone.
	Speed [2]float64
}

// Speedup is the speed of both jobs together. Jobs that take turns have 1
// between them.
func (r *Round) Speedup() float64 { return r.Speed[0] + r.Speed[1] }

func newRound(a, b *Alone, o Order, period float64) Round {
	m, n := float64(o.First)*a.Time, float64(o.Second)*b.Time
	r := Round{o, period, Period(a, b, o), m + n, [2]float64{0.5, 0.5}}
	if period > 0 {
		r.Speed = [2]float64{m / period, n / period}
	}
	return r
}

// Pair is what two jobs of a run, by position, come to.
type Pair struct {
	First, Second int
	Even          Round // a turn each
	// Best is the order with the largest speedup of those simulated: at most
	// eight turns to one. Orders are tried in the order of what the formula
	// promises, until it promises no more than the best has.
	Best   Round
	Memory plan.Memory // of both: both are resident
	// TooLarge is why the two cannot run together: their memory.
	TooLarge error
	// Chosen: run these two together.
	Chosen bool
}

// Result of a run.
type Result struct {
	Alone []Alone // in the order of the jobs
	Pairs []Pair  // of all jobs, in order
	// Time is how long an iteration of every job takes if chosen pairs run
	// together and the rest takes turns, InTurn if all take turns.
	Time, InTurn float64
}

// Period is the closed form of a round (section 14), for jobs that compute for x
// and then expose y: max(x1 + x2, x1 + y1, x2 + y2), and on one serial link at
// least y1 + y2. Several turns of a job in a row wait for the transfers of all
// but the last. It is exact where the jobs' transfers do not meet.
func Period(a, b *Alone, o Order) float64 {
	run := func(j *Alone, turns int) float64 { return float64(turns-1)*j.Time + j.Compute() }
	m, n := float64(o.First), float64(o.Second)
	return max(run(a, o.First)+run(b, o.Second), m*a.Time, n*b.Time, m*a.Exposed+n*b.Exposed)
}

// Run builds the plan of each job, simulates it alone, every two jobs together,
// and chooses the pairs for which the sum of all periods, for an iteration of
// each job, is least. A pair that does not beat taking turns, or does not fit into
// memory, is left apart; a job that does not fit by itself is an error.
func Run(ctx context.Context, jobs []*job.Job, c *cluster.Cluster, o Options) (*Result, error) {
	if n := len(jobs); n < 2 || n > MaxJobs {
		return nil, fmt.Errorf("%d jobs; pairs are chosen among 2 to %d", n, MaxJobs)
	}
	r := &Result{Alone: make([]Alone, len(jobs))}
	most := o.Settings.Limits.MaxMemory
	for i, j := range jobs {
		p, err := o.Policy.Plan(ctx, j, c, o.Settings)
		if err != nil {
			return nil, fmt.Errorf("job %q: %w", j.Name, err)
		}
		memory := plan.MemoryOf(p, j)
		if err := within(memory, most); err != nil {
			return nil, fmt.Errorf("job %q: %w", j.Name, err)
		}
		alone, err := sim.RunLegal(ctx, j, c, p, plan.DefaultLimits, sim.Options{})
		if err != nil {
			return nil, fmt.Errorf("job %q: %w", j.Name, err)
		}
		r.Alone[i] = Alone{Member{j, p}, alone.Time, alone.Mean.Exposed, memory}
		r.InTurn += alone.Time
		for k := range i {
			both := r.Alone[k].Memory.Plus(memory)
			r.Pairs = append(r.Pairs, Pair{First: k, Second: i, Memory: both, TooLarge: within(both, most)})
		}
	}
	slices.SortFunc(r.Pairs, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Second, b.Second))
	})
	err := parallel.Do(ctx, len(r.Pairs), o.Progress, func(i int) error {
		p := &r.Pairs[i]
		return p.evaluate(ctx, c, &r.Alone[p.First], &r.Alone[p.Second])
	})
	if err != nil {
		return nil, err
	}
	r.choose()
	return r, nil
}

// within is an error if the memory is more than a limit; 0: there is none.
func within(m plan.Memory, most int64) error {
	if most == 0 {
		return nil
	}
	return m.Within(most)
}

func (p *Pair) evaluate(ctx context.Context, c *cluster.Cluster, a, b *Alone) (err error) {
	if p.Even, err = together(ctx, c, a, b, Order{1, 1}); err != nil {
		return err
	}
	p.Best = p.Even
	var orders []Order
	for n := 2; n <= maxTurns; n++ {
		for _, o := range []Order{{n, 1}, {1, n}} {
			if o.First*len(a.Job.Ops)+o.Second*len(b.Job.Ops) <= maxOps {
				orders = append(orders, o)
			}
		}
	}
	promise := func(o Order) float64 {
		r := newRound(a, b, o, Period(a, b, o))
		return r.Speedup()
	}
	slices.SortStableFunc(orders, func(x, y Order) int { return cmp.Compare(promise(y), promise(x)) })
	for _, o := range orders {
		if promise(o) <= p.Best.Speedup()+rounding {
			break
		}
		round, err := together(ctx, c, a, b, o)
		if errors.Is(err, policy.ErrUnsuitable) {
			continue
		}
		if err != nil {
			return err
		}
		if round.Speedup() > p.Best.Speedup()+rounding {
			p.Best = round
		}
	}
	return nil
}

// rounding is the share by which sums of times, and speedups, may differ although
// they are equal.
const rounding = 1e-9

// together simulates two jobs in an order.
func together(ctx context.Context, c *cluster.Cluster, a, b *Alone, o Order) (Round, error) {
	x, err := Join(c, []Member{a.Member, b.Member}, o.turns())
	if err != nil {
		return Round{}, err
	}
	result, err := sim.RunLegal(ctx, x.Job, x.Cluster, x.Plan, plan.DefaultLimits, sim.Options{})
	if err != nil {
		return Round{}, fmt.Errorf("jobs %q and %q together, %v: %w", a.Job.Name, b.Job.Name, o, err)
	}
	return newRound(a, b, o, result.Time), nil
}

// choose marks the pairs to run together, and sums up.
func (r *Result) choose() {
	n := len(r.Alone)
	single := make([]float64, n)
	joint := make([][]float64, n)
	for i := range n {
		single[i], joint[i] = r.Alone[i].Time, make([]float64, n)
	}
	for _, p := range r.Pairs {
		joint[p.First][p.Second] = p.Even.Period
		if p.TooLarge != nil {
			joint[p.First][p.Second] = math.Inf(1)
		}
	}
	partner, total := match(single, joint)
	for i := range r.Pairs {
		p := &r.Pairs[i]
		p.Chosen = partner[p.First] == p.Second
	}
	r.Time = total
}
