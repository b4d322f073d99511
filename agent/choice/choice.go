// Package choice is how a training chooses by itself what it runs: it profiles plain
// buckets, makes a plan of what it measured, and lets both take turns, until it is known
// which is faster. It has no clock, socket or file of its own.
package choice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"weft/agent"
	"weft/agent/protocol"
	"weft/cluster"
	"weft/job"
	"weft/pilot"
	"weft/plan"
	"weft/policy"
	"weft/policy/auto"
	"weft/policy/deft"
	"weft/profile"
	"weft/sim"
)

// Budget is how long a plan may take to make: the workers wait for it.
const Budget = 5 * time.Second

// Choice decides the reviews of a training. It is that of host 0.
type Choice struct {
	// Policy makes the plans; without a Build, that is the best plan of Among which is
	// faster than plain buckets as simulated.
	Policy  policy.Policy
	Among   []policy.Policy
	Options policy.Options
	Pilot   pilot.Config
	Name    string // of the training

	mu      sync.Mutex
	pilot   *pilot.Pilot
	made    *made // the last plan; nil: there was none
	planned bool  // what runs
	at      int   // after how many iterations since the hello the review is
	found   []string
	decided bool // by the pilot: there is a verdict, or no plan
}

// made is a plan that was made.
type made struct {
	*agent.Schedule
	plain, planned *sim.Result
}

// Review is what the agents of all hosts are given.
func (c *Choice) Review() *agent.Review {
	return &agent.Review{After: pilot.New(c.Pilot).First(), Profile: c.Pilot.Profile, Descent: c.Options.Limits.MaxDelay > 0, Take: c.Take}
}

// Take decides a review. Where no plan can be made, plain buckets go on.
func (c *Choice) Take(r agent.Reviewed) (agent.Decided, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.First {
		c.pilot, c.planned = pilot.New(c.Pilot), false
		c.at = c.pilot.First()
	}
	times := profile.Slowest(r.Reports())
	if len(times) == 0 {
		return agent.Decided{}, errors.New("a review of no iterations")
	}
	d := c.pilot.Review(times)
	if d.Make {
		m, err := c.make(&r)
		if err == nil {
			c.made = m
		}
		d = c.pilot.Made(err == nil && m.Plan.MaxDelay > 0, err)
	}
	if d.Why != "" {
		c.found, c.decided = append(c.found, d.Why), true
	}
	var out agent.Decided
	out.Change = d.Planned != c.planned
	if d.Profile {
		out.Change, out.Profile = true, c.Pilot.Profile
	}
	if out.Change {
		c.at = 0
	}
	if c.planned = d.Planned; c.planned {
		out.Schedule = c.made.Schedule
	}
	c.at += d.Next
	out.Review = c.at
	return out, nil
}

// Found tells the user, a line each, what has been found out: the last plan, why it was
// chosen, how it compares, and what was measured. Where nothing was decided there is nothing to tell.
func (c *Choice) Found(ran []agent.Ran) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.found) == 0 && c.made == nil {
		return nil
	}
	plain := last(ran, func(r *agent.Ran) bool { return r.Plain })
	if c.made == nil {
		return append(slices.Clone(c.found), Plain(ran)...)
	}
	p := c.made.Plan
	out := []string{executed(p)}
	if len(p.Notes) > 0 {
		out = append(out, p.Notes[0])
	}
	out = append(out, fmt.Sprintf("predicted: %v; plain buckets %v", simulated(c.made.planned), simulated(c.made.plain)))
	out = append(out, c.found...)
	if planned := of(ran, p); planned != nil && plain != nil {
		out = append(out, fmt.Sprintf("measured: %v; plain buckets %v", planned, plain))
	}
	return out
}

// Undecided tells of a training that has ended before anything was decided, if it has, why plain buckets ran.
func (c *Choice) Undecided(ran []agent.Ran) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	plain, first := last(ran, func(r *agent.Ran) bool { return r.Plain }), pilot.New(c.Pilot).First()
	switch {
	case c.decided || plain == nil:
		return nil
	case c.made != nil:
		return []string{"undecided: the training ended before the plan and plain buckets had taken all their turns"}
	case plain.Iterations >= first: // its workers do not train: they reduce
		return nil
	}
	return append([]string{fmt.Sprintf("plain buckets: the training ended before iteration %d, after which a plan is made", first)}, Plain(ran)...)
}

