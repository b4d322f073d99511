package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weft/agent"
	"weft/agent/choice"
	"weft/agent/host"
	"weft/internal/cli"
	"weft/internal/view"
	"weft/launch"
	"weft/plan"
	"weft/sim"
)

// Bounds of --workers and --nodes.
const (
	maxWorkers = 1 << 10
	maxNodes   = 1 << 10
)

func newRun(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run -n N [flags] -- COMMAND...",
		Short: "Train: run a script on several workers, average their gradients",
		Long: `Starts N workers on this host, each a process that runs COMMAND, and the agent
that reduces their gradients. What a worker prints comes out line by line behind
its [rank].

A worker finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT and WEFT_SOCKET in its environment, and the Python package weft that
comes with this program behind what PYTHONPATH has; OMP_NUM_THREADS, if it is
not set, is an equal part of the processors.

For several hosts, run it on each, in any order, with the same -n, --nodes and
--master, and the host's number as --node-rank. WEFT_SECRET_FILE names a file
with a secret that is the same on all of them.

Training begins in plain buckets, which are measured. If a plan is faster as
simulated, it runs in turns with plain buckets until it is known which is; what
is kept is watched. The weights are the same, unless --max-delay lets updates
come late. At the end host 0 tells what was found. --policy NAME has that policy
make the plan, and --policy ddp runs plain buckets alone.

With --plan FILE the gradients travel as that plan says, and updates are applied
when it says; it is refused if it is not for the model, breaks a rule, or delays
more than --max-delay allows. With --policy NAME and --job the plan is made
here, of a job of this model on a --cluster or --link. All hosts must be given
the same.

The first worker that fails ends all, and its exit code (128 + signal, if it was
a signal) is that of weft run.`,
		Example: `  weft run -n 2 -- python3 train.py
  weft run -n 2 --max-delay 1 -- python3 train.py
  weft run -n 2 --nodes 4 --node-rank 1 --master 10.0.0.1:29500 -- python3 train.py
  weft run -n 4 --plan plan.json -- python3 train.py
  weft run -n 4 --policy ddp -- python3 train.py
  weft run -n 4 --timeline timeline.json -- python3 train.py
  weft run -n 4 --policy deft --max-delay 1 --job job.json --link 10Gbit,25us -- python3 train.py`,
		Args: want(1, 0, "a COMMAND"),
	}
	training := newTraining(cmd)
	var given planned
	given.register(cmd)
	report := cmd.Flags().String("report", "", "`file` to which host 0 writes what plans took, as JSON, at the end and on SIGUSR1")
	timeline := cmd.Flags().String("timeline", "", fmt.Sprintf("`file` to which each host writes what its ranks did in the last %d iterations,\nas a Chrome trace, at the end and on SIGUSR1 (else WEFT_TIMELINE)", agent.LastIterations))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o, err := training.config(cmd, c)
		if err != nil {
			return err
		}
		if err := given.check(o.Place); err != nil {
			return err
		}
		o.Timeline = cmp.Or(*timeline, os.Getenv("WEFT_TIMELINE"))
		if o.First > 0 {
			*report = "" // host 0 writes it
		}
		if err := beside(c, [2]string{"--report", *report}, [2]string{"--timeline", o.Timeline}); err != nil {
			return err
		}
		if o.Schedule, err = given.schedule(cmd.Context(), c, o.Place); err != nil {
			return err
		}
		chosen, err := given.choice(cmd.Context(), script(args), o.Place)
		if err != nil {
			return err
		}
		if chosen != nil {
			o.Review = chosen.Review()
		}
		var unwritten error
		o.Tell = func(executed *plan.Plan, ran []agent.Ran, asked bool) {
			lines := found(chosen, executed, given.predicted, ran, asked)
			for _, line := range lines {
				fmt.Fprintln(c.Err, "weft:", line)
			}
			if *report != "" {
				predicted := func(r *agent.Ran) *sim.Result {
					switch {
					case chosen != nil:
						return chosen.Predicted(r)
					case r.Plain:
						return nil
					}
					return given.predicted
				}
				unwritten = c.WriteFile(cmd.Context(), *report, func(w io.Writer) error {
					return (&cli.Console{Out: w}).Print(view.Run(ran, predicted, lines), true)
				})
			}
		}
		orderly.Store(true)
		return cmp.Or(passed(host.Run(cmd.Context(), o, args)), unwritten)
	}
	return cmd
}

// found is what there is to tell of a training, a line each.
func found(chosen *choice.Choice, executed *plan.Plan, predicted *sim.Result, ran []agent.Ran, asked bool) (lines []string) {
	switch {
	case chosen != nil:
		if lines = chosen.Found(ran); !asked {
			lines = append(lines, chosen.Undecided(ran)...)
		}
	case executed != nil:
		lines = choice.Given(executed, predicted, ran)
	}
	if len(lines) == 0 && asked {
		lines = append(choice.Plain(ran), "nothing has been decided yet")[:1]
	}
	return lines
}

// training is the flags of commands that run one.
type training struct {
	workers, nodes, node *int
	master               *string
	timeout              *time.Duration
	rails                *string
}

