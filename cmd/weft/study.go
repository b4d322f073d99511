package main

import (
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
	table := cmd.Flags().String("csv", "", "also write every outcome to this `file`, as CSV")
	picture := cmd.Flags().String("svg", "", "also write a chart to this `file`")
	dir := cmd.Flags().String("out", "", "also write both to this `directory`, as NAME.csv and NAME.svg")
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if *table != "" && *table == *picture {
			return cli.Usagef("--csv and --svg name the same file, %s", *table)
		}
		if *asJSON && (*table == cli.Stdout || *picture == cli.Stdout) {
			return cli.Usagef("--json prints the report, in place of which comes an output -")
		}
		for _, name := range []string{"csv", "svg", "out"} {
			if len(args) == 0 && cmd.Flags().Changed(name) {
				return cli.Usagef("--%s without the NAME of a study", name)
			}
			if name != "out" && *dir != "" && cmd.Flags().Changed(name) {
				return cli.Usagef("--out and --%s exclude each other", name)
			}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Print(view.Studies(study.All()), *asJSON)
		}
		s, err := study.Lookup(args[0])
		if err != nil {
			return cli.Usage(err)
		}
		ctx := cmd.Context()
		var result *study.Result
		err = c.Track("simulating", func(progress func(done, total int)) error {
			result, err = study.Run(ctx, s, progress)
			return err
		})
		if err != nil {
			return err
		}
		report := view.Study(result)
		if *dir != "" {
			if err := os.MkdirAll(*dir, 0o777); err != nil {
				return err
			}
			*table, *picture = filepath.Join(*dir, s.Name+".csv"), filepath.Join(*dir, s.Name+".svg")
		}
		for _, file := range []struct {
			name  string
			write func(io.Writer) error
		}{
			{*table, func(w io.Writer) error { return report.CSV(w, view.StudyResults) }},
			{*picture, func(w io.Writer) error { return view.StudyChart(w, result) }},
		} {
			if file.name == "" {
				continue
			}
			if err := c.WriteFile(ctx, file.name, file.write); err != nil {
				return err
			}
		}
		if *table == cli.Stdout || *picture == cli.Stdout {
			return nil
		}
		return c.Print(report, *asJSON)
	}
	return cmd
}
