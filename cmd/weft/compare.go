package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"weft/compare"
	"weft/internal/cli"
	"weft/internal/view"
	"weft/policy/all"
)

func newCompare(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare TRACE|JOB|MODEL",
		Short: "Rank every schedule on your job and cluster",
		Long: `Builds the plan of every policy for the job, proves it, simulates it on the
cluster, and ranks the results: those that reduce among the workers, and those
with parameter servers. The last row is a lower bound: no schedule of its kind
is faster, and the gap is what a better one could still gain.

Delayed updates, which change what is learned, are compared with --max-delay.

Give the trace of the slowest rank, which weft inspect of several ranks tells:
all workers are taken to compute as this one did.`,
		Example: `  weft compare trace.json.gz --workers 16 --link 10Gbit,25us
  weft compare trace.json.gz --workers 16 --link 10Gbit,25us --bucket 5MiB
  weft compare trace.json.gz --workers 16 --link 10Gbit,25us --max-delay 1
  weft compare job.json --cluster cluster.yaml --json
  weft compare gpt2-small --device a100 --workers 16 --link 40Gbit,25us`,
		Args: want(1, 1, "one TRACE, JOB or MODEL"),
	}
	var inputs cli.Flags
	var policies cli.PolicyFlags
	var limits cli.LimitFlags
	inputs.Register(cmd.Flags())
	policies.Register(cmd.Flags())
	limits.Register(cmd.Flags())
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return cmp.Or(inputs.Check(cmd.Flags()), policies.Check(cmd.Flags(), ""), limits.Check())
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		j, on, err := inputs.Load(ctx, c, args[0])
		if err != nil {
			return err
		}
		policies.Options.Limits = limits.Limits(cmd.Flags(), inputs.DeviceMemory())
		var result *compare.Comparison
		err = c.Track("simulating", func(progress func(done, total int)) error {
			result, err = compare.Run(ctx, j, on, compare.Options{
				Policies: all.Policies(), Policy: policies.Options, Progress: progress,
			})
			return err
		})
		if err != nil {
			return inputs.Limited(err)
		}
		return c.Print(view.Comparison(result, j, on), *asJSON)
	}
	return cmd
}
