package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/gzip"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/timeline"
	"weft/trace/kineto"
)

// Stdin and Stdout are what the standard streams are called among file names.
const Stdin, Stdout = "-", "-"

// read hands the named file to f. Reading fails once ctx ends, even while it
// waits for a pipe, and shows how far it is.
func (c *Console) read(ctx context.Context, name string, f func(io.Reader) error) error {
	r, size := c.In, int64(-1)
	if name == Stdin {
		if c.piped {
			return Usagef("the standard input holds one file, and - is given twice")
		}
		c.piped = true
	} else {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		r = file
	}
	if file, ok := r.(*os.File); ok {
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if info.IsDir() {
			return fmt.Errorf("%s is a directory, not a file", name)
		}
		if info.Mode().IsRegular() {
			for _, out := range c.outputs {
				if same(name, out) {
					return replacing(out, name)
				}
			}
			size = info.Size()
			c.inputs = append(c.inputs, input{name, info})
		}
	}
	if size < 0 {
		pipe := interruptible(ctx, r)
		defer pipe.Close()
		r = pipe
	}
	text := &unmarked{r: r}
	r, finish := c.meter("reading "+filepath.Base(name), text, size)
	defer finish()
	if err := f(contextReader{ctx, r}); !text.wide {
		return err
	}
	return fmt.Errorf("%s: %w", name, errWide)
}

// byteOrder is what some editors put before UTF-8.
const byteOrder = "\ufeff"

// errWide is of text in wider units than bytes, as some editors and shells write it.
var errWide = errors.New("this is text in UTF-16 or UTF-32: save it as UTF-8")

// unmarked is what a reader has behind the mark of its byte order, if there is one.
type unmarked struct {
	r           io.Reader
	begun, wide bool
}

func (u *unmarked) Read(p []byte) (int, error) {
	if !u.begun {
		u.begun = true
		var start [len(byteOrder)]byte
		n, _ := io.ReadFull(u.r, start[:]) // the error comes again
		if string(start[:n]) != byteOrder {
			u.r = io.MultiReader(bytes.NewReader(start[:n]), u.r)
		}
		u.wide = n > 1 && ((start[0] == 0) != (start[1] == 0) || bytes.Contains([]byte("\xff\xfe\xff"), start[:2]))
	}
	if u.wide {
		return 0, errWide
	}
	return u.r.Read(p)
}

// missing reports that there is no file of that name.
func missing(name string) bool {
	if name == Stdin {
		return false
	}
	_, err := os.Stat(name)
	return errors.Is(err, fs.ErrNotExist)
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

// A form is what kind of file an input is.
type form = string

const (
	aTrace    form = "a trace"
	aJob      form = "a job"
	aPlan     form = "a plan"
	aTimeline form = "a timeline"

	aFile form = "a file of weft" // with a version, but no more that would tell
)

// wanted says which commands want a form.
var wanted = map[form]string{
	aTrace:    "weft inspect and weft compare take it",
	aJob:      "weft compare takes it",
	aPlan:     "weft plan explain takes it",
	aTimeline: "weft inspect takes it",
}

// open hands the named file to f, with its form, which must be one of accepts.
// Where the start of the file does not tell, f meets what is wrong: it is taken
// for the first of accepts, or with weft's version in it for the last.
func (c *Console) open(ctx context.Context, name string, f func(r io.Reader, is form) error, accepts ...form) error {
	return c.read(ctx, name, func(r io.Reader) error {
		head := bufio.NewReaderSize(r, 64<<10)
		start, err := head.Peek(head.Size())
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		is := cmp.Or(formOf(start), accepts[0])
		if is == aFile {
			is = accepts[len(accepts)-1]
		}
		if !slices.Contains(accepts, is) {
			return fmt.Errorf("%s: this is %s, not %s; %s", name, is, strings.Join(accepts, " or "), wanted[is])
		}
		if is == aTrace || !bytes.HasPrefix(start, []byte(zipped)) { // of traces, damage is told by its place in the file
			return f(head, is)
		}
		z, err := gzip.NewReader(head)
		if err != nil {
			return named(name, err)
		}
		return f(z, is)
	})
}

// zipped is how gzip files begin.
const zipped = "\x1f\x8b"

// tells are members of one form of file that the others do not have. The first
// one in a file's object tells its form.
var tells = map[string]form{
	"traceEvents": aTrace, "schemaVersion": aTrace, "deviceProperties": aTrace, "distributedInfo": aTrace,
	"name": aJob, "world": aJob, "mode": aJob, "lanes": aJob, "ops": aJob, "tensors": aJob,
	"policy": aPlan, "tensors_fingerprint": aPlan, "period": aPlan, "generations": aPlan, "programs": aPlan,
}

// formOf is the form of the file that starts so, plain or gzip; "" if that does not
// tell. What is compressed is a trace, unless it tells otherwise.
func formOf(start []byte) form {
	if bytes.HasPrefix(start, []byte(zipped)) {
		var text []byte
		if z, err := gzip.NewReader(bytes.NewReader(start)); err == nil {
			text, _ = io.ReadAll(io.LimitReader(z, 64<<10)) // it is cut off somewhere
		}
		if bytes.HasPrefix(text, []byte(zipped)) {
			return aTrace
		}
		return cmp.Or(formOf(text), aTrace)
	}
	dec := jsontext.NewDecoder(bytes.NewReader(start))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return ""
	}
	is := form("")
	for {
		name, err := dec.ReadToken()
		if err != nil || name.Kind() != '"' {
			return is
		}
		if known := tells[name.String()]; known != "" {
			return known
		}
		if name.String() == "version" {
			is = aFile
		}
		if name.String() == "otherData" && dec.PeekKind() == '{' {
			if ofTimeline(dec) {
				return aTimeline
			}
			continue
		}
		if dec.SkipValue() != nil {
			return is
		}
	}
}

