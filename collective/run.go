package collective

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"weft/cluster"
	"weft/job"
	"weft/transport"
)

// Transfer is one run of a program.
type Transfer struct {
	*Program
	Reduction        // of which an all-gather, a broadcast and a barrier need the element type only
	Channel   uint16 // with Op, the same on all hosts, and of no other transfer under way
	Op        uint64
	// Result has the elements of the bucket, one slice after the other. If the transfer
	// fails, what it holds is undefined.
	Result []byte
	// Sources are the contributions of the host's workers, in their order, each as long
	// as Result, which may be one of them. None: Result alone, as it must be for an
	// all-gather and a broadcast.
	Sources [][]byte
	// Single says that all hosts have one worker each. Where a contribution is added by the
	// host that receives it, it then travels from where it lies, and is scaled there: that
	// spares its host a pass over it.
	Single bool
}

// Error says where in a transfer a message failed.
type Error struct {
	Spec     Spec
	Sending  bool
	Peer     int
	Step, Of int // the message is number Step, from 1, of those that this host sends, or receives
	// The first element of the message.
	Tensor job.TensorID
	Offset int64
	Err    error
}

func (e *Error) Error() string {
	what := "receiving from"
	if e.Sending {
		what = "sending to"
	}
	return fmt.Sprintf("%v, %s host %d, message %d of %d, from element %d of tensor %d: %v", e.Spec, what, e.Peer, e.Step, e.Of, e.Offset, e.Tensor, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// ahead is how many receives are under way at once: while one message is added up, the
// sender of the next has already been told that it may come. With one, a line would
// stand still between messages for as long as that takes.
const ahead = 2

// Run carries the transfer out over ep, whose peers are the hosts. It sends in a
// goroutine of its own, receives in the caller's and in ahead-1 more, and has ended all
// when it returns.
// An error of a message is an [*Error]; the first one ends the transfer.
func (t *Transfer) Run(ctx context.Context, ep transport.Endpoint) error {
	x, err := t.start(ep)
	if err != nil {
		return err
	}
	if len(x.Sends)+len(x.Recvs) == 0 {
		if t.World == 1 {
			x.fold(t.Result, x.sources, x.receiver.sum[:])
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fail := func(err error) {
		x.fail(err)
		cancel()
	}
	var others sync.WaitGroup
	others.Go(func() {
		if err := x.send(ctx, ep); err != nil {
			fail(err)
		}
	})
	receive := func(first int) {
		if err := x.receive(ctx, ep, first); err != nil {
			fail(err)
		}
	}
	for first := 1; first < min(ahead, len(x.Recvs)); first++ {
		others.Go(func() { receive(first) })
	}
	receive(0)
	others.Wait()
	err = x.err
	x.memory.release()
	return err
}

// run is a transfer under way.
type run struct {
	*Transfer
	arithmetic
	*memory
	sources [][]byte
	late    float64 // what contributions are still to be scaled by when they are combined

	mu             sync.Mutex
	moved          sync.Cond // one of:
	sent, received int
	err            error
}

// memory is what a run works in; it is used again by later runs.
type memory struct {
	slots            []byte
	stride           int64 // bytes from slot to slot
	sender, receiver work
}

var memories = sync.Pool{New: func() any { return new(memory) }}

func (m *memory) release() {
	clear(m.sender.views[:cap(m.sender.views)]) // they keep the caller's buffers alive
	clear(m.receiver.views[:cap(m.receiver.views)])
	memories.Put(m)
}

// start checks the transfer and provides its memory.
func (t *Transfer) start(ep transport.Endpoint) (*run, error) {
	x := &run{Transfer: t, sources: t.Sources, late: 1}
	x.moved.L = &x.mu
	var err error
	if t.Kind == cluster.AllReduce || t.Kind == cluster.ReduceScatter {
		if x.arithmetic, err = t.arithmetic(); err != nil {
			return nil, err
		}
	} else {
		x.arithmetic = arithmetic{size: t.DType.Bytes(), scale: 1}
		if len(t.Sources) > 0 {
			return nil, fmt.Errorf("collective: %v with sources: it has none", t.Spec)
		}
	}
	if t.Single && t.World > 1 && t.Algorithm != Ring { // the hosts of a ring add to sums
		x.late, x.scale = x.scale, 1
	}
	if t.World > 1 && (ep.World() != t.World || ep.Rank() != t.Rank) {
		return nil, fmt.Errorf("collective: program of rank %d of %d on endpoint %d of %d", t.Rank, t.World, ep.Rank(), ep.World())
	}
	if len(x.sources) == 0 {
		x.sources = [][]byte{t.Result}
	}
	bytes := Elements(t.Slices) * x.size
	for _, b := range append(x.sources[:len(x.sources):len(x.sources)], t.Result) {
		if err := x.check(b, bytes); err != nil {
			return nil, err
		}
	}
	largest := int64(0)
	for _, c := range t.Chunks {
		largest = max(largest, c.Elements)
	}
	x.memory = memories.Get().(*memory)
	x.stride = (largest*x.size + 63) &^ 63
	if need := x.stride * int64(t.Slots); int64(len(x.slots)) < need {
		x.slots = make([]byte, need)
	}
	return x, nil
}

// fail records the first error and wakes who waits.
func (x *run) fail(err error) {
	x.mu.Lock()
	if x.err == nil {
		x.err = err
	}
	x.moved.Broadcast()
	x.mu.Unlock()
}

// wait until *count has reached n; false if the transfer has failed.
func (x *run) wait(count *int, n int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for *count < n && x.err == nil {
		x.moved.Wait()
	}
	return x.err == nil
}

func (x *run) advance(count *int) {
	x.mu.Lock()
	*count++
	x.moved.Broadcast()
	x.mu.Unlock()
}

func (x *run) send(ctx context.Context, ep transport.Endpoint) error {
	for i := range x.Sends {
		s := &x.Sends[i]
		if !x.wait(&x.received, s.After) {
			return nil
		}
		c := &x.Chunks[s.Chunk]
		data := x.slot(s.Slot, c)
		switch {
		case s.Result && c.contiguous():
			data = x.part(x.Result, c)
		case s.Load && c.contiguous() && x.plain():
			data = x.part(x.sources[0], c)
		case s.Load:
			x.load(data, c)
		}
		if err := ep.Send(ctx, s.To, x.tag(s.Tag), data); err != nil {
			return x.failed(true, s.To, i, len(x.Sends), c, err)
		}
		x.advance(&x.sent)
	}
	return nil
}

// receive does every ahead-th receive from the first.
func (x *run) receive(ctx context.Context, ep transport.Endpoint, first int) error {
	for i := first; i < len(x.Recvs); i += ahead {
		r := &x.Recvs[i]
		if !x.wait(&x.sent, r.Free) {
			return nil
		}
		c := &x.Chunks[r.Chunk]
		slot := x.slot(r.Slot, c)
		out := slot // where the action leaves what it computes
		store := r.Do&Store != 0
		if store && c.contiguous() {
			out, store = x.part(x.Result, c), false
		}
		if r.Do == Store { // nothing is computed
			if !x.wait(&x.sent, r.After) {
				return nil
			}
			slot = out
		}
		if err := ep.Recv(ctx, r.From, x.tag(r.Tag), slot); err != nil {
			return x.failed(false, r.From, i, len(x.Recvs), c, err)
		}
		if !x.wait(&x.received, i) || !x.wait(&x.sent, r.After) {
			return nil
		}
		switch {
		case r.Do&Add != 0:
			x.add(out, slot, c)
		case r.Do&Combine != 0:
			x.combine(out, r.Slot, c)
		}
		if store {
			x.store(slot, c)
		}
		x.advance(&x.received)
	}
	return nil
}

func (x *run) tag(chunk uint32) transport.Tag {
	return transport.Tag{Channel: x.Channel, Op: x.Op, Chunk: chunk}
}

func (x *run) failed(sending bool, peer, step, of int, c *Chunk, err error) error {
	e := &Error{Spec: x.Spec, Sending: sending, Peer: peer, Step: step + 1, Of: of, Err: err}
	if len(c.Runs) > 0 {
		e.Tensor, e.Offset = x.at(c.Runs[0].Start)
	}
	return e
}

// at is the tensor, and the offset there, of an element of the bucket.
func (x *run) at(element int64) (job.TensorID, int64) {
	for _, s := range x.Slices {
		if element < s.Length {
			return s.Tensor, s.Offset + element
		}
		element -= s.Length
	}
	return 0, 0
}

// plain tells whether the host's contribution lies in memory as it is sent.
func (x *run) plain() bool { return len(x.sources) == 1 && x.scale == 1 }

// slot is the part of a slot that a chunk takes.
func (x *run) slot(i int, c *Chunk) []byte {
	from := int64(i) * x.stride
	return x.slots[from : from+c.Elements*x.size]
}

// part is where a contiguous chunk lies in a buffer.
func (x *run) part(b []byte, c *Chunk) []byte {
	from := c.Runs[0].Start * x.size
	return b[from : from+c.Elements*x.size]
}

// place is a run's bytes in the buffers, [from, to), and where they begin in a slot.
type place struct{ from, to, packed int64 }

// places yields the runs of a chunk, with their places.
func (x *run) places(c *Chunk) iter.Seq2[*Run, place] {
	return func(yield func(*Run, place) bool) {
		packed := int64(0)
		for i := range c.Runs {
			r := &c.Runs[i]
			p := place{r.Start * x.size, (r.Start + r.Length) * x.size, packed}
			if !yield(r, p) {
				return
			}
			packed += p.to - p.from
		}
	}
}

// own sets dst to the host's contribution, whose bytes begin at from.
func (x *run) own(w *work, dst []byte, from int64) {
	w.views = w.views[:0]
	for _, s := range x.sources {
		w.views = append(w.views, s[from:from+int64(len(dst))])
	}
	x.fold(dst, w.views, w.sum[:])
}

// load sets slot to the host's contribution to the chunk.
func (x *run) load(slot []byte, c *Chunk) {
	for _, p := range x.places(c) {
		x.own(&x.sender, slot[p.packed:p.packed+p.to-p.from], p.from)
	}
}

// add sets out to slot plus the host's contribution to the chunk.
func (x *run) add(out, slot []byte, c *Chunk) {
	w := &x.receiver
	for _, p := range x.places(c) {
		for p.from < p.to {
			n := p.to - p.from
			if len(x.sources) > 1 {
				n = min(n, int64(len(w.own)))
			}
			to, sum := out[p.packed:p.packed+n], slot[p.packed:p.packed+n]
			switch {
			case x.plain():
				x.Combine(to, sum, x.sources[0][p.from:p.from+n])
			case len(x.sources) == 1:
				x.CombineScaled(to, sum, x.sources[0][p.from:p.from+n], x.scale)
			default:
				x.own(w, w.own[:n], p.from)
				x.Combine(to, sum, w.own[:n])
			}
			p.from += n
			p.packed += n
		}
	}
}

// combine sets out to the sum of the host's contribution to the chunk and those of the
// others, the last of which is in slot number last.
func (x *run) combine(out []byte, last int, c *Chunk) {
	w := &x.receiver
	sums := x.arithmetic
	sums.scale = x.late
	for r, p := range x.places(c) {
		for p.from < p.to {
			n := p.to - p.from
			var own []byte
			if x.plain() {
				own = x.sources[0][p.from : p.from+n]
			} else {
				n = min(n, int64(len(w.own)))
				own = w.own[:n]
				x.own(w, own, p.from)
			}
			w.views = w.views[:0]
			for d := range x.World {
				v := own
				if h := (r.Owner + 1 + d) % x.World; h != x.Rank {
					distance := (x.Rank - h + x.World) % x.World
					from := int64(last-(x.World-1)+distance)*x.stride + p.packed
					v = x.slots[from : from+n]
				}
				w.views = append(w.views, v)
			}
			sums.fold(out[p.packed:p.packed+n], w.views, w.sum[:])
			p.from += n
			p.packed += n
		}
	}
}

// store sets the chunk of the result to the slot.
func (x *run) store(slot []byte, c *Chunk) {
	for _, p := range x.places(c) {
		copy(x.Result[p.from:p.to], slot[p.packed:])
	}
}
