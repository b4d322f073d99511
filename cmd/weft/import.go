package main

import (
	"io"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/job"
)

func newImport(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import TRACE",
		Short: "Turn a trace into a job file",
		Long: `Derives the job from a trace of the PyTorch profiler: its ops with their median
times over the recorded steps, its lanes, its tensors. Writes it to a file or,
without -o, to the standard output. Other commands take the trace as well; the
job file is smaller, and can be read and edited.`,
		Example: `  weft import trace.json.gz -o job.json
  weft import trace.json.gz --tensors tensors.txt -o job.json`,
		Args: want(1, 1, "one TRACE"),
	}
	var jobs cli.JobFlags
	jobs.Register(cmd.Flags())
	out := outFlag(cmd, cli.Stdout)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		j, err := jobs.Job(ctx, c, args[0])
		if err != nil {
			return err
		}
		err = c.WriteFile(ctx, *out, func(w io.Writer) error { return job.Write(w, j) })
		if err != nil || *out == cli.Stdout {
			return err
		}
		return c.Print(view.Job(j), *asJSON)
	}
	return cmd
}

// outFlag adds -o.
func outFlag(cmd *cobra.Command, preset string) *string {
	usage := "`file` to write"
	if preset == cli.Stdout {
		usage += ", and print a summary (default: standard output)"
	}
	out := cmd.Flags().StringP("out", "o", preset, usage)
	cmd.Flags().Lookup("out").DefValue = "" // said in words
	return out
}
