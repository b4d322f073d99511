package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/internal/cli"
	"weft/job"
	"weft/launch"
)

// asWorker makes the test binary behave as a training process, in a way that its
// value names.
const asWorker = "WEFT_TEST_AS_WORKER"

// work trains two tensors for three iterations, as plain buckets or whole tensors of a plan.
func work(how string) error {
	w, err := worker.Connect()
	if err != nil {
		return err
	}
	if how == "full" {
		return workFull(w)
	}
	elements := int64(4)
	if how == "differ" {
		elements += int64(w.Rank)
	}
	if err := w.Hello(protocol.Hello{FirstBucket: 4, BucketBytes: 4, Mode: "per-tensor", Boundaries: true, Tensors: []protocol.Tensor{
		{Name: "weight", Elements: elements, DType: "float32"}, {Name: "bias", Elements: 1, DType: "float32"},
	}}); err != nil {
		return err
	}
	for i := range 3 {
		for b, x := range w.Welcome.Buckets {
			if how == "killed" && w.Rank == 1 && i == 1 && b == 1 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			at := worker.Region(w.Input, x.Region)
			for k := 0; k < len(at); k += 4 {
				binary.NativeEndian.PutUint32(at[k:], math.Float32bits(float32(w.Rank+i)))
			}
			if err := w.Ready(b, i); err != nil {
				return err
			}
		}
		for range w.Welcome.Buckets {
			b, _, err := w.Done()
			if err != nil {
				return err
			}
			got := math.Float32frombits(binary.NativeEndian.Uint32(worker.Region(w.Output, w.Welcome.Buckets[b].Region)))
			if want := float32(w.World-1)/2 + float32(i); got != want {
				return fmt.Errorf("bucket %d of iteration %d: %v, want %v", b, i, got, want)
			}
		}
	}
	fmt.Println("trained")
	return w.Goodbye()
}

