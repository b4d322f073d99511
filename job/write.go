package job

import (
	"bufio"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"weft/internal/fault"
)

// Write writes a valid job as a file that [Read] reads back equal, each op,
// tensor and lane on a line of its own. It streams.
func Write(w io.Writer, j *Job) error {
	if err := j.Validate(); err != nil {
		return err
	}
	p := &printer{w: bufio.NewWriterSize(w, 1<<16)}
	p.raw("{\n").int("version", Version)
	if j.Name != "" {
		p.raw(",\n").text("name", j.Name)
	}
	if j.World > 0 {
		p.raw(",\n").int("world", int64(j.World))
	}
	p.raw(",\n").text("mode", j.Mode.String())
	p.list("lanes", len(j.Lanes), func(i int) {
		l := &j.Lanes[i]
		p.raw("{").int("id", int64(i)).raw(",").text("name", l.Name).raw(",").text("kind", l.Kind.String()).raw("}")
	})
	p.list("ops", len(j.Ops), func(i int) { p.op(i, &j.Ops[i]) })
	p.list("tensors", len(j.Tensors), func(i int) {
		t := &j.Tensors[i]
		p.raw("{").int("id", int64(i)).raw(",").text("name", t.Name).raw(",").int("elements", t.Elements)
		p.raw(",").text("param", t.Param.String())
		if t.Grad != t.Param {
			p.raw(",").text("grad", t.Grad.String())
		}
		p.ids("readers", t.Readers).ids("producers", t.Producers).ids("updaters", t.Updaters).raw("}")
	})
	if j.Optimizer > 0 {
		p.raw(",\n").int("optimizer", j.Optimizer)
	}
	if len(j.Collectives) > 0 {
		p.list("collectives", len(j.Collectives), func(i int) {
			c := &j.Collectives[i]
			p.raw("{").text("name", c.Name).raw(",").text("kind", c.Kind)
			if c.Bytes > 0 {
				p.raw(",").int("bytes", c.Bytes)
			}
			p.raw(",").float("time", c.Time).ids("after", c.After).ids("before", c.Before).raw("}")
		})
	}
	p.ids("barrier", j.Barrier)
	if r := j.Recorded; r != nil {
		p.raw(`,"recorded":{`).text("library", r.Library).raw(",").text("backend", r.Backend)
		p.list("buckets", len(r.Buckets), func(i int) {
			b := &r.Buckets[i]
			p.raw("{").int("bytes", b.Bytes)
			if b.Op >= 0 {
				p.raw(",").int("op", int64(b.Op))
			}
			p.raw(`,"tensors":`).numbers(b.Tensors).raw("}")
		})
		p.raw("}")
	}
	if len(j.Notes) > 0 {
		p.list("notes", len(j.Notes), func(i int) { p.quote(j.Notes[i]) })
	}
	p.raw("\n}\n")
	if p.err != nil {
		return fmt.Errorf("job: writing: %w", p.err)
	}
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("job: writing: %w", err)
	}
	return nil
}

// printer writes JSON piece by piece. Errors stick: of the text here, of the
// writer in w.
type printer struct {
	w   *bufio.Writer
	err error
}

func (p *printer) op(i int, o *Op) {
	p.raw("{").int("id", int64(i)).raw(",").text("name", o.Name).raw(",").int("lane", int64(o.Lane))
	p.raw(",").text("phase", o.Phase.String())
	if o.Role != NoRole {
		p.raw(",").text("role", o.Role.String())
	}
	if o.Micro > 0 {
		p.raw(",").int("micro", int64(o.Micro))
	}
	if o.Tensor >= 0 {
		p.raw(",").int("tensor", int64(o.Tensor))
	}
	p.raw(",").float("time", o.Time)
	if o.Output > 0 {
		p.raw(",").int("output", o.Output)
	}
	p.ids("deps", o.Deps).raw("}")
}

func (p *printer) raw(s string) *printer {
	p.w.WriteString(s)
	return p
}

func (p *printer) quote(s string) *printer {
	b, err := jsontext.AppendQuote(p.w.AvailableBuffer(), s)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("%q: %w", fault.Short(s), err)
	}
	p.w.Write(b)
	return p
}

func (p *printer) key(name string) *printer { return p.raw(`"`).raw(name).raw(`":`) }

func (p *printer) text(name, s string) *printer { return p.key(name).quote(s) }

func (p *printer) int(name string, v int64) *printer {
	p.key(name)
	p.w.Write(strconv.AppendInt(p.w.AvailableBuffer(), v, 10))
	return p
}

func (p *printer) float(name string, v float64) *printer {
	p.key(name)
	p.w.Write(strconv.AppendFloat(p.w.AvailableBuffer(), v, 'g', -1, 64))
	return p
}

// ids writes a further member that is a list of positions, if there are any.
func (p *printer) ids(name string, ids []int32) *printer {
	if len(ids) > 0 {
		p.raw(",").key(name).numbers(ids)
	}
	return p
}

func (p *printer) numbers(ids []int32) *printer {
	p.raw("[")
	for i, v := range ids {
		if i > 0 {
			p.raw(",")
		}
		p.w.Write(strconv.AppendInt(p.w.AvailableBuffer(), int64(v), 10))
	}
	return p.raw("]")
}

// list writes a further member that is a list, each element on its own line.
func (p *printer) list(name string, n int, element func(i int)) {
	p.raw(",\n").key(name).raw("[")
	for i := range n {
		if i > 0 {
			p.raw(",")
		}
		p.raw("\n")
		element(i)
	}
	p.raw("\n]")
}
