package main

import (
	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/view"
	"weft/policy/all"
)

func newPolicies(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policies",
		Short: "List the policies",
		Args:  cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		return c.Print(view.Policies(all.Policies()), *asJSON)
	}
	return cmd
}
