package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"weft/internal/cli"
)

func newVersion(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(c.Out, "weft %s, %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
