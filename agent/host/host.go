// Package host runs one host's part of a training: its agent and, where weft is the
// launcher, its workers.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"weft/agent"
	"weft/agent/rendezvous"
	"weft/collective"
	"weft/internal/atomicfile"
	"weft/launch"
	"weft/plan"
	"weft/timeline"
	"weft/transport"
)

// Config of a host's part.
type Config struct {
	launch.Place
	Weft string // version of this program, which must be the same on all hosts
	// Timeout is how long workers, and hosts, may wait for each other; 0: for ever.
	Timeout time.Duration
	// Getenv is [os.Getenv]: WEFT_PORT, WEFT_SECRET_FILE, WEFT_RAILS, NCCL_SOCKET_IFNAME
	// and GLOO_SOCKET_IFNAME are read where there are several hosts.
	Getenv func(string) string
	// Keep is the arguments with which this program calls [launch.Keep].
	Keep []string
	// Schedule is the plan that is executed; nil: plain buckets.
	Schedule *agent.Schedule
	// Review is as in [agent.Config].
	Review *agent.Review
	// Tell, if set, tells the user of the training: which plan of a schedule was executed, nil if none was, and what all
	// plans took. It is called on host 0, after the training, and whenever somebody asks by SIGUSR1.
	Tell func(executed *plan.Plan, ran []agent.Ran, asked bool)
	// Timeline, if set, is the file for what happens in the last iterations on this host, as a Chrome trace. It is written when
	// Tell is called. That of a host whose first rank is not 0 has the rank in its name, before what follows the last dot.
	Timeline string
	// Out and Err get what workers print, Err also warnings.
	Out, Err io.Writer
}

// Timeout is how long to wait where the user does not say.
const Timeout = 30 * time.Minute

// listen starts the agent, whose socket is in dir. Explained is as in [agent.Config].
func (c *Config) listen(dir string, explained bool) (*agent.Agent, error) {
	o := agent.Config{
		World: c.World, Ranks: c.Ranks(), Socket: filepath.Join(dir, "agent"), Timeout: c.Timeout, Explained: explained,
		Warn: c.warn, Schedule: c.Schedule, Review: c.Review, Record: c.Timeline != "",
	}
	if c.Timeline != "" { // which is not to be missing after days
		if err := atomicfile.Probe(c.timelineFile()); err != nil {
			return nil, fmt.Errorf("the timeline: %w", err)
		}
	}
	if !c.Alone() {
		m, err := c.rendezvous()
		if err != nil {
			return nil, err
		}
		o.Meet = func(ctx context.Context) ([]transport.Endpoint, collective.Layout, error) {
			return rendezvous.Meet(ctx, m)
		}
	}
	if c.Getenv("GOMAXPROCS") == "" {
		// Workers compute, and the agent has its share of the processors beside them: more
		// would be woken for each message, and take time from the workers.
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/(1+c.Workers)))
	}
	return agent.Listen(o)
}

// rendezvous is how this host meets the others.
func (c *Config) rendezvous() (rendezvous.Config, error) {
	master, err := c.Rendezvous(c.Getenv)
	if err != nil {
		return rendezvous.Config{}, err
	}
	secret, err := readSecret(c.Getenv("WEFT_SECRET_FILE"))
	if err != nil {
		return rendezvous.Config{}, fmt.Errorf("several hosts need a secret that only they have: %w", err)
	}
	m := rendezvous.Config{
		Member: rendezvous.Member{Weft: c.Weft, World: c.World, First: c.First, Workers: c.Workers},
		Master: master, Secret: secret, Interfaces: []string{transport.Names(c.Getenv)}, Timeout: c.Timeout, Warn: c.warn,
	}
	switch s := c.Getenv("WEFT_RAILS"); s {
	case "":
	case "auto":
		m.Auto = true
	default:
		m.Interfaces, err = ParseRails(s)
	}
	return m, err
}

// maxRails bounds the networks between hosts.
const maxRails = 16

// ParseRails reads which interfaces a host's rails have, a list with commas: each the
// beginning of a name, after "=" the whole.
func ParseRails(s string) ([]string, error) {
	rails := strings.Split(s, ",")
	for i := range rails {
		if rails[i] = strings.TrimSpace(rails[i]); strings.Trim(rails[i], "^=") == "" {
			return nil, fmt.Errorf("rails %q: number %d has no name", s, i)
		}
	}
	if len(rails) > maxRails {
		return nil, fmt.Errorf("rails %q: at most %d", s, maxRails)
	}
	return rails, nil
}

func (c *Config) warn(text string) { fmt.Fprintln(c.Err, "weft: warning:", text) }

// tell tells the user of the training.
func (c *Config) tell(a *agent.Agent, asked bool) {
	if c.Timeline != "" {
		if err := c.writeTimeline(a.Timeline()); err != nil {
			c.warn(fmt.Sprintf("no timeline: %v", err))
		}
	}
	if c.First == 0 && c.Tell != nil {
		c.Tell(a.Plan(), a.Ran(), asked)
	}
}

// writeTimeline writes what happened on this host.
func (c *Config) writeTimeline(t *timeline.Timeline) error {
	if t == nil {
		return errors.New("no iteration of a model is complete")
	}
	return atomicfile.Write(context.Background(), c.timelineFile(), func(w io.Writer) error { return timeline.WriteChrome(w, t) })
}

// timelineFile is that of this host.
func (c *Config) timelineFile() string {
	if c.First == 0 {
		return c.Timeline
	}
	ext := filepath.Ext(c.Timeline)
	return fmt.Sprintf("%s-rank%d%s", strings.TrimSuffix(c.Timeline, ext), c.First, ext)
}

// readSchedule is the plan in a file, for which other launchers have but variables:
// WEFT_PLAN, and WEFT_MAX_DELAY, as weft run has flags.
func readSchedule(name, delay string) (*agent.Schedule, error) {
	s := &agent.Schedule{Limits: plan.DefaultLimits}
	if delay != "" {
		n, err := strconv.Atoi(delay)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("WEFT_MAX_DELAY is %q: need a number of iterations, 0 or more", delay)
		}
		s.Limits = plan.DelayLimits(n)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("WEFT_PLAN: %w", err)
	}
	defer f.Close()
	if s.Plan, err = plan.Read(f); err == nil {
		err = s.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("WEFT_PLAN %s: %w", name, err)
	}
	return s, nil
}

// maxSecret bounds what is read of a file, bytes.
const maxSecret = 64 << 10

// readSecret reads the job's secret. White space around it does not count.
func readSecret(path string) (transport.Secret, error) {
	const how = `make one with: (umask 077; head -c 32 /dev/urandom | base64 > weft.secret); copy it to all hosts and set WEFT_SECRET_FILE to its path`
	if path == "" {
		return nil, fmt.Errorf("WEFT_SECRET_FILE is not set; %s", how)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // of a pipe that nobody writes, too
	if err != nil {
		return nil, fmt.Errorf("WEFT_SECRET_FILE: %w; %s", err, how)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("WEFT_SECRET_FILE: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("WEFT_SECRET_FILE %s: not a regular file; %s", path, how)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("WEFT_SECRET_FILE %s: others may read it (mode %v): chmod 600 it", path, info.Mode())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret))
	if err != nil {
		return nil, fmt.Errorf("WEFT_SECRET_FILE: %w", err)
	}
	if b = bytes.TrimSpace(b); len(b) < transport.MinSecret {
		return nil, fmt.Errorf("WEFT_SECRET_FILE %s: %d bytes, need %d; %s", path, len(b), transport.MinSecret, how)
	}
	return b, nil
}

// lines lets several write to one writer, a line at a time.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
