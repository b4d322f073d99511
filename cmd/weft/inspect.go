package main

import (
	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/timeline"
	"weft/trace/kineto"
)

func newInspect(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect TRACE...",
		Short: "Tell where the step time goes",
		Long: `Tells where the time of each recorded step goes: computation, communication
that computation hides and that it does not, waiting for the host. TRACE is
written by the PyTorch profiler, plain or gzip.

With the traces of several ranks of one run, their collectives are matched, so
that the transfer is told apart from waiting for peers.

TRACE may also be a timeline of weft run, weft simulate or weft replay. Several
stand below each other.`,
		Example: `  weft inspect trace.json.gz
  weft inspect rank0.json.gz rank1.json.gz
  zcat trace.json.gz | weft inspect - --json
  weft inspect measured-timeline.json simulated-timeline.json`,
		Args: want(1, 0, "one or more TRACE"),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		traces := make([]*kineto.Trace, len(args))
		inspections := make([]*kineto.Inspection, len(args))
		var timelines []*timeline.Timeline
		for i, name := range args {
			trace, t, err := c.Inspected(cmd.Context(), name)
			if err != nil {
				return err
			}
			if t != nil {
				if timelines = append(timelines, t); len(timelines) == i+1 {
					continue
				}
			}
			if len(timelines) > 0 {
				return cli.Usagef("%s and %s: one is a timeline of weft, the other a trace", args[i-1], name)
			}
			traces[i] = trace
			if inspections[i], err = trace.Inspect(); err != nil {
				return err
			}
		}
		if timelines != nil {
			return c.Print(view.Timelines(timelines), *asJSON)
		}
		if len(args) == 1 {
			return c.Print(view.Inspection(inspections[0]), *asJSON)
		}
		matched, err := kineto.Match(traces...)
		if err != nil {
			return err
		}
		return c.Print(view.Ranks(inspections, matched), *asJSON)
	}
	return cmd
}
