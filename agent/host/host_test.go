package host

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/job"
	"weft/launch"
	"weft/plan"
)

// as makes the test binary behave as a part of a training, which its value names.
const as = "WEFT_TEST_AS"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "keep" {
		if launch.Keep(os.Args[2]) != nil {
			os.Exit(1)
		}
		return
	}
	act, ok := parts[os.Getenv(as)]
	if !ok {
		goleak.VerifyTestMain(m)
	}
	if err := act(); err != nil {
		fmt.Fprintln(os.Stderr, "weft:", err)
		if f, ok := errors.AsType[*launch.Failed](err); ok {
			os.Exit(f.Code)
		}
		os.Exit(1)
	}
}

var parts = map[string]func() error{
	// A host, as weft run has it; its place is in the environment.
	"host": func() error {
		p, err := launch.ReadPlace(os.Getenv)
		if err != nil {
			return err
		}
		os.Setenv(as, os.Getenv("WEFT_TEST_WORKER"))
		return Run(context.Background(), config(p), []string{os.Args[0]})
	},
	// An agent, as weft agent is.
	"agent": func() error {
		syscall.SetNonblock(0, true)
		return Serve(context.Background(), config(launch.Place{}), os.Args[1], os.NewFile(0, "stdin"), os.Stdout)
	},
	"endless": func() error { return train(1 << 30) },
	"short":   func() error { return train(3) },
	"exits": func() error { // in order, it seems, but for rank 1
		err := train(1)
		if os.Getenv("RANK") == "1" {
			os.Exit(7)
		}
		return err
	},
}

func config(p launch.Place) Config {
	timeout, err := time.ParseDuration(cmp.Or(os.Getenv("WEFT_TEST_TIMEOUT"), "1m"))
	if err != nil {
		panic(err)
	}
	return Config{
		Place: p, Weft: "test", Timeout: timeout, Getenv: os.Getenv, Keep: []string{"keep"},
		Out: os.Stdout, Err: os.Stderr,
	}
}

// train trains two tensors, and tells of each step.
func train(steps int) error {
	fmt.Println("pid", os.Getpid())
	w, err := worker.Connect()
	if err != nil {
		return err
	}
	if err := w.Hello(protocol.Hello{Tensors: []protocol.Tensor{}}); err != nil {
		return err
	}
	fmt.Println("met")
	if err := w.Hello(protocol.Hello{FirstBucket: 4, BucketBytes: 4, Tensors: []protocol.Tensor{
		{Name: "weight", Elements: 100_000, DType: "float32"}, {Name: "bias", Elements: 1, DType: "float32"},
	}}); err != nil {
		return err
	}
	for i := range steps {
		fmt.Println("step", i)
		for b := range w.Welcome.Buckets {
			if err := w.Ready(b, i); err != nil {
				return err
			}
		}
		for range w.Welcome.Buckets {
			if _, _, err := w.Done(); err != nil {
				return err
			}
		}
	}
	return w.Goodbye()
}

// node is a host of a training that the test runs.
type node struct {
	*exec.Cmd
	said  bytes.Buffer // on standard error
	lines chan string  // of standard output
	tmp   string
	ended chan struct{}
	err   error
}

// start starts a training on several hosts of two workers.
func start(t *testing.T, hosts int, worker string, env ...string) (out []*node) {
	t.Helper()
	port, err := launch.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret of this test"), 0o600); err != nil {
		t.Fatal(err)
	}
	for h := range hosts {
		n := &node{Cmd: exec.Command(os.Args[0]), lines: make(chan string, 1000), tmp: t.TempDir(), ended: make(chan struct{})}
		n.Env = append(os.Environ(), as+"=host", "WEFT_TEST_WORKER="+worker, "TMPDIR="+n.tmp, "WEFT_SECRET_FILE="+secret,
			fmt.Sprint("RANK=", 2*h), "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", fmt.Sprint("WORLD_SIZE=", 2*hosts),
			"MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port), fmt.Sprint("WEFT_PORT=", port), "WEFT_SOCKET=")
		n.Env = append(n.Env, env...)
		n.Stderr = &n.said
		stdout, err := n.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			for in := bufio.NewScanner(stdout); in.Scan(); {
				n.lines <- in.Text()
			}
			close(n.lines)
			n.err = n.Wait()
			close(n.ended)
		}()
		out = append(out, n)
		t.Cleanup(func() {
			n.Process.Kill()
			for range n.lines {
			}
			<-n.ended
		})
	}
	return out
}

