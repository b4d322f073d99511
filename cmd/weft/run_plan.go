package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/agent"
	"weft/agent/choice"
	"weft/cluster"
	"weft/internal/cli"
	"weft/job"
	"weft/launch"
	"weft/pilot"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/policy/fusion"
	"weft/sim"
)

// planned are the flags of weft run that give it a plan: a file, or how to make one of a
// job.
type planned struct {
	file, job string
	inputs    cli.Flags
	making    cli.PlanFlags
	network   *pflag.FlagSet // all flags of inputs, of which weft run has those about links
	building  *pflag.FlagSet // those that are for --policy alone
	limits    *pflag.FlagSet // those that are for a plan of either kind
	predicted *sim.Result    // of the plan that was made of a job; nil: there is none
}

func (x *planned) register(cmd *cobra.Command) {
	set := func() *pflag.FlagSet { return pflag.NewFlagSet("", pflag.ContinueOnError) }
	x.network, x.building, x.limits = set(), set(), set()
	x.inputs.Register(x.network)
	for _, name := range []string{"cluster", "link", "links", "overlap"} {
		x.building.AddFlag(x.network.Lookup(name))
	}
	making := set()
	x.making.Register(making)
	making.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "max-delay", "max-staleness", "min-update-rate":
			x.limits.AddFlag(f)
		case "policy":
			cmd.Flags().AddFlag(f)
		default:
			x.building.AddFlag(f)
		}
	})
	x.building.StringVar(&x.job, "job", "", "`file` of the job that --policy makes a plan of")
	cmd.Flags().StringVar(&x.file, "plan", "", "`file` of a plan to execute (else WEFT_PLAN)")
	cmd.Flags().AddFlagSet(x.building)
	cmd.Flags().AddFlagSet(x.limits)
	cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policyNames(), cobra.ShellCompDirectiveNoFileComp))
}

// check reports what is wrong with the flags, before any file is read.
func (x *planned) check(p launch.Place) error {
	if x.file == "" && x.making.Policy == "" {
		x.file = os.Getenv("WEFT_PLAN")
	}
	if delay := os.Getenv("WEFT_MAX_DELAY"); delay != "" && !x.limits.Changed("max-delay") {
		if err := x.limits.Set("max-delay", delay); err != nil {
			return cli.Usagef("WEFT_MAX_DELAY is %q: need a number of iterations, or give --max-delay", delay)
		}
	}
	switch {
	case x.file != "" && x.making.Policy != "":
		return cli.Usagef("--plan has a plan and --policy makes one: give one of them")
	case servers(x.making.Policy):
		return cli.Usagef("--policy %s pushes to parameter servers, and weft run has none: its workers reduce among themselves. weft compare simulates such policies", x.making.Policy)
	case x.file != "":
		return cmp.Or(noneOf(x.building, "is for --policy, which makes a plan: --plan has one"), x.making.LimitFlags.Check())
	case x.making.Policy == "":
		return cmp.Or(noneOf(x.building, "is for --policy: give its name"), x.making.LimitFlags.Check())
	case x.job == "":
		for _, name := range []string{"cluster", "link", "links", "overlap"} {
			if x.building.Changed(name) {
				return cli.Usagef("--%s is about a job that was measured before: give --job FILE", name)
			}
		}
		return x.making.Check(x.building, &x.inputs)
	}
	if !x.network.Changed("cluster") {
		// On one host the link is between its workers; on several, between hosts.
		perNode := p.Workers
		if p.Alone() {
			perNode = 1
		}
		for flag, n := range map[string]int{"workers": p.World, "per-node": perNode} {
			if err := x.network.Set(flag, strconv.Itoa(n)); err != nil {
				return err
			}
		}
	}
	return cmp.Or(x.inputs.Check(x.network), x.making.Check(x.building, &x.inputs))
}

// servers reports whether a policy's plans need parameter servers.
func servers(name string) bool {
	p, err := all.Lookup(name)
	return err == nil && p.Class == policy.Servers
}

// choice has the training choose by itself, if no plan is given and no job to make one of;
// nil: it need not, and plain buckets were asked for or there is nobody to reduce with.
func (x *planned) choice(ctx context.Context, name string, p launch.Place) (*choice.Choice, error) {
	plain := x.making.Policy == fusion.DDP.Name && noneOf(x.building, "") == nil
	if x.file != "" || x.job != "" || p.World == 1 || plain {
		return nil, nil
	}
	c := &choice.Choice{Name: name, Among: all.Searched(), Options: x.making.Options, Pilot: pilot.Default}
	c.Options.Limits = x.making.Limits(x.limits, 0)
	if x.making.Policy != "" && x.making.Policy != "auto" {
		var err error
		if c.Policy, err = all.Lookup(x.making.Policy); err != nil {
			return nil, err
		}
		if err := suits(ctx, c.Policy, c.Options); err != nil {
			return nil, cli.Usagef("--policy %s: %w", c.Policy.Name, err)
		}
	}
	if s := os.Getenv("WEFT_PILOT"); s != "" { // for tests
		o := &c.Pilot
		if _, err := fmt.Sscanf(s, "%d,%d,%d,%d,%d,%d", &o.Warm, &o.Profile, &o.Settle, &o.Window, &o.Turns, &o.Rest); err != nil {
			return nil, cli.Usagef("WEFT_PILOT is %q: need 6 numbers (%w)", s, err)
		}
	}
	return c, nil
}

// suits says, before a training, of a policy that no training suits, with these options:
// the least one tells.
func suits(ctx context.Context, p policy.Policy, o policy.Options) error {
	j := job.Chain("the training", []float64{1}, []float64{1}, []int64{4})
	on := &cluster.Cluster{Nodes: 2, PerNode: 1, Scale: 1, Links: []cluster.Link{{Name: "net", Bandwidth: 1}}}
	if _, err := p.Plan(ctx, j, on, o); errors.Is(err, policy.ErrUnsuitable) {
		return err
	}
	return nil
}

// schedule is the plan that the flags give to a training, checked; nil: none.
func (x *planned) schedule(ctx context.Context, c *cli.Console, p launch.Place) (*agent.Schedule, error) {
	switch {
	case x.file != "":
		given, err := c.Plan(ctx, x.file)
		if err != nil {
			return nil, err
		}
		s := &agent.Schedule{Plan: given, Limits: x.making.Limits(x.limits, 0)}
		if err := s.Check(); err != nil {
			return nil, fmt.Errorf("%s: %w", x.file, err)
		}
		return s, nil
	case x.job == "":
		return nil, nil
	}
	j, err := x.inputs.Job(ctx, c, x.job)
	if err != nil {
		return nil, err
	}
	on, err := x.inputs.Cluster(ctx, c, j)
	if err == nil && on.World() != p.World {
		on, err = resized(on, p.World)
	}
	if err != nil {
		return nil, err
	}
	j = agent.ForWorld(j, p.World)
	made, err := x.making.Build(ctx, c, x.limits, &x.inputs, j, on)
	if err == nil {
		err = plan.Check(made, j, x.making.Options.Limits).Err()
	}
	if err == nil {
		x.predicted, err = sim.Run(ctx, j, on, made, sim.Options{})
	}
	s := &agent.Schedule{Plan: made, Job: j, Limits: x.making.Limits(x.limits, 0), Costs: on.Links}
	s.Limits.MaxMemory = 0 // of which the job knows more than workers say
	if err == nil {
		err = s.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("--policy %s: %w", x.making.Policy, err)
	}
	return s, nil
}
