package main

import (
	"io"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/job"
	"weft/plan"
)

func newPlanExplain(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain PLAN",
		Short: "Put a plan in words, a table a link",
		Long: `Says in words what a plan does: what travels together, in which order, released
by what, and when updates are applied. With the job, tensors and ops have names.`,
		Example: `  weft plan explain plan.json
  weft plan explain plan.json --job job.json`,
		Args: want(1, 1, "one PLAN"),
	}
	jobFile := cmd.Flags().String("job", "", "`file` of the job, or the trace, that the plan is for")
	var jobs cli.JobFlags
	jobs.Register(cmd.Flags())
	asJSON := cmd.Flags().Bool("json", false, "print the plan itself, as its file holds it")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *jobFile == "" {
			return cli.NoJob(cmd.Flags())
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := c.Plan(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		var j *job.Job
		if *jobFile != "" {
			if j, err = jobs.Job(cmd.Context(), c, *jobFile); err != nil {
				return err
			}
		}
		if *asJSON {
			return plan.Write(c.Out, p)
		}
		return c.Text(func(w io.Writer) error { return plan.Explain(w, p, j) })
	}
	return cmd
}
