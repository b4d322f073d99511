package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"weft/engine"
	"weft/launch"
	"weft/python"
)

// Run runs command on the workers of this host, with an agent beside them, until all
// have ended. A first SIGINT or SIGTERM is passed on to the workers, a second one kills
// them.
func Run(ctx context.Context, c Config, command []string) (err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	defer signal.Stop(asked)
	c.Err = &lines{w: c.Err}

	dir, keeper, err := launch.MakeTemp(c.Keep...)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, keeper.Close()) }()
	client, err := python.Install(filepath.Join(dir, "python"), c.Getenv)
	if err != nil {
		return err
	}

	a, err := c.listen(dir, true)
	if err != nil {
		return err
	}
	defer a.Close()
	g, err := launch.Start(ctx, launch.Config{
		Command: command, Place: c.Place, Out: c.Out, Err: c.Err, Keeper: keeper, Signals: signals,
		Ended: func(rank int, failed *launch.Exit) {
			if failed != nil {
				a.Ended(rank, errors.New(failed.How()))
			} else {
				a.Ended(rank, nil)
			}
		},
		Env: append(client, "WEFT_SOCKET="+a.Socket, "WEFT_RAILS="+c.Getenv("WEFT_RAILS")),
	})
	if err != nil {
		a.Fail(fmt.Errorf("rank %d: %w", c.First, err))
		return err
	}
	var watching sync.WaitGroup
	ended := make(chan struct{})
	watching.Go(func() {
		for done := a.Done(); ; {
			select {
			case <-ended:
				return
			case <-asked:
				c.tell(a, true)
			case <-done:
				if done = nil; a.Err() != nil {
					g.Stop()
				}
			}
		}
	})
	failed := g.Wait()
	close(ended)
	watching.Wait()
	c.tell(a, false)
	return cmp.Or(outcome(ctx, failed, a.Err()), g.Unwritten())
}

// outcome is how the training ended, from those of this host's workers that failed,
// in order, and what the agent knows.
func outcome(ctx context.Context, failed []*launch.Exit, failure error) error {
	blamed := -1
	if f, ok := errors.AsType[*engine.Failure](failure); ok {
		blamed = f.Rank
	}
	x := launch.Fault(failed, blamed)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case x == nil, x.Told && failure != nil: // nobody failed by itself
		return failure
	}
	return &launch.Failed{Code: x.Code, Err: cmp.Or[error](failure, x)}
}
