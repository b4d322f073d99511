// Package launch starts the workers of one host and looks after them: what they
// print, how they end, and that none of them, nor what they started, stays behind.
package launch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config says what to start.
type Config struct {
	Command []string
	Place
	// Env is added to the environment of this process and what every launcher gives
	// to workers: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
	// MASTER_PORT; and, if they are not set, OMP_NUM_THREADS, an equal part of the
	// processors, and what has malloc keep memory (see keepMemory).
	Env []string
	// Prepare, if set, is called before each worker is started, in the thread that
	// starts them all and that ends with the last: what it does to that thread (a
	// network namespace) the worker inherits, and what it returns comes after Env.
	Prepare func(rank int) (env []string, err error)
	// Out and Err get the lines that workers print, each behind "[rank] ".
	Out, Err io.Writer
	// Settle is how long the others may take to end by themselves once one has
	// failed or Stop was called, before they get SIGTERM; Grace, how long until they
	// are killed after that. 0: Settle and Grace of this package.
	Settle, Grace time.Duration
	// Keeper, if set, ends the workers and what they started if this process cannot.
	Keeper *Keeper
	// Signals, if set, are passed on to all workers and what they started, who are then to
	// end; a second one as SIGKILL.
	Signals <-chan os.Signal
	// Ended is called when a worker has ended: nil means in order.
	Ended func(rank int, failed *Exit)
}

// What Config takes for 0.
const (
	Settle = 3 * time.Second
	Grace  = 5 * time.Second
)

// Exit is how a worker ended that failed.
type Exit struct {
	Rank   int
	Code   int            // as the shell has it: 128 + signal for a signal
	Signal syscall.Signal // 0: none
	// Told says that the signal was one of those by which Group made it end.
	Told bool
}

func (e *Exit) Error() string { return fmt.Sprintf("rank %d ended: %s", e.Rank, e.How()) }

// How tells it without the rank.
func (e *Exit) How() string {
	if e.Signal != 0 {
		return fmt.Sprint("signal: ", e.Signal)
	}
	return fmt.Sprint("exit code ", e.Code)
}

// Fault is the one of those that failed, in the order in which they did, whose fault
// it was: the given rank, if it failed by itself, or else the first that did, or else
// the first. Nil: none failed.
func Fault(failed []*Exit, rank int) *Exit {
	for _, fits := range []func(*Exit) bool{
		func(e *Exit) bool { return !e.Told && e.Rank == rank },
		func(e *Exit) bool { return !e.Told },
		func(e *Exit) bool { return true },
	} {
		if i := slices.IndexFunc(failed, fits); i >= 0 {
			return failed[i]
		}
	}
	return nil
}

// Failed is how a run ended in which a worker failed.
type Failed struct {
	Code int   // of the worker whose fault it was, as far as is known, as the shell has it
	Err  error // nil: it has been printed
}

func (e *Failed) Error() string {
	if e.Err == nil {
		return fmt.Sprint("exit code ", e.Code)
	}
	return e.Err.Error()
}

func (e *Failed) Unwrap() error { return e.Err }

// Group is the workers of this host.
type Group struct {
	Config
	running sync.WaitGroup // workers, until they have ended
	own     sync.WaitGroup // goroutines beside those
	stop    chan struct{}  // closed once all are to end
	stopped sync.Once
	ended   chan struct{} // closed when all have

	mu     sync.Mutex
	alive  map[int]bool            // the process groups; each has the number of its worker
	sent   map[syscall.Signal]bool // to all
	failed []*Exit                 // in the order in which they ended
	lost   error                   // of what workers have printed, the first
}

