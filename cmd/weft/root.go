package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/cli"
	"weft/internal/near"
)

func newRoot(c *cli.Console) *cobra.Command {
	root := &cobra.Command{
		Use:   "weft",
		Short: "Compile communication schedules for data-parallel training",
		Long: `Weft reads a profiler trace that you already have and tells where the step time
goes, and what another schedule of communication would make of it.

A file named "-" is the standard input or output.
Exit codes: 0 fine, 1 the answer is no, 2 bad usage, 3 bad input or a file that
cannot be read or written, 130 interrupted.`,
		Example: `  weft inspect trace.json.gz
  weft compare trace.json.gz --workers 16 --link 10Gbit,25us`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.Version = about()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.FlagError(err) })
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages", "Flags.FlagUsagesWrapped 80"))
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	root.AddCommand(newInspect(c), newCompare(c), newPair(c), newPlan(c), newSimulate(c), newReplay(c), newRun(c), newProfile(c), newLab(c), newBench(c), newLinks(c), newKeep(), newAgent(c), newImport(c), newPolicies(c), newZoo(c), newExplain(c), newStudy(c), newVersion(c))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	mark(root)

	hub(root)
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			hub(cmd)
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				topic, rest, err := root.Find(args)
				return cmp.Or(err, onlyCommands(topic, rest))
			}
		}
	}
	return root
}

// hub makes cmd, which has only commands of its own, print its help.
func hub(cmd *cobra.Command) {
	cmd.Args = onlyCommands
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// onlyCommands refuses arguments, in place of a command of cmd that there is not.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), args[0])
	}
	return fmt.Errorf("no command %q%s", args[0], near.Hint(args[0], names))
}

// worked is an error that a command met at work. Errors that are not were found
// by cobra in the command line.
type worked struct{ error }

func (e worked) Unwrap() error { return e.error }

// mark wraps the errors of the work of cmd and its subcommands.
func mark(cmd *cobra.Command) {
	if work := cmd.RunE; work != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := work(cmd, args); err != nil {
				return worked{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		mark(sub)
	}
}

// want takes from least to most arguments (0: any number), which what describes.
func want(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if n := len(args); n < least || most > 0 && n > most {
			return cli.Usagef("got %d arguments; want %s", n, what)
		}
		return nil
	}
}

// jsonFlag adds --json.
func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON, with times in microseconds and sizes in bytes")
}

// output is a file that a command writes beside its report; "": none is asked for.
type output struct {
	file  string
	write func(io.Writer) error
}

func writeFiles(ctx context.Context, c *cli.Console, outputs []output) error {
	for _, x := range outputs {
		if x.file == "" {
			continue
		}
		if err := c.WriteFile(ctx, x.file, x.write); err != nil {
			return err
		}
	}
	return nil
}
