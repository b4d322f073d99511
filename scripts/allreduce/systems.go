package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/agent/worker"
	"weft/lab"
	"weft/launch"
)

var (
	// names are the systems, in the order of the first round.
	names = []string{"gloo", "weft", "copies", "mpi", "engine", "path"}
	// groups are the processes that the systems run in.
	groups = map[string]string{"gloo": "python", "weft": "python", "copies": "python", "mpi": "mpi", "engine": "engine", "path": "path"}

	//go:embed workers/worker.py
	pythonWorker []byte
	//go:embed workers/worker.c
	mpiWorker []byte
	//go:embed workers/path.c
	pathWorker []byte
)

const (
	role    = "ALLREDUCE_ROLE"   // what this program is started as, by itself
	control = "ALLREDUCE_SOCKET" // where workers take their turns
	burners = "burn"             // the group that computes beside

	startTime = 60 * time.Second
	turnTime  = 60 * time.Second
	endTime   = 20 * time.Second
)

// find completes the options.
func (o *options) find() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if o.weft == "" {
		o.weft = filepath.Join(filepath.Dir(self), "weft")
	}
	needs := map[string][]string{"python": {o.weft, o.python}, "engine": {o.weft}, "mpi": {"mpicc", "mpirun"}, "path": {"cc"}}
	for _, s := range o.systems {
		if groups[s] == "" {
			return fmt.Errorf("no system %q; there are %v", s, names)
		}
		for _, program := range needs[groups[s]] {
			if _, err := exec.LookPath(program); err != nil {
				return fmt.Errorf("for %s: %w", s, err)
			}
		}
	}
	return nil
}

// theatre is where systems take turns.
type theatre struct {
	options
	setting
	world  int
	dir    string
	lab    *lab.Lab // nil: one host
	keeper *launch.Keeper
	groups []*launch.Group
	listen *net.UnixListener
	actors map[string][]*actor // by group, then by rank
	failed chan error
}

// actor is a process that waits for its turn.
type actor struct {
	*bufio.Reader
	net.Conn
	pids []int // its own and its launcher's
}

// start starts all processes of a setting, and waits until they can begin.
func (o options) start(ctx context.Context, s setting, world int) (t *theatre, err error) {
	t = &theatre{options: o, setting: s, world: world, actors: map[string][]*actor{}, failed: make(chan error, 8)}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.dir, t.keeper, err = launch.MakeTemp("keep"); err != nil {
		return t, err
	}
	if s.apart {
		if t.lab, err = lab.New(lab.Config{Hosts: world, Rates: []float64{s.rate}}); err != nil {
			return t, err
		}
	}
	for name, content := range map[string][]byte{"worker.py": pythonWorker, "worker.c": mpiWorker, "path.c": pathWorker, "secret": []byte(strings.Repeat("benchmark", 4)), "enter": []byte(enter)} {
		if err := os.WriteFile(t.path(name), content, 0o700); err != nil {
			return t, err
		}
	}
	if err := os.Chmod(t.path("secret"), 0o600); err != nil {
		return t, err
	}
	if t.listen, err = net.ListenUnix("unix", &net.UnixAddr{Name: t.path("control"), Net: "unix"}); err != nil {
		return t, err
	}
	self, err := os.Executable()
	if err != nil {
		return t, err
	}
	uses := func(group string) bool {
		return slices.ContainsFunc(o.systems, func(s string) bool { return groups[s] == group })
	}
	if uses("python") {
		if err := t.weftRun(29500, nil, o.python, t.path("worker.py")); err != nil {
			return t, err
		}
	}
	if uses("engine") {
		if err := t.weftRun(29600, []string{role + "=engine"}, self); err != nil {
			return t, err
		}
	}
	if uses("mpi") {
		if err := t.mpirun(ctx); err != nil {
			return t, err
		}
	}
	if uses("path") {
		if err := t.pathWorkers(ctx); err != nil {
			return t, err
		}
	}
	if s.rate > 0 {
		if err := t.launch(runtime.NumCPU(), nil, []string{role + "=burn"}, self); err != nil {
			return t, err
		}
	}
	return t, t.gather(uses)
}

