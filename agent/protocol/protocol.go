// Package protocol is the form of the messages between an agent and the workers
// of its host: docs/formats/client.md.
package protocol

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weft/cluster"
	"weft/profile"
)

// Version of the protocol.
const Version = 4

// MaxPayload bounds what one message carries, bytes.
const MaxPayload = 64 << 20

const headerBytes = 20

// Kind of a message.
type Kind uint8

const (
	KindHello Kind = 1 + iota
	KindWelcome
	KindReady
	KindDone
	KindCall
	KindReturned
	KindFailed
	KindGoodbye
	KindBoundary
	KindOp
	KindStart
	KindMoved
)

var kindNames = []string{"0", "hello", "welcome", "ready", "done", "call", "returned", "failed", "goodbye", "boundary", "op", "start", "moved"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprint(uint8(k))
}

// C10D names the link of a plan whose transfers the workers run through torch.distributed.
const C10D = "c10d"

// Message is one message of either side.
type Message struct {
	Kind      Kind
	Index     int // a bucket, a call
	Iteration int
	Payload   []byte // JSON, or nothing
}

// Hello says who a worker is and what it trains.
type Hello struct {
	Version     int    `json:"version"`
	Weft        string `json:"weft"`
	Rank        int    `json:"rank"`
	World       int    `json:"world"`
	LocalRank   int    `json:"local_rank"`
	Pid         int    `json:"pid"`
	Torch       string `json:"torch,omitzero"`
	BucketBytes int64  `json:"bucket_bytes,omitzero"`
	FirstBucket int64  `json:"first_bucket_bytes,omitzero"`
	// Mode says whether tensors may be updated one by one ("per-tensor"), or not before
	// all gradients are reduced ("global"); left out: global.
	Mode string `json:"mode,omitzero"`
	// Boundaries says that this worker tells the ends of iterations.
	Boundaries bool `json:"boundaries,omitzero"`
	// C10D is the backend of torch.distributed through which this worker reduces what it is
	// told to; "": it does not.
	C10D    string   `json:"c10d,omitzero"`
	Tensors []Tensor `json:"tensors"`
}

// Tensor is one of a worker's gradients.
type Tensor struct {
	Name     string `json:"name"`
	Elements int64  `json:"elements"`
	DType    string `json:"dtype"`
}

// Welcome says where everything lies in the input and output regions.
type Welcome struct {
	Version     int      `json:"version"`
	World       int      `json:"world"`
	Digest      string   `json:"digest"` // of the plan
	InputBytes  int64    `json:"input_bytes"`
	OutputBytes int64    `json:"output_bytes"`
	CallOffset  int64    `json:"call_offset"`
	CallBytes   int64    `json:"call_bytes"`
	Policy      string   `json:"policy"`  // that made the plan
	Tensors     []Region `json:"tensors"` // empty if buckets have slices
	Buckets     []Bucket `json:"buckets"`

	// Of plans other than plain buckets: how many iterations a period has, which of
	// them end a generation, and when each generation is applied.
	Period  int      `json:"period,omitzero"`
	Ends    []int    `json:"ends,omitzero"`
	Updates []Update `json:"updates,omitzero"`
	// Of plans that need more than one: Buffers copies of all buckets, BufferBytes apart.
	Buffers     int   `json:"buffers,omitzero"`
	BufferBytes int64 `json:"buffer_bytes,omitzero"`
	// Ops are those whose ends the worker tells.
	Ops []int32 `json:"ops,omitzero"`
	// Order is the plan's computation order: by lane, ops of the job whose fingerprint
	// OrderOf is; a lane without any runs as recorded.
	Order   [][]int32 `json:"order,omitzero"`
	OrderOf string    `json:"order_of,omitzero"`

	// C10D says that this worker will be told to reduce some buckets through
	// torch.distributed.
	C10D bool `json:"c10d,omitzero"`
	// Review is after how many iterations the worker makes a call of this kind; 0: never.
	// The Profile iterations before the last one are to be measured op by op; with Descent,
	// of those before them it tells how the loss falls.
	Review  int  `json:"review,omitzero"`
	Profile int  `json:"profile,omitzero"`
	Descent bool `json:"descent,omitzero"`
	// Timeline says that the worker tells what it does, and when, with ready and boundary.
	Timeline bool `json:"timeline,omitzero"`
}

// Place is where a bucket lies for the generation that ends in an iteration.
func (w *Welcome) Place(bucket, iteration int) Region {
	r := w.Buckets[bucket].Region
	if w.Buffers > 0 {
		g := iteration / w.Period * len(w.Ends)
		for _, last := range w.Ends {
			if last < iteration%w.Period {
				g++
			}
		}
		r.Offset += w.BufferBytes * int64(g%w.Buffers)
	}
	return r
}

// Region is a part of the input and of the output.
type Region struct {
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}

// Bucket is what is declared ready and done at once.
type Bucket struct {
	Tensors []int32 `json:"tensors"`
	Region
	// Slices are the parts of tensors that the bucket has, one after the other, of plans
	// that cut tensors; otherwise it has its tensors whole.
	Slices []Slice `json:"slices,omitzero"`
	// Generations of the period for which it is declared; left out: all.
	Generations []int `json:"generations,omitzero"`
}