// ofTimeline takes an object, and reports whether it is what a timeline says of itself.
func ofTimeline(dec *jsontext.Decoder) bool {
	dec.ReadToken()
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err == nil && name.String() == "format" && dec.PeekKind() == '"' {
			value, err := dec.ReadToken()
			return err == nil && value.String() == timeline.Format
		}
		if err != nil || dec.SkipValue() != nil {
			return false
		}
	}
	dec.ReadToken()
	return false
}

// Trace reads a trace of the PyTorch profiler.
func (c *Console) Trace(ctx context.Context, name string) (t *kineto.Trace, err error) {
	err = c.open(ctx, name, func(r io.Reader, _ form) error {
		t, err = kineto.Read(ctx, r, kineto.ReadOptions{Name: name})
		return err
	}, aTrace)
	return t, err
}

// Inspected reads a trace of the PyTorch profiler or a timeline of weft: one of them is nil.
func (c *Console) Inspected(ctx context.Context, name string) (trace *kineto.Trace, t *timeline.Timeline, err error) {
	err = c.open(ctx, name, func(r io.Reader, is form) error {
		if is == aTimeline {
			t, err = timeline.ReadChrome(r)
			return named(name, err)
		}
		trace, err = kineto.Read(ctx, r, kineto.ReadOptions{Name: name})
		return err
	}, aTrace, aTimeline)
	return trace, t, err
}

// job reads a job, from a job file or from a trace. The options hold for traces.
func (c *Console) job(ctx context.Context, name string, o kineto.JobOptions) (j *job.Job, err error) {
	err = c.open(ctx, name, func(r io.Reader, is form) error {
		if is == aJob {
			if o.Tensors != nil || o.Update != nil || o.Overlap != 0 {
				return Usagef("%s is a job, which has its tensors, update mode and times: --tensors, --update and --recorded-overlap are for traces", name)
			}
			j, err = job.Read(r)
			return named(name, err)
		}
		t, err := kineto.Read(ctx, r, kineto.ReadOptions{Name: name})
		if err != nil {
			return err
		}
		j, err = t.Job(o)
		return err
	}, aTrace, aJob)
	return j, err
}

// Plan reads a plan file.
func (c *Console) Plan(ctx context.Context, name string) (p *plan.Plan, err error) {
	err = c.open(ctx, name, func(r io.Reader, _ form) error {
		p, err = plan.Read(r)
		return named(name, err)
	}, aPlan)
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