// Start starts all workers, or none, on Linux alone. They are stopped when ctx ends.
func Start(ctx context.Context, c Config) (*Group, error) {
	if unsupported != nil {
		return nil, unsupported
	}
	c.Settle, c.Grace = cmp.Or(c.Settle, Settle), cmp.Or(c.Grace, Grace)
	g := &Group{Config: c, stop: make(chan struct{}), ended: make(chan struct{}), alive: map[int]bool{}, sent: map[syscall.Signal]bool{}}
	started := make(chan error)
	g.own.Go(func() {
		// Workers are killed when the thread that started them ends: it stays as long as
		// they do, and is not used again, because it may have been prepared for them.
		runtime.LockOSThread()
		started <- g.start()
		<-g.ended
	})
	err := <-started
	if err != nil {
		g.kill(syscall.SIGKILL)
	}
	g.own.Go(func() {
		g.running.Wait()
		close(g.ended)
	})
	if err != nil {
		g.own.Wait()
		return nil, err
	}
	g.own.Go(g.supervise)
	g.own.Go(func() { g.watch(ctx) })
	return g, nil
}

func (g *Group) start() error {
	out := new(sync.Mutex) // lines of different workers do not mix
	for i := range g.Workers {
		rank := g.First + i
		w := exec.Command(g.Command[0], g.Command[1:]...)
		w.Env = append(append(os.Environ(), g.environment(i)...), g.Env...)
		if g.Prepare != nil {
			env, err := g.Prepare(rank)
			if err != nil {
				return fmt.Errorf("preparing rank %d: %w", rank, err)
			}
			w.Env = append(w.Env, env...)
		}
		w.SysProcAttr = leader()
		x := &worker{Cmd: w, rank: rank}
		err := x.start(g.Out, g.Err)
		if err == nil {
			g.mu.Lock()
			g.alive[w.Process.Pid] = true
			g.Keeper.started(w.Process.Pid)
			g.mu.Unlock()
		}
		x.copy(out, g.unwritten) // not before: who sees a worker may count on the keeper
		if err != nil {
			return fmt.Errorf("starting rank %d: %w", rank, err)
		}
		g.running.Go(func() { g.wait(x) })
	}
	return nil
}

// environment is what worker i finds in its own.
func (g *Group) environment(i int) []string {
	env := g.Place.environment(i)
	if os.Getenv("OMP_NUM_THREADS") == "" {
		env = append(env, fmt.Sprint("OMP_NUM_THREADS=", max(1, runtime.NumCPU()/g.Workers)))
	}
	if !slices.ContainsFunc(os.Environ(), tunesMalloc) {
		env = append(env, keepMemory...)
	}
	return env
}

// keepMemory has glibc's malloc keep what a training frees, for its next iteration. By
// default it returns large blocks to the kernel, and every iteration's activations and
// gradients cost a page fault a page (docs/benchmarks.md, "Memory that comes back").
var keepMemory = []string{"MALLOC_MMAP_THRESHOLD_=1073741824", "MALLOC_TRIM_THRESHOLD_=1099511627776"}

// tunesMalloc says of a variable that the user has chosen how memory is allocated.
func tunesMalloc(variable string) bool {
	return strings.HasPrefix(variable, "MALLOC_") || strings.HasPrefix(variable, "GLIBC_TUNABLES=") || strings.HasPrefix(variable, "LD_PRELOAD=")
}

// worker is a process and what it prints.
type worker struct {
	*exec.Cmd
	rank    int
	printed []printed
	copying sync.WaitGroup
}

// printed is the reading end of what a worker prints, and where that is copied.
type printed struct {
	*os.File
	to io.Writer
}

func (w *worker) start(out, err io.Writer) error {
	for _, x := range []struct {
		end *io.Writer
		to  io.Writer
	}{{&w.Stdout, out}, {&w.Stderr, err}} {
		r, in, err := os.Pipe()
		if err != nil {
			return err
		}
		defer in.Close() // the worker has it
		*x.end = in
		w.printed = append(w.printed, printed{r, x.to})
	}
	return w.Start()
}

// copy copies what the worker prints, until it has ended.
func (w *worker) copy(lines *sync.Mutex, failed func(error)) {
	for _, p := range w.printed {
		w.copying.Go(func() {
			if err := copyLines(p.to, p, fmt.Sprintf("[%d] ", w.rank), lines); err != nil {
				failed(err)
			}
			p.Close()
		})
	}
}

