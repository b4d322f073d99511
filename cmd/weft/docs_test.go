package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/internal/cli"
)

// TestCommandsDocumented holds docs/cli.md to the commands and flags that there are: each is on the page, and no other flags.
func TestCommandsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{"--help": true} // of every command, said once
	for _, flag := range regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(string(page), -1) {
		shown[flag] = true
	}
	known := map[string]bool{"--version": true}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "completion" || cmd.Name() == "help" {
			return // cobra's
		}
		if !strings.Contains(string(page), cmd.CommandPath()) {
			t.Errorf("%s is not in docs/cli.md", cmd.CommandPath())
		}
		cmd.InitDefaultHelpFlag()
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			known["--"+f.Name] = true
			if !f.Hidden && !shown["--"+f.Name] {
				t.Errorf("%s --%s is not in docs/cli.md", cmd.CommandPath(), f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&cli.Console{}))
	for flag := range shown {
		if !known[flag] {
			t.Errorf("docs/cli.md tells of %s, which no command has", flag)
		}
	}
}

// TestCommandsShown parses every command line that a document shows, and has the command check its flags. Lines of two columns, as in the synopsis, are none.
func TestCommandsShown(t *testing.T) {
	docs := os.DirFS("../..")
	pages, err := fs.Glob(docs, "docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	policies, err := fs.Glob(docs, "docs/policies/*.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, name := range append(append(pages, policies...), "README.md") {
		page, err := fs.ReadFile(docs, name)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(page), "\n```") {
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

// TestPackagesDocumented looks every package that others import up in the tables of docs/design.md and docs/engine.md.
func TestPackagesDocumented(t *testing.T) {
	top := os.DirFS("../..")
	var tables []byte
	for _, page := range []string{"docs/design.md", "docs/engine.md"} {
		b, err := fs.ReadFile(top, page)
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, b...)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z0-9/.]+)`").FindAllSubmatch(tables, -1) {
		named[string(m[1])] = true
	}
	files, err := fs.Glob(top, "*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	below, err := fs.Glob(top, "*/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, below...) {
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
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v(\S+)$`).FindAllStringSubmatch(string(mod), -1) {
		name := regexp.MustCompile(`/v\d+$`).ReplaceAllString(strings.TrimPrefix(m[1], "github.com/"), "")
		row := regexp.MustCompile(`(?m)^\| .*\b` + regexp.QuoteMeta(name) + `\b.*\b` + regexp.QuoteMeta(m[2]) + `\b`)
		if !row.Match(page) {
			t.Errorf("%s %s has no row in docs/dependencies.md", name, m[2])
		}
	}
}