// Slice is Length elements of a tensor, from Offset.
type Slice struct {
	Tensor int32 `json:"tensor"`
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// Update says when a generation of the period is applied to which tensors. Iterations
// are relative to the period.
type Update struct {
	Generation int `json:"generation"`
	// At is "step": by optimizer.step() of Iteration; or "read": before the first read of
	// the tensor in the iteration that follows it.
	At        string  `json:"at"`
	Iteration int     `json:"iteration"`
	Tensors   []int32 `json:"tensors,omitzero"` // left out: all
}

// Call is a collective outside the plan.
type Call struct {
	Kind     string `json:"kind"`        // barrier, broadcast, all-reduce, review or flush
	At       int64  `json:"at,omitzero"` // where its data lie, bytes from the beginning of the part for calls
	Root     int    `json:"root"`        // of a broadcast: a rank
	Bytes    int64  `json:"bytes,omitzero"`
	Op       string `json:"op,omitzero"` // of an all-reduce: sum, mean, min or max
	DType    string `json:"dtype,omitzero"`
	Elements int64  `json:"elements,omitzero"`
	From     int64  `json:"from,omitzero"` // the first element's place in its tensor
	// Report, of a review, is what this worker has measured.
	Report *profile.Report `json:"report,omitzero"`
}

// Decision is what a review returns.
type Decision struct {
	Change bool `json:"change"` // say hello again, for another plan
	Review int  `json:"review"` // after how many iterations to review again; 0: never
}

// Kinds of calls.
const (
	Barrier = "barrier"
	Review  = "review"
	Flush   = "flush"
)

var (
	Broadcast = cluster.Broadcast.String()
	AllReduce = cluster.AllReduce.String()
)

func (c Call) String() string {
	switch c.Kind {
	case Broadcast:
		return fmt.Sprintf("%s of %d bytes from rank %d", c.Kind, c.Bytes, c.Root)
	case AllReduce:
		return fmt.Sprintf("%s (%s) of %d elements of %s", c.Kind, c.Op, c.Elements, c.DType)
	}
	return c.Kind
}

// Failed says why training cannot go on.
type Failed struct {
	Message string `json:"message"`
	Rank    *int   `json:"rank,omitzero"`
	Tensor  string `json:"tensor,omitzero"`
	Phase   string `json:"phase,omitzero"`
}

func (f *Failed) Error() string { return f.Message }

// Encode writes v as JSON. Text that is not UTF-8 is mended: an error may quote
// anything.
func Encode(v any) ([]byte, error) { return json.Marshal(v, jsontext.AllowInvalidUTF8(true)) }

// Decode reads JSON into v, a pointer. It refuses members that v does not have, and
// any that are given twice.
func Decode(b []byte, v any) error { return json.Unmarshal(b, v, json.RejectUnknownMembers(true)) }

// Append appends the bytes of a message.
func (m Message) Append(to []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, uint32(len(m.Payload)))
	to = append(to, byte(m.Kind), 0, 0, 0)
	to = binary.LittleEndian.AppendUint32(to, uint32(m.Index))
	to = binary.LittleEndian.AppendUint64(to, uint64(m.Iteration))
	return append(to, m.Payload...)
}

// With returns m with v as its payload.
func (m Message) With(v any) (Message, error) {
	b, err := Encode(v)
	if err == nil && len(b) > MaxPayload {
		err = fmt.Errorf("a %v of %d bytes; a message carries at most %d", m.Kind, len(b), MaxPayload)
	}
	m.Payload = b
	return m, err
}

// Decode reads the payload into v, a pointer.
func (m Message) Decode(v any) error {
	if err := Decode(m.Payload, v); err != nil {
		return fmt.Errorf("a %v that cannot be read: %w", m.Kind, err)
	}
	return nil
}

// Reader reads messages.
type Reader struct{ in *bufio.Reader }

// NewReader reads from in.
func NewReader(in io.Reader) *Reader { return &Reader{bufio.NewReader(in)} }

// Next reads a message. It returns io.EOF if there is none, and another error if
// there is but a part of one or it is not of this protocol. Memory is taken as the
// payload comes, not as its length is announced.
func (r *Reader) Next() (Message, error) {
	h, err := r.in.Peek(headerBytes)
	if err == io.EOF && len(h) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return Message{}, err
	}
	length, kind := binary.LittleEndian.Uint32(h), Kind(h[4])
	index, iteration := binary.LittleEndian.Uint32(h[8:]), binary.LittleEndian.Uint64(h[12:])
	switch {
	case kind < KindHello || kind > KindMoved || h[5] != 0 || h[6] != 0 || h[7] != 0:
		return Message{}, fmt.Errorf("not a message of this protocol: % x", h)
	case length > MaxPayload:
		return Message{}, fmt.Errorf("a %v of %d bytes; a message carries at most %d", kind, length, MaxPayload)
	case index > 1<<31-1 || iteration > 1<<53:
		return Message{}, fmt.Errorf("a %v with index %d and iteration %d, which are out of range", kind, index, iteration)
	}
	r.in.Discard(headerBytes)
	m := Message{Kind: kind, Index: int(index), Iteration: int(iteration)}
	if length == 0 {
		return m, nil
	}
	m.Payload, err = io.ReadAll(io.LimitReader(r.in, int64(length)))
	if err == nil && len(m.Payload) < int(length) {
		err = io.ErrUnexpectedEOF
	}
	return m, err
}
