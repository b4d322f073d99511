package cli

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
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

	inputs  []input  // files read so far
	outputs []string // files to be written after long work
	piped   bool     // In was read: there is no more of it
}

// input is a file that was read, as it was called.
type input struct {
	name string
	info os.FileInfo
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
// write writes: whole, or not at all. It refuses to replace an input.
func (c *Console) WriteFile(ctx context.Context, name string, write func(io.Writer) error) error {
	if name == Stdout {
		return write(c.Out)
	}
	if err := c.replaces(name); err != nil {
		return err
	}
	return atomicfile.Write(ctx, name, write)
}

// Probe says of each file, before long work, whether WriteFile could write it; "" is none.
// No two may be one file, nor may inputs that are read afterwards be one of them.
func (c *Console) Probe(names ...string) error {
	for _, name := range names {
		if name == "" || name == Stdout {
			continue
		}
		if err := cmp.Or(c.replaces(name), atomicfile.Probe(name)); err != nil {
			return err
		}
		for _, other := range c.outputs {
			if same(name, other) {
				return Usagef("two outputs would be one file, %s: give another name", name)
			}
		}
		c.outputs = append(c.outputs, name)
	}
	return nil
}

// same reports whether what is written under two names would be one file, of which the
// later one remains.
func same(a, b string) bool {
	x, err := os.Stat(a)
	y, none := os.Stat(b)
	switch {
	case err == nil && none == nil:
		return x.Mode().IsRegular() && os.SameFile(x, y)
	case err == nil || none == nil:
		return false
	}
	dir, err := os.Stat(filepath.Dir(a))
	other, none := os.Stat(filepath.Dir(b))
	return err == nil && none == nil && os.SameFile(dir, other) && filepath.Base(a) == filepath.Base(b)
}

// replaces refuses a file that would replace an input that was read.
func (c *Console) replaces(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return nil // there is none yet
	}
	for _, in := range c.inputs {
		if os.SameFile(in.info, info) {
			return replacing(name, in.name)
		}
	}
	return nil
}

func replacing(out, in string) error {
	return Usagef("the output %s would replace the input %s: give another name", out, in)
}

const (
	patience = time.Second            // how long work runs before it shows how far it is
	tick     = 100 * time.Millisecond // how often it does, at most
)

// bar shows how far work is, of total (-1: unknown), in a line of the page. Nothing
// is seen of it for the first second, nor where there is no terminal.
func (c *Console) bar(what string, total int64, more ...progressbar.Option) *progressbar.ProgressBar {
	var out io.Writer = io.Discard
	if c.Progress {
		out = &late{c.Err, time.Now().Add(patience)}
	}
	return progressbar.NewOptions64(total, append([]progressbar.Option{
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetDescription(text.Trim(Printable(what), 22)), // what bar, rate and times leave
		progressbar.OptionSetWidth(18),
		progressbar.OptionThrottle(tick),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
		progressbar.OptionClearOnFinish(),
	}, more...)...)
}

// late drops what is written before a time.
type late struct {
	w    io.Writer
	from time.Time
}

func (l *late) Write(p []byte) (int, error) {
	if time.Now().Before(l.from) {
		return len(p), nil
	}
	return l.w.Write(p)
}

// Track shows how far work is while it runs: work calls done with the parts done
// so far, from one goroutine at a time.
func (c *Console) Track(what string, work func(done func(done, total int)) error) error {
	bar := c.bar(what, 1)
	defer bar.Finish()
	return work(func(done, total int) {
		bar.ChangeMax(total)
		bar.Set(done)
	})
}

// Spin shows that work is going on while it runs, where there is no telling how
// far it is.
func (c *Console) Spin(what string, work func() error) error {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		bar := c.bar(what, -1)
		defer bar.Finish()
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				bar.Add(1)
			}
		}
	}()
	err := work()
	close(stop)
	<-stopped
	return err
}

// meter makes a reader show how much of size bytes (-1: unknown) it has read;
// finish clears that.
func (c *Console) meter(what string, r io.Reader, size int64) (metered io.Reader, finish func()) {
	bar := c.bar(what, size, progressbar.OptionShowBytes(true))
	return io.TeeReader(r, bar), func() { bar.Finish() }
}
