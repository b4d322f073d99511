package main

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"weft/cluster"
	"weft/internal/cli"
	"weft/lab"
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
		again := append([]string{"lab", "--hosts", strconv.Itoa(config.Hosts), "--rate", *rate, "--"}, args...)
		return passed(lab.Run(cmd.Context(), lab.RunConfig{Config: config, Keep: []string{keep}, Again: again, Getenv: os.Getenv, Out: c.Out, Err: c.Err}, args))
	}
	return cmd
}
