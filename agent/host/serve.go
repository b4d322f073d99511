package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft/agent"
	"weft/agent/choice"
	"weft/launch"
	"weft/plan"
)

const (
	// lateness is how long after a failure a worker may come and still be told.
	lateness = 5 * time.Second
	// succession is how long the agent of an earlier training may take to be gone.
	succession = 10 * time.Second
)

// ErrSilent is the error of an agent that could not start; its reason has been told to
// who started it.
var ErrSilent = errors.New("the agent could not start")

// Serve is the agent of a host whose workers another launcher has started:
// docs/formats/client.md, "Starting the agent". The worker that has started it holds
// the other ends of stdin and stdout. Place is read from the environment, and Timeout
// if it is there.
func Serve(ctx context.Context, c Config, dir string, stdin, stdout *os.File) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP) // the workers end it
	a, keeper, err := c.start(dir)
	word := "ready"
	if err != nil {
		word = strings.ReplaceAll(err.Error(), "\n", " ")
	}
	fmt.Fprintln(stdout, word)
	stdout.Close()
	if err != nil {
		return ErrSilent
	}
	defer keeper.Close()

	var waiting sync.WaitGroup
	waiting.Go(func() {
		io.Copy(io.Discard, stdin)
		a.Ended(c.First, nil)
	})
	select {
	case <-ctx.Done():
		a.Fail(fmt.Errorf("the agent of rank %d was told to end (SIGTERM)", c.First))
	case <-a.Done():
	}
	if err = a.Err(); err != nil {
		select {
		case <-a.Told():
		case <-time.After(lateness):
		}
	}
	c.Tell = c.found
	c.tell(a, false)
	a.Close()
	stdin.Close()
	waiting.Wait()
	return err
}

// found tells of the plan that was given; or that none was, as there is nobody here to make one.
func (c *Config) found(executed *plan.Plan, ran []agent.Ran, _ bool) {
	var lines []string
	if executed != nil {
		lines = choice.Given(executed, nil, ran)
	} else {
		for _, plain := range choice.Plain(ran) {
			lines = append(lines, plain+"; weft run would have tried plans against them, and WEFT_PLAN=FILE gives one")
		}
	}
	for _, line := range lines {
		fmt.Fprintln(c.Err, "weft:", line)
	}
}

// start makes directory, agent and keeper, or nothing.
func (c *Config) start(dir string) (a *agent.Agent, k *launch.Keeper, err error) {
	if c.Place, err = launch.ReadPlace(c.Getenv); err != nil {
		return nil, nil, err
	}
	if s := c.Getenv("WEFT_TIMEOUT"); s != "" {
		if c.Timeout, err = time.ParseDuration(s); err != nil || c.Timeout < 0 {
			return nil, nil, fmt.Errorf("WEFT_TIMEOUT is %q: need a time such as 30m, or 0 for ever", s)
		}
	}
	if s := c.Getenv("WEFT_PLAN"); s != "" {
		if c.Schedule, err = readSchedule(s, c.Getenv("WEFT_MAX_DELAY")); err != nil {
			return nil, nil, err
		}
	}
	c.Timeline = c.Getenv("WEFT_TIMELINE")
	lock, err := lockDir(dir)
	if err != nil {
		return nil, nil, err
	}
	defer lock.Close() // the keeper has it
	if k, err = launch.NewKeeper(dir, lock, c.Keep...); err != nil {
		return nil, nil, err
	}
	if err = os.Remove(filepath.Join(dir, "agent")); err == nil || errors.Is(err, os.ErrNotExist) {
		if a, err = c.listen(dir, false); err == nil {
			return a, k, nil
		}
	}
	k.Close()
	return nil, nil, err
}

// lockDir makes a directory that only this user may enter, or takes one that was left
// behind, and locks it: the lock lasts until all who have the file have closed it.
func lockDir(dir string) (*os.File, error) {
	if !filepath.IsAbs(dir) || !strings.HasPrefix(filepath.Base(dir), launch.DirPrefix) {
		return nil, fmt.Errorf("the agent's directory %s: need an absolute path whose last part begins with %q", dir, launch.DirPrefix)
	}
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("the agent's directory: %w", err)
		}
		info, err := os.Lstat(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue // its last agent has just gone
		}
		if err != nil {
			return nil, fmt.Errorf("the agent's directory: %w", err)
		}
		if s, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || info.Mode().Perm() != 0o700 || int(s.Uid) != os.Geteuid() {
			return nil, fmt.Errorf("the agent's directory %s is there, and is not a directory of this user alone (%v): remove it, or set WEFT_RUNTIME_DIR", dir, info.Mode())
		}
		f, err := os.Open(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the agent's directory: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if now, e := os.Lstat(dir); err == nil && e == nil && os.SameFile(now, info) {
			return f, nil
		}
		f.Close()
		switch {
		case err != nil && err != unix.EWOULDBLOCK:
			return nil, fmt.Errorf("locking the agent's directory: %w", err)
		case time.Since(start) > succession:
			return nil, fmt.Errorf("another training on this host has the same MASTER_ADDR and MASTER_PORT (its agent is in %s)", dir)
		}
	}
}
