package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json/jsontext"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/trace/kineto"
)

// Stdin and Stdout are what the standard streams are called among file names.
const Stdin, Stdout = "-", "-"

// read hands the named file to f. Reading fails once ctx ends, even while it
// waits for a pipe, and shows how far it is.
func (c *Console) read(ctx context.Context, name string, f func(io.Reader) error) error {
	r, size := c.In, int64(-1)
	if name != Stdin {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if info.IsDir() {
			return fmt.Errorf("%s is a directory, not a file", name)
		}
		r = file
		if info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	if size < 0 {
		pipe := interruptible(ctx, r)
		defer pipe.Close()
		r = pipe
	}
	r, finish := c.meter("reading "+name, r, size)
	defer finish()
	return f(contextReader{ctx, r})
}

// interruptible makes a reader that may wait for long give up when ctx ends.
func interruptible(ctx context.Context, r io.Reader) *io.PipeReader {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { in.CloseWithError(context.Cause(ctx)) })
	go func() {
		_, err := io.Copy(in, r)
		in.CloseWithError(err)
	}()
	return out
}

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Trace reads a trace of the PyTorch profiler.
func (c *Console) Trace(ctx context.Context, name string) (t *kineto.Trace, err error) {
	err = c.read(ctx, name, func(r io.Reader) error {
		t, err = kineto.Read(ctx, r, kineto.ReadOptions{Name: name})
		return err
	})
	return t, err
}

// job reads a job, from a job file or from a trace; the content tells which.
// The options hold for traces.
func (c *Console) job(ctx context.Context, name string, o kineto.JobOptions) (j *job.Job, err error) {
	err = c.read(ctx, name, func(r io.Reader) error {
		head := bufio.NewReaderSize(r, 64<<10)
		start, err := head.Peek(head.Size())
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if isJob(start) {
			if o.Tensors != nil || o.Update != nil {
				return Usagef("%s is a job, which has its tensors and its update mode: --tensors and --update are for traces", name)
			}
			j, err = job.Read(head)
			return named(name, err)
		}
		t, err := kineto.Read(ctx, head, kineto.ReadOptions{Name: name})
		if err != nil {
			return err
		}
		j, err = t.Job(o)
		return err
	})
	return j, err
}

// jobMembers are members of a job file that no trace has.
var jobMembers = map[string]bool{"version": true, "name": true, "world": true, "mode": true, "lanes": true, "ops": true, "tensors": true}

// isJob tells a job file from a trace by the first members of its object.
func isJob(start []byte) bool {
	dec := jsontext.NewDecoder(bytes.NewReader(start))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return false
	}
	for {
		name, err := dec.ReadToken()
		if err != nil || name.Kind() != '"' || name.String() == "traceEvents" {
			return false
		}
		if jobMembers[name.String()] {
			return true
		}
		if dec.SkipValue() != nil {
			return false
		}
	}
}

// Plan reads a plan file.
func (c *Console) Plan(ctx context.Context, name string) (p *plan.Plan, err error) {
	err = c.read(ctx, name, func(r io.Reader) error {
		p, err = plan.Read(r)
		return named(name, err)
	})
	return p, err
}

// tensors reads a tensors file; "" is none.
func (c *Console) tensors(ctx context.Context, name string) (list []kineto.TensorInfo, err error) {
	if name == "" {
		return nil, nil
	}
	err = c.read(ctx, name, func(r io.Reader) error {
		list, err = kineto.ReadTensors(r, name)
		return err
	})
	return list, err
}

// cluster reads a cluster file.
func (c *Console) cluster(ctx context.Context, name string) (out *cluster.Cluster, err error) {
	err = c.read(ctx, name, func(r io.Reader) error {
		out, err = cluster.Read(r, name)
		return err
	})
	return out, err
}

// named puts the file's name before an error that does not have it.
func named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}