// wait waits for a worker's end, and ends what it has left behind.
func (g *Group) wait(w *worker) {
	pid := w.Process.Pid
	hasEnded(pid)
	g.mu.Lock()
	// Until it has been waited for, nobody else has its number.
	syscall.Kill(-pid, syscall.SIGKILL)
	delete(g.alive, pid)
	g.Keeper.ended(pid)
	w.Wait()
	failed := exit(w.rank, w.ProcessState)
	if failed != nil {
		failed.Told = g.sent[failed.Signal]
		g.failed = append(g.failed, failed)
	}
	g.mu.Unlock()
	if g.Ended != nil {
		g.Ended(w.rank, failed)
	}
	if failed != nil {
		g.Stop()
	}
	for _, r := range w.printed { // who left the process group may hold the other end
		r.SetReadDeadline(time.Now().Add(g.Settle))
	}
	w.copying.Wait()
}

// exit is nil for a worker that ended well.
func exit(rank int, s *os.ProcessState) *Exit {
	status, _ := s.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled():
		return &Exit{Rank: rank, Code: 128 + int(status.Signal()), Signal: status.Signal()}
	case s.ExitCode() != 0:
		return &Exit{Rank: rank, Code: s.ExitCode()}
	}
	return nil
}

// Wait waits until all workers have ended, and returns those that failed, in the order
// in which they did.
func (g *Group) Wait() []*Exit {
	g.own.Wait()
	return g.failed
}

// Unwritten is a [*Failed] if something that workers printed could not be written, once
// Wait has returned.
func (g *Group) Unwritten() error { return g.lost }

func (g *Group) unwritten(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lost = cmp.Or[error](g.lost, &Failed{Code: 1, Err: fmt.Errorf("not all that workers printed could be written: %w", err)})
}

// Stop makes all workers end: by themselves in the time that Settle gives, else by
// signals.
func (g *Group) Stop() { g.stopped.Do(func() { close(g.stop) }) }

func (g *Group) kill(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent[s] = true
	for pid := range g.alive {
		syscall.Kill(-pid, s)
	}
}

// watch stops the workers when ctx ends, and passes signals on to them, a second one
// as SIGKILL.
func (g *Group) watch(ctx context.Context) {
	for cancelled, interrupts := ctx.Done(), 0; ; {
		select {
		case <-g.ended:
			return
		case <-cancelled:
			cancelled = nil
			g.Stop()
		case s := <-g.Signals:
			if interrupts++; interrupts > 1 {
				s = syscall.SIGKILL
			}
			g.kill(s.(syscall.Signal))
			g.Stop()
		}
	}
}

// supervise ends the workers once they are to end.
func (g *Group) supervise() {
	select {
	case <-g.ended:
		return
	case <-g.stop:
	}
	for _, x := range []struct {
		after time.Duration
		s     syscall.Signal
	}{{g.Settle, syscall.SIGTERM}, {g.Grace, syscall.SIGKILL}} {
		select {
		case <-g.ended:
			return
		case <-time.After(x.after):
		}
		g.kill(x.s)
	}
}

// maxLine is what a line is cut at.
const maxLine = 64 << 10

// copyLines copies lines as they end, each behind a prefix. A carriage return ends
// one too, as progress bars have it. All is read, whatever becomes of it; the first error
// of writing is returned.
func copyLines(to io.Writer, from io.Reader, prefix string, one *sync.Mutex) (lost error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 2*maxLine)
	lines.Split(func(b []byte, end bool) (int, []byte, error) {
		n := bytes.IndexAny(b, "\r\n") + 1
		if n == 0 && (end || len(b) >= maxLine) {
			n = len(b)
		}
		if n == 0 {
			return 0, nil, nil // more has to come
		}
		return n, b[:n], nil
	})
	for lines.Scan() {
		b := append([]byte(prefix), lines.Bytes()...)
		if last := b[len(b)-1]; last != '\n' && last != '\r' {
			b = append(b, '\n')
		}
		one.Lock()
		_, err := to.Write(b)
		one.Unlock()
		lost = cmp.Or(lost, err)
	}
	return lost
}
