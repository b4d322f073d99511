package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"weft/internal/cli"
)

func newVersion(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		if *asJSON {
			return c.Print(&cli.Report{Facts: []cli.Fact{
				{Key: "version", Value: version}, {Key: "go", Value: runtime.Version()}, {Key: "platform", Value: platform},
			}}, true)
		}
		return say(c, about()+"\n")
	}
	return cmd
}

const platform = runtime.GOOS + "/" + runtime.GOARCH

// about is the version in a line.
func about() string { return fmt.Sprintf("weft %s, %s %s", version, runtime.Version(), platform) }
