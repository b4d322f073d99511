package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/plan"
	"weft/sim"
	"weft/timeline"
)

func newSimulate(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate --job JOB --plan PLAN",
		Short: "Run a plan in simulated time",
		Long: `Runs a plan of a job on a cluster in simulated time, and tells where an
iteration's time goes and how long each transfer waits and takes. The plan must
keep the rules that weft plan check proves; any delay is allowed. With -o it
writes the timeline as a Chrome trace, which Perfetto opens, and with --svg the
last iterations as a picture.`,
		Example: `  weft simulate --job job.json --cluster cluster.yaml --plan plan.json
  weft simulate --job job.json --link 10Gbit,25us --plan plan.json --draw
  weft simulate --job job.json --link 10Gbit,25us --plan plan.json -o out.json
  weft simulate --job job.json --link 10Gbit,25us --plan plan.json --svg out.svg`,
		Args: cobra.NoArgs,
	}
	jobFile := cmd.Flags().String("job", "", "`file` of the job, or the trace, that the plan is for")
	planFile := cmd.Flags().String("plan", "", "`file` of the plan")
	cmd.MarkFlagRequired("job")
	cmd.MarkFlagRequired("plan")
	var inputs cli.Flags
	inputs.Register(cmd.Flags())
	iterations := cmd.Flags().Int("iterations", 0, "`number` of iterations (default: twelve periods of the plan)")
	draw := cmd.Flags().Bool("draw", false, "draw the last iteration as text, a row a lane")
	svg := cmd.Flags().String("svg", "", "`file` to draw the last iterations to, as a picture")
	svgIterations := cmd.Flags().Int("svg-iterations", 2, "with --svg: `number` of iterations drawn")
	out := outFlag(cmd, "")
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case cmd.Flags().Changed("iterations") && *iterations < 1:
			return cli.Usagef("--iterations %d: at least 1", *iterations)
		case *draw && (*asJSON || *out == cli.Stdout || *svg == cli.Stdout):
			return cli.Usagef("--draw is text: not with --json, nor with an output -")
		case *asJSON && (*out == cli.Stdout || *svg == cli.Stdout):
			return cli.Usagef("--json prints the report, in place of which comes an output -")
		case *svgIterations < 1:
			return cli.Usagef("--svg-iterations %d: at least 1", *svgIterations)
		case *svg == "" && cmd.Flags().Changed("svg-iterations"):
			return cli.Usagef("--svg-iterations is for --svg FILE")
		case *svg != "" && *svg == *out:
			return cli.Usagef("-o and --svg name the same file, %s", *svg)
		}
		return inputs.Check(cmd.Flags())
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		j, on, err := inputs.Load(ctx, c, *jobFile)
		if err != nil {
			return err
		}
		p, err := c.Plan(ctx, *planFile)
		if err != nil {
			return err
		}
		if err := plan.Check(p, j, plan.AnyLimits).Err(); err != nil {
			return fmt.Errorf("%s: %w; weft plan check says more", *planFile, err)
		}
		var result *sim.Result
		err = c.Spin("simulating", func() error {
			o := sim.Options{Iterations: *iterations, Timeline: true}
			if *out == "" {
				o.Ranks = 1 // transfers are the same on all ranks; the rest needs no spans
			}
			result, err = sim.Run(ctx, j, on, p, o)
			return err
		})
		if err != nil {
			return err
		}
		if *out != "" {
			err := c.WriteFile(ctx, *out, func(w io.Writer) error { return timeline.WriteChrome(w, result.Timeline) })
			if err != nil {
				return err
			}
		}
		if *svg != "" {
			err := c.WriteFile(ctx, *svg, func(w io.Writer) error { return view.Picture(w, result, j, p, *svgIterations) })
			if err != nil {
				return err
			}
		}
		if *out == cli.Stdout || *svg == cli.Stdout {
			return nil
		}
		if err := c.Print(view.Simulation(result, j, on), *asJSON); err != nil || !*draw {
			return err
		}
		return c.Text(func(w io.Writer) error {
			fmt.Fprintln(w)
			return timeline.Draw(w, result.Timeline, timeline.DrawOptions{Iteration: len(result.Iterations) - 1, Ranks: 1, Queued: true})
		})
	}
	return cmd
}
