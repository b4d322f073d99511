package job

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weft/internal/near"
)

// Read reads and validates a job file (docs/job.md). It streams: beside the job
// it holds one line number an op. Errors name the line and the field.
func Read(in io.Reader) (*Job, error) {
	lines := &lines{in: in}
	r := &reader{dec: jsontext.NewDecoder(lines), lines: lines, starts: map[string][]int32{}}
	j := &Job{}
	if err := object(r, jobMembers, j); err != nil {
		return nil, err
	}
	if _, err := r.dec.ReadToken(); err == nil {
		return nil, r.faultf("more text after the end of the job")
	} else if err != io.EOF {
		return nil, r.broken(err)
	}
	if err := j.Validate(); err != nil {
		return nil, r.locate(err)
	}
	return j, nil
}

// reader decodes a job file token by token.
type reader struct {
	dec    *jsontext.Decoder
	lines  *lines
	starts map[string][]int32 // by list: the line where each element starts; by other member: its line
	place  int                // position of the list element being read
	spare  []OpID             // where lists of ids are cut from
}

// member is one member of an object of the file and how its value is read.
type member[T any] struct {
	name     string
	required bool
	read     func(r *reader, t *T) error
}

// object reads an object. The members of a file's object are few: a scan over
// the table beats a map.
func object[T any](r *reader, members []member[T], t *T) error {
	if err := r.open('{', "an object"); err != nil {
		return err
	}
	var given uint
next:
	for r.dec.PeekKind() == '"' {
		text, err := r.dec.ReadValue()
		if err != nil {
			return r.broken(err)
		}
		name := text[1 : len(text)-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			if name, err = jsontext.AppendUnquote(nil, text); err != nil {
				return r.broken(err)
			}
		}
		for i := range members {
			if m := &members[i]; string(name) == m.name {
				given |= 1 << i
				if r.dec.StackDepth() == 1 {
					r.starts[m.name] = []int32{r.line()}
				}
				if err := m.read(r, t); err != nil {
					return err
				}
				continue next
			}
		}
		known := make([]string, len(members))
		for i := range members {
			known[i] = members[i].name
		}
		return r.faultf("unknown field%s", near.Hint(string(name), known))
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	for i := range members {
		if members[i].required && given&(1<<i) == 0 {
			return r.faultf("%q is missing", members[i].name)
		}
	}
	return nil
}

// list reads a list of at most limit elements. Elements are read one by one, so
// what is allocated follows what the file holds.
func list[E any](r *reader, limit int, to *[]E, read func(e *E) error) error {
	if err := r.open('[', "a list"); err != nil {
		return err
	}
	path := path(r.dec.StackPointer())
	var starts []int32
	*to = nil
	for r.dec.PeekKind() != ']' {
		if len(*to) == limit {
			return r.faultf("more than %d elements", limit)
		}
		starts = append(starts, r.line())
		r.place = len(*to)
		*to = append(*to, *new(E))
		if err := read(&(*to)[r.place]); err != nil {
			return err
		}
	}
	r.starts[path] = starts
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	return nil
}

// ids reads a list of positions.
func (r *reader) ids(to *[]int32) error {
	if err := r.open('[', "a list"); err != nil {
		return err
	}
	r.spare = r.spare[len(r.spare):]
	for r.dec.PeekKind() != ']' {
		var id int32
		if err := whole(r, &id); err != nil {
			return err
		}
		if len(r.spare) == cap(r.spare) { // a new block, with room to go on
			r.spare = append(make([]OpID, 0, max(1<<12, 2*len(r.spare))), r.spare...)
		}
		r.spare = append(r.spare, id)
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	*to = nil
	if n := len(r.spare); n > 0 {
		*to = r.spare[:n:n]
	}
	return nil
}

func (r *reader) open(kind jsontext.Kind, what string) error {
	t, err := r.dec.ReadToken()
	if err != nil {
		return r.broken(err)
	}
	if t.Kind() != kind {
		return r.faultf("%s expected, not a %v", what, t.Kind())
	}
	return nil
}

func (r *reader) text(to *string) error {
	t, err := r.dec.ReadToken()
	if err != nil {
		return r.broken(err)
	}
	if t.Kind() != '"' {
		return r.faultf("a string expected, not a %v", t.Kind())
	}
	*to = t.String()
	return nil
}

func (r *reader) float(to *float64) error {
	t, err := r.dec.ReadToken()
	if err != nil {
		return r.broken(err)
	}
	if t.Kind() != '0' {
		return r.faultf("a number expected, not a %v", t.Kind())
	}
	if *to, err = t.Float(); err != nil {
		return r.faultf("%s is too large", t.String())
	}
	return nil
}

// whole reads a whole number that fits its type.
func whole[I int | int32 | int64](r *reader, to *I) error {
	t, err := r.dec.ReadToken()
	if err != nil {
		return r.broken(err)
	}
	if t.Kind() != '0' {
		return r.faultf("a whole number expected, not a %v", t.Kind())
	}
	v, err := t.Int()
	if *to = I(v); err != nil || int64(*to) != v {
		return r.faultf("%s is not a whole number in range", t.String())
	}
	return nil
}

// word reads a name of an enumeration.
func word[E any](r *reader, to *E, parse func(string) (E, error)) error {
	var s string
	if err := r.text(&s); err != nil {
		return err
	}
	v, err := parse(s)
	if err != nil {
		return r.faultf("%s", err)
	}
	*to = v
	return nil
}

// id reads the optional "id" of an element, which can only be its position.
func (r *reader) id() error {
	var id int
	if err := whole(r, &id); err != nil {
		return err
	}
	switch {
	case 0 <= id && id < r.place:
		return r.faultf("duplicate id %d; this is element %d, and an id is the position in the list", id, r.place)
	case id != r.place:
		return r.faultf("id %d; this is element %d, and an id is the position in the list", id, r.place)
	}
	return nil
}

// line is where the next value starts.
func (r *reader) line() int32 {
	r.dec.PeekKind() // reads up to it
	skipped := 0
	for _, c := range r.dec.UnreadBuffer() {
		if !strings.ContainsRune(" \t\r\n,:", rune(c)) {
			break
		}
		skipped++
	}
	return int32(r.lines.at(r.dec.InputOffset() + int64(skipped)))
}

// faultf is about the value read last.
func (r *reader) faultf(format string, args ...any) error {
	return &fault{
		line: r.lines.at(r.dec.InputOffset()),
		path: path(r.dec.StackPointer()),
		msg:  fmt.Sprintf(format, args...),
	}
}

// broken is about text that is no JSON, or could not be read.
func (r *reader) broken(err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok && err == io.EOF:
		return &fault{line: 1, msg: "empty file"}
	case !ok:
		return fmt.Errorf("job: %w", err)
	case errors.Is(err, jsontext.ErrDuplicateName):
		return &fault{line: r.lines.at(syntax.ByteOffset), path: path(syntax.JSONPointer), msg: "given twice"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &fault{line: r.lines.at(syntax.ByteOffset), path: path(syntax.JSONPointer),
			msg: fmt.Sprintf("the file ends at byte %d, in the middle", syntax.ByteOffset)}
	}
	return &fault{line: r.lines.at(syntax.ByteOffset), path: path(syntax.JSONPointer),
		msg: fmt.Sprintf("invalid JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)}
}

// locate adds the line of the list element, or else of the member, to what
// Validate found.
func (r *reader) locate(err error) error {
	f, ok := errors.AsType[*fault](err)
	if !ok {
		return err
	}
	g := *f
	for p := f.path; p != ""; p = p[:max(strings.LastIndexAny(p, ".["), 0)] {
		list, i := p, 0
		if open := strings.LastIndexByte(p, '['); open >= 0 && strings.HasSuffix(p, "]") {
			list = p[:open]
			i, _ = strconv.Atoi(p[open+1 : len(p)-1])
		}
		if starts := r.starts[list]; i < len(starts) {
			g.line = int(starts[i])
			break
		}
	}
	return &g
}

// path writes a JSON pointer as the fields of a job are written: /ops/3/deps/0
// is ops[3].deps[0].
func path(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 64); err == nil {
			fmt.Fprintf(&b, "[%s]", token)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		if len(token) > 40 {
			token = token[:40] + "..."
		}
		b.WriteString(token)
	}
	return b.String()
}

// lines hands a file on and knows on which line a byte of it stands. It
// remembers only line ends that nobody has asked beyond.
type lines struct {
	in   io.Reader
	read int64   // bytes handed on
	ends []int64 // offsets of line ends, after those counted
	line int     // line ends counted
}

func (l *lines) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.ends = append(l.ends, l.read+int64(i))
		}
	}
	l.read += int64(n)
	return n, err
}

