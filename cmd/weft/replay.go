package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/cluster"
	"weft/internal/cli"
	"weft/internal/view"
	"weft/plan"
	"weft/replay"
	"weft/timeline"
)

func newReplay(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay TRACE|JOB|MODEL",
		Short: "Run a plan in real time, with played computation",
		Long: `Runs a plan with the live engine: an agent for each host of the cluster, all in
this process, real gradients in shared memory, and links that are as slow as the
cluster says. Only the computation is played, by the job's times. Prints what
was measured and what the simulator predicts, and checks that all sums are
right. The plan is --plan FILE, or that of --policy NAME.`,
		Example: `  weft replay job.json --plan plan.json --link 1Gbit,50us -n 4
  weft replay resnet50 --device v100 --policy dear --link 1Gbit,50us -n 4
  weft replay job.json --policy ddp --cluster cluster.yaml --timeline out.json`,
		Args: want(1, 1, "one TRACE, JOB or MODEL"),
	}
	fs := cmd.Flags()
	planFile := fs.String("plan", "", "`file` of the plan")
	n := fs.IntP("replay-workers", "n", 0, "`number` of workers, in place of what the cluster or the job says")
	var inputs cli.Flags
	inputs.Register(fs)
	var making cli.PlanFlags
	building := pflag.NewFlagSet("", pflag.ContinueOnError)
	making.Register(building)
	fs.AddFlagSet(building)
	cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policyNames(), cobra.ShellCompDirectiveNoFileComp))
	iterations := fs.Int("iterations", 0, "`number` of iterations (default: twelve periods of the plan)")
	out := fs.String("timeline", "", "`file` to write what was measured to, as a Chrome trace")
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		switch {
		case (*planFile == "") == (making.Policy == ""):
			return cli.Usagef("give either --plan FILE or --policy NAME")
		case fs.Changed("iterations") && *iterations < 1:
			return cli.Usagef("--iterations %d: at least 1", *iterations)
		case fs.Changed("replay-workers") && *n < 1:
			return cli.Usagef("-n %d: at least 1", *n)
		case fs.Changed("replay-workers") && fs.Changed("workers"):
			return cli.Usagef("-n and --workers say the same: give one")
		case *asJSON && *out == cli.Stdout:
			return cli.Usagef("--json prints the report, in place of which comes an output -")
		}
		if *planFile != "" {
			err = noneOf(building, "is for --policy, which makes a plan: --plan has one")
		} else {
			err = making.Check(fs, &inputs)
		}
		if *n > 0 && !fs.Changed("cluster") {
			err = cmp.Or(err, fs.Set("workers", strconv.Itoa(*n)))
		}
		return cmp.Or(err, inputs.Check(fs))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if err := c.Probe(*out); err != nil {
			return err
		}
		j, on, err := inputs.Load(ctx, c, args[0])
		if err != nil {
			return err
		}
		if *n > 0 {
			if on, err = resized(on, *n); err != nil {
				return err
			}
		}
		var p *plan.Plan
		if making.Policy != "" {
			p, err = making.Build(ctx, c, fs, &inputs, j, on)
		} else {
			p, err = c.Plan(ctx, *planFile)
		}
		if err != nil {
			return err
		}
		if err := plan.Check(p, j, plan.AnyLimits).Err(); err != nil {
			return fmt.Errorf("%s: %w; weft plan check says more", cmp.Or(*planFile, making.Policy), err)
		}
		var result *replay.Result
		err = c.Track("replaying", func(progress func(done, total int)) error {
			result, err = replay.Run(ctx, j, on, p, replay.Options{Iterations: *iterations, Progress: progress})
			return err
		})
		if err != nil {
			return err
		}
		if *out != "" {
			err := c.WriteFile(ctx, *out, func(w io.Writer) error { return timeline.WriteChrome(w, result.Timeline) })
			if err != nil || *out == cli.Stdout {
				return err
			}
		}
		return c.Print(view.Replay(result, j, on, p), *asJSON)
	}
	return cmd
}

// noneOf refuses flags that have no effect, and says why.
func noneOf(fs *pflag.FlagSet, why string) (err error) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed && err == nil {
			err = cli.Usagef("--%s %s", f.Name, why)
		}
	})
	return err
}

// resized is a cluster with another number of workers.
func resized(on *cluster.Cluster, workers int) (*cluster.Cluster, error) {
	if workers%on.PerNode != 0 {
		return nil, cli.Usagef("-n %d: the cluster has %d workers a node", workers, on.PerNode)
	}
	out := *on
	out.Nodes = workers / on.PerNode
	if err := out.Validate(); err != nil {
		return nil, cli.Usagef("-n %d: %w", workers, err)
	}
	return &out, nil
}
