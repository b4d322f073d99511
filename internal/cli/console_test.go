package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
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

// Input that is refused at its start is not read to its end.
func TestReadRefused(t *testing.T) {
	in, out := io.Pipe()
	c := &Console{In: in}
	refused := errors.New("refused")
	err := c.read(t.Context(), Stdin, func(r io.Reader) error {
		go out.Write(make([]byte, 1<<20))
		r.Read(make([]byte, 1))
		return refused
	})
	if err != refused {
		t.Errorf("got %v", err)
	}
	in.Close() // what a program's end does; goleak finds the copying otherwise
}

func TestIsJob(t *testing.T) {
	for text, want := range map[string]bool{
		`{"version": 1, "ops": []}`:                     true,
		`{"name": "x"`:                                  true,
		`{"comment": {"a": [1, 2]}, "version": 1}`:      true,
		`{"traceEvents": [], "name": "x"}`:              false,
		`{"schemaVersion": 1, "traceEvents": [`:         false,
		`{"schemaVersion": 1, "deviceProperties": [{"i`: false,
		`[{"name": "aten::add"}]`:                       false,
		``:                                              false,
		"\x1f\x8b":                                      false,
		`{"schemaVersion": 1 "name"`:                    false,
		`{}`:                                            false,
		strings.Repeat(`{"a":`, 100000) + `{"version":1`: false,
	} {
		if got := isJob([]byte(text)); got != want {
			t.Errorf("%.40q: %v", text, got)
		}
	}
}