// Predicted is what was predicted of a plan that was executed; nil: nothing.
func (c *Choice) Predicted(r *agent.Ran) *sim.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.made == nil:
		return nil
	case r.Plain:
		return c.made.plain
	case r.Plan.Digest() == c.made.Plan.Digest():
		return c.made.planned
	}
	return nil
}

// Given tells of a plan that was given: which it is, what was predicted, if anything, and what was measured.
func Given(p *plan.Plan, predicted *sim.Result, ran []agent.Ran) []string {
	out := []string{executed(p)}
	if predicted != nil {
		out = append(out, "predicted: "+simulated(predicted).String())
	}
	if r := of(ran, p); r != nil {
		out = append(out, "measured: "+r.String())
	}
	return out
}

// Plain tells what was measured of plain buckets, if anything.
func Plain(ran []agent.Ran) []string {
	if r := last(ran, func(r *agent.Ran) bool { return r.Plain }); r != nil {
		return []string{"measured: plain buckets " + r.String()}
	}
	return nil
}

func executed(p *plan.Plan) string {
	return fmt.Sprintf("plan %s, policy %s, delay %d", p.Digest(), cmp.Or(p.Policy, "unknown"), p.MaxDelay)
}

func simulated(r *sim.Result) *agent.Ran { return &agent.Ran{Time: r.Time, Exposed: r.Mean.Exposed} }

// of is what was measured of a plan; nil: nothing.
func of(ran []agent.Ran, p *plan.Plan) *agent.Ran {
	digest := p.Digest()
	return last(ran, func(r *agent.Ran) bool { return r.Plan.Digest() == digest })
}

// last is the last of those that are meant; nil: there is none.
func last(ran []agent.Ran, meant func(*agent.Ran) bool) *agent.Ran {
	for i := len(ran) - 1; i >= 0; i-- {
		if meant(&ran[i]) {
			return &ran[i]
		}
	}
	return nil
}

// make makes the plan of what was measured. Why there is none is an error.
func (c *Choice) make(r *agent.Reviewed) (*made, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Budget)
	defer cancel()
	j, err := profile.Job(c.Name, r.Tensors, r.Reports())
	if err != nil {
		return nil, err
	}
	mode, err := r.Mode()
	if err != nil {
		return nil, err
	}
	if mode == job.Global {
		j.Mode = mode
	}
	on, _, err := profile.Cluster(r.Hosts, r.Links)
	if err != nil {
		return nil, err
	}
	on.Links = slices.DeleteFunc(on.Links, func(l cluster.Link) bool { return l.Name == protocol.C10D }) // a choice keeps the bits
	m := new(made)
	if m.plain, err = Predict(ctx, j, on, r.Plan); err != nil {
		return nil, err
	}
	if why := undelayed(r); why != "" && c.Options.Limits.MaxDelay > 0 {
		c.found = append(c.found, "no updates are delayed, whatever --max-delay allows: "+why)
	}
	training, unknown := statistics(r.Reports())
	by := c.policy(r, training)
	p, err := by.Build(ctx, j, on, c.Options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by.Name, err)
	}
	result, err := sim.RunLegal(ctx, j, on, p, c.Options.Limits, sim.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by.Name, err)
	}
	m.Schedule, m.planned = &agent.Schedule{Plan: p, Limits: c.Options.Limits, Costs: on.Links}, result
	switch {
	case !p.Synchronous() && training == nil:
		c.found = append(c.found, "what delay costs in convergence is not judged: "+unknown.Error())
	case !p.Synchronous():
		c.found = append(c.found, "convergence: "+expects(training, p))
	}
	if c.Policy.Build == nil && training != nil {
		c.vetoed(ctx, r, training, j, on, min(m.planned.Time, m.plain.Time))
	}
	if c.Policy.Build == nil && !sim.Faster(m.planned.Time, m.plain.Time) {
		return nil, fmt.Errorf("no plan is faster as simulated: %.1f ms an iteration", m.plain.Time/1e3)
	}
	return m, nil
}

