package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"weft/cluster"
	"weft/internal/cli"
	"weft/internal/view"
	"weft/job"
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
	show := newSimulated(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("iterations") && *iterations < 1 {
			return cli.Usagef("--iterations %d: at least 1", *iterations)
		}
		return cmp.Or(show.check(cmd), inputs.Check(cmd.Flags()))
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
			if *show.trace == "" {
				o.Ranks = 1 // transfers are the same on all ranks; the rest needs no spans
			}
			result, err = sim.Run(ctx, j, on, p, o)
			return err
		})
		if err != nil {
			return err
		}
		return show.write(ctx, c, result, j, on, p)
	}
	return cmd
}

// simulated is the flags that say what to show of a simulation.
type simulated struct {
	trace, svg    *string // files
	svgIterations *int
	draw, asJSON  *bool
}

func newSimulated(cmd *cobra.Command) *simulated {
	return &simulated{
		draw:          cmd.Flags().Bool("draw", false, "draw the last iteration as text, a row a lane"),
		svg:           cmd.Flags().String("svg", "", "`file` to draw the last iterations to, as a picture"),
		svgIterations: cmd.Flags().Int("svg-iterations", 2, "with --svg: `number` of iterations drawn"),
		trace:         outFlag(cmd, ""),
		asJSON:        jsonFlag(cmd),
	}
}

// stdout reports whether an output takes the report's place.
func (x *simulated) stdout() bool { return *x.trace == cli.Stdout || *x.svg == cli.Stdout }

func (x *simulated) check(cmd *cobra.Command) error {
	switch {
	case *x.draw && (*x.asJSON || x.stdout()):
		return cli.Usagef("--draw is text: not with --json, nor with an output -")
	case *x.asJSON && x.stdout():
		return cli.Usagef("--json prints the report, in place of which comes an output -")
	case *x.svgIterations < 1:
		return cli.Usagef("--svg-iterations %d: at least 1", *x.svgIterations)
	case *x.svg == "" && cmd.Flags().Changed("svg-iterations"):
		return cli.Usagef("--svg-iterations is for --svg FILE")
	case *x.svg != "" && *x.svg == *x.trace:
		return cli.Usagef("-o and --svg name the same file, %s", *x.svg)
	}
	return nil
}

func (x *simulated) write(ctx context.Context, c *cli.Console, r *sim.Result, j *job.Job, on *cluster.Cluster, p *plan.Plan) error {
	err := writeFiles(ctx, c, []output{
		{*x.trace, func(w io.Writer) error { return timeline.WriteChrome(w, r.Timeline) }},
		{*x.svg, func(w io.Writer) error { return view.Picture(w, r, j, p, *x.svgIterations) }},
	})
	if err != nil || x.stdout() {
		return err
	}
	if err := c.Print(view.Simulation(r, j, on), *x.asJSON); err != nil || !*x.draw {
		return err
	}
	return c.Text(func(w io.Writer) error {
		fmt.Fprintln(w)
		return timeline.Draw(w, r.Timeline, timeline.DrawOptions{Iteration: len(r.Iterations) - 1, Ranks: 1, Queued: true})
	})
}