func (t *theatre) path(name string) string { return filepath.Join(t.dir, name) }

// launch starts n processes.
func (t *theatre) launch(n int, prepare func(int) ([]string, error), env []string, command ...string) error {
	g, err := launch.Start(context.Background(), launch.Config{ // close ends them
		Command: command, Place: launch.Place{Workers: n, World: n}, Out: os.Stderr, Err: os.Stderr, Keeper: t.keeper, Prepare: prepare,
		Env: append(env, control+"="+t.path("control")), Settle: endTime,
		Ended: func(_ int, failed *launch.Exit) {
			if failed != nil {
				select {
				case t.failed <- fmt.Errorf("%v: %w", command, failed):
				default:
				}
			}
		},
	})
	if err == nil {
		t.groups = append(t.groups, g)
	}
	return err
}

// weftRun starts workers by weft run: all on this host, or one on each.
func (t *theatre) weftRun(port int, env []string, command ...string) error {
	run := func(n int) []string { return append([]string{t.weft, "run", "-n", strconv.Itoa(n), "--"}, command...) }
	if t.lab == nil {
		return t.launch(1, nil, env, run(t.world)...)
	}
	return t.launch(t.world, func(host int) ([]string, error) {
		return t.lab.Environment(host, port, t.path("secret")), t.lab.Enter(host)
	}, env, run(1)...)
}

// enter is what mpirun starts its daemons on other hosts with, in place of ssh. Each
// has a name of its own, for Open MPI takes processes with one name to share memory.
const enter = `#!/bin/sh
dir=$(dirname "$0"); host=$1; shift
mkdir -p "$dir/$host"
exec nsenter --net=/proc/$(cat "$dir/pid.$host")/ns/net unshare --uts sh -c 'hostname "$1"; export TMPDIR="$2"; shift 2; eval "$*"' sh "$host" "$dir/$host" "$@"
`

// mpirun starts Open MPI's workers.
func (t *theatre) mpirun(ctx context.Context) error {
	program := t.path("mpi")
	if err := t.compile(ctx, "mpicc", program, "worker.c"); err != nil {
		return err
	}
	command := []string{"mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", strconv.Itoa(t.world), "-x", control}
	if t.world > runtime.NumCPU() {
		command = append(command, "--oversubscribe") // who waits lets others run
	}
	if t.lab == nil {
		return t.launch(1, nil, nil, append(command, program)...)
	}
	// Somebody on each host whose namespace its daemon can enter.
	if err := t.launch(t.world, func(host int) ([]string, error) {
		return []string{fmt.Sprint("PIDFILE=", t.path("pid."), lab.Addr(0, host))}, t.lab.Enter(host)
	}, nil, "sh", "-c", `echo $$ > "$PIDFILE.new" && mv "$PIDFILE.new" "$PIDFILE"
		while test -e "$PIDFILE"; do sleep 1; done`); err != nil {
		return err
	}
	var hosts []string
	for host := range t.world {
		hosts = append(hosts, lab.Addr(0, host).String())
		for until := time.Now().Add(startTime); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(t.path("pid." + hosts[host])); err == nil {
				break
			}
			if time.Now().After(until) {
				return fmt.Errorf("host %d has not started", host)
			}
		}
	}
	return t.launch(1, func(int) ([]string, error) { return nil, t.lab.Enter(0) }, nil, append(command,
		"--host", strings.Join(hosts, ","), "--mca", "plm_rsh_agent", t.path("enter"), "--mca", "btl", "tcp,self",
		"--mca", "btl_tcp_if_include", lab.Interface(0), "--mca", "oob_tcp_if_include", lab.Interface(0), program)...)
}

