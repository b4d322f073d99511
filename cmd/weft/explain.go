package main

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/docs/policies"
	"weft/internal/cli"
	"weft/internal/near"
)

func newExplain(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain POLICY",
		Short: "Tell what a policy does, and when it helps",
		Long: `Tells of a policy what it does, the paper that it is from, what of it is exact
and what is weft's own, when it helps and when it hurts.`,
		Example: `  weft explain deft
  weft policies`,
		Args: want(1, 1, "one POLICY"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return policies.Names(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name, names := args[0], policies.Names()
		if !slices.Contains(names, name) {
			return cli.Usagef("no policy %q%s", name, near.Hint(name, names))
		}
		page, err := policies.Page(name)
		if err != nil {
			return err
		}
		sections := policies.Sections(page)
		if *asJSON {
			return c.Print(explanation(name, sections), true)
		}
		return c.Text(func(w io.Writer) error {
			_, err := io.WriteString(w, explained(name, sections))
			return err
		})
	}
	return cmd
}

// explanation has a fact a section: "when_it_helps".
func explanation(name string, sections []policies.Section) *cli.Report {
	r := &cli.Report{Facts: []cli.Fact{{Key: "policy", Value: name}}}
	for _, s := range sections {
		key := "what"
		if s.Heading != "" {
			key = strings.ReplaceAll(strings.ToLower(s.Heading), " ", "_")
		}
		r.Facts = append(r.Facts, cli.Fact{Key: key, Value: strings.Join(s.Paragraphs, "\n")})
	}
	return r
}

// explained is a page of text.
func explained(name string, sections []policies.Section) string {
	var b strings.Builder
	b.WriteString(name + "\n")
	for _, s := range sections {
		if s.Heading != "" {
			b.WriteString("\n" + s.Heading + "\n")
		}
		for i, p := range s.Paragraphs {
			if item, ok := strings.CutPrefix(p, "- "); ok {
				b.WriteString(cli.Wrap(item, "  ", "    "))
				continue
			}
			if i > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(cli.Wrap(p, "  ", "  "))
		}
	}
	return b.String()
}