// The plan of a file, and one that is made of a job; what does not fit is refused before
// workers start, or else by all of them.
func TestRunPlan(t *testing.T) {
	t.Setenv(asWorker, "well")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, bias := range map[string]int64{"job": 4, "other": 8} {
		j := job.Chain("chain", []float64{100, 100}, []float64{100, 100}, []int64{16, bias})
		j.Tensors[0].Name, j.Tensors[1].Name = "weight", "bias"
		f, err := os.Create(file(name))
		if err == nil {
			err = cmp.Or(job.Write(f, j), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const on = " --link 1Gbit,25us"
	for name, made := range map[string]string{"dear": "job --policy dear", "deft": "job --policy deft --max-delay 1", "others": "other --policy p3"} {
		var out bytes.Buffer
		args := strings.Fields("plan " + file(made) + on + " --workers 2 -o " + file(name))
		if code := run(t.Context(), &cli.Console{Out: &out, Err: &out}, args); code != cli.OK {
			t.Fatal(made, out.String())
		}
	}
	const trained = "[0] trained\n"
	for _, x := range []struct {
		args, env, want, note string
		code                  int
	}{
		{args: "--policy p3 --job " + file("job") + on, want: trained, note: ", policy p3, delay 0\n"},
		{args: "--plan " + file("dear"), want: trained, note: ", policy dear, delay 0\n"},
		{env: file("dear"), want: trained, note: ", policy dear, delay 0\n"},
		{args: "--plan " + file("deft"), code: cli.BadInput, want: "deft: plan rule 5 (delay, staleness, update rate and memory are allowed) does not hold: update 0 applies generation 0"},
		{args: "--plan " + file("others"), code: 1, want: "weft: the plan is for another model: tensor 1 has 2 elements in the plan, and is bias (1 elements of float32) in the training; make it"},
		{args: "--policy p3 --job " + file("other") + on, code: 1, want: "weft: the plan is for another model: tensor 1 is bias (2 elements of float32) in its job, bias (1 elements of float32) in the training; make it"},
		{args: "--policy deft --job " + file("job") + on, code: cli.BadInput, want: "deft delays updates: give --max-delay 1 or more"},
	} {
		t.Setenv("WEFT_PLAN", x.env)
		out, code := runs(t, append(append([]string{"-n", "2"}, strings.Fields(x.args)...), "--", os.Args[0])...)
		if code != x.code || !strings.Contains(out, x.want) || strings.Count(out, "weft: plan sha256:") != min(1, len(x.note)) || !strings.Contains(out, x.note) {
			t.Errorf("%s: exit code %d:\n%s", x.args, code, out)
		}
	}
}

// runs runs weft run in this process, with a directory for temporary files that
// must be empty in the end, and returns what it printed and its exit code.
func runs(t *testing.T, args ...string) (string, int) {
	t.Helper()
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var out bytes.Buffer
	code := run(t.Context(), &cli.Console{Out: &out, Err: &out}, append([]string{"run"}, args...))
	empty(t, tmp)
	return out.String(), code
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v (%v)", entries, err)
	}
}

// WEFT_MAX_DELAY is for a training that chooses its plan, too.
func TestRunDelayed(t *testing.T) {
	t.Setenv("WEFT_MAX_DELAY", "1")
	for flags, want := range map[string]int{"": 1, "--policy=auto": 1, "--max-delay=0": 0, "--max-delay=2": 2} {
		var given planned
		cmd := &cobra.Command{}
		given.register(cmd)
		two := launch.Place{Workers: 2, World: 2}
		if err := cmp.Or(cmd.ParseFlags(strings.Fields(flags)), given.check(two)); err != nil {
			t.Fatalf("%s: %v", flags, err)
		}
		chosen, err := given.choice(t.Context(), "train.py", two)
		if err != nil || chosen.Options.Limits.MaxDelay != want {
			t.Errorf("%s: %v, %+v: want a delay of at most %d", flags, err, chosen.Options.Limits, want)
		}
	}
}

func TestRunTrains(t *testing.T) {
	t.Setenv(asWorker, "well")
	out, code := runs(t, "-n", "3", "--", os.Args[0])
	const short = "weft: plain buckets: the training ended before iteration 25, after which a plan is made\nweft: measured: plain buckets "
	if code != cli.OK || strings.Count(out, "trained\n") != 3 || strings.Count(out, short) != 1 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// The one that is lost is named, with what the others waited for, and its signal
// is the exit code.
func TestRunKilled(t *testing.T) {
	t.Setenv(asWorker, "killed")
	out, code := runs(t, "-n", "3", "--", os.Args[0])
	want := "rank 1 is lost: signal: killed, while waiting for its gradient of tensor weight (bucket 1) of iteration 1"
	if code != 128+int(syscall.SIGKILL) || !strings.Contains(out, "weft: "+want) || !strings.Contains(out, "[0] "+want) || !strings.Contains(out, "[2] "+want) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func TestRunDifferentModels(t *testing.T) {
	t.Setenv(asWorker, "differ")
	out, code := runs(t, "-n", "2", "--", os.Args[0])
	want := "weft: the workers train different models: tensor 0 is weight (4 elements of float32) on rank 0, weight (5 elements of float32) on rank 1\n"
	if code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// TestRunSignals ends weft by a signal, while each worker waits for a child of its
// own that minds nothing. Nobody stays, and nothing.
func TestRunSignals(t *testing.T) { bySignals(t, "run", "-n", "2") }

// bySignals ends what args start two workers with.
func bySignals(t *testing.T, args ...string) {
	for _, x := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, cli.Interrupted}, {syscall.SIGTERM, cli.Interrupted}, {syscall.SIGKILL, -1}} {
		t.Run(x.signal.String(), func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			cmd := exec.Command(os.Args[0], append(args, "--", "sh", "-c", "sh -c 'trap \"\" INT; echo pid $$; while :; do sleep 100; done' & echo pid $$; wait")...)
			cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+tmp)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pids := readPids(t, out, 4)
			if err := cmd.Process.Signal(x.signal); err != nil {
				t.Error(err)
			}
			io.Copy(io.Discard, out)
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != x.code {
				t.Errorf("ended with %v, want exit code %d", err, x.code)
			}
			if x.signal != syscall.SIGKILL {
				if got, want := stderr.String(), "weft: interrupted\n"; got != want {
					t.Errorf("said %q, want %q", got, want)
				}
			}
			// After SIGKILL, somebody else tidies up.
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && (alive(pids) != 0 || !isEmpty(tmp)); {
				time.Sleep(10 * time.Millisecond)
			}
			if pid := alive(pids); pid != 0 {
				t.Errorf("process %d is still there", pid)
			}
			empty(t, tmp)
		})
	}
}

func readPids(t *testing.T, from io.Reader, n int) (pids []int) {
	lines := bufio.NewScanner(from)
	for len(pids) < n && lines.Scan() {
		if m := regexp.MustCompile(`^\[\d\] pid (\d+)$`).FindStringSubmatch(lines.Text()); m != nil {
			pid, _ := strconv.Atoi(m[1])
			pids = append(pids, pid)
		}
	}
	if len(pids) < n {
		t.Fatalf("%d processes of %d", len(pids), n)
	}
	return pids
}

// alive returns one of the processes that is neither gone nor a zombie; 0: none.
func alive(pids []int) int {
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !bytes.Contains(stat, []byte(") Z ")) {
			return pid
		}
	}
	return 0
}

