// Package plan is the schedule in the middle of the compiler: which gradients
// travel together, in which order on which link, released by what, and when
// their update is applied. Policies build plans; the checker proves them; the
// simulator and the engine execute them.
package plan

import (
	"weft/cluster"
	"weft/job"
)

// Version is the format version that [Write] stamps and [Read] requires.
const Version = 1

// Plan is a periodic schedule. It describes Period consecutive iterations,
// numbered from 0, and repeats. Every rank executes the same plan.
type Plan struct {
	Policy string // name of the policy that built it
	// Tensors is the fingerprint of the job's tensors (job.TensorsFingerprint);
	// Ops that of its ops, required when Order or an op gate refers to ops.
	Tensors, Ops string

	Period int
	// Generations partition the Period: the first starts at iteration 0, each
	// later one where its predecessor ends, and their lengths sum to Period.
	Generations []Generation

	// Order is the compute order: for each lane of the job but comm lanes, its
	// ops in the order that they run in; nil: as recorded, one lane or all.
	Order [][]job.OpID

	// Copies keeps the recorded library's copies into and out of buckets (one
	// a tensor); false: gradients are reduced where they lie (bucket views).
	Copies bool

	Buckets  []Bucket
	Programs []Program // one a link, in the order of the cluster's links
	Updates  []Update

	// What the plan states of itself; the checker proves them.
	Buffers      int     // gradient buffers needed, the accumulating one included
	MaxDelay     int     // over all generations and tensors
	MaxStaleness int     //
	UpdateRate   float64 // generations / Period

	Notes []string // what the policy wants a reader to know
}

// Generation is a run of consecutive iterations whose gradients are summed
// locally and then reduced together.
type Generation struct {
	First  int `json:"first"`  // iteration, relative to the period
	Length int `json:"length"` // iterations
}

// Last is the generation's last iteration, relative to the period.
func (g Generation) Last() int { return g.First + g.Length - 1 }

// Bucket is an ordered list of slices reduced together.
type Bucket struct {
	Slices []Slice `json:"slices"`
}

// Slice is Length elements of a tensor's gradient, from Offset.
type Slice struct {
	Tensor job.TensorID `json:"tensor"`
	Offset int64        `json:"offset"`
	Length int64        `json:"length"`
}

// Program is the ordered transfers of one link in one period. They are
// dispatched in this order, each as soon as its gates and the window allow;
// the programs of successive periods follow each other.
type Program struct {
	Link      string
	Window    Window
	Transfers []Transfer
}

// Window bounds what is in flight on a link. A transfer may be dispatched
// while fewer than Transfers transfers and fewer than Bytes bytes are
// incomplete, so the bytes may exceed the limit by one transfer. 0: no limit.
type Window struct {
	Transfers int   `json:"transfers,omitzero"`
	Bytes     int64 `json:"bytes,omitzero"`
}

// Within is the window on a link that runs only so many transfers at once; 0: any
// number.
func (w Window) Within(inFlight int) Window {
	if inFlight > 0 && (w.Transfers == 0 || w.Transfers > inFlight) {
		w.Transfers = inFlight
	}
	return w
}

// Transfer is one communication: of a bucket of a generation, or a repetition
// of a collective of the job that carries no gradient (Bucket is then -1).
type Transfer struct {
	Kind   cluster.Kind
	Bucket int
	// Generation is relative to the period's first; negative: of an earlier
	// period. In a run's first period, transfers of generations before 0 do
	// not exist and are skipped.
	Generation int
	// Collective and Iteration (relative to the period) say which of the job's
	// collectives this is when Bucket is -1.
	Collective, Iteration int
	// Gates release it, all of them. A transfer of the job's collective is
	// released by the collective's After ops besides.
	Gates []Gate
}

// GateKind tells what a gate waits for.
type GateKind uint8

const (
	// GradientReady: every gradient of the bucket is ready in the generation's last iteration.
	GradientReady GateKind = iota
	// OpDone: op Op of iteration Iteration is done.
	OpDone
	// TransferDone: the transfer at position Transfer of program Link, of the same generation, is done.
	TransferDone
	// Boundary: iteration Iteration has ended: all its ops are done.
	Boundary
	// NotBefore (simulation only): Time microseconds have passed since the
	// start of the backward pass of the generation's last iteration.
	NotBefore
)

// Gate holds a transfer back until something has happened on all workers.
type Gate struct {
	Kind           GateKind
	Op             job.OpID
	Iteration      int // relative to the period
	Link, Transfer int // positions in Programs and its Transfers
	Time           float64
}

// Point tells where in an iteration an update is applied.
type Point uint8

const (
	// AtStep: where the job's update ops stand in Update.Iteration, after all
	// transfers of the generation: a barrier.
	AtStep Point = iota
	// AtRead: before the first op of iteration Update.Iteration + 1 that reads the tensor.
	AtRead
)

// Update applies a generation to tensors.
type Update struct {
	Generation int   `json:"generation"` // 0 <= Generation < len(Generations)
	At         Point `json:"at"`
	// Iteration, relative to the period, is the last that still reads the old
	// value: its delay is Iteration - Generations[Generation].Last().
	Iteration int            `json:"iteration"`
	Tensors   []job.TensorID `json:"tensors,omitzero"` // nil: all
}

var (
	gateNames  = []string{"gradient", "op", "transfer", "boundary", "not-before"}
	pointNames = []string{"step", "read"}
)

func (g GateKind) String() string { return gateNames[g] }
func (p Point) String() string    { return pointNames[p] }
