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
		Long: `Weft averages gradients for PyTorch on several machines, in place of
DistributedDataParallel: it measures a training while it runs, plans when each
gradient travels, tries the plan, and keeps what is faster. Of a profiler trace
it tells where the step time goes, and what other schedules would make of it.

A file named "-" is the standard input or output.
Exit codes: 0 fine, 1 the answer is no, 2 bad usage, 3 bad input or a file that
cannot be read or written, 130 interrupted.`,
		Example: `  weft run -n 2 -- python3 train.py
  weft inspect trace.json.gz
  weft compare trace.json.gz --workers 16 --link 10Gbit,25us`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.Version = about()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.FlagError(err) })
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages", "Flags.FlagUsagesWrapped 80"))
	root.SetIn(c.In)
	root.SetOut(&checked{w: c.Out})
	root.SetErr(c.Err)
	cobra.EnableCommandSorting = false // most wanted first
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Train, and measure:", []*cobra.Command{newRun(c), newProfile(c), newLab(c), newLinks(c), newBench(c)}},
		{"See what would help:", []*cobra.Command{newInspect(c), newCompare(c), newPair(c), newZoo(c), newPolicies(c), newExplain(c), newStudy(c)}},
		{"Look closer at a plan:", []*cobra.Command{newImport(c), newPlan(c), newSimulate(c), newReplay(c)}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newKeep(), newAgent(c), newVersion(c))
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
