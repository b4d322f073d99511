package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/internal/cli"
)

// top is the repository.
var top = os.DirFS("../..")

// text is what the files together hold that the patterns match, one at least each.
func text(t *testing.T, patterns ...string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range files(t, patterns...) {
		b, err := fs.ReadFile(top, name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

// files are those that the patterns match, one at least each.
func files(t *testing.T, patterns ...string) (all []string) {
	t.Helper()
	for _, pattern := range patterns {
		names, err := fs.Glob(top, pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: no such file: %v", pattern, err)
		}
		all = append(all, names...)
	}
	return all
}

// walk visits a command and those below it, but for hidden ones and cobra's own.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	if cmd.Hidden || cmd.Name() == "completion" || cmd.Name() == "help" {
		return
	}
	cmd.InitDefaultHelpFlag()
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

// TestCommandsDocumented holds docs/cli.md to the commands and flags that there are: each is on the page, and no other flags.
func TestCommandsDocumented(t *testing.T) {
	page := text(t, "docs/cli.md")
	shown := map[string]bool{"--help": true} // of every command, said once
	for _, flag := range regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(page, -1) {
		shown[flag] = true
	}
	known := map[string]bool{"--version": true}
	walk(newRoot(&cli.Console{}), func(cmd *cobra.Command) {
		if !strings.Contains(page, cmd.CommandPath()) {
			t.Errorf("%s is not in docs/cli.md", cmd.CommandPath())
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			known["--"+f.Name] = true
			if !f.Hidden && !shown["--"+f.Name] {
				t.Errorf("%s --%s is not in docs/cli.md", cmd.CommandPath(), f.Name)
			}
		})
	})
	for flag := range shown {
		if !known[flag] {
			t.Errorf("docs/cli.md tells of %s, which no command has", flag)
		}
	}
}

// TestDefaultsDocumented holds the tables of docs/cli.md to the defaults that there are: a row of a flag has its default, in a cell of its own or in
// parentheses. The row is that of the command's section, or else, of a command that takes a job and a cluster, that of a section for all of these.
func TestDefaultsDocumented(t *testing.T) {
	rows := map[string]string{} // by section and flag
	var section string
	for line := range strings.Lines(text(t, "docs/cli.md")) {
		if heading, ok := strings.CutPrefix(line, "#"); ok {
			section = strings.TrimSpace(strings.TrimLeft(heading, "#"))
		}
		if cells := strings.SplitN(line, "|", 3); len(cells) == 3 {
			for _, flag := range regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(cells[1], -1) {
				rows[section+flag] = cells[2]
				if !strings.HasPrefix(section, "weft") || strings.HasPrefix(section, "weft plan") {
					rows[flag] = cells[2]
				}
			}
		}
	}
	checked := 0
	walk(newRoot(&cli.Console{}), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			row, ok := rows[cmd.CommandPath()+"--"+f.Name]
			if !ok && cmd.Flags().Lookup("link") != nil {
				row, ok = rows["--"+f.Name]
			}
			if !ok || f.DefValue == "" || f.DefValue == "0" || f.DefValue == "false" || f.Hidden {
				return
			}
			checked++
			value := strings.TrimSuffix(strings.Trim(f.DefValue, "[]"), "0s") // a list; minutes
			if !regexp.MustCompile(`[|( ]` + regexp.QuoteMeta(value) + `[|), ;]|^ synchronous`).MatchString(row) {
				t.Errorf("docs/cli.md: the row of %s --%s does not have its default, %s: %s", cmd.CommandPath(), f.Name, value, row)
			}
		})
	})
	if checked < 40 {
		t.Errorf("compared %d defaults: there are more", checked)
	}
}

// TestCommandsShown parses every command line that a document shows, and has the command check its flags. Lines of two columns, as in the synopsis, are none.
func TestCommandsShown(t *testing.T) {
	lines := 0
	for _, name := range files(t, "docs/*.md", "docs/policies/*.md", "README.md") {
		for i, block := range strings.Split(text(t, name), "\n```") {
			if i%2 == 0 {
				continue // between blocks
			}
			for _, m := range regexp.MustCompile(`(?m)^(?:\$ )?(?:[A-Z_]+=\S+ )*weft (\S+(?: \S+)*?)(?: +#.*)?$`).FindAllStringSubmatch(block, -1) {
				lines++
				parses(t, name, strings.Fields(m[1]))
			}
		}
	}
	if lines < 50 {
		t.Errorf("found %d command lines: more are shown", lines)
	}
}

// parses requires that weft takes the arguments, and those of a weft that it would start.
func parses(t *testing.T, page string, args []string) {
	t.Helper()
	cmd, rest, err := newRoot(&cli.Console{}).Find(args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if err == nil && cmd.PreRunE != nil {
		err = cmd.PreRunE(cmd, cmd.Flags().Args())
	}
	if err != nil {
		t.Errorf("%s: weft %s: %v", page, strings.Join(args, " "), err)
	}
	for i, arg := range args {
		if arg == "--" && i+1 < len(args) && args[i+1] == "weft" {
			parses(t, page, args[i+2:])
		}
	}
}

// TestHelp requires that help fits a terminal of 80 columns, and that every example in it parses.
func TestHelp(t *testing.T) {
	walk(newRoot(&cli.Console{}), func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Long + "\n" + strings.Repeat(" ", 3+cmd.NamePadding()) + cmd.Short + "\n" + cmd.UseLine() + "\n" + cmd.Flags().FlagUsagesWrapped(80)) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s --help: %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
		for line := range strings.Lines(cmd.Example) {
			if args, ok := strings.CutPrefix(strings.TrimSpace(line), "weft "); ok {
				parses(t, cmd.CommandPath()+" --help", strings.Fields(args))
			}
		}
	})
}

// TestPackagesDocumented looks every package that others import up in the tables of docs/design.md and docs/engine.md.
func TestPackagesDocumented(t *testing.T) {
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z0-9/.]+)`").FindAllStringSubmatch(text(t, "docs/design.md", "docs/engine.md"), -1) {
		named[m[1]] = true
	}
	for _, file := range files(t, "*/*.go", "*/*/*.go") {
		dir := path.Dir(file)
		family, _, _ := strings.Cut(dir, "/")
		if family != "scripts" && !strings.HasSuffix(file, "_test.go") && !named[dir] && !named[family+"/..."] {
			named[dir] = true // said once
			t.Errorf("package %s is in no table of docs/design.md or docs/engine.md", dir)
		}
	}
}

// TestDependenciesDocumented looks every module that go.mod asks for directly up in docs/dependencies.md, with its version.
func TestDependenciesDocumented(t *testing.T) {
	page := text(t, "docs/dependencies.md")
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v(\S+)$`).FindAllStringSubmatch(text(t, "go.mod"), -1) {
		name := regexp.MustCompile(`/v\d+$`).ReplaceAllString(strings.TrimPrefix(m[1], "github.com/"), "")
		row := regexp.MustCompile(`(?m)^\| .*\b` + regexp.QuoteMeta(name) + `\b.*\b` + regexp.QuoteMeta(m[2]) + `\b`)
		if !row.MatchString(page) {
			t.Errorf("%s %s has no row in docs/dependencies.md", name, m[2])
		}
	}
}
