package main

import (
	"cmp"
	"io"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
)

func newPlan(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan TRACE|JOB|MODEL",
		Short: "Build a policy's plan; explain and check plans",
		Long: `Builds the plan that a policy makes for a job on a cluster, proves it, and
writes it to a file or, without -o, to the standard output.`,
		Example: `  weft plan trace.json.gz --cluster cluster.yaml --policy mg-wfbp -o plan.json
  weft plan job.json --link 10Gbit,25us --policy deft --max-delay 1 -o plan.json
  weft plan explain plan.json
  weft plan check plan.json --job job.json`,
		Args: want(1, 1, "one TRACE, JOB or MODEL"),
	}
	cmd.AddCommand(newPlanExplain(c), newPlanCheck(c))

	var inputs cli.Flags
	var policies cli.PolicyFlags
	inputs.Register(cmd.Flags())
	policies.Register(cmd.Flags())
	var limits cli.LimitFlags
	limits.Register(cmd.Flags())
	name := cmd.Flags().String("policy", "", "`name` of the policy; weft policies lists them")
	cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policyNames(), cobra.ShellCompDirectiveNoFileComp))
	out := outFlag(cmd, cli.Stdout)
	asJSON := jsonFlag(cmd)
	var chosen policy.Policy
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if *name == "" {
			return cli.Usagef("no --policy; weft policies lists them")
		}
		chosen, err = all.Lookup(*name)
		return cmp.Or(err, inputs.Check(cmd.Flags()), inputs.CheckFor(cmd.Flags(), chosen), policies.Check(cmd.Flags(), *name), limits.Check())
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		j, on, err := inputs.Load(ctx, c, args[0])
		if err != nil {
			return err
		}
		policies.Options.Limits = limits.Limits(cmd.Flags(), inputs.DeviceMemory())
		var p *plan.Plan
		err = c.Track("planning", func(progress func(done, total int)) error {
			policies.Options.Progress = progress
			p, err = chosen.Build(ctx, j, on, policies.Options)
			return err
		})
		if err != nil {
			return err
		}
		if err := plan.Check(p, j, policies.Options.Limits).Err(); err != nil {
			return err
		}
		if err := c.WriteFile(ctx, *out, func(w io.Writer) error { return plan.Write(w, p) }); err != nil {
			return err
		}
		if *out == cli.Stdout {
			return nil
		}
		return c.Print(view.Plan(p, j), *asJSON)
	}
	return cmd
}

func policyNames() []string {
	var names []string
	for _, p := range all.Policies() {
		names = append(names, p.Name)
	}
	return names
}
