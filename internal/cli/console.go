package cli

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"

	"weft/internal/atomicfile"
)

// Console is what a command talks to.
type Console struct {
	In       io.Reader
	Out, Err io.Writer
	Color    bool // Out is a terminal that wants colour
	Progress bool // Err is a terminal: long work shows how far it is
}

// NewConsole looks at what the streams are. NO_COLOR (any value) and TERM=dumb
// turn colour off.
func NewConsole(in, out, err *os.File) *Console {
	return &Console{
		In: in, Out: out, Err: err,
		Color:    isatty.IsTerminal(out.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		Progress: isatty.IsTerminal(err.Fd()) && os.Getenv("TERM") != "dumb",
	}
}

// WriteFile makes the file name, or the standard output, hold what
// write writes: whole, or not at all.
func (c *Console) WriteFile(ctx context.Context, name string, write func(io.Writer) error) error {
	if name == Stdout {
		return write(c.Out)
	}
	return atomicfile.Write(ctx, name, write)
}

const (
	patience = time.Second            // how long work runs before it shows how far it is
	tick     = 100 * time.Millisecond // how often it does, at most
)

// bar shows how far work is, of total (-1: unknown). It stays hidden for the
// first second, and where there is no terminal.
func (c *Console) bar(what string, total int64, more ...progressbar.Option) *progressbar.ProgressBar {
	options := append([]progressbar.Option{
		progressbar.OptionSetWriter(c.Err),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(tick),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
		progressbar.OptionClearOnFinish(),
	}, more...)
	return progressbar.NewOptions64(total, options...)
}

// Track shows how far work is while it runs: work calls done with the parts done
// so far, from one goroutine at a time.
func (c *Console) Track(what string, work func(done func(done, total int)) error) error {
	if !c.Progress {
		return work(func(int, int) {})
	}
	start := time.Now()
	var bar *progressbar.ProgressBar
	err := work(func(done, total int) {
		if time.Since(start) < patience {
			return
		}
		if bar == nil {
			bar = c.bar(what, int64(total))
		}
		bar.Set(done)
	})
	if bar != nil {
		bar.Finish()
	}
	return err
}

// Spin shows that work is going on while it runs, where there is no telling how
// far it is.
func (c *Console) Spin(what string, work func() error) error {
	if !c.Progress {
		return work()
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-stop:
			return
		case <-time.After(patience):
		}
		bar := c.bar(what, -1)
		defer bar.Finish()
		tick := time.NewTicker(tick)
		defer tick.Stop()
		for {
			bar.Add(1)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	err := work()
	close(stop)
	<-stopped
	return err
}

// meter shows how much of a file has been read.
type meter struct {
	c     *Console
	r     io.Reader
	what  string
	size  int64 // -1: unknown
	start time.Time
	read  int64
	bar   *progressbar.ProgressBar
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.read += int64(n)
	if m.bar == nil && time.Since(m.start) >= patience {
		m.bar = m.c.bar(m.what, m.size, progressbar.OptionShowBytes(true))
	}
	if m.bar != nil {
		m.bar.Set64(m.read)
	}
	return n, err
}

// finish clears the bar.
func (m *meter) finish() {
	if m.bar != nil {
		m.bar.Finish()
	}
}
