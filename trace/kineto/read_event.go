package kineto

import (
	"math"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// categories are the kinds of complete events that are kept, by the names that
// Kineto gives them (its ActivityType) for each maker's devices.
var categories = map[string]Category{
	"cpu_op":              CPUOp,
	"user_annotation":     Annotation,
	"cuda_runtime":        Runtime, // also HIP's
	"cuda_driver":         Runtime,
	"xpu_runtime":         Runtime,
	"xpu_driver":          Runtime,
	"mtia_runtime":        Runtime,
	"privateuse1_runtime": Runtime,
	"privateuse1_driver":  Runtime,
	"kernel":              Kernel,
	"gpu_memcpy":          Memcpy,
	"gpu_memset":          Memset,
	"gpu_user_annotation": GPUAnnotation,
	"cuda_sync":           Sync,
	"xpu_sync":            Sync,
	"cuda_event":          Record,
}

// maxReasons bounds the reasons that are counted apart, and their length.
const maxReasons = 64

// drop counts what is not kept.
func (d *reader) drop(reason string) {
	_, known := d.trace.Dropped[reason]
	if !known && (len(d.trace.Dropped) >= maxReasons || len(reason) > maxReasons) {
		reason = "other"
	}
	d.trace.Dropped[reason]++
}

// fields are the members of an event, as written; nil: absent.
type fields struct {
	ph, cat, name, pid, tid, ts, dur, id, args []byte
}

// event takes one element of the array of events.
func (d *reader) event(v jsontext.Value) error {
	if v.Kind() != '{' {
		return d.bad("traceEvents[%d] is not an object: %s", d.index, notATrace)
	}
	var f fields
	for name, value := range members(v) {
		switch string(name) {
		case "ph":
			f.ph = unquote(value)
		case "cat":
			f.cat = unquote(value)
		case "name":
			f.name = unquote(value)
		case "pid":
			f.pid = unquote(value)
		case "tid":
			f.tid = unquote(value)
		case "ts":
			f.ts = value
		case "dur":
			f.dur = value
		case "id":
			f.id = value
		case "args":
			f.args = value
		}
	}
	switch string(f.ph) {
	case "X":
		return d.complete(&f)
	case "s", "f":
		return d.flow(&f)
	case "M":
		d.drop("metadata")
	case "i", "I":
		d.drop("instant")
	default:
		d.drop("phase " + string(f.ph))
	}
	return nil
}

// complete takes an event with a start and a duration.
func (d *reader) complete(f *fields) (err error) {
	e := Event{Seq: -1, Extra: -1, order: d.index}
	if len(f.cat) > 0 {
		kept := false
		if e.Cat, kept = categories[string(f.cat)]; !kept {
			d.drop(string(f.cat))
			return nil
		}
		d.trace.Kineto = true
	}
	if f.ts == nil || f.dur == nil {
		d.drop("incomplete")
		return nil
	}
	if e.Start, err = d.time(f, "ts", f.ts); err != nil {
		return err
	}
	if e.Dur, err = d.time(f, "dur", f.dur); err != nil {
		return err
	}
	if e.Dur < 0 {
		return d.bad("event %.80q: negative duration %.40s: record or export the trace again", f.name, f.dur)
	}
	if e.Row, err = d.row(f.pid, f.tid, e.Cat.Device()); err != nil {
		return err
	}
	e.Name = d.name(f.name)
	d.arguments(&e, f.args)
	d.events.add(e)
	return nil
}

// flow is one end of an arrow from a forward op to its backward node.
type flow struct {
	at, id int64
	row    uint16
	finish bool
}

// flow keeps one end of an arrow that may be needed. A trace with sequence
// numbers needs none: they say the same.
func (d *reader) flow(f *fields) (err error) {
	id, whole := integer(f.id)
	at, bad := nanoseconds(f.ts)
	if d.number || string(f.cat) != "fwdbwd" || !whole || bad != nil {
		d.drop(string(f.cat) + " flow")
		return nil
	}
	x := flow{at: at, id: id, finish: f.ph[0] == 'f'}
	if x.row, err = d.row(f.pid, f.tid, false); err != nil {
		return err
	}
	d.flows = append(d.flows, x)
	return nil
}

// numbered drops the arrows: the trace has sequence numbers.
func (d *reader) numbered() {
	for range d.flows {
		d.drop("fwdbwd flow")
	}
	d.flows, d.number = nil, true
}

// time converts ts or dur.
func (d *reader) time(f *fields, member string, v []byte) (int64, error) {
	ns, err := nanoseconds(v)
	if err != nil {
		return 0, d.bad("event %.80q: %s %.40s %v: record or export the trace again", f.name, member, v, err)
	}
	return ns, nil
}

// name interns an event's name.
func (d *reader) name(raw []byte) uint32 {
	id, ok := d.names[string(raw)]
	if ok {
		return id
	}
	valid := strings.ToValidUTF8(string(raw), "\uFFFD")
	if id, ok = d.names[valid]; !ok {
		id = uint32(len(d.trace.Names))
		d.trace.Names = append(d.trace.Names, valid)
		d.names[valid] = id
	}
	d.names[string(raw)] = id
	return id
}

// row interns a thread or stream.
func (d *reader) row(pid, tid []byte, device bool) (uint16, error) {
	d.key = append(d.key[:0], 'h')
	if device {
		d.key[0] = 'd'
	}
	d.key = append(d.key, pid...)
	d.key = append(d.key, 0)
	d.key = append(d.key, tid...)
	id, ok := d.rows[string(d.key)]
	if !ok {
		if len(d.trace.Rows) > math.MaxUint16 {
			return 0, d.bad("more than %d threads and streams: %s", math.MaxUint16+1, notATrace)
		}
		id = uint16(len(d.trace.Rows))
		d.trace.Rows = append(d.trace.Rows, Row{Pid: string(pid), Tid: string(tid), Device: device})
		d.rows[string(d.key)] = id
	}
	return id, nil
}

// arguments takes from the arguments what the event keeps. Those of [Extra] are
// put together as a JSON object again, under which equal ones are shared.
func (d *reader) arguments(e *Event, args []byte) {
	if len(args) == 0 || args[0] != '{' {
		return
	}
	d.key = append(d.key[:0], '{')
	for name, value := range members(args) {
		switch string(name) {
		case "correlation":
			if n, ok := integer(value); ok && n > 0 && n <= math.MaxUint32 {
				e.Corr = uint32(n)
			}
		case "Sequence number":
			if n, ok := integer(value); ok && n >= 0 && n <= math.MaxInt32 {
				e.Seq = int32(n)
				if !d.number {
					d.numbered()
				}
			}
		case "bytes", "Collective name", "In msg nelems", "dtype", "Group size", "Input Dims", "Input type",
			"wait_on_stream", "wait_on_cuda_event_record_corr_id":
			d.key = append(d.key, '"')
			d.key = append(d.key, name...)
			d.key = append(d.key, '"', ':')
			d.key = append(d.key, value...)
			d.key = append(d.key, ',')
		}
	}
	if len(d.key) == 1 {
		return
	}
	id, ok := d.extras[string(d.key)]
	if !ok {
		id = int32(len(d.trace.Extras))
		d.trace.Extras = append(d.trace.Extras, extra(d.key))
		d.extras[string(d.key)] = id
	}
	e.Extra = id
}

// extra decodes the arguments that [reader.arguments] put together.
func extra(args []byte) Extra {
	x := Extra{Stream: -1}
	var dims, types []byte
	for name, value := range members(args) {
		n, _ := integer(value)
		switch string(name) {
		case "bytes":
			x.Bytes = max(n, 0)
		case "Collective name":
			x.Collective = word(value)
		case "In msg nelems":
			x.Elements = max(n, 0)
		case "dtype":
			x.DType = word(value)
		case "Group size":
			x.Group = int(max(n, 0))
		case "wait_on_stream":
			x.Stream = n
		case "wait_on_cuda_event_record_corr_id":
			if n > 0 && n <= math.MaxUint32 {
				x.Waits = uint32(n)
			}
		case "Input Dims":
			dims = value
		case "Input type":
			types = value
		}
	}
	x.Dims, x.Types = inputs(dims, types)
	return x
}

// word is the text of a string or number, "" for other values.
func word(v []byte) string {
	return strings.ToValidUTF8(string(unquote(v)), "\uFFFD")
}

// inputs lists the shapes of an op's inputs beside their types: dims is [2,3]
// for a tensor, [] for a scalar and [[2,3],[4]] for a list of tensors, which
// gives one entry a tensor.
func inputs(dims, types []byte) (shapes [][]int64, names []string) {
	if len(dims) == 0 || dims[0] != '[' {
		return nil, nil
	}
	if len(types) > 0 && types[0] != '[' {
		types = nil
	}
	typ, rest := next(inside(types))
	for input := range elements(dims) {
		name := word(typ)
		list := [][]byte{input}
		if first, _ := next(inside(input)); len(first) > 0 && first[0] == '[' {
			list = slices.Collect(elements(input))
		}
		for _, tensor := range list {
			shapes = append(shapes, shape(tensor))
			names = append(names, name)
		}
		typ, rest = next(rest)
	}
	return shapes, names
}

// shape is a tensor's dimensions; nil for a scalar, or if they are not numbers.
func shape(tensor []byte) (s []int64) {
	if tensor[0] != '[' {
		return nil
	}
	for v := range elements(tensor) {
		n, ok := integer(v)
		if !ok {
			return nil
		}
		s = append(s, n)
	}
	return s
}
