// Package strict reads JSON files of a known form, token by token, by tables of
// their members. It refuses members that are unknown, given twice or missing,
// and values of another type; errors name the line and the field.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weft/internal/fault"
	"weft/internal/near"
)

// Read reads a file that is one object into t. what names the kind of file in
// errors. Faults that validate finds afterwards get the line of their field. It
// streams: beside t it holds a line number for each list element that starts a
// line.
func Read[T any](in io.Reader, what string, members []Member[T], t *T, validate func() error) error {
	lines := &lines{in: in}
	r := &Reader{what: what, dec: jsontext.NewDecoder(lines), lines: lines, starts: map[string][]int32{}, spare: []int32{}}
	if err := Object(r, members, t); err != nil {
		return err
	}
	if _, err := r.dec.ReadToken(); err == nil {
		return r.Faultf("more text after the end of the %s", what)
	} else if err != io.EOF {
		return r.broken(err)
	}
	return fault.Locate(validate(), r.position)
}

// Reader is a file being read. Its methods read the next value.
type Reader struct {
	what   string
	dec    *jsontext.Decoder
	lines  *lines
	starts map[string][]int32 // by list: the line where each element starts; by member of the file: its line
	place  int                // position of the list element being read
	on     int32              // the line where it starts; 0: no element
	spare  []int32            // where lists of numbers are cut from
}

// Member is one member of objects that are read into a T.
type Member[T any] struct {
	name     string
	required bool
	where    func(t *T) bool // it belongs there only; nil: everywhere
	read     func(r *Reader, t *T) error
}

// Where restricts a member to the objects for which f holds once they are read;
// only there it may be required.
func (m Member[T]) Where(f func(t *T) bool) Member[T] {
	m.where = f
	return m
}

// Field is a member whose value read reads.
func Field[T any](name string, required bool, read func(r *Reader, t *T) error) Member[T] {
	return Member[T]{name: name, required: required, read: read}
}

// Text is a member that is a string.
func Text[T any](name string, required bool, to func(*T) *string) Member[T] {
	return Field(name, required, func(r *Reader, t *T) error { return r.text(to(t)) })
}

// Float is a member that is a number.
func Float[T any](name string, required bool, to func(*T) *float64) Member[T] {
	return Field(name, required, func(r *Reader, t *T) error { return r.float(to(t)) })
}

// Bool is a member that is true or false.
func Bool[T any](name string, required bool, to func(*T) *bool) Member[T] {
	return Field(name, required, func(r *Reader, t *T) error { return r.bool(to(t)) })
}

// Whole is a member that is a whole number, and fits its type.
func Whole[T any, I int | int32 | int64](name string, required bool, to func(*T) *I) Member[T] {
	return Field(name, required, func(r *Reader, t *T) error { return whole(r, to(t)) })
}

// Numbers is a member that is a list of whole numbers. If it is given it is not
// nil.
func Numbers[T any](name string, required bool, to func(*T) *[]int32) Member[T] {
	return Field(name, required, func(r *Reader, t *T) error { return r.Numbers(to(t)) })
}

// Word is a member that is a name of an enumeration.
func Word[T, E any](name string, required bool, parse func(string) (E, error), to func(*T) *E) Member[T] {
	return Field(name, required, func(r *Reader, t *T) error {
		var s string
		if err := r.text(&s); err != nil {
			return err
		}
		v, err := parse(s)
		if err != nil {
			return r.Faultf("%s", err)
		}
		*to(t) = v
		return nil
	})
}

// Texts is a member that is a list of at most limit strings.
func Texts[T any](name string, required bool, limit int, to func(*T) *[]string) Member[T] {
	return Field(name, required, func(r *Reader, t *T) error { return List(r, limit, to(t), r.text) })
}

// Objects is a member that is a list of at most limit objects, each read into a
// copy of start.
func Objects[T, E any](name string, required bool, limit int, start E, members []Member[E], to func(*T) *[]E) Member[T] {
	return Field(name, required, func(r *Reader, t *T) error {
		return List(r, limit, to(t), func(e *E) error {
			*e = start
			return Object(r, members, e)
		})
	})
}

// Version is the member "version" of a file, which must be v.
func Version[T any](v int) Member[T] {
	return Field("version", true, func(r *Reader, _ *T) error {
		var given int
		if err := whole(r, &given); err != nil {
			return err
		}
		if given != v {
			return r.Faultf("%d; this program reads version %d", given, v)
		}
		return nil
	})
}

// ID is the member "id" of a list element, which can only be its position.
func ID[T any]() Member[T] {
	return Field("id", false, func(r *Reader, _ *T) error {
		var id int
		if err := whole(r, &id); err != nil {
			return err
		}
		switch {
		case 0 <= id && id < r.place:
			return r.Faultf("duplicate id %d; this is element %d, and an id is the position in the list", id, r.place)
		case id != r.place:
			return r.Faultf("id %d; this is element %d, and an id is the position in the list", id, r.place)
		}
		return nil
	})
}