func newTraining(cmd *cobra.Command) *training {
	f := cmd.Flags()
	f.SetInterspersed(false)
	return &training{
		workers: f.IntP("workers", "n", 1, "how many workers to start"),
		nodes:   f.Int("nodes", 1, "how many hosts there are (else WEFT_NODES)"),
		node:    f.Int("node-rank", 0, "the number of this one, from 0 (else WEFT_NODE_RANK)"),
		master:  f.String("master", "", "`host:port` of node 0, where workers gather; agents meet at the next port, or at WEFT_PORT (else MASTER_ADDR and MASTER_PORT)"),
		timeout: f.Duration("timeout", host.Timeout, "how long workers may wait for another one; 0 for ever"),
		rails:   f.String("rails", "", "`interfaces` that join the hosts, one for each rail, as eth0,eth1; or auto (else WEFT_RAILS)"),
	}
}

// config is this host's part.
func (t *training) config(cmd *cobra.Command, c *cli.Console) (host.Config, error) {
	o := host.Config{Weft: version, Timeout: *t.timeout, Getenv: os.Getenv, Keep: []string{keep}, Out: c.Out, Err: c.Err}
	for _, x := range []struct {
		flag, env string
		to        *int
	}{{"nodes", "WEFT_NODES", t.nodes}, {"node-rank", "WEFT_NODE_RANK", t.node}} {
		if err := fromEnv(cmd, x.flag, x.env, x.to); err != nil {
			return o, err
		}
	}
	if *t.timeout < 0 {
		return o, cli.Usagef("--timeout %v is negative", *t.timeout)
	}
	if *t.rails != "" {
		if _, err := host.ParseRails(*t.rails); err != nil {
			return o, cli.Usagef("--rails: %w", err)
		}
		if *t.nodes == 1 {
			return o, cli.Usagef("--rails has no effect on one host: give --nodes too")
		}
		o.Getenv = with("WEFT_RAILS", *t.rails)
	}
	var err error
	o.Place, err = place(*t.workers, *t.nodes, *t.node, *t.master)
	return o, err
}

// with is the environment, but for one variable.
func with(name, value string) func(string) string {
	return func(s string) string {
		if s == name {
			return value
		}
		return os.Getenv(s)
	}
}

// beside says, before workers start, which file, by its flag, could not be written beside
// what they print.
func beside(c *cli.Console, files ...[2]string) error {
	var names []string
	for _, x := range files {
		if x[1] == cli.Stdout {
			return cli.Usagef("%s needs a file: the standard output is for what workers print", x[0])
		}
		names = append(names, x[1])
	}
	return c.Probe(names...)
}

// passed passes the exit code of what weft has run on.
func passed(err error) error {
	if failed, ok := errors.AsType[*launch.Failed](err); ok {
		return cli.Exit(failed.Code, cmp.Or(failed.Err, cli.ErrNo))
	}
	return err
}

// fromEnv takes a flag that is not given from the environment.
func fromEnv(cmd *cobra.Command, flag, env string, to *int) error {
	s := os.Getenv(env)
	if cmd.Flags().Changed(flag) || s == "" {
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return cli.Usagef("%s is %q: need a number, or give --%s", env, s, flag)
	}
	*to = n
	return nil
}

// place is where the workers of this host stand.
func place(workers, nodes, node int, master string) (p launch.Place, err error) {
	switch {
	case workers < 1 || workers > maxWorkers:
		return p, cli.Usagef("--workers %d: need 1 to %d", workers, maxWorkers)
	case nodes < 1 || nodes > maxNodes:
		return p, cli.Usagef("--nodes %d: need 1 to %d", nodes, maxNodes)
	case node < 0 || node >= nodes:
		return p, cli.Usagef("--node-rank %d: need 0 to %d, of --nodes %d", node, nodes-1, nodes)
	}
	p = launch.Place{First: node * workers, Workers: workers, World: nodes * workers}
	if nodes == 1 {
		if master != "" {
			return p, cli.Usagef("--master has no effect on one host: give --nodes too")
		}
		p.MasterAddr = "127.0.0.1"
		p.MasterPort, err = launch.FreePort()
		return p, err
	}
	if master == "" {
		if master = net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")); master == ":" {
			return p, cli.Usagef("--nodes %d needs --master HOST:PORT, or MASTER_ADDR and MASTER_PORT", nodes)
		}
	}
	addr, port, err := net.SplitHostPort(master)
	if err == nil {
		p.MasterPort, err = strconv.Atoi(port)
	}
	if err != nil || addr == "" || p.MasterPort < 1 || p.MasterPort > 1<<16-1 {
		return p, cli.Usagef("--master %s: need a host and a port from 1 to 65535, as in 10.0.0.1:29500", master)
	}
	p.MasterAddr = addr
	return p, nil
}

// keep is the command that weft starts itself with.
const keep = "keep"

func newKeep() *cobra.Command {
	return &cobra.Command{
		Use: keep, Hidden: true, Args: want(1, 1, "a directory"),
		RunE: func(_ *cobra.Command, args []string) error { return launch.Keep(args[0]) },
	}
}

// newAgent is the command that the client of a local rank 0 starts where weft is not
// the launcher: docs/formats/client.md.
func newAgent(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use: "agent DIR", Hidden: true, Args: want(1, 1, "a directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			orderly.Store(true)
			o := host.Config{Weft: version, Timeout: host.Timeout, Getenv: os.Getenv, Keep: []string{keep}, Out: c.Out, Err: c.Err}
			unix.SetNonblock(0, true) // or a read of it would not end with Close
			err := host.Serve(cmd.Context(), o, args[0], os.NewFile(0, "stdin"), os.Stdout)
			if errors.Is(err, host.ErrSilent) {
				return cli.Exit(cli.BadInput, cli.ErrNo)
			}
			return err
		},
	}
}
