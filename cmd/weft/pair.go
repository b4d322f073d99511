package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"weft/cluster"
	"weft/internal/cli"
	"weft/internal/view"
	"weft/job"
	"weft/pair"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
)

func newPair(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pair TRACE|JOB|MODEL...",
		Short: "Let jobs share devices: one computes while another communicates",
		Long: `Tells what two jobs gain when they share their devices in turns, one computing
while the other's gradients travel, against taking turns by whole iterations. Of
several jobs it chooses which to pair. Each job keeps its own plan, and the
memory of both is resident.`,
		Example: `  weft pair a.json b.json --workers 16 --link 10Gbit,25us
  weft pair a.json b.json c.json --cluster cluster.yaml --policy mg-wfbp`,
		Args: want(2, pair.MaxJobs, fmt.Sprintf("2 to %d of TRACE, JOB or MODEL", pair.MaxJobs)),
	}
	var inputs cli.Flags
	var policies cli.PolicyFlags
	inputs.Register(cmd.Flags())
	policies.Register(cmd.Flags())
	var limits cli.LimitFlags
	limits.RegisterMemory(cmd.Flags())
	name := cmd.Flags().String("policy", "ddp", "`name` of the policy that plans each job")
	cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policyNames(), cobra.ShellCompDirectiveNoFileComp))
	asJSON := jsonFlag(cmd)
	var chosen policy.Policy
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		chosen, err = all.Lookup(*name)
		return cmp.Or(err, inputs.Check(cmd.Flags()), inputs.CheckFor(cmd.Flags(), chosen), policies.Check(cmd.Flags(), *name))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		var jobs []*job.Job
		var on *cluster.Cluster
		for _, arg := range args {
			j, its, err := inputs.Load(ctx, c, arg)
			if err != nil {
				return err
			}
			if on != nil && its.World() != on.World() {
				return cli.Usagef("%s was recorded with %d workers, %s with %d: give --workers", args[0], on.World(), arg, its.World())
			}
			jobs, on = append(jobs, j), its
		}
		policies.Options.Limits = plan.DefaultLimits
		policies.Options.Limits.MaxMemory = limits.Limits(cmd.Flags(), inputs.DeviceMemory()).MaxMemory
		var result *pair.Result
		err := c.Track("simulating", func(progress func(done, total int)) (err error) {
			result, err = pair.Run(ctx, jobs, on, pair.Options{Policy: chosen, Settings: policies.Options, Progress: progress})
			return err
		})
		if err != nil {
			return inputs.Limited(err)
		}
		return c.Print(view.Pairs(result, on, *name), *asJSON)
	}
	return cmd
}