// pathWorkers starts the workers that send bytes and reduce nothing.
func (t *theatre) pathWorkers(ctx context.Context) error {
	program := t.path("path")
	if err := t.compile(ctx, "cc", program, "path.c"); err != nil {
		return err
	}
	command := []string{program, t.dir}
	if t.lab == nil {
		return t.launch(t.world, nil, nil, command...)
	}
	for host := range t.world {
		command = append(command, lab.Addr(0, host).String())
	}
	return t.launch(t.world, func(host int) ([]string, error) { return nil, t.lab.Enter(host) }, nil, command...)
}

// compile makes a program of a source that lies in the theatre's directory.
func (t *theatre) compile(ctx context.Context, compiler, program, source string) error {
	if out, err := exec.CommandContext(ctx, compiler, "-O3", "-o", program, t.path(source)).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", compiler, err, out)
	}
	return nil
}

// gather waits until all processes have come.
func (t *theatre) gather(uses func(string) bool) error {
	want := 0
	for _, group := range []string{"python", "engine", "mpi", "path"} {
		if uses(group) {
			t.actors[group] = make([]*actor, t.world)
			want += t.world
		}
	}
	if t.rate > 0 {
		t.actors[burners] = make([]*actor, runtime.NumCPU())
		want += runtime.NumCPU()
	}
	t.listen.SetDeadline(time.Now().Add(startTime))
	for range want {
		conn, err := t.listen.Accept()
		if err != nil {
			return errors.Join(fmt.Errorf("waiting for all processes to start: %w", err), t.why())
		}
		a := &actor{bufio.NewReader(conn), conn, make([]int, 2)}
		conn.SetDeadline(time.Now().Add(startTime))
		line, err := a.ReadString('\n')
		if err != nil {
			return err
		}
		var group string
		var rank int
		if _, err := fmt.Sscan(line, &group, &rank, &a.pids[0], &a.pids[1]); err != nil || rank >= len(t.actors[group]) {
			return fmt.Errorf("a process says %q (%v)", line, err)
		}
		t.actors[group][rank] = a
	}
	return nil
}

// why is how the first process ended that failed.
func (t *theatre) why() error {
	select {
	case err := <-t.failed:
		return err
	default:
		return nil
	}
}

// run is a system's turn: the median time of n iterations, on the slowest rank. 0: one
// iteration whose result is checked.
func (t *theatre) run(system string, bytes int64, n int) (time.Duration, error) {
	answers, err := t.ask(groups[system], fmt.Sprintln(system, bytes, n))
	if err != nil {
		return 0, fmt.Errorf("%s, %s: %w", system, size(bytes), err)
	}
	slowest := time.Duration(0)
	for rank, a := range answers {
		var took time.Duration
		var wrong int
		if _, err := fmt.Sscan(a, &took, &wrong); err != nil || wrong != 0 {
			return 0, fmt.Errorf("%s, %s: rank %d: %d elements are wrong (%q, %v)", system, size(bytes), rank, wrong, a, err)
		}
		slowest = max(slowest, took)
	}
	return slowest, nil
}

// ask sends a line to all processes of a group, and returns their answers.
func (t *theatre) ask(group, line string) ([]string, error) {
	all := t.actors[group]
	for _, a := range all {
		a.SetDeadline(time.Now().Add(turnTime))
		if _, err := a.Write([]byte(line)); err != nil {
			return nil, errors.Join(err, t.why())
		}
	}
	out := make([]string, len(all))
	for rank, a := range all {
		var err error
		if out[rank], err = a.ReadString('\n'); err != nil {
			return nil, errors.Join(fmt.Errorf("rank %d: %w", rank, err), t.why())
		}
	}
	return out, nil
}

// Read is the buffered one.
func (a *actor) Read(b []byte) (int, error) { return a.Reader.Read(b) }

