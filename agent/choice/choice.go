// Package choice is how a training chooses by itself what it runs: it profiles plain
// buckets, makes a plan of what it measured, and lets both take turns, until it is known
// which is faster. It has no clock, socket or file of its own.
package choice

import (
	"context"
	"errors"
	"fmt"

	"weft/agent"
	"weft/cluster"
	"weft/job"
	"weft/pilot"
	"weft/plan"
	"weft/policy"
	"weft/profile"
	"weft/sim"
)

// Choice decides the reviews of a training. It is that of host 0.
type Choice struct {
	Policy  policy.Policy // makes the plans
	Options policy.Options
	Tell    func(string) // the user

	pilot    *pilot.Pilot
	schedule *agent.Schedule // the plan, once there is one
	planned  bool            // what runs
	at       int             // after how many iterations since the hello the review is
}

// Review is what the agents of all hosts are given.
func (c *Choice) Review(p pilot.Config) *agent.Review {
	c.pilot = pilot.New(p)
	c.at = c.pilot.First()
	return &agent.Review{After: c.at, Profile: p.Profile, Take: c.take}
}

func (c *Choice) take(r agent.Reviewed) (agent.Decided, error) {
	reports := r.Reports()
	times := profile.Slowest(reports)
	if len(times) == 0 {
		return agent.Decided{}, errors.New("a review of no iterations")
	}
	d := c.pilot.Review(times)
	if d.Make {
		s, plain, err := c.make(r)
		if err == nil {
			c.schedule = s
		}
		d = c.pilot.Made(err == nil && s.Plan.MaxDelay > 0, err, plain)
	}
	if d.Why != "" && c.Tell != nil {
		c.Tell(d.Why)
	}
	var out agent.Decided
	out.Change = d.Planned != c.planned
	if d.Profile {
		out.Change, out.Profile = true, c.pilot.Profile
	}
	if out.Change {
		c.at = 0
	}
	if c.planned = d.Planned; c.planned {
		out.Schedule = c.schedule
	}
	c.at += d.Next
	out.Review = c.at
	return out, nil
}

// make makes the plan of what was measured, and returns the time of an iteration of plain
// buckets beside it. Why there is no plan is an error.
func (c *Choice) make(r agent.Reviewed) (*agent.Schedule, float64, error) {
	reports := r.Reports()
	plain := 0.0
	for _, x := range reports {
		plain = max(plain, x.Iteration)
	}
	ctx := context.Background()
	j, err := profile.Job("", r.Tensors, reports)
	if err != nil {
		return nil, plain, err
	}
	on, _, err := profile.Cluster(r.Hosts)
	if err != nil {
		return nil, plain, err
	}
	made, err := c.Policy.Build(ctx, j, on, c.Options)
	if err != nil {
		return nil, plain, fmt.Errorf("%s: %w", c.Policy.Name, err)
	}
	s := &agent.Schedule{Plan: made, Job: j, Limits: c.Options.Limits}
	if err := s.Check(); err != nil {
		return nil, plain, fmt.Errorf("%s: %w", c.Policy.Name, err)
	}
	result, err := sim.RunLegal(ctx, j, on, made, c.Options.Limits, sim.Options{})
	if err != nil {
		return nil, plain, fmt.Errorf("%s: %w", c.Policy.Name, err)
	}
	before, err := Predict(ctx, j, on, r.Plan)
	if err != nil {
		return nil, plain, err
	}
	if !sim.Faster(result.Time, before) {
		return nil, plain, fmt.Errorf("%s is not faster as simulated, with %.2f ms an iteration; plain buckets take %.2f ms", made.Policy, result.Time/1e3, before/1e3)
	}
	if c.Tell != nil {
		c.Tell(fmt.Sprintf("plan %s (%s): %.2f ms an iteration as simulated, plain buckets %.2f ms; both are tried", made.Policy, made.Digest(), result.Time/1e3, before/1e3))
	}
	return s, plain, nil
}

// Predict simulates plain buckets that were executed, whose job had neither times nor
// collectives: microseconds an iteration.
func Predict(ctx context.Context, j *job.Job, c *cluster.Cluster, executed *plan.Plan) (float64, error) {
	p := plan.New(j, executed.Policy, c.Links[0].Name)
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
