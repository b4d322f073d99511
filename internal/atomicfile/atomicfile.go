// Package atomicfile writes files whole or not at all.
package atomicfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
)

// Write makes the file name hold what write writes. The bytes go to a temporary
// file in the same directory, which takes the name at the end; when write
// fails, the temporary is removed and a file that was there before is left as it
// was. When ctx ends, that happens at once; later writes fail with its cause.
//
// A symbolic link is followed and stays. What is no regular file, such as
// /dev/null or a pipe, is written to directly.
func Write(ctx context.Context, name string, write func(io.Writer) error) error {
	name, f, err := begin(name)
	if err != nil {
		return err
	}
	if f == nil {
		return writeDirect(ctx, name, write)
	}
	temp := f.Name()
	// The program may end soon after ctx, whatever write is at.
	keep := context.AfterFunc(ctx, func() { os.Remove(temp) })
	err = write(writer{ctx, f, name})
	if err == nil {
		err = renamed(f.Sync(), name)
	}
	err = errors.Join(err, renamed(f.Close(), name))
	if !keep() {
		err = cmp.Or(err, context.Cause(ctx))
	}
	if err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		if left := os.Remove(temp); !errors.Is(left, fs.ErrNotExist) {
			err = errors.Join(err, left)
		}
	}
	return err
}

// Probe says whether Write could make a file of that name now: an error that it would meet
// only after long work.
func Probe(name string) error {
	name, f, err := begin(name)
	if err != nil {
		return err
	}
	if f == nil {
		if f, err = os.OpenFile(name, os.O_WRONLY|syscall.O_NONBLOCK, 0); errors.Is(err, syscall.ENXIO) {
			return nil // a pipe that nobody reads yet
		} else if err != nil {
			return err
		}
		return f.Close()
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// begin makes the temporary file, nil for what is no regular file, and tells the name that
// symbolic links lead to.
func begin(name string) (string, *os.File, error) {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	perm := fs.FileMode(0o666) // less the umask
	switch info, err := os.Stat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return name, nil, err
	case info.IsDir():
		return name, nil, &fs.PathError{Op: "write", Path: name, Err: errors.New("is a directory")}
	case !info.Mode().IsRegular():
		return name, nil, nil
	default:
		perm = info.Mode().Perm()
	}
	temp := filepath.Join(filepath.Dir(name), fmt.Sprintf(".%s.%08x.tmp", filepath.Base(name), rand.Uint32()))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return name, nil, renamed(err, name)
	}
	return name, f, nil
}

// renamed is err about name in place of the temporary, of which no user knows.
func renamed(err error, name string) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: "write", Path: name, Err: e.Err}
	}
	return err
}

func writeDirect(ctx context.Context, name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(write(writer{ctx, f, name}), f.Close())
}

// writer fails once its context has ended.
type writer struct {
	ctx  context.Context
	w    io.Writer
	name string // in errors
}

func (w writer) Write(p []byte) (int, error) {
	if err := context.Cause(w.ctx); err != nil {
		return 0, err
	}
	n, err := w.w.Write(p)
	return n, renamed(err, w.name)
}
