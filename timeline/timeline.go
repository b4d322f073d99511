// Package timeline holds what happened, simulated or measured: spans by rank
// and lane, the metrics over them, and their Chrome trace form.
//
// Times are microseconds from an arbitrary origin.
package timeline

// Timeline is the spans of one run.
type Timeline struct {
	Name  string
	Ranks []Rank
	Lanes []Lane // lanes of every rank: compute lanes first, then links
	Spans []Span // ordered by Start, then Rank, then Lane
	Flows []Flow
	// Iterations are the boundaries: iteration i runs from Iterations[i] to
	// Iterations[i+1].
	Iterations []float64
}

// Rank is a process of the timeline. Ranks that behave alike may be shown once:
// Stands lists all ranks that it stands for, itself included; nil: only itself.
type Rank struct {
	Rank   int
	Stands []int
}

// Lane is a row of a rank.
type Lane struct {
	Name string
	Kind LaneKind
}

// LaneKind tells computation from communication.
type LaneKind uint8

const (
	Host LaneKind = iota
	Device
	Link
)

// SpanKind tells what a span shows.
type SpanKind uint8

const (
	Compute  SpanKind = iota // an op
	Transfer                 // a transfer on a link, from dispatch to completion
	Queued                   // a transfer that is ready but not yet dispatched
	Wait                     // a compute lane waiting for communication
)

// Span is an interval on a lane.
type Span struct {
	Rank      int32 // position in Ranks
	Lane      int32 // position in Lanes
	Kind      SpanKind
	Phase     uint8 // of a Compute span: a job.Phase
	Name      string
	Iteration int32 // of the timeline; of a transfer that of its gradients, which may be one before the first
	Start     float64
	End       float64
	Bytes     int64  // Transfer, Queued
	Bucket    int32  // Transfer, Queued: position in the plan's buckets; otherwise -1
	Tensors   string // Transfer, Queued: the first ones of the bucket, for a reader; "": not told
}

// Flow is an arrow between two spans (positions in Spans): a gradient to its
// transfer, a transfer to the op that waited for it.
type Flow struct{ From, To int32 }
