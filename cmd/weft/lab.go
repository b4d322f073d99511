package main

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft/cluster"
	"weft/internal/cli"
	"weft/lab"
)

func newLab(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab --hosts N [flags] -- COMMAND...",
		Short: "Run a command on each host of an emulated cluster",
		Long: `Makes N hosts of this machine: network namespaces, each with an interface eth0,
joined by a switch; with --rails 2 also eth1, to another switch. COMMAND runs
once on each. What it prints comes out line by line behind its [host].

--rate shapes what a host sends and what it receives, at the same time; with
several rails it may be a list, one a rail. The hosts share this machine's
processors, memory and files.

COMMAND finds RANK (its host), WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT in its environment, and what weft run and
torch.distributed need besides; so scripts for either run as they are.

The first that fails ends all, and its exit code is that of weft lab. Nothing is
left of the hosts, however it ends. It needs root, or a kernel that lets users
make namespaces of their own.`,
		Example: `  weft lab --hosts 4 --rate 1Gbit -- python3 train.py
  weft lab --hosts 2 -- weft run -n 2 -- python3 train.py
  weft lab --hosts 2 --rails 2 --rate 1Gbit,500Mbit -- weft links test`,
		Args: want(1, 0, "a COMMAND"),
	}
	cmd.Flags().SetInterspersed(false)
	var config lab.Config
	cmd.Flags().IntVar(&config.Hosts, "hosts", 2, "how many hosts to make")
	rails := cmd.Flags().Int("rails", 1, "how many networks join the hosts, each with an interface of its own: eth0, eth1, ...")
	rate := cmd.Flags().String("rate", "", "`bandwidth` of each host's line in each direction, as 1Gbit, or one for each rail, as 1Gbit,500Mbit (default: as fast as it goes)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if config.Hosts < 1 || config.Hosts > lab.MaxHosts {
			return cli.Usagef("--hosts %d: need 1 to %d", config.Hosts, lab.MaxHosts)
		}
		var err error
		if config.Rates, err = rates(*rails, *rate); err != nil {
			return err
		}
		orderly.Store(true)
		again := append([]string{"lab", "--hosts", strconv.Itoa(config.Hosts), "--rails", strconv.Itoa(*rails), "--rate", *rate, "--"}, args...)
		return passed(lab.Run(cmd.Context(), lab.RunConfig{Config: config, Keep: []string{keep}, Again: again, Getenv: os.Getenv, Out: c.Out, Err: c.Err}, args))
	}
	return cmd
}

// rates are those of a lab's rails, as --rate gives them: the same for all, or a list.
func rates(rails int, list string) ([]float64, error) {
	if rails < 1 || rails > lab.MaxRails {
		return nil, cli.Usagef("--rails %d: need 1 to %d", rails, lab.MaxRails)
	}
	if list == "" {
		return make([]float64, rails), nil
	}
	var out []float64
	for s := range strings.SplitSeq(list, ",") {
		rate, err := cluster.ParseBandwidth(s)
		if err != nil {
			return nil, cli.Usagef("--rate: %w", err)
		}
		if rate < lab.MinRate || rate > lab.MaxRate {
			return nil, cli.Usagef("--rate %s: need %g to %g bit/s", s, float64(lab.MinRate), float64(lab.MaxRate))
		}
		out = append(out, rate)
	}
	if len(out) == 1 {
		return slices.Repeat(out, rails), nil
	}
	if len(out) != rails {
		return nil, cli.Usagef("--rate %s has %d rates, --rails %d: give one for all, or one for each", list, len(out), rails)
	}
	return out, nil
}
