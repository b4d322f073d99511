package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/agent/worker"
	"weft/cluster"
	"weft/internal/cli"
	"weft/policy/fusion"
)

func newBench(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what training waits for",
	}
	cmd.AddCommand(newBenchAllReduce(c))
	hub(cmd)
	return cmd
}

func newBenchAllReduce(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "allreduce",
		Short: "Measure all-reduces of the live engine, by size",
		Long: `Starts N workers on this host, as weft run does, and measures how long it takes
to reduce a bucket of each size: through shared memory and the agent, and
between the hosts where there are several. A worker of weft run measures with
the others.

time is the median of the iterations, on rank 0. algbw is the bucket's bytes by
the time; busbw is 2(n-1)/n of that, what each of n workers sends in a ring,
which can be compared between numbers of workers. #wrong counts elements of the
last iteration that are not the mean.`,
		Example: `  weft bench allreduce -n 4
  weft lab --hosts 4 --rate 1Gbit -- weft bench allreduce`,
		Args: cobra.NoArgs,
	}
	workers := cmd.Flags().IntP("workers", "n", 1, "how many workers to start")
	sizes := cmd.Flags().String("sizes", "4KiB..64MiB", "`sizes` of the buckets: from..to, doubled each time, or a list, as 4KiB,1MiB")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := parseSizes(*sizes)
		if err != nil {
			return cli.Usagef("--sizes: %w", err)
		}
		if os.Getenv("WEFT_SOCKET") != "" {
			if cmd.Flags().Changed("workers") {
				return cli.Usagef("--workers: this is a worker of weft run, which has started them all")
			}
			return bench(c, list, *asJSON)
		}
		return launchBench(cmd.Context(), c, *workers, *sizes, *asJSON)
	}
	return cmd
}

// maxBucket bounds the memory that a benchmark takes, bytes.
const maxBucket = 1 << 30

// parseSizes reads sizes of buckets of float32.
func parseSizes(s string) ([]int64, error) {
	from, to, isRange := strings.Cut(s, "..")
	var out []int64
	if isRange {
		a, err := parseBucket(from)
		if err != nil {
			return nil, err
		}
		b, err := parseBucket(to)
		if err != nil {
			return nil, err
		}
		if a > b {
			return nil, fmt.Errorf("%q: from the smaller to the larger", s)
		}
		for ; a <= b; a *= 2 {
			out = append(out, a)
		}
		return out, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		n, err := parseBucket(part)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

func parseBucket(s string) (int64, error) {
	n, err := cluster.ParseSize(strings.TrimSpace(s))
	if err == nil && (n < 4 || n%4 != 0 || n > maxBucket) {
		err = fmt.Errorf("%q: want elements of 4 bytes, up to 1GiB", s)
	}
	return n, err
}

// launchBench runs this command as the workers of weft run.
func launchBench(ctx context.Context, c *cli.Console, workers int, sizes string, asJSON bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	run := newRun(&cli.Console{In: c.In, Out: bare{c.Out}, Err: c.Err})
	run.SilenceErrors, run.SilenceUsage = true, true
	run.SetArgs([]string{"-n", strconv.Itoa(workers), "--policy", fusion.DDP.Name, "--", self, "bench", "allreduce", "--sizes", sizes, "--json=" + strconv.FormatBool(asJSON)})
	return run.ExecuteContext(ctx)
}

// bare writes lines of weft run without the rank before them: only one worker prints.
type bare struct{ io.Writer }

func (w bare) Write(line []byte) (int, error) {
	_, rest, _ := bytes.Cut(line, []byte("] "))
	_, err := w.Writer.Write(rest)
	return len(line), err
}

// bench is a worker's part; rank 0 prints.
func bench(c *cli.Console, sizes []int64, asJSON bool) error {
	w, err := worker.Connect()
	if err != nil {
		return err
	}
	t := cli.Table{Key: "sizes", Columns: []cli.Column{
		{Head: "size\nB", Key: "bytes"}, {Head: "elements", Key: "elements"}, {Head: "type", Key: "dtype"}, {Head: "op", Key: "op"}, {Head: "n", Key: "iterations"},
		{Head: "time\nus", Key: "time_us"}, {Head: "algbw\nGB/s", Key: "algorithm_bytes_per_us"}, {Head: "busbw\nGB/s", Key: "bus_bytes_per_us"}, {Head: "#wrong", Key: "wrong"},
	}}
	wrong := 0
	for _, bytes := range sizes {
		m, err := w.Measure(bytes)
		if err != nil {
			return err
		}
		us := float64(m.Median) / float64(time.Microsecond)
		algorithm := float64(bytes) / us
		wrong += m.Wrong
		t.Rows = append(t.Rows, cli.Row{Cells: []any{bytes, bytes / 4, "float32", "mean", m.Iterations, cli.Micros(us), gigabytes(algorithm), gigabytes(algorithm * busShare(w.World)), m.Wrong}})
	}
	if err := w.Goodbye(); err != nil {
		return err
	}
	if w.Rank == 0 {
		if err := c.Print(&cli.Report{Facts: []cli.Fact{{Label: "workers", Key: "workers", Value: w.World}}, Tables: []cli.Table{t}}, asJSON); err != nil {
			return err
		}
	}
	if wrong > 0 {
		return fmt.Errorf("rank %d: %d elements are wrong", w.Rank, wrong)
	}
	return nil
}

// busShare is the share of a bucket that each of n workers sends in a ring.
func busShare(n int) float64 { return 2 * float64(n-1) / float64(n) }

// gigabytes is a rate in bytes a microsecond; text has gigabytes (1e9 bytes) a second.
type gigabytes float64

func (v gigabytes) String() string { return strconv.FormatFloat(float64(v)/1000, 'f', 3, 64) }
