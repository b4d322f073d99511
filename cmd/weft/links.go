package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"weft/agent/host"
	"weft/cluster"
	"weft/collective"
	"weft/internal/cli"
	"weft/internal/view"
	"weft/launch"
	"weft/links"
	"weft/transport"
)

func newLinks(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "links",
		Short: "Measure what joins the hosts",
	}
	cmd.AddCommand(newLinksTest(c))
	hub(cmd)
	return cmd
}

// maxLoopback is how many hosts this process can be.
const maxLoopback = 16

func newLinksTest(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Measure latency and bandwidth between hosts; write a cluster file",
		Long: `Measures how long messages and collectives of the live engine take by size
between the hosts of the environment, as weft lab, weft run, torchrun and others
tell it: start it on every host. Rank 0 prints the latency and bandwidth that
explain messages best, how far off they are, and with -o writes them as a
cluster file. Of several rails (WEFT_RAILS) it measures each, and every two at
once: those that share a medium say so in the file. With -n N it measures N
hosts that are all in this process, over loopback.`,
		Example: `  weft lab --hosts 2 --rate 1Gbit -- weft links test -o cluster.yaml
  weft lab --hosts 2 --rails 2 --rate 1Gbit,500Mbit -- weft links test -o cluster.yaml
  weft links test -n 2
  weft compare trace.json.gz --cluster cluster.yaml`,
		Args: cobra.NoArgs,
	}
	n := cmd.Flags().IntP("hosts", "n", 0, "`number` of hosts in this process, in place of those of the environment")
	name := cmd.Flags().String("name", "net", "`name` of the link in the file")
	table := cmd.Flags().Bool("table", false, "write the measured times of collectives too, which then count")
	out := outFlag(cmd, "")
	asJSON := jsonFlag(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case cmd.Flags().Changed("hosts") && (*n < 2 || *n > maxLoopback):
			return cli.Usagef("-n %d: 2 to %d", *n, maxLoopback)
		case *table && *out == "":
			return cli.Usagef("--table is about the file: give -o")
		case *asJSON && *out == cli.Stdout:
			return cli.Usagef("--json prints the report, in place of which comes an output -")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		if *n > 0 || cmp.Or(os.Getenv("RANK"), "0") == "0" { // which writes it
			if err := c.Probe(*out); err != nil {
				return err
			}
		}
		measure := among
		if *n > 0 {
			measure = loopback(*n)
		}
		m, pairs, layout, err := measure(ctx, c)
		if err != nil || m == nil {
			return err
		}
		var rails []links.Rail
		for r := range m {
			f, err := m[r].Fit(len(layout))
			if err != nil {
				return err
			}
			rails = append(rails, links.Rail{Name: transport.RailName(r), Times: m[r], Fit: f})
		}
		if cmd.Flags().Changed("name") {
			if len(rails) > 1 {
				return cli.Usagef("--name: agents know each of several rails by its name")
			}
			rails[0].Name = *name
		}
		on, err := links.Cluster(layout, rails, pairs, *table)
		if err != nil {
			return err
		}
		if *out != "" {
			err := c.WriteFile(ctx, *out, func(w io.Writer) error { return cluster.Write(w, on) })
			if err != nil || *out == cli.Stdout {
				return err
			}
		}
		return c.Print(view.Links(on, rails, pairs), *asJSON)
	}
	return cmd
}

// among measures between the hosts of the environment. Where this process is not the
// first of all, there is nothing.
func among(ctx context.Context, c *cli.Console) (m []*links.Measured, pairs []links.Pair, layout collective.Layout, err error) {
	if os.Getenv("WORLD_SIZE") == "" {
		return nil, nil, nil, cli.Usagef("nothing in the environment tells of hosts (WORLD_SIZE): start this under weft lab or weft run, or give -n 2")
	}
	if local := os.Getenv("LOCAL_RANK"); local != "" && local != "0" {
		return nil, nil, nil, nil // the first worker of a host speaks for it
	}
	place, err := launch.ReadPlace(os.Getenv)
	if err != nil {
		return nil, nil, nil, err
	}
	if place.Alone() {
		return nil, nil, nil, cli.Usagef("all workers are on this host, which no link joins: -n 2 measures loopback")
	}
	h := host.Config{Place: place, Weft: version, Timeout: host.Timeout, Getenv: besideAgents(place), Out: c.Out, Err: c.Err}
	rails, layout, err := h.Meet(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	defer links.Close(rails)
	m = make([]*links.Measured, len(rails))
	err = c.Track("measuring", func(done func(done, total int)) error {
		for r, e := range rails {
			if m[r], err = links.Measure(ctx, e, func(d, total int) { done(r*total+d, len(rails)*total) }); err != nil {
				return err
			}
		}
		pairs, err = links.MeasurePairs(ctx, rails, m)
		return err
	})
	if m[0] == nil {
		return nil, nil, nil, err
	}
	return m, pairs, layout, err
}

// besideAgents is the environment, with another port to meet at where the agents of
// weft run have the first one.
func besideAgents(p launch.Place) func(string) string {
	return func(name string) string {
		s := os.Getenv(name)
		if name != "WEFT_PORT" || os.Getenv("WEFT_SOCKET") == "" {
			return s
		}
		port := p.MasterPort + 1
		if n, err := strconv.Atoi(s); err == nil {
			port = n
		}
		return strconv.Itoa(port + 1)
	}
}

// loopback measures between hosts that are all in this process.
func loopback(n int) func(context.Context, *cli.Console) ([]*links.Measured, []links.Pair, collective.Layout, error) {
	return func(ctx context.Context, c *cli.Console) (m []*links.Measured, pairs []links.Pair, layout collective.Layout, err error) {
		es, err := links.Loopback(ctx, n)
		if err != nil {
			return nil, nil, nil, err
		}
		defer links.Close(es)
		errs := make([]error, n)
		err = c.Track("measuring", func(done func(done, total int)) error {
			links.Together(n, func(rank int) {
				if rank > 0 {
					_, errs[rank] = links.Measure(ctx, es[rank], nil)
					return
				}
				m = make([]*links.Measured, 1)
				m[0], errs[0] = links.Measure(ctx, es[0], done)
			})
			return cmp.Or(errs...)
		})
		for range n {
			layout = append(layout, 1)
		}
		return m, nil, layout, err
	}
}
