package kineto

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/gzip"
)

// maxValue bounds one JSON value that must be in memory at once: an event, a
// string. Real events are below a megabyte.
const maxValue = 16 << 20

// ReadOptions are the caller's wishes for [Read].
type ReadOptions struct {
	Name string // of the file, for messages

	// Progress, if set, is told now and then how many bytes of the file have
	// been read: of the compressed ones, if it is compressed.
	Progress func(bytes int64)
}

// Error is bad input. Its message names the file, the place and what to do.
type Error struct {
	Name   string // of the file
	Offset int64  // bytes into the JSON text, after decompression; -1: not one place
	Msg    string
	Err    error // the cause; nil if Msg says it all
}

func (e *Error) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("%s: %s", e.Name, e.Msg)
	}
	return fmt.Sprintf("%s: byte %d: %s", e.Name, e.Offset, e.Msg)
}

func (e *Error) Unwrap() error { return e.Err }

// Read reads a trace, plain or gzip: the object that Kineto writes or a bare
// array of events. It reads r once, to its end, and keeps only what [Trace]
// holds, so that its memory grows with the number of events and not with their
// text. Bad input gives an [*Error]; any other error is r's own or ctx's.
func Read(ctx context.Context, r io.Reader, o ReadOptions) (*Trace, error) {
	d := &reader{
		trace: &Trace{Name: o.Name, Rank: -1, Dropped: map[string]int{}},
		file:  &file{r: r, progress: o.Progress},
		names: map[string]uint32{}, extras: map[string]int32{}, rows: map[string]uint16{},
	}
	buffered := bufio.NewReaderSize(d.file, 256<<10)
	d.text = &text{ctx: ctx, r: buffered, limit: maxValue}
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, gzipMagic) {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			d.text.err = err
			return nil, d.explain(err)
		}
		z.Multistream(false)
		d.text.r = &gunzip{z: z, r: buffered}
	}
	d.dec = jsontext.NewDecoder(d.text, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err := d.document(); err != nil {
		return nil, d.explain(err)
	}
	return d.finish()
}

// file is the bytes as stored. It counts them.
type file struct {
	r        io.Reader
	n        int64
	progress func(int64)
	err      error // first failure but io.EOF
}

func (f *file) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	f.n += int64(n)
	if f.progress != nil {
		f.progress(f.n)
	}
	if err != nil && err != io.EOF && f.err == nil {
		f.err = err
	}
	return n, err
}

var (
	gzipMagic   = []byte{0x1f, 0x8b}
	errTrailing = errors.New("more bytes after the end of the gzip data")
)

// gunzip is the text of gzip data, of one member or several. The decoder by
// itself would take what follows a member for a damaged one.
type gunzip struct {
	z *gzip.Reader // of one member
	r *bufio.Reader
}

func (g *gunzip) Read(p []byte) (int, error) {
	n, err := g.z.Read(p)
	if err != io.EOF {
		return n, err
	}
	magic, err := g.r.Peek(2)
	switch {
	case len(magic) == 0:
		return n, err
	case !bytes.Equal(magic, gzipMagic):
		return n, errTrailing
	}
	if err := g.z.Reset(g.r); err != nil {
		return n, err
	}
	g.z.Multistream(false)
	return n, nil
}

var errTooLong = errors.New("value too long")

// text is the JSON text. It ends with the context, and at a value that outgrows
// its bound.
type text struct {
	ctx   context.Context
	r     io.Reader
	n     int64 // bytes so far
	limit int64 // of n
	err   error // first failure but io.EOF
}

func (t *text) Read(p []byte) (n int, err error) {
	if err = t.ctx.Err(); err == nil && t.n >= t.limit {
		err = errTooLong
	}
	if err == nil {
		n, err = t.r.Read(p)
		t.n += int64(n)
	}
	if err != nil && err != io.EOF && t.err == nil {
		t.err = err
	}
	return n, err
}

// reader builds a trace from the JSON text.
type reader struct {
	trace *Trace
	file  *file
	text  *text
	dec   *jsontext.Decoder

	offset int64  // of the value in hand
	index  uint32 // of the event in hand in the file
	events store
	names  map[string]uint32 // to Trace.Names; also under the unrepaired text of invalid UTF-8
	extras map[string]int32  // to Trace.Extras, by the kept arguments as a JSON object
	rows   map[string]uint16 // to Trace.Rows, by kind, pid and tid
	flows  []flow            // of category fwdbwd, as long as no event has a sequence number
	number bool              // one has
	key    []byte            // scratch
}

// token and value read the next one, within the bound.
func (d *reader) token() (jsontext.Token, error) {
	d.text.limit = d.dec.InputOffset() + maxValue
	return d.dec.ReadToken()
}

func (d *reader) value() (jsontext.Value, error) {
	d.text.limit = d.dec.InputOffset() + maxValue
	v, err := d.dec.ReadValue()
	d.offset = d.dec.InputOffset() - int64(len(v))
	return v, err
}

// skip reads past the next value, however long it is.
func (d *reader) skip() error {
	for depth := d.dec.StackDepth(); ; {
		if _, err := d.token(); err != nil {
			return err
		}
		if d.dec.StackDepth() <= depth {
			return nil
		}
	}
}

// bad is an error at the value in hand.
func (d *reader) bad(format string, args ...any) error {
	return &Error{Name: d.trace.Name, Offset: d.offset, Msg: fmt.Sprintf(format, args...)}
}