// cpu is the processor time that a system's processes have taken.
func (t *theatre) cpu(system string) (sum time.Duration) {
	seen := map[int]bool{}
	for _, a := range t.actors[groups[system]] {
		for _, pid := range a.pids {
			var now unix.Timespec
			// The clock of another process: clock_getcpuclockid(3).
			if !seen[pid] && unix.ClockGettime(int32(^pid<<3|2), &now) == nil {
				sum += time.Duration(now.Nano())
			}
			seen[pid] = true
		}
	}
	return sum
}

// beside does f while all processors compute, and returns how much they computed a
// second, and how long it took.
func (t *theatre) beside(f func() error) (rate float64, wall time.Duration, err error) {
	if _, err := t.ask(burners, "start\n"); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	err = f()
	wall = time.Since(start)
	answers, e := t.ask(burners, "stop\n")
	if err = errors.Join(err, e); err != nil {
		return 0, 0, err
	}
	for _, a := range answers {
		var loops, seconds float64
		if _, err := fmt.Sscan(a, &loops, &seconds); err != nil {
			return 0, 0, err
		}
		rate += loops / seconds
	}
	return rate, wall, nil
}

func (t *theatre) close() error {
	for _, group := range t.actors {
		for _, a := range group {
			if a != nil {
				a.Close()
			}
		}
	}
	for host := range t.world { // those who wait there end
		os.Remove(t.path("pid." + lab.Addr(0, host).String()))
	}
	for _, g := range t.groups {
		g.Stop()
	}
	for _, g := range t.groups {
		g.Wait()
	}
	var errs []error
	if t.listen != nil {
		errs = append(errs, t.listen.Close())
	}
	if t.lab != nil {
		errs = append(errs, t.lab.Close())
	}
	if t.keeper != nil {
		errs = append(errs, t.keeper.Close())
	}
	return errors.Join(errs...)
}

// introduce connects a process of this program to the one that asks.
func introduce(group string, rank int) (*actor, error) {
	conn, err := net.Dial("unix", os.Getenv(control))
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(conn, group, rank, os.Getpid(), os.Getppid())
	return &actor{Reader: bufio.NewReader(conn), Conn: conn}, err
}

// engine is a worker without Python.
func engine() error {
	w, err := worker.Connect()
	if err != nil {
		return err
	}
	a, err := introduce("engine", w.Rank)
	if err != nil {
		return err
	}
	var b *worker.Bench
	for last := int64(-1); ; {
		line, err := a.ReadString('\n')
		if err != nil { // no more turns
			return w.Goodbye()
		}
		var system string
		var bytes int64
		var n int
		if _, err := fmt.Sscan(line, &system, &bytes, &n); err != nil {
			return err
		}
		if bytes != last {
			if b, err = w.NewBench(bytes); err != nil {
				return err
			}
			last = bytes
		}
		times, err := b.Run(max(n, 1))
		if err != nil {
			return err
		}
		slices.Sort(times)
		wrong := 0
		if n == 0 {
			wrong = b.Wrong()
		}
		if _, err := fmt.Fprintln(a, times[len(times)/2].Nanoseconds(), wrong); err != nil {
			return err
		}
	}
}

// burn computes between "start" and "stop", and answers how much.
func burn() error {
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}
	a, err := introduce(burners, rank)
	if err != nil {
		return err
	}
	var stop atomic.Bool
	done := make(chan string)
	for {
		line, err := a.ReadString('\n')
		if err != nil {
			return nil
		}
		answer := ""
		if line == "start\n" {
			stop.Store(false)
			go func() {
				start, loops, x := time.Now(), 0, 1.0
				for ; !stop.Load(); loops++ {
					for range 1000 { // each depends on the one before
						x = x*0.999 + 0.001
					}
				}
				done <- fmt.Sprint(float64(loops)*x, " ", time.Since(start).Seconds())
			}()
		} else {
			stop.Store(true)
			answer = <-done
		}
		if _, err := fmt.Fprintln(a, answer); err != nil {
			return err
		}
	}
}
