package main

import (
	"cmp"
	"io"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/plan"
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
	var making cli.PlanFlags
	inputs.Register(cmd.Flags())
	making.Register(cmd.Flags())
	cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policyNames(), cobra.ShellCompDirectiveNoFileComp))
	out := outFlag(cmd, cli.Stdout)
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if making.Policy == "" {
			return cli.Usagef("no --policy; weft policies lists them")
		}
		return cmp.Or(inputs.Check(cmd.Flags()), making.Check(cmd.Flags(), &inputs))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		j, on, err := inputs.Load(ctx, c, args[0])
		if err != nil {
			return err
		}
		p, err := making.Build(ctx, c, cmd.Flags(), &inputs, j, on)
		if err != nil {
			return err
		}
		if err := plan.Check(p, j, making.Options.Limits).Err(); err != nil {
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
