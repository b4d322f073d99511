package atomicfile

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func put(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// dir returns a directory with the file "f" and a check that it holds, in the
// end, nothing but that file with that text.
func dir(t *testing.T, text string) (name string, holds func(string)) {
	d := t.TempDir()
	name = filepath.Join(d, "f")
	if err := os.WriteFile(name, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return name, func(want string) {
		t.Helper()
		entries, err := os.ReadDir(d)
		if err != nil || len(entries) != 1 {
			t.Errorf("directory holds %v (%v), want f alone", entries, err)
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("file holds %q (%v), want %q", got, err, want)
		}
	}
}

func TestWrite(t *testing.T) {
	name, holds := dir(t, "old")
	if err := Write(t.Context(), name, put("new")); err != nil {
		t.Fatal(err)
	}
	holds("new")
	if info, _ := os.Stat(name); info.Mode().Perm() != 0o640 {
		t.Errorf("permissions became %v", info.Mode().Perm())
	}

	os.Remove(name)
	if err := Write(t.Context(), name, put("first")); err != nil {
		t.Fatal(err)
	}
	holds("first")
}

func TestWriteFails(t *testing.T) {
	name, holds := dir(t, "old")
	broken := errors.New("broken")
	err := Write(t.Context(), name, func(w io.Writer) error {
		return errors.Join(put("half")(w), broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	holds("old")
}

func TestWriteInterrupted(t *testing.T) {
	interrupt := errors.New("interrupt")

	name, holds := dir(t, "old")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := Write(ctx, name, func(w io.Writer) error {
		if err := put("half")(w); err != nil {
			t.Error(err)
		}
		cancel(interrupt)
		return put("rest")(w)
	})
	if !errors.Is(err, interrupt) {
		t.Errorf("got %v, want %v", err, interrupt)
	}
	holds("old")

	// Also when the writer does not look at its errors.
	err = Write(ctx, name, func(w io.Writer) error { put("half")(w); return nil })
	if !errors.Is(err, interrupt) {
		t.Errorf("got %v, want %v", err, interrupt)
	}
	holds("old")
}

// The temporary goes when ctx ends, not when write returns: the program may not
// wait for that.
func TestWriteInterruptedWhileStuck(t *testing.T) {
	name, holds := dir(t, "old")
	ctx, cancel := context.WithCancel(t.Context())
	Write(ctx, name, func(io.Writer) error {
		cancel()
		for alone := false; !alone; runtime.Gosched() {
			entries, err := os.ReadDir(filepath.Dir(name))
			alone = err != nil || len(entries) == 1
		}
		return nil
	})
	holds("old")
}

func TestWriteThroughLink(t *testing.T) {
	name, holds := dir(t, "old")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	if err := Write(t.Context(), link, put("new")); err != nil {
		t.Fatal(err)
	}
	holds("new")
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v %v", info, err)
	}
}

func TestWriteToPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	// Open both ways: neither side waits for the other.
	pipe, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if err := Write(t.Context(), name, put("x")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Fatalf("the pipe is gone: %v %v", info, err)
	}
	got := make([]byte, 1)
	if _, err := pipe.Read(got); err != nil || string(got) != "x" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestWriteNowhere(t *testing.T) {
	d := t.TempDir()
	for _, name := range []string{d, filepath.Join(d, "missing", "f")} {
		err := Write(t.Context(), name, put("x"))
		if err == nil || !strings.Contains(err.Error(), name+": ") {
			t.Errorf("%s: got %v, want an error that names it", name, err)
		}
	}
	if entries, _ := os.ReadDir(d); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestProbe(t *testing.T) {
	name, holds := dir(t, "old")
	if err := Probe(name); err != nil {
		t.Error(err)
	}
	holds("old")
	if err := Probe(os.DevNull); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{filepath.Dir(name), filepath.Join(name, "f"), filepath.Join(filepath.Dir(name), "none", "f")} {
		if err := Probe(bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	holds("old")
}

// What a write fails for names the file, and not the temporary, of which no user knows.
func TestWriteNames(t *testing.T) {
	name, holds := dir(t, "old")
	err := Write(t.Context(), name, func(w io.Writer) error {
		w.(writer).w.(*os.File).Close()
		return put("new")(w)
	})
	if !errors.Is(err, os.ErrClosed) || !strings.HasPrefix(err.Error(), "write "+name+": ") || strings.Contains(err.Error(), ".tmp") {
		t.Errorf("%v", err)
	}
	holds("old")
}
