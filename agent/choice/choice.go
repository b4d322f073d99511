// Package choice is how a training chooses by itself what it runs: it profiles plain
// buckets, makes a plan of what it measured, and lets both take turns, until it is known
// which is faster. It has no clock, socket or file of its own.
package choice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft/agent"
	"weft/cluster"
	"weft/job"
	"weft/pilot"
	"weft/plan"
	"weft/policy"
	"weft/policy/auto"
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

	pilot   *pilot.Pilot
	made    *made // the last plan; nil: there was none
	planned bool  // what runs
	at      int   // after how many iterations since the hello the review is
	found   []string
}

// made is a plan that was made.
type made struct {
	*agent.Schedule
	plain, planned float64 // of an iteration as simulated, microseconds
}

// Review is what the agents of all hosts are given.
func (c *Choice) Review() *agent.Review {
	return &agent.Review{After: pilot.New(c.Pilot).First(), Profile: c.Pilot.Profile, Take: c.Take}
}

// Take decides a review. Where no plan can be made, plain buckets go on.
func (c *Choice) Take(r agent.Reviewed) (agent.Decided, error) {
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
		c.found = append(c.found, d.Why)
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
// chosen, and how it compares. Where nothing was decided there is nothing to tell.
func (c *Choice) Found() []string {
	if len(c.found) == 0 || c.made == nil {
		return c.found
	}
	p := c.made.Plan
	out := []string{fmt.Sprintf("plan %s, policy %s, delay %d", p.Digest(), p.Policy, p.MaxDelay)}
	if len(p.Notes) > 0 {
		out = append(out, p.Notes[0])
	}
	out = append(out, fmt.Sprintf("predicted: %.1f ms an iteration, plain buckets %.1f ms", c.made.planned/1e3, c.made.plain/1e3))
	return append(out, c.found...)
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
	on.Links = on.Links[:1] // not torch.distributed's: a choice keeps the bits
	m := new(made)
	if m.plain, err = Predict(ctx, j, on, r.Plan); err != nil {
		return nil, err
	}
	if why := undelayed(r); why != "" && c.Options.Limits.MaxDelay > 0 {
		c.found = append(c.found, "no updates are delayed, whatever --max-delay allows: "+why)
	}
	by := c.policy(r)
	p, err := by.Build(ctx, j, on, c.Options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by.Name, err)
	}
	result, err := sim.RunLegal(ctx, j, on, p, c.Options.Limits, sim.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by.Name, err)
	}
	m.Schedule, m.planned = &agent.Schedule{Plan: p, Limits: c.Options.Limits, Costs: on.Links}, result.Time
	if c.Policy.Build == nil && !sim.Faster(m.planned, m.plain) {
		return nil, fmt.Errorf("no plan is faster as simulated: %.1f ms an iteration", m.plain/1e3)
	}
	return m, nil
}

// policy makes the plans for these workers: only such as they execute as they are.
func (c *Choice) policy(r *agent.Reviewed) policy.Policy {
	if c.Policy.Build != nil {
		return executable(c.Policy, r)
	}
	among := make([]policy.Policy, len(c.Among))
	for i, p := range c.Among {
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
// collectives: microseconds an iteration.
func Predict(ctx context.Context, j *job.Job, c *cluster.Cluster, executed *plan.Plan) (float64, error) {
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
		return 0, err
	}
	r, err := sim.RunLegal(ctx, j, c, p, plan.Limits{}, sim.Options{})
	if err != nil {
		return 0, err
	}
	return r.Time, nil
}
