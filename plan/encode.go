package plan

import (
	"bytes"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"

	"weft/cluster"
	"weft/job"
)

// The file format, docs/plan.md. A member is a pointer where its absence must
// be told from 0.
type (
	planFile struct {
		Version      int              `json:"version"`
		Policy       string           `json:"policy"`
		Tensors      string           `json:"tensors_fingerprint"`
		Ops          string           `json:"ops_fingerprint"`
		Period       int              `json:"period"`
		Copies       bool             `json:"copies"`
		Buffers      int              `json:"buffers"`
		MaxDelay     int              `json:"max_delay"`
		MaxStaleness int              `json:"max_staleness"`
		UpdateRate   float64          `json:"update_rate"`
		Notes        []string         `json:"notes"`
		Generations  []generationFile `json:"generations"`
		Updates      []updateFile     `json:"updates"`
		Order        []*[]job.OpID    `json:"order"` // null: a lane as recorded
		Buckets      []bucketFile     `json:"buckets"`
		Programs     []programFile    `json:"programs"`
	}
	generationFile struct {
		First  *int `json:"first"`
		Length *int `json:"length"`
	}
	updateFile struct {
		Generation *int           `json:"generation"`
		At         *Point         `json:"at"`
		Iteration  *int           `json:"iteration"`
		Tensors    []job.TensorID `json:"tensors,omitzero"`
	}
	bucketFile struct {
		Slices []sliceFile `json:"slices"`
	}
	sliceFile struct {
		Tensor *job.TensorID `json:"tensor"`
		Offset *int64        `json:"offset"`
		Length *int64        `json:"length"`
	}
	programFile struct {
		Link      string         `json:"link"`
		Window    windowFile     `json:"window"`
		Transfers []transferFile `json:"transfers"`
	}
	windowFile struct {
		Transfers int   `json:"transfers,omitzero"`
		Bytes     int64 `json:"bytes,omitzero"`
	}
	transferFile struct {
		Kind       *cluster.Kind `json:"kind"`
		Bucket     *int          `json:"bucket,omitzero"`
		Generation *int          `json:"generation,omitzero"`
		Collective *int          `json:"collective,omitzero"`
		Iteration  *int          `json:"iteration,omitzero"`
		Gates      []gateFile    `json:"gates,omitempty"`
	}
	gateFile struct {
		Kind      *GateKind `json:"kind"`
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
		list(e, "notes", p.Notes, func(s *string) any { return s })
	}
	list(e, "generations", p.Generations, func(g *Generation) any {
		return generationFile{&g.First, &g.Length}
	})
	list(e, "updates", p.Updates, func(u *Update) any {
		return updateFile{&u.Generation, &u.At, &u.Iteration, u.Tensors}
	})
	if p.Order != nil {
		list(e, "order", p.Order, func(ids *[]job.OpID) any {
			if *ids == nil {
				return nil
			}
			return ids
		})
	}
	list(e, "buckets", p.Buckets, func(b *Bucket) any {
		f := bucketFile{make([]sliceFile, len(b.Slices))}
		for i := range b.Slices {
			s := &b.Slices[i]
			f.Slices[i] = sliceFile{&s.Tensor, &s.Offset, &s.Length}
		}
		return f
	})
	e.open("programs", '[')
	for i := range p.Programs {
		x := &p.Programs[i]
		e.open("", '{')
		e.member("link", x.Link)
		e.member("window", windowFile(x.Window))
		list(e, "transfers", x.Transfers, func(t *Transfer) any { return t.file() })
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
	f := transferFile{Kind: &t.Kind, Gates: make([]gateFile, len(t.Gates))}
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
	f := gateFile{Kind: &g.Kind}
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
func list[T any](e *encoder, name string, all []T, file func(*T) any) {
	e.open(name, '[')
	for i := range all {
		e.member("", file(&all[i]))
	}
	e.close(']')
}
