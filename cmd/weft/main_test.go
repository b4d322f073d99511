package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"weft/internal/cli"
)

// asProgram makes the test binary behave as weft.
const asProgram = "WEFT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" || len(os.Args) > 1 && os.Args[1] == keep {
		main()
	}
	if how := os.Getenv(asWorker); how != "" {
		if err := work(how); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// TestScripts runs the scripts of testdata, each in a directory of its own in
// which traces/ and rx/ are the recorded traces and the running example.
//
//	file NAME             write the input to a file
//	gzip FROM TO [bytes=N]  compress a file; keep only the first N bytes
//	cut FROM TO bytes=N   keep only the first N bytes of a file
//	ls                    list the files that the script has made
//	weft                  run command lines: what they print, then their exit code
//	                      if it is not 0. hide=figures puts # for every number and digest,
//	                      grep=(REGEXP) keeps only lines that match, stdin=FILE,
//	                      sort sorts the lines that a command prints.
func TestScripts(t *testing.T) {
	traces, err := filepath.Abs("../../testdata/traces")
	if err != nil {
		t.Fatal(err)
	}
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		rx := filepath.Join(filepath.Dir(path), "../rx")
		t.Chdir(t.TempDir())
		for name, target := range map[string]string{"traces": traces, "rx": rx} {
			if err := os.Symlink(target, name); err != nil {
				t.Fatal(err)
			}
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			command, ok := scriptCommands[d.Cmd]
			if !ok {
				d.Fatalf(t, "no command %s", d.Cmd)
			}
			out, err := command(t, d)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

var scriptCommands = map[string]func(*testing.T, *datadriven.TestData) (string, error){
	"file": func(_ *testing.T, d *datadriven.TestData) (string, error) {
		return "", os.WriteFile(d.CmdArgs[0].Key, []byte(d.Input+"\n"), 0o666)
	},
	"gzip": func(t *testing.T, d *datadriven.TestData) (string, error) {
		return "", transform(t, d, func(b []byte) []byte {
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			w.Write(b)
			w.Close()
			return z.Bytes()
		})
	},
	"cut": func(t *testing.T, d *datadriven.TestData) (string, error) {
		return "", transform(t, d, func(b []byte) []byte { return b })
	},
	"ls": func(*testing.T, *datadriven.TestData) (string, error) {
		entries, err := os.ReadDir(".")
		var out strings.Builder
		for _, e := range entries {
			if e.Type().IsRegular() {
				fmt.Fprintln(&out, e.Name())
			}
		}
		return out.String(), err
	},
	"weft": weft,
}

// transform writes f of the first file to the second, cut to bytes=N.
func transform(t *testing.T, d *datadriven.TestData, f func([]byte) []byte) error {
	b, err := os.ReadFile(d.CmdArgs[0].Key)
	if err != nil {
		return err
	}
	b = f(b)
	n := len(b)
	d.MaybeScanArgs(t, "bytes", &n)
	return os.WriteFile(d.CmdArgs[1].Key, b[:n], 0o666)
}

var figure = regexp.MustCompile(`( ) +-?[0-9.]+|[0-9a-f]{32,}|-?[0-9]+(\.[0-9]+)?`)

func weft(t *testing.T, d *datadriven.TestData) (string, error) {
	var hide, grep, stdin string
	d.MaybeScanArgs(t, "hide", &hide)
	d.MaybeScanArgs(t, "grep", &grep)
	d.MaybeScanArgs(t, "stdin", &stdin)
	keep, err := regexp.Compile(grep)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for line := range strings.Lines(d.Input) {
		var in io.Reader = strings.NewReader("")
		if stdin != "" {
			f, err := os.Open(stdin)
			if err != nil {
				return "", err
			}
			defer f.Close()
			in = f
		}
		var out bytes.Buffer
		code := run(t.Context(), &cli.Console{In: in, Out: &out, Err: &out}, strings.Fields(line))
		lines := slices.Collect(strings.Lines(out.String()))
		if d.HasArg("sort") {
			slices.Sort(lines)
		}
		for _, line := range lines {
			if hide == "figures" {
				line = figure.ReplaceAllString(line, "$1$1#")
			}
			if keep.MatchString(line) {
				all.WriteString(strings.TrimSuffix(line, "\n") + "\n")
			}
		}
		if code != cli.OK {
			fmt.Fprintf(&all, "exit %d\n", code)
		}
	}
	return all.String(), nil
}

// TestInterrupt interrupts the program while it waits for a pipe.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "import", "-", "-o", filepath.Join(dir, "job.json"))
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// More than a pipe holds: once it is written, the program is reading.
	if _, err := fmt.Fprintf(in, `{"traceEvents": [%s`, strings.Repeat(" ", 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != cli.Interrupted {
		t.Errorf("ended with %v, want exit code %d", err, cli.Interrupted)
	}
	if got, want := stderr.String(), "weft: interrupted\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v (%v)", entries, err)
	}
}

// TestInterruptOpening interrupts the program while it opens a pipe that nobody
// opens at the other end.
func TestInterruptOpening(t *testing.T) {
	rx, err := os.ReadFile("testdata/rx/job.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"simulate --job fed --plan stuck --link 8Mbit,1ms",
		"plan fed --link 8Mbit,1ms --policy wfbp -o stuck",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			fed := filepath.Join(dir, "fed")
			for _, name := range []string{fed, filepath.Join(dir, "stuck")} {
				if err := syscall.Mkfifo(name, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			limit, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(limit, os.Args[0], strings.Fields(args)...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), asProgram+"=1")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// Writing waits until the program reads: then it minds signals. Once it
			// has closed the first pipe, it comes to the second.
			if err := os.WriteFile(fed, rx, 0); err != nil {
				t.Error(err)
			}
			for fd := fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid); holds(fd, fed); {
				runtime.Gosched()
			}
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != cli.Interrupted {
				t.Errorf("ended with %v, want exit code %d", err, cli.Interrupted)
			}
			if got, want := stderr.String(), "weft: interrupted\n"; got != want {
				t.Errorf("said %q, want %q", got, want)
			}
		})
	}
}

