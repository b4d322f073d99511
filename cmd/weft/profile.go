package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"weft/agent"
	"weft/agent/choice"
	"weft/agent/host"
	"weft/cluster"
	"weft/internal/cli"
	"weft/internal/view"
	"weft/job"
	"weft/profile"
	"weft/sim"
)

const (
	profileWarmUp = 5  // iterations before those that are measured
	profiled      = 20 // iterations that are, if WEFT_PROFILE_ITERATIONS does not say
	maxProfiled   = 10000
)

func newProfile(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "profile -n N [flags] -- COMMAND...",
		Short: "Measure what a training computes and communicates, as a job",
		Long: `Runs COMMAND on N workers, as weft run does, with plain buckets. After 5
iterations it measures the next 20, or as many as WEFT_PROFILE_ITERATIONS says:
which op reads which parameter, which gradient is ready when, what computation
takes without transfers beside it, and what transfers take. The job is what
compare, plan and other commands take.

The files are written as soon as these iterations have passed, by host 0.
Training goes on to its end.`,
		Example: `  weft profile -n 2 -o job.json --cluster cluster.yaml -- python3 train.py
  weft compare job.json --cluster cluster.yaml`,
		Args: want(1, 0, "a COMMAND"),
	}
	training := newTraining(cmd)
	out := cmd.Flags().StringP("out", "o", "job.json", "`file` to write the job to")
	on := cmd.Flags().String("cluster", "", "`file` to write what the training ran on to: workers, the link, the slowdown of computation by transfers")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		o, err := training.config(cmd, c)
		if err != nil {
			return err
		}
		n, err := iterations()
		if err != nil {
			return err
		}
		if o.First > 0 {
			*out, *on = "", "" // host 0 writes them
		}
		if err := beside(c, [2]string{"-o", *out}, [2]string{"--cluster", *on}); err != nil {
			return err
		}
		var taken atomic.Pointer[profileTaken]
		o.Review = &agent.Review{After: profileWarmUp + n + 1, Profile: n, Take: func(r agent.Reviewed) (d agent.Decided, _ error) {
			if taken.Load() != nil {
				return d, nil
			}
			report, err := takeProfile(ctx, c, script(args), *out, *on, r)
			if err != nil { // the training is not to be lost for it
				fmt.Fprintf(c.Err, "weft: warning: %s; the training goes on\n", cli.PrintableLines(err.Error()))
			}
			taken.Store(&profileTaken{report, err})
			return d, nil
		}}
		orderly.Store(true)
		if err := passed(host.Run(ctx, o, args)); err != nil || o.First > 0 {
			return err
		}
		x := taken.Load()
		switch {
		case x == nil:
			return fmt.Errorf("the training ended before %d iterations, which a profile needs: let it train longer, or set WEFT_PROFILE_ITERATIONS to less than %d", o.Review.After, n)
		case x.report == nil:
			return x.err
		}
		return cmp.Or(c.Print(x.report, *asJSON), x.err)
	}
	return cmd
}

// profileTaken is what came of a profile: err is about its files.
type profileTaken struct {
	report *cli.Report
	err    error
}

// script is what a command runs, by which its job is known.
func script(args []string) string {
	i := slices.IndexFunc(args, func(s string) bool { return strings.HasSuffix(s, ".py") })
	return filepath.Base(args[max(i, 0)])
}

// iterations is how many to measure.
func iterations() (int, error) {
	s := os.Getenv("WEFT_PROFILE_ITERATIONS")
	if s == "" {
		return profiled, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 2 || n > maxProfiled {
		return 0, cli.Usagef("WEFT_PROFILE_ITERATIONS is %q: need a number from 2 to %d", s, maxProfiled)
	}
	return n, nil
}

// takeProfile writes the files that are made of what was measured.
func takeProfile(ctx context.Context, c *cli.Console, name, out, on string, r agent.Reviewed) (*cli.Report, error) {
	x := &view.Profiled{Reports: r.Reports()}
	var err error
	if x.Job, err = profile.Job(name, r.Tensors, x.Reports); err != nil {
		return nil, fmt.Errorf("no job can be made of what was measured: %w", err)
	}
	files := []output{{out, func(w io.Writer) error { return job.Write(w, x.Job) }}}
	x.Cluster, x.Transfers, err = profile.Cluster(r.Hosts, r.Links)
	if err == nil {
		files = append(files, output{on, func(w io.Writer) error { return cluster.Write(w, x.Cluster) }})
		var simulated *sim.Result
		if simulated, err = choice.Predict(ctx, x.Job, x.Cluster, r.Plan); err == nil {
			x.Predicted = simulated.Time
		}
	}
	if err != nil {
		x.Notes = append(x.Notes, fmt.Sprintf("nothing can be said of communication: %v", err))
	}
	return view.Profile(x), writeFiles(ctx, c, files)
}