const notATrace = "not a profiler trace: want the JSON that torch.profiler exports, plain or gzip"

// document reads the whole text.
func (d *reader) document() error {
	read := d.array
	switch d.dec.PeekKind() {
	case '[':
	case '{':
		read = d.object
	default:
		if _, err := d.token(); d.text.err != nil {
			return err
		}
		return d.bad("%s", notATrace)
	}
	if err := read(); err != nil {
		return err
	}
	d.offset = d.dec.InputOffset()
	if _, err := d.token(); err == io.EOF || d.text.err != nil {
		return d.text.err
	}
	return d.bad("more text after the end of the trace: if traces were joined, give each as its own file")
}

// object reads Kineto's form: the events are one member among others.
func (d *reader) object() error {
	if _, err := d.token(); err != nil {
		return err
	}
	found := false
	for d.dec.PeekKind() != '}' {
		name, err := d.token()
		if err != nil {
			return err
		}
		switch name.String() {
		case "traceEvents":
			if found {
				d.offset = d.dec.InputOffset()
				return d.bad("a second traceEvents: if traces were joined, give each as its own file")
			}
			found = true
			err = d.array()
		case "distributedInfo":
			err = d.distributed()
		default:
			err = d.skip()
		}
		if err != nil {
			return err
		}
	}
	if _, err := d.token(); err != nil {
		return err
	}
	if !found {
		d.offset = 0
		return d.bad("no traceEvents: %s", notATrace)
	}
	return nil
}

// distributed reads which rank of how many recorded the trace.
func (d *reader) distributed() error {
	v, err := d.value()
	if err != nil {
		return err
	}
	var info struct {
		Backend string `json:"backend"`
		Rank    *int   `json:"rank"`
		World   int    `json:"world_size"`
	}
	if err := json.Unmarshal(v, &info, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return d.bad("distributedInfo: want a string backend, whole numbers rank and world_size")
	}
	t := d.trace
	if info.Rank != nil && *info.Rank >= 0 {
		if t.Rank >= 0 && t.Rank != *info.Rank {
			return d.bad("ranks %d and %d in one file: give each rank's trace as its own file", t.Rank, *info.Rank)
		}
		t.Rank = *info.Rank
	}
	t.Backend, t.World = info.Backend, max(info.World, 0)
	return nil
}

// array reads the array of events.
func (d *reader) array() error {
	if kind := d.dec.PeekKind(); kind != '[' && kind != 0 {
		d.offset = d.dec.InputOffset()
		return d.bad("traceEvents is not an array: %s", notATrace)
	}
	if _, err := d.token(); err != nil {
		return err
	}
	for d.dec.PeekKind() != ']' {
		v, err := d.value()
		if err != nil {
			return err
		}
		if err := d.event(v); err != nil {
			return err
		}
		if d.index++; d.index == 0 {
			return d.bad("more than 4,294,967,295 events")
		}
	}
	_, err := d.token()
	return err
}

// explain turns a failure to read JSON into one that helps.
func (d *reader) explain(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	e := &Error{Name: d.trace.Name, Offset: d.text.n, Err: err}
	var syntax *jsontext.SyntacticError
	switch {
	case d.file.err != nil:
		return fmt.Errorf("%s: byte %d of the file: %w", d.trace.Name, d.file.n, d.file.err)
	case d.text.err == errTooLong:
		e.Offset = d.dec.InputOffset()
		e.Msg = fmt.Sprintf("a value longer than %d MiB: %s", maxValue>>20, notATrace)
	case d.text.err != nil && d.text.err == d.text.ctx.Err():
		return fmt.Errorf("%s: %w", d.trace.Name, d.text.err)
	case errors.Is(d.text.err, io.ErrUnexpectedEOF):
		e.Msg = "the gzip data ends here, too early: the file is truncated; copy or record it again"
	case d.text.err == errTrailing:
		e.Msg = fmt.Sprintf("%v: if traces were joined, give each as its own file; otherwise copy or record the file again", d.text.err)
	case d.text.err != nil:
		e.Msg = fmt.Sprintf("damaged gzip data (%v): copy or record the file again", d.text.err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Msg = "the JSON ends here, too early: the file is truncated; copy or record it again"
	case errors.As(err, &syntax):
		e.Offset = syntax.ByteOffset
		e.Msg = d.syntax(syntax)
	default:
		e.Msg = err.Error()
	}
	return e
}

// syntax says what is wrong with the JSON. NaN and Infinity, which some writers
// put where a number belongs, are named with their event.
func (d *reader) syntax(s *jsontext.SyntacticError) string {
	rest := d.dec.UnreadBuffer()
	at := s.ByteOffset - d.dec.InputOffset()
	if at < 0 || at >= int64(len(rest)) || !bytes.ContainsRune([]byte("NIi-"), rune(rest[at])) {
		return fmt.Sprintf("invalid JSON at %.80q: %v; record or export the trace again", s.JSONPointer, s.Err)
	}
	var name []byte
	rest = rest[:at]
	if open := bytes.IndexByte(rest, '{'); open >= 0 {
		for key, val := range members(rest[open:]) {
			if string(key) == "name" {
				name = unquote(val)
			}
		}
	}
	return fmt.Sprintf("event %.80q: %.80s is not a finite number; record or export the trace again", name, s.JSONPointer.LastToken())
}