// Object reads an object of at most 64 members.
func Object[T any](r *Reader, members []Member[T], t *T) error {
	line := r.line()
	if err := r.open('{', "an object"); err != nil {
		return err
	}
	var given uint64
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
		i := index(members, string(name))
		if i < 0 {
			known := make([]string, len(members))
			for i := range members {
				known[i] = members[i].name
			}
			return r.Faultf("unknown field%s", near.Hint(string(name), known))
		}
		given |= 1 << i
		if r.dec.StackDepth() == 1 {
			r.starts[members[i].name] = []int32{r.line()}
		}
		if err := members[i].read(r, t); err != nil {
			return err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	for i := range members {
		m, has := &members[i], given&(1<<i) != 0
		switch here := m.where == nil || m.where(t); {
		case has && !here:
			return r.faultAt(int(line), "%q does not belong here", m.name)
		case !has && here && m.required:
			return r.faultAt(int(line), "%q is missing", m.name)
		}
	}
	return nil
}

// index is the position of a member, or -1. They are few: a scan beats a map.
func index[T any](members []Member[T], name string) int {
	for i := range members {
		if members[i].name == name {
			return i
		}
	}
	return -1
}

// List reads a list of at most limit elements. Elements are read one by one, so
// what is allocated follows what the file holds.
func List[E any](r *Reader, limit int, to *[]E, read func(e *E) error) error {
	if err := r.open('[', "a list"); err != nil {
		return err
	}
	place, on := r.place, r.on
	var starts []int32 // nil while all are on the line of the element around
	*to = nil
	for i := 0; r.dec.PeekKind() != ']'; i++ {
		r.place, r.on = i, r.line()
		if i == limit {
			list := path(r.dec.StackPointer().Parent()) // read last was its element
			return fault.New(r.at(int(r.on)), list, "more than %d elements", limit)
		}
		if starts == nil && r.on != on {
			starts = slices.Repeat([]int32{on}, i)
		}
		if starts != nil {
			starts = append(starts, r.on)
		}
		*to = append(*to, *new(E))
		if err := read(&(*to)[i]); err != nil {
			return err
		}
	}
	r.place, r.on = place, on
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	if starts != nil {
		r.starts[path(r.dec.StackPointer())] = starts
	}
	return nil
}

// Numbers reads a list of whole numbers. It is not nil, even if it is empty.
func (r *Reader) Numbers(to *[]int32) error {
	if err := r.open('[', "a list"); err != nil {
		return err
	}
	r.spare = r.spare[len(r.spare):]
	for r.dec.PeekKind() != ']' {
		var n int32
		if err := whole(r, &n); err != nil {
			return err
		}
		if len(r.spare) == cap(r.spare) { // a new block, with room to go on
			r.spare = append(make([]int32, 0, max(1<<12, 2*len(r.spare))), r.spare...)
		}
		r.spare = append(r.spare, n)
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	*to = r.spare[:len(r.spare):len(r.spare)]
	return nil
}

// Null reads null, if that is next.
func (r *Reader) Null() bool {
	if r.dec.PeekKind() != 'n' {
		return false
	}
	_, err := r.dec.ReadToken()
	return err == nil // else the next read meets the same error
}

// token reads one token of a kind.
func (r *Reader) token(kind jsontext.Kind, what string) (jsontext.Token, error) {
	t, err := r.dec.ReadToken()
	if err != nil {
		return t, r.broken(err)
	}
	if t.Kind() != kind {
		return t, r.Faultf("%s expected, not a %v", what, t.Kind())
	}
	return t, nil
}

func (r *Reader) open(kind jsontext.Kind, what string) error {
	_, err := r.token(kind, what)
	return err
}

func (r *Reader) text(to *string) error {
	t, err := r.token('"', "a string")
	if err == nil {
		*to = t.String()
	}
	return err
}

func (r *Reader) float(to *float64) error {
	t, err := r.token('0', "a number")
	if err != nil {
		return err
	}
	if *to, err = t.Float(); err != nil {
		return r.Faultf("%s is too large", fault.Short(t.String()))
	}
	return nil
}

func (r *Reader) bool(to *bool) error {
	t, err := r.dec.ReadToken()
	switch {
	case err != nil:
		return r.broken(err)
	case t.Kind() != 't' && t.Kind() != 'f':
		return r.Faultf("true or false expected, not a %v", t.Kind())
	}
	*to = t.Bool()
	return nil
}

func whole[I int | int32 | int64](r *Reader, to *I) error {
	t, err := r.token('0', "a whole number")
	if err != nil {
		return err
	}
	v, err := t.Int()
	if *to = I(v); err != nil || int64(*to) != v {
		return r.Faultf("%s is not a whole number in range", fault.Short(t.String()))
	}
	return nil
}

// Faultf is about the value read last.
func (r *Reader) Faultf(format string, args ...any) error {
	return r.faultAt(r.lines.at(r.dec.InputOffset()), format, args...)
}

// faultAt is about the value read last, which starts on a line.
func (r *Reader) faultAt(line int, format string, args ...any) error {
	return fault.New(r.at(line), path(r.dec.StackPointer()), format, args...)
}

func (r *Reader) at(line int) string { return fmt.Sprintf("%s: line %d", r.what, line) }

// broken is about text that is no JSON, or could not be read.
func (r *Reader) broken(err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok && err == io.EOF:
		return fault.New(r.at(1), "", "empty file")
	case !ok && errors.Is(err, io.ErrUnexpectedEOF): // where the file is unpacked
		return fmt.Errorf("%s: the file ends in the middle", r.what)
	case !ok:
		return fmt.Errorf("%s: %w", r.what, err)
	}
	at, path := r.at(r.lines.at(syntax.ByteOffset)), path(syntax.JSONPointer)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fault.New(at, path, "given twice")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault.New(at, path, "the file ends at byte %d, in the middle", syntax.ByteOffset)
	}
	return fault.New(at, path, "invalid JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)
}

// line is where the next value starts.
func (r *Reader) line() int32 {
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

// position is where a list element starts, or a member of the file.
func (r *Reader) position(path string) (at string, known bool) {
	list, i := path, 0
	if open := strings.LastIndexByte(path, '['); open >= 0 && strings.HasSuffix(path, "]") {
		list = path[:open]
		i, _ = strconv.Atoi(path[open+1 : len(path)-1])
	}
	if starts := r.starts[list]; i < len(starts) {
		return r.at(int(starts[i])), true
	}
	return "", false
}

// path writes a JSON pointer as fields are written in messages: /ops/3/deps/0
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
