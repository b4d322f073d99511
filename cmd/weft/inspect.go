package main

import (
	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
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
that the transfer is told apart from waiting for peers.`,
		Example: `  weft inspect trace.json.gz
  weft inspect rank0.json.gz rank1.json.gz
  zcat trace.json.gz | weft inspect - --json`,
		Args: want(1, 0, "one or more TRACE"),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		traces := make([]*kineto.Trace, len(args))
		inspections := make([]*kineto.Inspection, len(args))
		for i, name := range args {
			var err error
			if traces[i], err = c.Trace(cmd.Context(), name); err != nil {
				return err
			}
			if inspections[i], err = traces[i].Inspect(); err != nil {
				return err
			}
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