// at is the line, from 1, of the byte at an offset. Calls go forward; an offset
// before that of the last call is taken to stand on its line.
func (l *lines) at(offset int64) int {
	n := 0
	for n < len(l.ends) && l.ends[n] < offset {
		n++
	}
	l.line += n
	l.ends = l.ends[n:]
	return l.line + 1
}

// The format, member by member. docs/job.md describes it.
var (
	jobMembers = []member[Job]{
		{"version", true, func(r *reader, _ *Job) error {
			var v int
			if err := whole(r, &v); err != nil {
				return err
			}
			if v != Version {
				return r.faultf("%d; this program reads version %d", v, Version)
			}
			return nil
		}},
		{"name", false, func(r *reader, j *Job) error { return r.text(&j.Name) }},
		{"world", false, func(r *reader, j *Job) error { return whole(r, &j.World) }},
		{"mode", false, func(r *reader, j *Job) error { return word(r, &j.Mode, ParseMode) }},
		{"lanes", true, func(r *reader, j *Job) error {
			return list(r, MaxLanes, &j.Lanes, func(l *Lane) error { return object(r, laneMembers, l) })
		}},
		{"ops", true, func(r *reader, j *Job) error {
			return list(r, MaxOps, &j.Ops, func(o *Op) error {
				o.Tensor = -1
				return object(r, opMembers, o)
			})
		}},
		{"tensors", true, func(r *reader, j *Job) error {
			return list(r, MaxTensors, &j.Tensors, func(t *Tensor) error {
				t.Grad = sameAsParam
				if err := object(r, tensorMembers, t); err != nil {
					return err
				}
				if t.Grad == sameAsParam {
					t.Grad = t.Param
				}
				return nil
			})
		}},
		{"collectives", false, func(r *reader, j *Job) error {
			return list(r, MaxOps, &j.Collectives, func(c *Collective) error { return object(r, collectiveMembers, c) })
		}},
		{"barrier", false, func(r *reader, j *Job) error { return r.ids(&j.Barrier) }},
		{"recorded", false, func(r *reader, j *Job) error {
			j.Recorded = &Recorded{}
			return object(r, recordedMembers, j.Recorded)
		}},
		{"notes", false, func(r *reader, j *Job) error {
			return list(r, MaxOps, &j.Notes, func(s *string) error { return r.text(s) })
		}},
	}
	laneMembers = []member[Lane]{
		{"id", false, func(r *reader, _ *Lane) error { return r.id() }},
		{"name", true, func(r *reader, l *Lane) error { return r.text(&l.Name) }},
		{"kind", true, func(r *reader, l *Lane) error { return word(r, &l.Kind, parseLaneKind) }},
	}
	opMembers = []member[Op]{
		{"id", false, func(r *reader, _ *Op) error { return r.id() }},
		{"name", true, func(r *reader, o *Op) error { return r.text(&o.Name) }},
		{"lane", true, func(r *reader, o *Op) error { return whole(r, &o.Lane) }},
		{"phase", true, func(r *reader, o *Op) error { return word(r, &o.Phase, parsePhase) }},
		{"role", false, func(r *reader, o *Op) error { return word(r, &o.Role, parseRole) }},
		{"micro", false, func(r *reader, o *Op) error { return whole(r, &o.Micro) }},
		{"tensor", false, func(r *reader, o *Op) error { return whole(r, &o.Tensor) }},
		{"time", true, func(r *reader, o *Op) error { return r.float(&o.Time) }},
		{"deps", false, func(r *reader, o *Op) error { return r.ids(&o.Deps) }},
	}
	tensorMembers = []member[Tensor]{
		{"id", false, func(r *reader, _ *Tensor) error { return r.id() }},
		{"name", true, func(r *reader, t *Tensor) error { return r.text(&t.Name) }},
		{"elements", true, func(r *reader, t *Tensor) error { return whole(r, &t.Elements) }},
		{"param", true, func(r *reader, t *Tensor) error { return word(r, &t.Param, ParseDType) }},
		{"grad", false, func(r *reader, t *Tensor) error { return word(r, &t.Grad, ParseDType) }},
		{"readers", false, func(r *reader, t *Tensor) error { return r.ids(&t.Readers) }},
		{"producers", true, func(r *reader, t *Tensor) error { return r.ids(&t.Producers) }},
		{"updaters", false, func(r *reader, t *Tensor) error { return r.ids(&t.Updaters) }},
	}
	collectiveMembers = []member[Collective]{
		{"name", true, func(r *reader, c *Collective) error { return r.text(&c.Name) }},
		{"kind", true, func(r *reader, c *Collective) error { return r.text(&c.Kind) }},
		{"bytes", false, func(r *reader, c *Collective) error { return whole(r, &c.Bytes) }},
		{"time", true, func(r *reader, c *Collective) error { return r.float(&c.Time) }},
		{"after", false, func(r *reader, c *Collective) error { return r.ids(&c.After) }},
		{"before", false, func(r *reader, c *Collective) error { return r.ids(&c.Before) }},
	}
	recordedMembers = []member[Recorded]{
		{"library", false, func(r *reader, x *Recorded) error { return r.text(&x.Library) }},
		{"backend", false, func(r *reader, x *Recorded) error { return r.text(&x.Backend) }},
		{"buckets", true, func(r *reader, x *Recorded) error {
			return list(r, MaxOps, &x.Buckets, func(b *RecordedBucket) error {
				b.Op = -1
				return object(r, bucketMembers, b)
			})
		}},
	}
	bucketMembers = []member[RecordedBucket]{
		{"tensors", true, func(r *reader, b *RecordedBucket) error { return r.ids(&b.Tensors) }},
		{"bytes", true, func(r *reader, b *RecordedBucket) error { return whole(r, &b.Bytes) }},
		{"op", false, func(r *reader, b *RecordedBucket) error { return whole(r, &b.Op) }},
	}
)

// sameAsParam is a tensor's gradient type until the file states one.
const sameAsParam DType = math.MaxUint8
