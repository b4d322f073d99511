package kineto

// Inspection tells where the recorded steps spent their time. All times are
// microseconds.
type Inspection struct {
	Name    string
	Backend string
	Rank    int // -1 unknown
	World   int // 0 unknown

	HTA     *HTA // nil: no kernels in the trace
	Steps   []StepTime
	Median  StepTime // of each column over the steps
	Buckets []BucketTime
	Notes   []string
}

// HTA is communication and its overlap under the definition of Holistic Trace
// Analysis, over the whole trace: the union of the nccl* kernels against the
// union of all other kernels.
type HTA struct {
	Communication float64 // union of nccl* kernels
	Overlapped    float64 // of it, while another kernel ran
	Exposed       float64 // the rest
}

// StepTime is where one step's time went. A step's compute time line is that of
// its device if it has one, and of its host threads if not: Computation +
// Copies + Exposed + HostBound + Idle = Time.
type StepTime struct {
	Step          int     // number in the trace's ProfilerStep mark
	Time          float64 // from this mark to its end
	Computation   float64 // device busy (union of its compute streams), or host threads computing
	Copies        float64 // of the recorded library on the compute lanes: into and out of buckets
	Exposed       float64 // a compute lane waits for communication
	HostBound     float64 // the device has nothing to do because the host has launched nothing
	Idle          float64 // the rest
	Communication float64 // union of the transfers, waiting for peers included
	Hidden        float64 // Communication - Exposed
}

// BucketTime is one gradient collective of a step, medians over the steps.
type BucketTime struct {
	Bytes   int64 // 0 unknown
	Tensors int   // 0 unknown
	Time    float64
	AlgBW   float64 // Bytes / Time, in bytes a microsecond (MB/s)
	Exposed float64 // time that a compute lane waited for it
}

// Matched is several ranks' traces of one run, collective by collective.
type Matched struct {
	Ranks       []RankSkew
	Collectives []MatchedCollective
}

// RankSkew is one rank against the others.
type RankSkew struct {
	Name   string
	Rank   int
	Offset float64 // clock offset against the first trace, removed
	Late   float64 // median of how long the others wait for this rank
	Last   int     // collectives at which this rank came last
	Wait   float64 // median of its waiting for peers a step
}

// MatchedCollective is one collective seen by all ranks.
type MatchedCollective struct {
	Step     int
	Name     string
	Bytes    int64
	Transfer float64   // from the last rank's start to the end
	Wait     []float64 // by rank: from its start to the last rank's
	Last     int       // position of the last rank
}

// Inspect reports where the recorded steps spent their time.
func (t *Trace) Inspect() (*Inspection, error) { return nil, nil }

// Match matches the collectives of several ranks of one run, by their order.
func Match(traces ...*Trace) (*Matched, error) { return nil, nil }
