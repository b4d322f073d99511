package main

import (
	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/job"
	"weft/zoo"
)

func newZoo(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "zoo",
		Short: "List networks whose jobs weft computes, without a trace",
		Long: `Lists the models and the devices of the zoo. The name of a model stands for a
job wherever a command takes one, together with --device, and if you like
--batch, --sequence and --precision.

With --device, prints what an iteration of each model takes there.`,
		Example: `  weft zoo --device a100
  weft compare gpt2-small --device a100 --workers 16 --link 40Gbit,25us
  weft import resnet50 --device v100 --batch 32 -o job.json`,
		Args: cobra.NoArgs,
	}
	device := cmd.Flags().String("device", "", "`name` of the device: print times on it")
	precision := cmd.Flags().String("precision", "", "`kind` of arithmetic (default: the device's)")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		models := zoo.Models()
		if *device == "" {
			if *precision != "" {
				return cli.Usagef("--precision is of a device: give --device")
			}
			return c.Print(view.Zoo(models, zoo.Devices()), *asJSON)
		}
		var o zoo.Options
		if *precision != "" {
			var err error
			if o.Precision, err = zoo.ParsePrecision(*precision); err != nil {
				return cli.Usagef("--precision: %w", err)
			}
		}
		jobs := make([]*job.Job, len(models))
		for i, m := range models {
			var err error
			if jobs[i], err = zoo.Job(m.Name, *device, o); err != nil {
				return cli.Usage(err)
			}
		}
		return c.Print(view.ZooTimes(models, jobs), *asJSON)
	}
	return cmd
}
