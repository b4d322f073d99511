package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/plan"
)

func newPlanCheck(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check PLAN --job JOB | check PLAN PLAN",
		Short: "Prove or refute every rule for a plan",
		Long: `Proves every rule of plans for this plan and job, whatever the times, or refutes
it with a witness. With two plans: tells whether ranks that hold them could run
together. Exit code 1 means refuted, or different.`,
		Example: `  weft plan check plan.json --job job.json
  weft plan check plan.json --job job.json --max-delay 1
  weft plan check rank0.json rank1.json`,
		Args: want(1, 2, "one plan and --job, or two plans"),
	}
	jobFile := cmd.Flags().String("job", "", "`file` of the job, or the trace, that the plan is for")
	var jobs cli.JobFlags
	var limits cli.LimitFlags
	jobs.Register(cmd.Flags())
	limits.Register(cmd.Flags())
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if (len(args) == 1) != (*jobFile != "") {
			return cli.Usagef("give one plan and --job, or two plans")
		}
		if *jobFile == "" {
			return cli.NoJob(cmd.Flags())
		}
		return limits.Check()
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := c.Plan(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if len(args) == 2 {
			other, err := c.Plan(cmd.Context(), args[1])
			if err != nil {
				return err
			}
			return same(c, plan.Same(p, other), *asJSON)
		}
		j, err := jobs.Job(cmd.Context(), c, *jobFile)
		if err != nil {
			return err
		}
		report := plan.Check(p, j, limits.Limits(cmd.Flags(), jobs.DeviceMemory()))
		if *asJSON {
			err = c.Print(view.Check(report), true)
		} else {
			err = say(c, report)
		}
		if err == nil && !report.OK() {
			err = cli.ErrNo
		}
		return err
	}
	return cmd
}

// same says whether two plans are the same; if not, the answer is no.
func same(c *cli.Console, difference error, asJSON bool) error {
	var err error
	switch {
	case asJSON:
		err = c.Print(view.Same(difference), true)
	case difference == nil:
		err = say(c, "the same plan\n")
	default:
		err = say(c, fmt.Sprintln("different plans:", difference))
	}
	if err == nil && difference != nil {
		err = cli.ErrNo
	}
	return err
}

// say prints what is not a report.
func say(c *cli.Console, what any) error {
	return c.Text(func(w io.Writer) error {
		_, err := fmt.Fprint(w, what)
		return err
	})
}