// statistics are those of the training, for the preserver. A step is what the walk steps
// by, so that the rate is 1, and a rank's batch is its sample.
func statistics(reports []profile.Report) (*deft.Statistics, error) {
	w, err := profile.Descended(reports)
	if err != nil {
		return nil, err
	}
	return &deft.Statistics{Loss: w.Loss, Rate: 1, Drift: w.Drift, Spread: w.Spread, Samples: float64(len(reports)), Sum: w.Sum}, nil
}

// expects says what the preserver expects of a plan.
func expects(s *deft.Statistics, p *plan.Plan) string {
	return fmt.Sprintf("the loss expected after %d updates in %d iterations is %.4f times that of an update in each, from %.4g", len(p.Generations), p.Period, s.Ratio(lengths(p)), s.Loss)
}

func lengths(p *plan.Plan) (out []int) {
	for _, g := range p.Generations {
		out = append(out, g.Length)
	}
	return out
}

// vetoed tells the user of a plan that would take less time than the best one, but which the
// preserver vetoes.
func (c *Choice) vetoed(ctx context.Context, r *agent.Reviewed, s *deft.Statistics, j *job.Job, on *cluster.Cluster, time float64) {
	p, err := executable(deft.DeFT, r).Build(ctx, j, on, c.Options)
	if err != nil || s.Accepts(lengths(p), deft.Tolerance) {
		return
	}
	result, err := sim.RunLegal(ctx, j, on, p, c.Options.Limits, sim.Options{})
	if err == nil && sim.Faster(result.Time, time) {
		c.found = append(c.found, fmt.Sprintf("delayed plan %s would be faster (%.1f ms an iteration as simulated), but the preserver vetoes it: %s", p.Digest(), result.Time/1e3, expects(s, p)))
	}
}

// policy makes the plans for these workers: only such as they execute as they are. Where it
// is the best of all, the preserver judges those with delay, if it knows the training.
func (c *Choice) policy(r *agent.Reviewed, training *deft.Statistics) policy.Policy {
	if c.Policy.Build != nil {
		return executable(c.Policy, r)
	}
	among := make([]policy.Policy, len(c.Among))
	for i, p := range c.Among {
		if p.Name == deft.DeFT.Name {
			p = deft.New(deft.Options{Statistics: training})
		}
		among[i] = executable(p, r)
	}
	return auto.New(among)
}

// undelayed is why these workers cannot delay updates; "": they can.
func undelayed(r *agent.Reviewed) string {
	if !r.Hello.Boundaries {
		return "the optimizer updates all tensors at once, or the training needs the averages of each iteration"
	}
	if slices.ContainsFunc(r.Reports(), func(x profile.Report) bool { return x.Global }) {
		return "gradients are read between backward() and step(); to clip, use wrap(clip_norm=...)"
	}
	return ""
}

func executable(p policy.Policy, r *agent.Reviewed) policy.Policy {
	build := p.Plan
	p.Build = func(ctx context.Context, j *job.Job, on *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		made, err := build(ctx, j, on, o)
		if err != nil {
			return nil, err
		}
		if why := undelayed(r); why != "" && !made.Synchronous() {
			return nil, fmt.Errorf("%w: no updates can be delayed: %s", policy.ErrUnsuitable, why)
		}
		if err := r.Executable(&agent.Schedule{Plan: made, Limits: o.Limits}); err != nil {
			return nil, fmt.Errorf("%w: %w", policy.ErrUnsuitable, err)
		}
		return made, nil
	}
	return p
}

// Predict simulates plain buckets that were executed, whose job had neither times nor
// collectives.
func Predict(ctx context.Context, j *job.Job, c *cluster.Cluster, executed *plan.Plan) (*sim.Result, error) {
	var links []string
	for _, l := range c.Links {
		links = append(links, l.Name)
	}
	p := plan.New(j, executed.Policy, links...)
	p.Programs[0].Window = executed.Programs[0].Window
	for _, b := range executed.Buckets {
		p.AllReduce(0, b)
	}
	if err := p.AddCollectives(j); err != nil {
		return nil, err
	}
	return sim.RunLegal(ctx, j, c, p, plan.Limits{}, sim.Options{})
}