// code is the exit code, once the host has ended.
func (n *node) code() int {
	for range n.lines {
	}
	<-n.ended
	return n.ProcessState.ExitCode()
}

func TestHosts(t *testing.T) {
	t.Parallel()
	for h, n := range start(t, 3, "short") {
		if code := n.code(); code != 0 || n.said.Len() > 0 {
			t.Errorf("host %d ended with %d and said:\n%s", h, code, n.said.String())
		}
		empty(t, n.tmp)
	}
}

// A worker whose exit code says that it failed has failed, whatever it has said
// before; it gives the exit code even where others fail because of it.
func TestExitCode(t *testing.T) {
	t.Parallel()
	nodes := start(t, 1, "exits")
	if code := nodes[0].code(); code != 7 {
		t.Errorf("exit code %d, want 7:\n%s", code, nodes[0].said.String())
	}
}

// Whoever is killed, at whatever moment: all others end within 10 seconds, and say who
// it was, and what of. (A host that nobody has heard of yet is late, not lost.)
// Where workers were ended because the agent had failed, the failure counts, not the signal
// that they got.
func TestOutcome(t *testing.T) {
	told, own := &launch.Exit{Rank: 1, Code: 143, Signal: syscall.SIGTERM, Told: true}, &launch.Exit{Rank: 0, Code: 5}
	failure := errors.New("no space left")
	if err := outcome(t.Context(), []*launch.Exit{told}, failure); err != failure {
		t.Errorf("%#v", err)
	}
	failed, ok := errors.AsType[*launch.Failed](outcome(t.Context(), []*launch.Exit{told, own}, failure))
	if !ok || failed.Code != 5 || failed.Err != failure {
		t.Errorf("%+v", failed)
	}
}

func TestKill(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 6 {
		steps := []int{0, 1 + r.IntN(300)}[i%2] // before all have said hello, or not
		host, whole := r.IntN(3), r.IntN(2) == 0
		t.Run(fmt.Sprintf("%d/%d/%v/%d", seed, host, whole, steps), func(t *testing.T) { kill(t, host, whole, steps) })
	}
}

// victim is the process of a whole host's weft run or its second worker, after so many steps,
// and its rank, or the host's first.
func victim(t *testing.T, n *node, host int, whole bool, steps int) (process, rank int) {
	t.Helper()
	process, rank = n.Process.Pid, 2*host
	pid := regexp.MustCompile(`^\[(\d)\] pid (\d+)$`)
	met := !whole || steps > 0
	for found := whole; !found || !met || steps > 0; {
		line, ok := <-n.lines
		if !ok {
			t.Fatalf("it ended too soon:\n%s", n.said.String())
		}
		if m := pid.FindStringSubmatch(line); m != nil && !whole && m[1] == strconv.Itoa(2*host+1) {
			found = true
			process, _ = strconv.Atoi(m[2])
			rank = 2*host + 1
		}
		met = met || strings.HasSuffix(line, "] met")
		if strings.HasPrefix(line, fmt.Sprintf("[%d] step", 2*host)) {
			steps--
		}
	}
	return process, rank
}

// Whoever is stopped, so that connections stand and nothing comes, is named by the other hosts
// once they have waited for as long as they may.
func TestStop(t *testing.T) {
	const of = `tensor (weight|bias) \(bucket [01]\) of iteration \d+`
	for _, x := range []struct {
		name  string
		whole bool
		want  string
	}{
		{"agent", true, `weft: host 1 \(rank 2\) does not answer: all-reduce on link net takes too long, while reducing ` + of + ` for `},
		{"worker", false, `weft: rank 3 is too slow, while waiting for its gradient of ` + of},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			nodes := start(t, 3, "endless", "WEFT_TEST_TIMEOUT=8s")
			process, _ := victim(t, nodes[1], 1, x.whole, 20)
			if err := syscall.Kill(process, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			for h, n := range nodes {
				if x.whole && h == 1 {
					continue
				}
				if code := n.code(); code == 0 || !regexp.MustCompile(x.want).MatchString(n.said.String()) {
					t.Errorf("host %d ended with %d, want %s:\n%s", h, code, x.want, n.said.String())
				}
			}
		})
	}
}

