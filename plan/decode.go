package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weft/internal/near"
)

// maxFile bounds the size of a plan file, in bytes.
const maxFile = 1 << 30

// Read reads a plan that [Write] wrote, or that was written by hand. It refuses
// unknown, duplicate and missing members and references out of range; errors
// give line and field. That the plan fits a job is for [Check] to tell.
func Read(r io.Reader) (*Plan, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("plan: reading: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("plan: more than %d bytes", maxFile)
	}
	var f planFile
	if err := json.Unmarshal(data, &f, json.RejectUnknownMembers(true)); err != nil {
		return nil, explain(data, err)
	}
	p, err := f.plan()
	if err == nil {
		err = p.validate()
	}
	if x := new(fault); errors.As(err, &x) {
		x.line = lineOf(data, x.path)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// member is a member of the file that may be missing, or out of place.
type member struct {
	name            string
	present, wanted bool
}

func checkMembers(path string, members ...member) error {
	for _, m := range members {
		switch {
		case m.wanted && !m.present:
			return faultf(path, "%s is missing", m.name)
		case !m.wanted && m.present:
			return faultf(path+"."+m.name, "does not belong here")
		}
	}
	return nil
}

func (f *planFile) plan() (*Plan, error) {
	if f.Version != Version {
		return nil, faultf("version", "format version %d; this program reads version %d", f.Version, Version)
	}
	p := &Plan{
		Policy: f.Policy, Tensors: f.Tensors, Ops: f.Ops, Period: f.Period, Copies: f.Copies,
		Buffers: f.Buffers, MaxDelay: f.MaxDelay, MaxStaleness: f.MaxStaleness, UpdateRate: f.UpdateRate,
	}
	if len(f.Notes) > 0 {
		p.Notes = f.Notes
	}
	for i, g := range f.Generations {
		if err := checkMembers(fmt.Sprintf("generations[%d]", i), member{"first", g.First != nil, true}, member{"length", g.Length != nil, true}); err != nil {
			return nil, err
		}
		p.Generations = append(p.Generations, Generation{*g.First, *g.Length})
	}
	for i, u := range f.Updates {
		if err := checkMembers(fmt.Sprintf("updates[%d]", i), member{"generation", u.Generation != nil, true},
			member{"at", u.At != nil, true}, member{"iteration", u.Iteration != nil, true}); err != nil {
			return nil, err
		}
		p.Updates = append(p.Updates, Update{*u.Generation, u.Tensors, *u.At, *u.Iteration})
	}
	for _, ids := range f.Order {
		if ids == nil {
			p.Order = append(p.Order, nil)
		} else {
			p.Order = append(p.Order, *ids)
		}
	}
	for i, b := range f.Buckets {
		bucket := Bucket{make([]Slice, len(b.Slices))}
		for k, s := range b.Slices {
			if err := checkMembers(fmt.Sprintf("buckets[%d].slices[%d]", i, k), member{"tensor", s.Tensor != nil, true},
				member{"offset", s.Offset != nil, true}, member{"length", s.Length != nil, true}); err != nil {
				return nil, err
			}
			bucket.Slices[k] = Slice{*s.Tensor, *s.Offset, *s.Length}
		}
		p.Buckets = append(p.Buckets, bucket)
	}
	for i, x := range f.Programs {
		program := Program{Link: x.Link, Window: Window(x.Window)}
		for k := range x.Transfers {
			t, err := x.Transfers[k].transfer(fmt.Sprintf("programs[%d].transfers[%d]", i, k))
			if err != nil {
				return nil, err
			}
			program.Transfers = append(program.Transfers, t)
		}
		p.Programs = append(p.Programs, program)
	}
	return p, nil
}

func (f *transferFile) transfer(path string) (Transfer, error) {
	gradients := f.Bucket != nil || f.Collective == nil // what a file without either lacks is a bucket
	if err := checkMembers(path,
		member{"kind", f.Kind != nil, true},
		member{"bucket", f.Bucket != nil, gradients},
		member{"generation", f.Generation != nil, gradients},
		member{"collective", f.Collective != nil, !gradients},
		member{"iteration", f.Iteration != nil, !gradients}); err != nil {
		return Transfer{}, err
	}
	t := Transfer{Kind: *f.Kind, Bucket: -1}
	if gradients {
		if *f.Bucket < 0 {
			return t, faultf(path+".bucket", "negative: %d", *f.Bucket)
		}
		t.Bucket, t.Generation = *f.Bucket, *f.Generation
	} else {
		t.Collective, t.Iteration = *f.Collective, *f.Iteration
	}
	for i := range f.Gates {
		g, err := f.Gates[i].gate(fmt.Sprintf("%s.gates[%d]", path, i))
		if err != nil {
			return t, err
		}
		t.Gates = append(t.Gates, g)
	}
	return t, nil
}

func (f *gateFile) gate(path string) (Gate, error) {
	if f.Kind == nil {
		return Gate{}, faultf(path, "kind is missing")
	}
	kind := *f.Kind
	if err := checkMembers(path,
		member{"op", f.Op != nil, kind == OpDone},
		member{"iteration", f.Iteration != nil, kind == OpDone || kind == Boundary},
		member{"link", f.Link != nil, kind == TransferDone},
		member{"transfer", f.Transfer != nil, kind == TransferDone},
		member{"time", f.Time != nil, kind == NotBefore}); err != nil {
		return Gate{}, err
	}
	return Gate{kind, value(f.Op), value(f.Iteration), value(f.Link), value(f.Transfer), value(f.Time)}, nil
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// explain turns an error of the JSON library into one that names line and field.
func explain(data []byte, err error) error {
	x := &fault{msg: err.Error()}
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		x.line, x.path, x.msg = lineAt(data, syntax.ByteOffset), dotted(syntax.JSONPointer), syntax.Err.Error()
		if errors.Is(err, jsontext.ErrDuplicateName) {
			x.msg = "given twice"
		} else {
			x.msg = fmt.Sprintf("not JSON at byte %d: %s", syntax.ByteOffset, x.msg)
		}
	case errors.As(err, &meaning):
		x.line, x.path = lineAt(data, meaning.ByteOffset), dotted(meaning.JSONPointer)
		switch {
		case errors.Is(err, json.ErrUnknownName):
			x.msg = "unknown field" + near.Hint(meaning.JSONPointer.LastToken(), fields(meaning.GoType))
		case meaning.Err != nil && meaning.JSONKind == '0':
			x.msg = fmt.Sprintf("%s: %v", meaning.JSONValue, meaning.Err)
		case meaning.Err != nil:
			x.msg = meaning.Err.Error()
		default:
			x.msg = fmt.Sprintf("a JSON %s does not fit here", meaning.JSONKind)
		}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		x.line, x.msg = lineAt(data, int64(len(data))), "ends too early"
	}
	return x
}

// dotted spells a JSON pointer as in messages: programs[0].transfers[3].kind.
func dotted(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		switch digits := strings.Trim(token, "0123456789") == ""; {
		case digits:
			fmt.Fprintf(&b, "[%s]", token)
		case b.Len() > 0:
			b.WriteString("." + token)
		default:
			b.WriteString(token)
		}
	}
	return b.String()
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), int64(len(data)))], []byte("\n"))
}

// lineOf is the line on which the value at a path, as in messages, begins; 0 if
// there is no such value.
func lineOf(data []byte, path string) int {
	d := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		if _, err := d.ReadToken(); err != nil {
			return 0
		}
		// A member's name has the path of its value.
		if dotted(d.StackPointer()) == path {
			return lineAt(data, d.InputOffset())
		}
	}
}

// fields lists the names of a file type's members.
func fields(t reflect.Type) []string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func (g GateKind) MarshalText() ([]byte, error) { return []byte(g.String()), nil }
func (p Point) MarshalText() ([]byte, error)    { return []byte(p.String()), nil }

func (g *GateKind) UnmarshalText(b []byte) (err error) {
	*g, err = parse[GateKind]("gate", string(b), gateNames)
	return err
}

func (p *Point) UnmarshalText(b []byte) (err error) {
	*p, err = parse[Point]("point of update", string(b), pointNames)
	return err
}

func parse[T ~uint8](what, s string, names []string) (T, error) {
	for i, n := range names {
		if n == s {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q%s", what, s, near.Hint(s, names))
}
