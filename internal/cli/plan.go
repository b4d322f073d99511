package cli

import (
	"cmp"
	"context"

	"github.com/spf13/pflag"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
)

// PlanFlags say which plan to make of a job on a cluster: the policy, its options and
// the user's limits.
type PlanFlags struct {
	PolicyFlags
	LimitFlags
	Policy string // its name; "": none

	chosen policy.Policy
}

// Register adds the flags.
func (f *PlanFlags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.Policy, "policy", "", "`name` of the policy that makes the plan; weft policies lists them")
	f.PolicyFlags.Register(fs)
	f.LimitFlags.Register(fs)
}

// Check reports what is wrong with the flags, and what those of the inputs say in vain to
// the policy.
func (f *PlanFlags) Check(fs *pflag.FlagSet, inputs *Flags) (err error) {
	if f.chosen, err = all.Lookup(f.Policy); err != nil {
		return Usage(err)
	}
	return cmp.Or(inputs.CheckFor(fs, f.chosen), f.PolicyFlags.Check(fs, f.Policy), f.LimitFlags.Check())
}

// Build makes the plan, once the flags are checked.
func (f *PlanFlags) Build(ctx context.Context, c *Console, fs *pflag.FlagSet, inputs *Flags, j *job.Job, on *cluster.Cluster) (p *plan.Plan, err error) {
	if f.Options.Spread && len(on.Links) < 2 {
		return nil, Usagef("--spread is for several links, and the cluster has one")
	}
	f.Options.Limits = f.Limits(fs, inputs.DeviceMemory())
	err = c.Track("planning", func(progress func(done, total int)) error {
		f.Options.Progress = progress
		p, err = f.chosen.Plan(ctx, j, on, f.Options)
		return err
	})
	return p, err
}