// kill kills a whole host's weft run or its second worker after so many steps.
func kill(t *testing.T, host int, whole bool, steps int) {
	training := steps > 0
	nodes := start(t, 3, "endless")
	victim, rank := victim(t, nodes[host], host, whole, steps)
	start := time.Now()
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("weft: rank %d is lost", rank)
	for h, n := range nodes {
		code := n.code()
		if whole && h == host {
			continue
		}
		if code == 0 {
			t.Errorf("host %d ended well", h)
		}
		said := n.said.String()
		line := ""
		for l := range strings.Lines(said) {
			if strings.HasPrefix(l, want) {
				line = l
			}
		}
		if line == "" || training && !regexp.MustCompile(`(while waiting for its gradient of|while reducing) tensor (weight|bias) \(bucket [01]\) of iteration \d+`).MatchString(line) {
			t.Errorf("host %d, want %q:\n%s", h, want, said)
		}
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // of who was killed, the keeper tidies up
		if entries, err := os.ReadDir(nodes[host].tmp); err == nil && len(entries) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, n := range nodes {
		empty(t, n.tmp)
	}
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v (%v)", entries, err)
	}
}

// served is an agent that the test has started as a client does.
type served struct {
	*exec.Cmd
	dir   string
	word  string   // what it said at first
	alive *os.File // the end of the pipe that local rank 0 holds
	said  *bytes.Buffer
}

func serve(t *testing.T, dir string, env ...string) *served {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := &served{Cmd: exec.Command(os.Args[0], dir), dir: dir, alive: w, said: new(bytes.Buffer)}
	s.Env = append(os.Environ(), append([]string{as + "=agent", "RANK=0", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "WORLD_SIZE=2",
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}, env...)...)
	s.Stdin, s.Stderr = r, s.said
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Process.Kill(); s.Wait(); w.Close() })
	word, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	s.word = string(word)
	return s
}

func newDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "weft-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "weft-1")
}

