package main

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/study"
)

func newStudy(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "study [NAME]",
		Short: "Rerun a paper's experiment in simulated time",
		Long: `Runs the headline experiment of a paper in simulated time, on jobs of the zoo,
and sets what the paper's abstract claims beside the outcome, with what is
assumed, and why it is not the same. Without a name it lists the studies.`,
		Example: `  weft study
  weft study dear
  weft study dear --out results`,
		Args: want(0, 1, "at most one NAME"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return study.Names(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.AddCommand(newStudyLive(c), newStudyAccuracy(c))
	out := newStudied(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error { return out.check(cmd, args) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Print(view.Studies(study.All()), *out.asJSON)
		}
		s, err := study.Lookup(args[0])
		if err != nil {
			return cli.Usage(err)
		}
		var result *study.Result
		err = c.Track("simulating", func(progress func(done, total int)) error {
			result, err = study.Run(cmd.Context(), s, progress)
			return err
		})
		if err != nil {
			return err
		}
		return out.write(cmd.Context(), c, result)
	}
	return cmd
}

// studied is the flags that say where a study's result goes.
type studied struct {
	csv, svg *string // files
	dir      *string // for both
	asJSON   *bool
}

func newStudied(cmd *cobra.Command) *studied {
	return &studied{
		csv:    cmd.Flags().String("csv", "", "also write every outcome to this `file`, as CSV"),
		svg:    cmd.Flags().String("svg", "", "also write a chart to this `file`"),
		dir:    cmd.Flags().String("out", "", "also write both to this `directory`, as NAME.csv and NAME.svg"),
		asJSON: jsonFlag(cmd),
	}
}

// stdout reports whether an output takes the report's place.
func (x *studied) stdout() bool { return *x.csv == cli.Stdout || *x.svg == cli.Stdout }

func (x *studied) check(cmd *cobra.Command, args []string) error {
	if *x.csv != "" && *x.csv == *x.svg {
		return cli.Usagef("--csv and --svg name the same file, %s", *x.csv)
	}
	if *x.asJSON && x.stdout() {
		return cli.Usagef("--json prints the report, in place of which comes an output -")
	}
	for _, name := range []string{"csv", "svg", "out"} {
		if len(args) == 0 && cmd.Flags().Changed(name) {
			return cli.Usagef("--%s without the NAME of a study", name)
		}
		if name != "out" && *x.dir != "" && cmd.Flags().Changed(name) {
			return cli.Usagef("--out and --%s exclude each other", name)
		}
	}
	return nil
}

func (x *studied) write(ctx context.Context, c *cli.Console, r *study.Result) error {
	csv, svg := *x.csv, *x.svg
	if *x.dir != "" {
		if err := os.MkdirAll(*x.dir, 0o777); err != nil {
			return err
		}
		name := filepath.Join(*x.dir, r.Study.Name)
		csv, svg = name+".csv", name+".svg"
	}
	report := view.Study(r)
	err := writeFiles(ctx, c, []output{
		{csv, func(w io.Writer) error { return report.CSV(w, view.StudyResults) }},
		{svg, func(w io.Writer) error { return view.StudyChart(w, r) }},
	})
	if err != nil || x.stdout() {
		return err
	}
	return c.Print(report, *x.asJSON)
}
