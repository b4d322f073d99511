package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/klauspost/compress/gzip"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"weft/job"
	"weft/plan"
	"weft/trace/kineto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each kind of progress, with work of the given length, in simulated time.
var progress = map[string]func(c *Console, t *testing.T, length time.Duration){
	"track": func(c *Console, t *testing.T, length time.Duration) {
		c.Track("working", func(done func(done, total int)) error {
			for i := range 4 {
				time.Sleep(length / 4)
				done(i+1, 4)
			}
			return nil
		})
	},
	"spin": func(c *Console, t *testing.T, length time.Duration) {
		c.Spin("working", func() error {
			time.Sleep(length)
			return nil
		})
	},
	"read": func(c *Console, t *testing.T, length time.Duration) {
		name := filepath.Join(t.TempDir(), "working")
		if err := os.WriteFile(name, []byte("text"), 0o666); err != nil {
			t.Fatal(err)
		}
		err := c.read(t.Context(), name, func(r io.Reader) error {
			for range 4 {
				time.Sleep(length / 4)
				if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	},
}

func TestProgress(t *testing.T) {
	for name, work := range progress {
		for _, tc := range []struct {
			length   time.Duration
			terminal bool
			shown    bool
		}{
			{900 * time.Millisecond, true, false},
			{3 * time.Second, true, true},
			{3 * time.Second, false, false},
		} {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				work(&Console{Err: &out, Progress: tc.terminal}, t, tc.length)
				synctest.Wait()
				if shown := strings.Contains(out.String(), "working"); shown != tc.shown {
					t.Errorf("%s, %v, terminal %v: shown %v, want %v: %q", name, tc.length, tc.terminal, shown, tc.shown, &out)
				}
			})
		}
	}
}

// A bar keeps to a line of the page, and to text, whatever the file is called.
func TestProgressWidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := &Console{Err: &out, Progress: true}
		const size = 1 << 30
		r, finish := c.meter("reading \x1b[31m"+strings.Repeat("long", 30), endless{}, size)
		for range 1000 {
			time.Sleep(tick)
			r.Read(make([]byte, 1<<20))
		}
		shown := out.String()
		finish()
		if !strings.Contains(shown, `reading \x1b[31mlong`) || strings.Contains(shown, "\x1b[31m") {
			t.Errorf("the name is not shown as text: %q", shown)
		}
		for line := range strings.SplitSeq(shown, "\r") {
			if n := text.StringWidthWithoutEscSequences(line); n > width {
				t.Fatalf("%d columns: %q", n, line)
			}
		}
	})
}

// What the work returns comes back, whether or not there is a terminal.
func TestProgressError(t *testing.T) {
	broken := errors.New("broken")
	for _, terminal := range []bool{false, true} {
		c := &Console{Err: io.Discard, Progress: terminal}
		if err := c.Spin("", func() error { return broken }); err != broken {
			t.Errorf("spin: %v", err)
		}
		if err := c.Track("", func(func(int, int)) error { return broken }); err != broken {
			t.Errorf("track: %v", err)
		}
	}
}

