package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/lab"
	"weft/live"
)

func newStudyLive(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Measure schedules on real trainings in the lab",
		Long: `Trains models on the hosts of a lab (see weft lab), one worker of one thread on
each, by every schedule in turns, and sets what the simulator predicts of a
schedule beside what was measured. Timelines lie beside the results,
simulated, and of plans as measured in the last turn.

A line's rate follows from the coverage rate: the time of the gradients on the
wire, by that of an iteration of computation alone, which is measured first. A
schedule is torch (DistributedDataParallel over gloo), a policy, a policy and
the delay that it is allowed, as deft:1, or these and the least update rate, as
deft:1:1.

With --rails the hosts have further networks. Policies plan for the first;
dear+spread is dear over all of them. Beside the table comes by how much the
best schedule over all rails is faster than the best on one.

All files lie in the directory --out. Trainings whose times lie there are not
run again, so a study that was interrupted goes on where it was.`,
		Example: `  weft study live --out results
  weft study live --models gpt --coverage 1,2 --schedules torch,ddp,dear,deft:1 --out results
  weft study live --models resnet18 --coverage 2 --rails 0.5 --schedules ddp,dear,dear+spread --out rails`,
		Args: cobra.NoArgs,
	}
	var config live.Config
	fs := cmd.Flags()
	fs.StringSliceVar(&config.Models, "models", []string{"resnet18", "gpt"}, "models to train")
	fs.Float64SliceVar(&config.Coverages, "coverage", []float64{1}, "coverage `rates`")
	fs.Lookup("coverage").DefValue = "1" // not [1.000000]
	fs.Float64SliceVar(&config.Rails, "rails", nil, "further rails: their `rates`, by that of the first (default: none)")
	fs.Lookup("rails").DefValue = ""
	schedules := fs.StringSlice("schedules", []string{live.DDP, "ddp", "dear", "p3", "deft:1"}, "what to compare; the first is what the others are compared with")
	fs.IntVar(&config.Turns, "turns", 3, "turns of each schedule")
	fs.IntVar(&config.Steps, "steps", 20, "steps of a turn that are timed")
	fs.IntVar(&config.Hosts, "hosts", 2, "workers, each on a host of its own")
	fs.StringVar(&config.Python, "python", "python3", "a `program`: python with torch")
	fs.StringVar(&config.Dir, "out", "live", "`directory` for all files, among them live.csv and live.svg")
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case config.Turns < 1 || config.Steps < 1:
			return cli.Usagef("--turns and --steps: need at least 1")
		case config.Hosts < 2 || config.Hosts > lab.MaxHosts:
			return cli.Usagef("--hosts %d: need 2 to %d", config.Hosts, lab.MaxHosts)
		case len(config.Models) == 0 || len(config.Coverages) == 0:
			return cli.Usagef("--models and --coverage: need at least one each")
		case config.Dir == "":
			return cli.Usagef("--out needs a directory")
		}
		if err := cmp.Or(once("--models", config.Models), once("--coverage", config.Coverages), once("--schedules", *schedules)); err != nil {
			return err
		}
		for _, model := range config.Models {
			if !slices.Contains(live.Models, model) {
				return cli.Usagef("--models: no %s; known: %s", model, strings.Join(live.Models, ", "))
			}
		}
		for _, x := range config.Coverages {
			if !(x > 0 && x <= 1000) {
				return cli.Usagef("--coverage %g: need a number above 0, at most 1000", x)
			}
		}
		for _, x := range config.Rails {
			if !(x > 0 && x <= 1) {
				return cli.Usagef("--rails %g: need a number above 0, at most 1: the first rail is the fastest", x)
			}
		}
		if len(config.Rails) >= lab.MaxRails {
			return cli.Usagef("--rails: a lab has at most %d further ones", lab.MaxRails-1)
		}
		for _, s := range *schedules {
			if strings.Contains(s, "+") && len(config.Rails) == 0 {
				return cli.Usagef("--schedules: %s is for several rails: give --rails", s)
			}
		}
		var err error
		config.Schedules, err = parseSchedules(*schedules)
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if config.Weft, err = os.Executable(); err != nil {
			return err
		}
		orderly.Store(true)
		var cases []live.Case
		err = c.Track("training", func(progress func(done, total int)) error {
			config.Step = progress
			cases, err = live.Run(cmd.Context(), config)
			return err
		})
		if err != nil {
			return err
		}
		return writeLive(cmd.Context(), c, config.Dir, cases, *asJSON)
	}
	return cmd
}

// once refuses what a list names twice.
func once[T comparable](flag string, list []T) error {
	for i, x := range list {
		if slices.Contains(list[:i], x) {
			return cli.Usagef("%s: %v is given twice", flag, x)
		}
	}
	return nil
}

func writeLive(ctx context.Context, c *cli.Console, dir string, cases []live.Case, asJSON bool) error {
	report := view.Live(cases)
	err := writeFiles(ctx, c, []output{
		{filepath.Join(dir, "live.csv"), func(w io.Writer) error { return report.CSV(w, view.LiveResults) }},
		{filepath.Join(dir, "live.svg"), func(w io.Writer) error { return view.LiveChart(w, cases) }},
	})
	if err != nil {
		return err
	}
	return c.Print(report, asJSON)
}
