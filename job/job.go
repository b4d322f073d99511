// Package job describes what one training iteration does: the computation
// graph with measured op times, and for every parameter all ops that read it,
// all that contribute to its gradient and all that update it.
//
// A job is plain data, addressed by index: ops, lanes and tensors refer to
// each other by position, so a graph of a million ops stays a few flat arrays.
// Times are microseconds, sizes are elements unless a name says bytes.
package job

import (
	"fmt"

	"weft/internal/fault"
	"weft/internal/near"
)

// Version is the format version that [Write] stamps and [Read] requires.
const Version = 1

// OpID, LaneID and TensorID are positions in [Job.Ops], [Job.Lanes] and
// [Job.Tensors].
type (
	OpID     = int32
	LaneID   = int32
	TensorID = int32
)

// Job is one training iteration, repeated.
type Job struct {
	Name  string
	World int  // data-parallel workers when recorded; 0: unknown
	Mode  Mode // when updates may start

	Lanes   []Lane
	Ops     []Op // in lane order: the ops of a lane run in this order, one at a time
	Tensors []Tensor

	// Optimizer is what the optimizer keeps for all tensors together, bytes: moments,
	// and master weights where it has them; 0: nothing, or unknown.
	Optimizer int64

	// Collectives carry no gradient (for example the broadcast of batch-norm
	// buffers); every plan issues them once an iteration.
	Collectives []Collective

	// Barrier lists the ops that, in a plan with a barrier, wait for the
	// gradient transfers of their iteration: where the recorded library waited.
	// Empty: the first update op of each computing lane; see [Job.BarrierOps].
	Barrier []OpID

	// Recorded is how the recorded run communicated; nil for a computed job.
	Recorded *Recorded

	// Notes say what could not be derived from the source and what stands in
	// for it. Every table made from the job repeats them.
	Notes []string
}

// Mode tells when the updates of a generation may start.
type Mode uint8

const (
	PerTensor Mode = iota // a tensor is updated once its own gradient is reduced
	Global                // a norm over all gradients, or a loss scaler's check, comes first
)

// Lane is a sequential executor: one host thread or one device stream.
type Lane struct {
	Name string
	Kind LaneKind
}

// LaneKind tells what a lane is. Comm lanes hold only recorded collectives
// (runtime ops); they serve replay, and no plan uses them.
type LaneKind uint8

const (
	Host LaneKind = iota
	Device
	Comm
)

// Phase is the part of the iteration that an op belongs to. Recomputed forward
// parts are Forward although they run during the backward pass.
type Phase uint8

const (
	Forward Phase = iota
	Backward
	Update
	Runtime // the recorded communication library's own work; see [Role]
)

// Role tells what a Runtime op does for the recorded library.
type Role uint8

const (
	NoRole         Role = iota // not a Runtime op
	CopyIn                     // a gradient into its bucket; Op.Tensor names it
	CopyOut                    // a reduced gradient out of its bucket; Op.Tensor names it
	GradCollective             // a recorded collective of gradients, on a Comm lane
	Library                    // anything else the library does on a compute lane
)

// Op is one computation step.
type Op struct {
	Name   string
	Lane   LaneID
	Phase  Phase
	Role   Role
	Micro  int32    // micro-batch within the iteration, from 0
	Tensor TensorID // CopyIn, CopyOut: the tensor; otherwise -1
	Time   float64  // duration, microseconds
	// Deps finish before the op starts. The order of its own lane is implied
	// and need not be listed.
	Deps []OpID
	// Output is the size of the op's result in bytes, which is in memory from the
	// start of the op until the last op that has it in Deps is done; 0: nothing,
	// or unknown. Gradients of parameters do not count: a plan says how many
	// buffers they take.
	Output int64
}

// Tensor is one parameter and its gradient.
type Tensor struct {
	Name     string
	Elements int64
	Param    DType // of the parameter
	Grad     DType // of the gradient, which is what travels
	// Readers read the parameter in forward or backward; Producers contribute
	// to its gradient, which is ready once all of them are done (a host op that
	// hands it over counts); Updaters write the parameter. Ascending.
	Readers, Producers, Updaters []OpID
}

// GradBytes is the size of the tensor's gradient in bytes.
func (t *Tensor) GradBytes() int64 { return t.Elements * t.Grad.Bytes() }

// Collective is a recorded collective that carries no gradient.
type Collective struct {
	Name  string
	Kind  string  // all-reduce, reduce-scatter, all-gather or broadcast
	Bytes int64   // 0: unknown
	Time  float64 // as recorded, microseconds; includes waiting for peers
	// It starts when all of After are done; Before wait for it.
	After, Before []OpID
}

