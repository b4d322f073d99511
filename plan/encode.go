package plan

import (
	"bytes"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"

	"weft/cluster"
	"weft/job"
)

// Members of the file that not every transfer and gate has; nil: left out.
type (
	transferFile struct {
		Kind       cluster.Kind `json:"kind"`
		Bucket     *int         `json:"bucket,omitzero"`
		Generation *int         `json:"generation,omitzero"`
		Collective *int         `json:"collective,omitzero"`
		Iteration  *int         `json:"iteration,omitzero"`
		Gates      []gateFile   `json:"gates,omitempty"`
	}
	gateFile struct {
		Kind      GateKind  `json:"kind"`
		Op        *job.OpID `json:"op,omitzero"`
		Iteration *int      `json:"iteration,omitzero"`
		Link      *int      `json:"link,omitzero"`
		Transfer  *int      `json:"transfer,omitzero"`
		Time      *float64  `json:"time,omitzero"`
	}
)

// Write writes the plan as JSON, one transfer a line. It refuses a plan that
// [Read] would refuse. Equal plans give equal bytes.
func Write(w io.Writer, p *Plan) error {
	b, err := p.encode()
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("plan: writing: %w", err)
	}
	return nil
}

func (p *Plan) encode() ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	e := &encoder{}
	e.open("", '{')
	e.member("version", Version)
	e.member("policy", p.Policy)
	e.member("tensors_fingerprint", p.Tensors)
	e.optional("ops_fingerprint", p.Ops, p.Ops != "")
	e.member("period", p.Period)
	e.optional("copies", p.Copies, p.Copies)
	e.member("buffers", p.Buffers)
	e.member("max_delay", p.MaxDelay)
	e.member("max_staleness", p.MaxStaleness)
	e.member("update_rate", p.UpdateRate)
	if len(p.Notes) > 0 {
		list(e, "notes", p.Notes)
	}
	list(e, "generations", p.Generations)
	list(e, "updates", p.Updates)
	if p.Order != nil {
		e.open("order", '[')
		for _, ids := range p.Order {
			if ids == nil {
				e.member("", nil)
			} else {
				e.member("", ids)
			}
		}
		e.close(']')
	}
	list(e, "buckets", p.Buckets)
	e.open("programs", '[')
	for i := range p.Programs {
		x := &p.Programs[i]
		e.open("", '{')
		e.member("link", x.Link)
		e.member("window", x.Window)
		e.open("transfers", '[')
		for k := range x.Transfers {
			e.member("", x.Transfers[k].file())
		}
		e.close(']')
		e.close('}')
	}
	e.close(']')
	e.close('}')
	e.buf.WriteByte('\n')
	if e.err != nil {
		return nil, fmt.Errorf("plan: %w", e.err)
	}
	return e.buf.Bytes(), nil
}

func (t *Transfer) file() transferFile {
	f := transferFile{Kind: t.Kind, Gates: make([]gateFile, len(t.Gates))}
	if t.Bucket >= 0 {
		f.Bucket, f.Generation = &t.Bucket, &t.Generation
	} else {
		f.Collective, f.Iteration = &t.Collective, &t.Iteration
	}
	for i := range t.Gates {
		f.Gates[i] = t.Gates[i].file()
	}
	return f
}

func (g *Gate) file() gateFile {
	f := gateFile{Kind: g.Kind}
	switch g.Kind {
	case OpDone:
		f.Op, f.Iteration = &g.Op, &g.Iteration
	case TransferDone:
		f.Link, f.Transfer = &g.Link, &g.Transfer
	case Boundary:
		f.Iteration = &g.Iteration
	case NotBefore:
		f.Time = &g.Time
	}
	return f
}

// encoder writes JSON that is broken into lines where a reader wants them.
type encoder struct {
	buf   bytes.Buffer
	depth int
	more  bool // a value stands before, in the same object or array
	err   error
}

// next starts the line of a value; name is "" in an array.
func (e *encoder) next(name string) {
	if e.more {
		e.buf.WriteByte(',')
	}
	if e.depth > 0 {
		e.line()
	}
	if name != "" {
		fmt.Fprintf(&e.buf, "%q: ", name)
	}
	e.more = true
}

func (e *encoder) line() {
	e.buf.WriteByte('\n')
	for range e.depth {
		e.buf.WriteString("  ")
	}
}

func (e *encoder) open(name string, bracket byte) {
	e.next(name)
	e.buf.WriteByte(bracket)
	e.depth++
	e.more = false
}

func (e *encoder) close(bracket byte) {
	e.depth--
	if e.more {
		e.line()
	}
	e.buf.WriteByte(bracket)
	e.more = true
}

func (e *encoder) member(name string, v any) {
	e.next(name)
	b, err := json.Marshal(v)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.buf.Write(b)
}

func (e *encoder) optional(name string, v any, present bool) {
	if present {
		e.member(name, v)
	}
}

// list writes an array, an element a line.
func list[T any](e *encoder, name string, all []T) {
	e.open(name, '[')
	for i := range all {
		e.member("", &all[i])
	}
	e.close(']')
}

func (g GateKind) MarshalText() ([]byte, error) { return []byte(g.String()), nil }
func (p Point) MarshalText() ([]byte, error)    { return []byte(p.String()), nil }
