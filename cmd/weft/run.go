package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weft/agent"
	"weft/internal/cli"
	"weft/launch"
	"weft/python"
)

// maxWorkers of one host.
const maxWorkers = 1 << 10

func newRun(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run -n N -- COMMAND...",
		Short: "Run a training script on several workers, whose gradients weft reduces",
		Long: `Starts N workers on this host, each a process that runs COMMAND, and the agent
that reduces their gradients. What a worker prints comes out line by line behind
its [rank].

A worker finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT and WEFT_SOCKET in its environment, and the Python package weft that
comes with this program behind what PYTHONPATH has; OMP_NUM_THREADS, if it is not
set, is an equal part of the processors.

The first worker that fails ends all, and its exit code (128 + signal, if it was
a signal) is that of weft run.`,
		Example: `  weft run -n 2 -- python3 train.py`,
		Args:    want(1, 0, "a COMMAND"),
	}
	cmd.Flags().SetInterspersed(false)
	workers := cmd.Flags().IntP("workers", "n", 1, "how many workers to start")
	timeout := cmd.Flags().Duration("timeout", 30*time.Minute, "how long workers may wait for another one; 0 for ever")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *workers < 1 || *workers > maxWorkers {
			return cli.Usagef("--workers %d: need 1 to %d", *workers, maxWorkers)
		}
		if *timeout < 0 {
			return cli.Usagef("--timeout %v is negative", *timeout)
		}
		orderly.Store(true)
		return train(cmd.Context(), c, args, *workers, *timeout)
	}
	return cmd
}

// keep is the command that weft run starts itself with.
const keep = "keep"

func newKeep() *cobra.Command {
	return &cobra.Command{
		Use: keep, Hidden: true, Args: want(1, 1, "a directory"),
		RunE: func(_ *cobra.Command, args []string) error { return launch.Keep(args[0]) },
	}
}

// train runs workers and their agent until all have ended.
func train(ctx context.Context, c *cli.Console, command []string, n int, timeout time.Duration) (err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	dir, err := os.MkdirTemp("", launch.DirPrefix)
	if err != nil {
		return err
	}
	keeper, err := launch.NewKeeper(dir, keep)
	if err != nil {
		os.RemoveAll(dir)
		return err
	}
	defer func() { err = cmp.Or(err, keeper.Close()) }()
	if err := os.CopyFS(filepath.Join(dir, "python"), python.Client); err != nil {
		return fmt.Errorf("the Python client: %w", err)
	}

	ranks := make([]int, n)
	for r := range ranks {
		ranks[r] = r
	}
	a, err := agent.Listen(agent.Config{World: n, Ranks: ranks, Socket: filepath.Join(dir, "agent"), Timeout: timeout, Explained: true})
	if err != nil {
		return err
	}
	defer a.Close()
	g, err := launch.Start(launch.Config{
		Command: command, Workers: n, Out: c.Out, Err: c.Err, Keeper: keeper,
		Ended: func(rank int, failed *launch.Exit) {
			if failed != nil {
				a.Ended(rank, errors.New(failed.How()))
			} else {
				a.Ended(rank, nil)
			}
		},
		Env: []string{"WEFT_SOCKET=" + a.Socket, "PYTHONPATH=" + pythonPath(filepath.Join(dir, "python"))},
	})
	if err != nil {
		return err
	}
	go func() {
		if <-a.Done(); a.Err() != nil {
			g.Stop()
		}
	}()
	go g.Watch(ctx, signals)
	first := g.Wait()
	return outcome(ctx, first, a.Err())
}

// outcome is what weft run answers: how the first worker failed, and what the
// agent knows of it.
func outcome(ctx context.Context, first *launch.Exit, failure error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case first == nil:
		return failure
	case failure == nil:
		failure = first
	}
	return cli.Exit(first.Code, failure)
}

// pythonPath puts the client behind what the user has.
func pythonPath(client string) string {
	if own := os.Getenv("PYTHONPATH"); own != "" {
		return own + ":" + client
	}
	return client
}