// Recorded is how the recorded run communicated its gradients.
type Recorded struct {
	Library string // "ddp"
	Backend string // "nccl", "gloo"
	// Buckets in the order of their collectives.
	Buckets []RecordedBucket
}

// RecordedBucket is one gradient collective of the recorded run.
type RecordedBucket struct {
	Tensors []TensorID
	Bytes   int64
	Op      OpID // the GradCollective op that carried it; -1: not part of this job
}

// Bytes is the size of the gradients of all tensors, in bytes.
func (j *Job) Bytes() int64 {
	var n int64
	for i := range j.Tensors {
		n += j.Tensors[i].GradBytes()
	}
	return n
}

// HasDevice reports whether the job computes on device lanes. If not it is a
// CPU job: its host lanes compute, and wait for communication themselves.
func (j *Job) HasDevice() bool {
	for _, l := range j.Lanes {
		if l.Kind == Device {
			return true
		}
	}
	return false
}

// Each enumeration has one spelling, used in files, flags and messages.
var (
	modeNames  = []string{"per-tensor", "global"}
	laneNames  = []string{"host", "device", "comm"}
	phaseNames = []string{"forward", "backward", "update", "runtime"}
	roleNames  = []string{"", "copy-in", "copy-out", "collective", "library"}
	// The kinds of transfer (cluster.Kind) that workers run among themselves.
	collectiveKinds = []string{"all-reduce", "reduce-scatter", "all-gather", "broadcast"}

	dtypeNames = []string{"float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool", "complex64", "complex128", "int16", "float8"}
	dtypeBytes = []int64{4, 8, 2, 2, 4, 8, 1, 1, 1, 8, 16, 2, 1}
)

// DType is the element type of a tensor.
type DType uint8

const (
	Float32 DType = iota
	Float64
	Float16
	BFloat16
	Int32
	Int64
	Int8
	Uint8
	Bool
	Complex64
	Complex128
	Int16
	Float8
)

// Bytes is the size of one element.
func (d DType) Bytes() int64 { return dtypeBytes[d] }

func (d DType) String() string    { return dtypeNames[d] }
func (m Mode) String() string     { return modeNames[m] }
func (k LaneKind) String() string { return laneNames[k] }
func (p Phase) String() string    { return phaseNames[p] }
func (r Role) String() string     { return roleNames[r] }

// ParseDType accepts the names of this package, PyTorch's ("torch.float32",
// "float", "Half") and NCCL's ("Float").
func ParseDType(s string) (DType, error) {
	if d, ok := dtypeAliases[s]; ok {
		return d, nil
	}
	return 0, fmt.Errorf("unknown element type %q%s", fault.Short(s), near.Hint(s, dtypeNames))
}

// ParseMode is the inverse of [Mode.String].
func ParseMode(s string) (Mode, error) { return near.Parse[Mode]("update mode", s, modeNames) }

func parseLaneKind(s string) (LaneKind, error) {
	return near.Parse[LaneKind]("lane kind", s, laneNames)
}
func parsePhase(s string) (Phase, error) { return near.Parse[Phase]("phase", s, phaseNames) }
func parseRole(s string) (Role, error)   { return near.Parse[Role]("role", s, roleNames) }

// UnmarshalText reads the name of a phase, for files of other packages.
func (p *Phase) UnmarshalText(b []byte) (err error) { *p, err = parsePhase(string(b)); return }

var dtypeAliases = func() map[string]DType {
	m := map[string]DType{
		"float": Float32, "Float": Float32, "double": Float64, "Double": Float64,
		"half": Float16, "Half": Float16, "c10::Half": Float16, "BFloat16": BFloat16, "c10::BFloat16": BFloat16,
		"int": Int32, "Int": Int32, "long": Int64, "Long": Int64, "long int": Int64, "char": Int8, "Char": Int8,
		"unsigned char": Uint8, "Byte": Uint8, "Bool": Bool, "short": Int16, "Short": Int16,
		"float8_e4m3fn": Float8, "float8_e5m2": Float8, "Float8_e4m3fn": Float8, "Float8_e5m2": Float8,
		"c10::complex<float>": Complex64, "c10::complex<double>": Complex128,
		"ComplexFloat": Complex64, "ComplexDouble": Complex128,
	}
	for i, n := range dtypeNames {
		m[n] = DType(i)
		m["torch."+n] = DType(i)
	}
	return m
}()