// A pipe that nobody writes to does not hold the end of the context up.
func TestReadInterrupted(t *testing.T) {
	in, out := io.Pipe()
	defer out.Close() // ends the goroutine that still waits for it
	ctx, cancel := context.WithCancel(t.Context())
	c := &Console{In: in}
	err := c.read(ctx, Stdin, func(r io.Reader) error {
		go cancel()
		_, err := io.ReadAll(r)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Input that is refused at its start is not read to its end, which never comes;
// goleak finds whoever would still read it.
func TestReadRefused(t *testing.T) {
	c := &Console{In: endless{}}
	refused := errors.New("refused")
	err := c.read(context.Background(), Stdin, func(r io.Reader) error {
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		return refused
	})
	if err != refused {
		t.Errorf("got %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestFormOf(t *testing.T) {
	for text, want := range map[string]form{
		`{"version": 1, "ops": []}`:                      aJob,
		`{"name": "x"`:                                   aJob,
		`{"comment": {"a": [1, 2]}, "version": 1, "ops"`: aJob,
		`{"version": 1, "policy": "ddp"}`:                aPlan,
		`{"version": 1, "period": 1`:                     aPlan,
		`{"traceEvents": [], "name": "x"}`:               aTrace,
		`{"schemaVersion": 1, "traceEvents": [`:          aTrace,
		`{"schemaVersion": 1, "deviceProperties": [{"i`:  aTrace,
		"\x1f\x8b":                  aTrace,
		`{"version": 1}`:            aFile,
		`{"version": 1, "oops": []`: aFile,
		`[{"name": "aten::add"}]`:   "",
		``:                          "",
		`{"other": 1 "name"`:        "",
		`{}`:                        "",
		strings.Repeat(`{"a":`, 100000) + `{"version":1`: "",
	} {
		if got := formOf([]byte(text)); got != want {
			t.Errorf("%.40q: %q, want %q", text, got, want)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want plan.Limits
	}{
		{nil, plan.Limits{MinUpdateRate: 1}},
		{[]string{"--max-delay=0"}, plan.DefaultLimits},
		{[]string{"--max-delay=3"}, plan.Limits{MaxDelay: 3, MaxStaleness: 5, MinUpdateRate: 1.0 / 3}},
		{[]string{"--max-delay=3", "--max-staleness=4"}, plan.Limits{MaxDelay: 3, MaxStaleness: 4, MinUpdateRate: 1}},
		{[]string{"--min-update-rate=0.5"}, plan.Limits{MinUpdateRate: 0.5}},
	} {
		var f LimitFlags
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.Register(fs)
		if err := fs.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		if got := f.Limits(fs, 0); got != tc.want {
			t.Errorf("%v: %+v, want %+v", tc.args, got, tc.want)
		}
	}
}

// A mark of the byte order, as some editors write, is no part of a file.
func TestByteOrder(t *testing.T) {
	for text, want := range map[string]string{"\ufeffversion: 1": "version: 1", "version: 1": "version: 1", "\ufeff": "", "\xef\xbb": "\xef\xbb", "": ""} {
		var got []byte
		c := &Console{In: iotest.OneByteReader(strings.NewReader(text)), Err: io.Discard}
		err := c.read(t.Context(), Stdin, func(r io.Reader) (err error) {
			got, err = io.ReadAll(r)
			return err
		})
		if err != nil || string(got) != want {
			t.Errorf("%q: read as %q (%v)", text, got, err)
		}
	}
	for _, text := range []string{"\xff\xfev\x00", "\xfe\xff\x00v", "v\x00e\x00", "\x00v\x00e", "\xff\xfe\x00\x00v\x00\x00\x00"} {
		c := &Console{In: strings.NewReader(text), Err: io.Discard}
		err := c.read(t.Context(), Stdin, func(r io.Reader) error {
			_, err := io.ReadAll(r)
			return err
		})
		if err == nil || err.Error() != "-: this is text in UTF-16 or UTF-32: save it as UTF-8" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Before long work it is known that two outputs would be one file, or one of them an input.
func TestProbeTells(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"in", "old"} {
		if err := os.WriteFile(file(name), []byte("1"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(file("old"), file("link")); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		outputs []string
		want    string // "": nothing wrong
	}{
		{[]string{file("a"), file("b"), os.DevNull, os.DevNull, "", "", file("old")}, ""},
		{[]string{file("a"), dir + "/./a"}, "two outputs would be one file, " + dir + "/./a: give another name"},
		{[]string{file("old"), file("link")}, "two outputs would be one file, " + file("link") + ": give another name"},
		{[]string{file("in")}, "the output " + file("in") + " would replace the input " + file("in") + ": give another name"},
	} {
		c := &Console{Err: io.Discard}
		err := c.Probe(x.outputs...)
		if err == nil {
			err = c.read(t.Context(), file("in"), func(io.Reader) error { return nil })
		}
		if got := fmt.Sprint(cmp.Or(err, errors.New(""))); got != x.want {
			t.Errorf("%q: %s", x.outputs, got)
		}
	}
}

// Job, plan and timeline may be compressed, as traces are.
func TestCompressed(t *testing.T) {
	var text bytes.Buffer
	if err := job.Write(&text, job.Chain("zipped", []float64{1}, []float64{1}, []int64{4})); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	z := gzip.NewWriter(&file)
	z.Write(text.Bytes())
	z.Close()
	read := func(b []byte) (*job.Job, error) {
		c := &Console{In: bytes.NewReader(b), Err: io.Discard}
		return c.job(t.Context(), Stdin, kineto.JobOptions{})
	}
	if j, err := read(file.Bytes()); err != nil || j.Name != "zipped" {
		t.Errorf("%v, %v", j, err)
	}
	if _, err := read(file.Bytes()[:file.Len()-12]); err == nil || !strings.Contains(err.Error(), "job: the file ends in the middle") {
		t.Errorf("cut off: %v", err)
	}
	c := &Console{In: &file, Err: io.Discard}
	if _, err := c.Plan(t.Context(), Stdin); err == nil || !strings.Contains(err.Error(), "this is a job, not a plan") {
		t.Errorf("%v", err)
	}
}
