package main

import (
	"cmp"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/lab"
	"weft/live"
)

func newStudyAccuracy(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accuracy",
		Short: "Train models in the lab to the same score by different schedules",
		Long: `Trains models on real data on the hosts of a lab (see weft lab), one worker of
one thread on each, by every schedule, from several seeds, with the same
hyper-parameters and number of steps. It tells the score of each schedule, and
after how long it was as good as the first schedule is at the end.

cnn and resnet18 learn MNIST, whose four files, gzipped, lie in --mnist; gpt
learns Go source, from --text, as /usr/local/go/src. They are trained from 5
seeds, gpt from 3.

All files lie in the directory --out. Trainings whose results lie there are not
run again, so a study that was interrupted goes on where it was.`,
		Example: `  weft study accuracy --mnist DIR --text /usr/local/go/src --out results
  weft study accuracy --models resnet18 --mnist DIR --seeds 1 --steps 60`,
		Args: cobra.NoArgs,
	}
	config := live.Accuracy{Data: map[string]string{}}
	fs := cmd.Flags()
	fs.StringSliceVar(&config.Models, "models", []string{"cnn", "gpt"}, "models to train")
	mnist := fs.String("mnist", "", "`directory` of MNIST")
	text := fs.String("text", "", "`directory` of Go source")
	fs.Float64Var(&config.Coverage, "coverage", 1, "coverage `rate`, of which the lines' rate follows")
	schedules := fs.StringSlice("schedules", []string{live.DDP, "caramel", "deft:1"}, "what to compare; the first is what the others are compared with")
	fs.IntVar(&config.Seeds, "seeds", 0, "trainings of each schedule (default: 5; of gpt 3)")
	fs.IntVar(&config.Steps, "steps", 0, "steps of each (default: as examples/learn.py has it)")
	fs.IntVar(&config.Hosts, "hosts", 2, "workers, each on a host of its own")
	fs.StringVar(&config.Python, "python", "python3", "a `program`: python with torch")
	fs.StringVar(&config.Dir, "out", "accuracy", "`directory` for all files, among them accuracy.csv and accuracy.svg")
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case config.Seeds < 0 || config.Steps < 0:
			return cli.Usagef("--seeds and --steps: need at least 0")
		case config.Hosts < 2 || config.Hosts > lab.MaxHosts:
			return cli.Usagef("--hosts %d: need 2 to %d", config.Hosts, lab.MaxHosts)
		case len(config.Models) == 0:
			return cli.Usagef("--models: need at least one")
		case config.Dir == "":
			return cli.Usagef("--out needs a directory")
		case !(config.Coverage > 0 && config.Coverage <= 1000):
			return cli.Usagef("--coverage %g: need a number above 0, at most 1000", config.Coverage)
		}
		if err := cmp.Or(once("--models", config.Models), once("--schedules", *schedules)); err != nil {
			return err
		}
		config.Data[live.MNIST], config.Data[live.Text] = *mnist, *text
		for _, model := range config.Models {
			goal := live.LookupGoal(model)
			if goal == nil {
				return cli.Usagef("--models: no %s; known: cnn, gpt, resnet18", model)
			}
			if config.Data[goal.Data] == "" {
				return cli.Usagef("%s learns from --%s: give its directory, or other --models", model, goal.Data)
			}
		}
		for _, s := range *schedules {
			if s == live.Loaded || strings.Contains(s, "+") {
				return cli.Usagef("--schedules: %s has no place here: need torch, or a policy for one rail", s)
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
		var all []live.Learned
		err = c.Track("training", func(progress func(done, total int)) error {
			config.Step = progress
			all, err = live.RunAccuracy(cmd.Context(), config)
			return err
		})
		if err != nil {
			return err
		}
		report := view.Accuracy(all)
		err = writeFiles(cmd.Context(), c, []output{
			{filepath.Join(config.Dir, "accuracy.csv"), func(w io.Writer) error { return report.CSV(w, view.LiveResults) }},
			{filepath.Join(config.Dir, "accuracy.svg"), func(w io.Writer) error { return view.AccuracyChart(w, all) }},
		})
		if err != nil {
			return err
		}
		return c.Print(report, *asJSON)
	}
	return cmd
}

// parseSchedules reads --schedules.
func parseSchedules(names []string) ([]live.Schedule, error) {
	var out []live.Schedule
	for _, name := range names {
		x, err := live.ParseSchedule(name)
		if err != nil {
			return nil, cli.Usagef("--schedules: %w", err)
		}
		out = append(out, x)
	}
	if len(out) == 0 {
		return nil, cli.Usagef("--schedules: need at least one")
	}
	return out, nil
}
