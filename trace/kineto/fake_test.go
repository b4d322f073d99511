package kineto

import (
	"cmp"
	"slices"
)

// fake builds a trace by hand. Times are microseconds.
type fake struct{ *Trace }

// newFake has a main thread (row 0), a transfer thread (row 1), a second host
// thread (row 2), a compute stream (row 3) and a stream for NCCL (row 4).
func newFake() *fake {
	return &fake{&Trace{
		Name: "fake", Kineto: true, Rank: 0, World: 2,
		Rows: []Row{{Tid: "1"}, {Tid: "2"}, {Tid: "3"}, {Tid: "7", Device: true}, {Tid: "20", Device: true}},
	}}
}

const (
	mainRow uint16 = iota
	glooRow
	autogradRow
	streamRow
	ncclRow
)

// more is what an event has beside name and times.
type more struct {
	cat      Category
	seq      int32 // 0: none
	corr     uint32
	dims     [][]int64
	bytes    int64
	elements int64
}

func (f *fake) add(row uint16, start, end int64, name string, m more) {
	e := Event{Start: 1000 * start, Dur: 1000 * (end - start), Corr: m.corr, Seq: -1, Extra: -1, Row: row, Cat: m.cat, order: uint32(len(f.Events))}
	if m.seq > 0 {
		e.Seq = m.seq
	}
	k := slices.Index(f.Names, name)
	if k < 0 {
		k = len(f.Names)
		f.Names = append(f.Names, name)
	}
	e.Name = uint32(k)
	if m.dims != nil || m.bytes > 0 || m.elements > 0 {
		e.Extra = int32(len(f.Extras))
		x := Extra{Dims: m.dims, Types: make([]string, len(m.dims)), Bytes: m.bytes, Elements: m.elements, DType: "Float", Stream: -1}
		for k := range x.Types {
			x.Types[k] = "float"
		}
		f.Extras = append(f.Extras, x)
	}
	f.Events = append(f.Events, e)
}

// done puts the events in the order of a trace.
func (f *fake) done() *Trace {
	slices.SortStableFunc(f.Events, func(a, b Event) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.Dur, a.Dur)) })
	return f.Trace
}

const accumulate = evalMark + "torch::autograd::AccumulateGrad"

// gradient adds a hand-over from start on, 30 us long, of which 10 are the copy
// into the bucket; with an issue of elements it also starts the collective.
func (f *fake) gradient(start int64, elements int64, shape ...int64) {
	dims := [][]int64{shape}
	f.add(mainRow, start, start+30, accumulate, more{})
	f.add(mainRow, start+2, start+5, "torch::autograd::AccumulateGrad", more{dims: dims})
	f.add(mainRow, start+6, start+16, "torch::distributed::reducer::mul_out", more{dims: dims})
	if elements > 0 {
		f.add(mainRow, start+17, start+27, "c10d::allreduce_", more{dims: [][]int64{{elements}}})
	}
}
