package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"weft/cluster"
	"weft/internal/cli"
	"weft/lab"
	"weft/launch"
	"weft/python"
)

func newLab(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab --hosts N [--rate RATE] -- COMMAND...",
		Short: "Run a command on each host of an emulated cluster",
		Long: `Makes N hosts of this machine: network namespaces, each with an interface eth0,
joined by a switch. COMMAND runs once on each. What it prints comes out line by
line behind its [host].

--rate shapes what a host sends and what it receives, at the same time. The hosts
share this machine's processors, memory and files.

COMMAND finds RANK (its host), WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT in its environment, and what weft run and
torch.distributed need besides; so scripts for either run as they are.

The first that fails ends all, and its exit code is that of weft lab. Nothing is
left of the hosts, however it ends. It needs root, or a kernel that lets users
make namespaces of their own.`,
		Example: `  weft lab --hosts 4 --rate 1Gbit -- python3 train.py
  weft lab --hosts 2 -- weft run -n 2 -- python3 train.py`,
		Args: want(1, 0, "a COMMAND"),
	}
	cmd.Flags().SetInterspersed(false)
	var config lab.Config
	cmd.Flags().IntVar(&config.Hosts, "hosts", 2, "how many hosts to make")
	rate := cmd.Flags().String("rate", "", "`bandwidth` of each host's line in each direction, as 1Gbit (default: as fast as it goes)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if config.Hosts < 1 || config.Hosts > lab.MaxHosts {
			return cli.Usagef("--hosts %d: need 1 to %d", config.Hosts, lab.MaxHosts)
		}
		if *rate != "" {
			var err error
			if config.Rate, err = cluster.ParseBandwidth(*rate); err != nil {
				return cli.Usagef("--rate: %w", err)
			}
			if config.Rate < lab.MinRate || config.Rate > lab.MaxRate {
				return cli.Usagef("--rate %s: need %g to %g bit/s", *rate, float64(lab.MinRate), float64(lab.MaxRate))
			}
		}
		orderly.Store(true)
		return emulate(cmd.Context(), c, config, args)
	}
	return cmd
}

// masterPort of a lab, in which nobody else has a port.
const masterPort = 29500

// emulate runs a command on each host of a lab until all have ended.
func emulate(ctx context.Context, c *cli.Console, config lab.Config, command []string) (err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	l, err := lab.New(config)
	if errors.As(err, new(*lab.PermissionError)) {
		args := []string{"lab", "--hosts", fmt.Sprint(config.Hosts)}
		if config.Rate > 0 {
			args = append(args, "--rate", strconv.FormatFloat(config.Rate, 'f', -1, 64)+"bit")
		}
		return asRoot(ctx, c, signals, append(append(args, "--"), command...), err)
	}
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, l.Close()) }()
	dir, err := os.MkdirTemp("", launch.DirPrefix)
	if err != nil {
		return err
	}
	keeper, err := launch.NewKeeper(dir, nil, keep)
	if err != nil {
		os.RemoveAll(dir)
		return err
	}
	defer func() { err = cmp.Or(err, keeper.Close()) }()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		return err
	}
	client, err := python.Install(filepath.Join(dir, "python"), os.Getenv)
	if err != nil {
		return err
	}
	g, err := launch.Start(ctx, launch.Config{
		Env: client, Command: command, Place: launch.Place{Workers: config.Hosts, World: config.Hosts}, Out: c.Out, Err: c.Err, Keeper: keeper, Signals: signals,
		Prepare: func(host int) ([]string, error) {
			return hostEnvironment(host, config.Hosts, secret), l.Enter(host)
		},
	})
	if err != nil {
		return err
	}
	first := launch.Fault(g.Wait(), -1)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case first != nil:
		return cli.Exit(first.Code, fmt.Errorf("host %d ended: %s", first.Rank, first.How()))
	}
	return nil
}

// hostEnvironment is what launchers give to workers, for one worker a host, and to
// launchers that are started on the hosts.
func hostEnvironment(host, hosts int, secret string) []string {
	return []string{
		fmt.Sprint("RANK=", host), fmt.Sprint("WORLD_SIZE=", hosts), "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
		fmt.Sprint("MASTER_ADDR=", lab.Addr(0)), fmt.Sprint("MASTER_PORT=", masterPort),
		fmt.Sprint("WEFT_NODES=", hosts), fmt.Sprint("WEFT_NODE_RANK=", host), "WEFT_SECRET_FILE=" + secret,
		"GLOO_SOCKET_IFNAME=" + lab.Interface, "NCCL_SOCKET_IFNAME=" + lab.Interface,
	}
}