func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

// What could not be done after a training is said before it.
func TestSaidFirst(t *testing.T) {
	dir := t.TempDir()
	file := func(name ...string) string { return filepath.Join(append([]string{dir}, name...)...) }
	var made bytes.Buffer
	for _, args := range []string{
		"import " + "../../testdata/traces/gpt-gloo-torch2.6/rank0.json.gz" + " -o " + file("job"),
		"plan " + file("job") + " --workers 2 --link 1Gbit --policy ddp -o " + file("plan"),
	} {
		if code := run(t.Context(), &cli.Console{Out: &made, Err: &made}, strings.Fields(args)); code != cli.OK {
			t.Fatal(made.String())
		}
	}
	inputs, _ := filepath.Glob(file("*"))
	for _, x := range []struct {
		args, want string
		code       int
	}{
		{"run -n 1 --report " + file("none", "report.json"), "write " + file("none", "report.json") + ": no such file", cli.BadInput},
		{"run -n 1 --report -", "--report needs a file: the standard output is for what workers print", cli.BadUsage},
		{"run -n 1 --timeline " + file("a") + " --report " + file("a"), "two outputs would be one file, " + file("a"), cli.BadUsage},
		{"run -n 1 --plan " + file("plan") + " --report " + file("plan"), "would replace the input " + file("plan"), cli.BadUsage},
		{"run -n 1 --plan " + file("plan") + " --timeline " + file("plan"), "would replace the input " + file("plan"), cli.BadUsage},
		{"run -n 2 --policy deft", "--policy deft: the policy does not suit the job: deft delays updates: give --max-delay 1 or more", cli.BadUsage},
		{"run -n 2 --policy deft --max-delay 1 --max-staleness 0", "give --max-staleness 1 or more", cli.BadUsage},
		{"run -n 2 --policy crossover", "crossover pairs two jobs: weft pair A B", cli.BadUsage},
		{"run -n 2 --policy recorded", `job "the training" does not say how it was recorded`, cli.BadUsage},
		{"run -n 2 --policy nosuch", `no policy "nosuch"`, cli.BadUsage},
		{"profile -n 1 -o " + file("none", "job.json"), "write " + file("none", "job.json") + ": no such file", cli.BadInput},
		{"profile -n 1 -o -", "-o needs a file", cli.BadUsage},
		{"profile -n 1 -o " + file("a") + " --cluster -", "--cluster needs a file", cli.BadUsage},
		{"profile -n 1 -o " + file("a") + " --cluster " + dir, "write " + dir + ": is a directory", cli.BadInput},
		{"profile -n 1 -o " + file("a") + " --cluster " + file("a"), "two outputs would be one file", cli.BadUsage},
	} {
		var out, err bytes.Buffer
		c := &cli.Console{In: strings.NewReader(""), Out: &out, Err: &err}
		code := run(t.Context(), c, append(strings.Fields(x.args), "--", "touch", file("started")))
		if code != x.code || !strings.Contains(err.String(), x.want) {
			t.Errorf("%q: %d, %s", x.args, code, err.String())
		}
		if left, _ := filepath.Glob(file("*")); len(left) > len(inputs) {
			t.Errorf("%q: it has begun: %q", x.args, left)
		}
	}
	// It is said before what these would meet next: there are no hosts, and no job.
	none := file("none", "out")
	t.Setenv("WORLD_SIZE", "")
	for _, args := range []string{"links test -o " + none, "replay nothing.json --link 1Gbit -n 2 --policy ddp --timeline " + none} {
		var out bytes.Buffer
		code := run(t.Context(), &cli.Console{Out: &out, Err: &out}, strings.Fields(args))
		if code != cli.BadInput || !strings.Contains(out.String(), "write "+none) {
			t.Errorf("%q: %d, %s", args, code, out.String())
		}
	}
}
