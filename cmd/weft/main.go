// Command weft compiles communication schedules for data-parallel training.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"weft/internal/cli"
)

// version is set by the linker; see the Makefile.
var version = "unknown"

// grace is how long a command may take to end when it is interrupted. One that
// waits for the other end of a pipe, in the system, does not come to know.
const grace = 2 * time.Second

// orderly is set by a command that has processes to end, and ends in its own time.
var orderly atomic.Bool

func main() {
	// A large trace is one large live heap with few pointers: marking it again is
	// cheap, letting the heap double before is not.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(30)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		if orderly.Load() {
			return
		}
		stop() // a second signal ends at once
		time.AfterFunc(grace, func() { os.Exit(interrupted(os.Stderr)) })
	})
	os.Exit(run(ctx, cli.NewConsole(os.Stdin, os.Stdout, os.Stderr), os.Args[1:]))
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, c *cli.Console, args []string) int {
	root := newRoot(c)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if help := root.OutOrStdout().(*checked); help.lost != nil {
		err = worked{help.lost}
	}
	if err != nil && ctx.Err() != nil {
		return interrupted(c.Err)
	}
	if err != nil && !errors.As(err, new(worked)) {
		err = cli.Usage(err)
	}
	code := cli.Code(err)
	switch {
	case err == nil, errors.Is(err, cli.ErrNo):
	case cli.IsUsage(err):
		fmt.Fprintf(c.Err, "weft: %s\nsee: %s --help\n", cli.PrintableLines(err.Error()), cmd.CommandPath())
	default:
		fmt.Fprintf(c.Err, "weft: %s\n", cli.PrintableLines(err.Error()))
	}
	return code
}

// checked remembers the first error of writing: cobra forgets it where it prints help.
type checked struct {
	w    io.Writer
	lost error
}

func (s *checked) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.lost = cmp.Or(s.lost, err)
	return n, err
}

func interrupted(w io.Writer) int {
	fmt.Fprintln(w, "weft: interrupted")
	return cli.Interrupted
}