func (s *served) dial(t *testing.T, rank int) *worker.Worker {
	t.Helper()
	w, err := worker.Dial(filepath.Join(s.dir, "agent"), rank, 2, rank)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// bare is the hello of a worker that has no model.
var bare = protocol.Hello{Tensors: []protocol.Tensor{}}

// both says hello for both ranks.
func both(h protocol.Hello, w ...*worker.Worker) (errs [2]error) {
	var all sync.WaitGroup
	for i := range w {
		all.Go(func() { errs[i] = w[i].Hello(h) })
	}
	all.Wait()
	return errs
}

func TestServe(t *testing.T) {
	dir := newDir(t)
	s := serve(t, dir)
	if s.word != "ready\n" {
		t.Fatalf("it said %q", s.word)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	w := []*worker.Worker{s.dial(t, 0), s.dial(t, 1)}
	for rank, err := range both(bare, w...) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	w[0].Goodbye()
	s.alive.Close() // its process ends; the other's goes on
	if err := w[1].Goodbye(); err != nil {
		t.Error(err)
	}
	if err := s.Wait(); err != nil || s.said.Len() > 0 {
		t.Errorf("%v, it said %s", err, s.said)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// Another launcher's variables give a plan.
func TestServePlan(t *testing.T) {
	t.Parallel()
	j := job.Chain("chain", []float64{1}, []float64{1}, []int64{20})
	p := plan.New(j, "delayed", "net")
	p.AllReduce(0, plan.WholeTensors(j, 0))
	p.Updates[0].Iteration, p.MaxDelay, p.MaxStaleness, p.Buffers = 1, 1, 1, 2
	file := filepath.Join(t.TempDir(), "plan.json")
	f, err := os.Create(file)
	if err == nil {
		err = cmp.Or(plan.Write(f, p), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		want string
		env  []string
	}{
		{"WEFT_PLAN: open /nothing-here/plan.json: no such file", []string{"WEFT_PLAN=/nothing-here/plan.json"}},
		{"WEFT_PLAN " + file + ": plan rule 5", []string{"WEFT_PLAN=" + file}},
		{`WEFT_MAX_DELAY is "much"`, []string{"WEFT_PLAN=" + file, "WEFT_MAX_DELAY=much"}},
	} {
		s := serve(t, newDir(t), x.env...)
		if !strings.Contains(s.word, x.want) || s.Wait() == nil {
			t.Errorf("it said %q, want %q", s.word, x.want)
		}
	}

	s := serve(t, newDir(t), "WEFT_PLAN="+file, "WEFT_MAX_DELAY=1")
	w := []*worker.Worker{s.dial(t, 0), s.dial(t, 1)}
	says := protocol.Hello{Boundaries: true, Mode: "per-tensor", Tensors: []protocol.Tensor{{Name: "t1", Elements: 5, DType: "float32"}}}
	for rank, err := range both(says, w...) {
		if err != nil || w[rank].Welcome.Digest != p.Digest() {
			t.Errorf("rank %d: %v, %+v", rank, err, w[rank].Welcome)
		}
	}
	w[0].Goodbye()
	w[1].Goodbye()
	if err := s.Wait(); err != nil || s.said.String() != "weft: plan "+p.Digest()+", policy delayed, delay 1\n" {
		t.Errorf("%v, it said %s", err, s.said)
	}
}

// Where nothing gives a plan, plain buckets run, and the user is told what would.
func TestServePlain(t *testing.T) {
	t.Parallel()
	s := serve(t, newDir(t))
	w := []*worker.Worker{s.dial(t, 0), s.dial(t, 1)}
	says := protocol.Hello{BucketBytes: 1, FirstBucket: 1, Tensors: []protocol.Tensor{{Name: "t1", Elements: 5, DType: "float32"}}}
	for rank, err := range both(says, w...) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	for i := range 3 {
		for rank := range w {
			if err := w[rank].Ready(0, i); err != nil {
				t.Fatal(err)
			}
		}
		for rank := range w {
			if _, _, err := w[rank].Done(); err != nil {
				t.Fatal(err)
			}
		}
	}
	w[0].Goodbye()
	w[1].Goodbye()
	want := `^weft: measured: plain buckets \d+\.\d ms an iteration, \d+\.\d ms of it exposed; weft run would have tried plans against them, and WEFT_PLAN=FILE gives one\n$`
	if err := s.Wait(); err != nil || !regexp.MustCompile(want).MatchString(s.said.String()) {
		t.Errorf("%v, it said %s", err, s.said)
	}
}

// The process of local rank 0 ends before it has said hello: who comes is told.
func TestServeOrphan(t *testing.T) {
	s := serve(t, newDir(t))
	w := s.dial(t, 1)
	s.alive.Close()
	err := w.Hello(protocol.Hello{Tensors: []protocol.Tensor{}})
	if want := "rank 0 is lost: its process has ended, before all workers had said hello"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	s.Wait()
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// What an agent cannot start with, it says to who starts it.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	open := newDir(t)
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	file := newDir(t)
	if err := os.WriteFile(file, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	link := newDir(t)
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	readable := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(readable, bytes.Repeat([]byte("x"), 20), 0o644); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(short, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "secret")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		want, dir string
		env       []string
	}{
		{"not a directory of this user alone", open, nil},
		{"not a directory of this user alone", file, nil},
		{"not a directory of this user alone", link, nil},
		{"need an absolute path", "weft-1", nil},
		{"need an absolute path", "/tmp/other", nil},
		{`RANK is "x"`, newDir(t), []string{"RANK=x"}},
		{`WEFT_TIMEOUT is "soon"`, newDir(t), []string{"WEFT_TIMEOUT=soon"}},
		{"WEFT_SECRET_FILE is not set; make one with", newDir(t), []string{"WORLD_SIZE=4", "WEFT_SECRET_FILE="}},
		{"others may read it", newDir(t), []string{"WORLD_SIZE=4", "WEFT_SECRET_FILE=" + readable}},
		{"not a regular file", newDir(t), []string{"WORLD_SIZE=4", "WEFT_SECRET_FILE=" + pipe}},
		{"5 bytes, need 16", newDir(t), []string{"WORLD_SIZE=4", "WEFT_SECRET_FILE=" + short}},
	} {
		s := serve(t, x.dir, x.env...)
		if !strings.Contains(s.word, x.want) || strings.Count(s.word, "\n") != 1 {
			t.Errorf("it said %q, want %q", s.word, x.want)
		}
		if s.Wait() == nil {
			t.Error("it ended well")
		}
	}
}

// A second training with the same directory waits for the first to be gone, and
// takes the directory over.
func TestServeAgain(t *testing.T) {
	dir := newDir(t)
	first := serve(t, dir)
	next := make(chan *served)
	go func() { next <- serve(t, dir) }()
	w := []*worker.Worker{first.dial(t, 0), first.dial(t, 1)}
	both(bare, w...)
	w[0].Goodbye()
	w[1].Goodbye()
	first.Wait()
	if s := <-next; s.word != "ready\n" {
		t.Errorf("the second said %q", s.word)
	} else if _, err := net.Dial("unix", filepath.Join(dir, "agent")); err != nil {
		t.Error(err)
	}
}