// holds reports whether a process has a file open; not where there is no /proc.
func holds(fds, name string) bool {
	entries, _ := os.ReadDir(fds)
	for _, e := range entries {
		if target, _ := os.Readlink(filepath.Join(fds, e.Name())); target == name {
			return true
		}
	}
	return false
}

// fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Help that cannot be written is an error, as everything that is printed.
func TestUnwritten(t *testing.T) {
	for _, line := range []string{"--help", "help run", "compare --help", "study", "--version", "version", "completion bash"} {
		var problems bytes.Buffer
		code := run(t.Context(), &cli.Console{Out: fullDisk{}, Err: &problems}, strings.Fields(line))
		if want := "weft: no space left on device\n"; code != cli.BadInput || problems.String() != want {
			t.Errorf("%s: exit code %d: %q, want %q", line, code, problems.String(), want)
		}
	}
}

// TestKeysDocumented looks every key that --json prints up in docs/cli.md.
func TestKeysDocumented(t *testing.T) {
	docs, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	const (
		trace  = "../../testdata/traces/gpt-gloo-torch2.6/rank0.json.gz"
		peer   = "../../testdata/traces/gpt-gloo-torch2.6/rank1.json.gz"
		rx     = "testdata/rx/job.json"
		onLink = " --link 8Mbit,1ms"
	)
	dir := t.TempDir()
	wfbp, ddp := filepath.Join(dir, "wfbp.json"), filepath.Join(dir, "ddp.json")
	for _, line := range []string{
		"inspect " + trace,
		"inspect " + trace + " " + peer,
		"import " + trace + " -o " + filepath.Join(dir, "job.json"),
		"compare " + rx + onLink,
		"pair " + rx + " " + rx + onLink,
		"plan " + rx + onLink + " --policy wfbp -o " + wfbp,
		"plan " + rx + onLink + " --policy ddp -o " + ddp,
		"plan check " + wfbp + " --job " + rx,
		"plan check " + wfbp + " " + ddp,
		"simulate --job " + rx + onLink + " --plan " + wfbp,
		"policies",
		"explain p3",
		"study",
		"study us-byte",
		"zoo",
		"zoo --device a100",
		"version",
	} {
		var out, problems bytes.Buffer
		if code := run(t.Context(), &cli.Console{Out: &out, Err: &problems}, append(strings.Fields(line), "--json")); code > cli.No {
			t.Errorf("%s: exit code %d: %s", line, code, &problems)
		}
		for _, key := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(out.String(), -1) {
			if !strings.Contains(string(docs), "`"+key[1]+"`") {
				t.Errorf("%s: key %s is not in docs/cli.md", line, key[1])
			}
		}
	}
}
