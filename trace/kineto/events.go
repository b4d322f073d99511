// Package kineto imports PyTorch profiler traces: those that Kineto writes
// (torch >= 1.13, plain or gzip, GPU and CPU) and the bare arrays of builds
// without Kineto.
//
// Reading is in two steps. [Read] streams the JSON into a compact [Trace], in
// one pass and without keeping the text. [Trace.Job] derives the job from it,
// [Trace.Inspect] reports where the recorded steps spent their time.
package kineto

// Trace is the events of one rank, sorted by start.
type Trace struct {
	Name   string // file name, for messages
	Events []Event
	Rows   []Row    // threads and streams
	Names  []string // interned event names

	// Extras hold the arguments that few events have.
	Extras []Extra

	// Kineto is false for the bare-array writer, which gives no categories,
	// arguments or sizes.
	Kineto  bool
	Backend string // "nccl", "gloo"; "" unknown
	Rank    int    // -1 unknown
	World   int    // 0 unknown

	// Dropped counts what was read and not kept, by reason (docs/formats/trace.md).
	Dropped map[string]int
}

// Category is what recorded an event.
type Category uint8

const (
	CPUOp         Category = iota // cpu_op, and every event of a bare-array trace
	Annotation                    // user_annotation: steps, optimizer, collectives' host part
	Runtime                       // cuda_runtime, cuda_driver: calls on host threads
	Kernel                        // kernel, on a stream
	Memcpy                        // gpu_memcpy, on a stream
	Memset                        // gpu_memset, on a stream
	GPUAnnotation                 // gpu_user_annotation: a host annotation's span on a stream
	Sync                          // cuda_sync: a wait, on the waiting stream; only with enable_cuda_sync_events
	Record                        // cuda_event: an event record, on its stream; likewise
)

// Device reports whether events of this category lie on streams.
func (c Category) Device() bool { return c >= Kernel }

// Event is one complete event. Times are nanoseconds from the trace's own origin.
type Event struct {
	Start, Dur int64
	Name       uint32 // position in Names
	Corr       uint32 // launch correlation; 0: none
	Seq        int32  // autograd sequence number; -1: none
	Extra      int32  // position in Extras; -1: none
	Row        uint16 // position in Rows: of a stream if the category is the device's, else of a thread
	Cat        Category
	order      uint32 // position in the file: decides between equal times
}

// End is the event's end in nanoseconds.
func (e *Event) End() int64 { return e.Start + e.Dur }

func (e *Event) stretch() stretch { return stretch{Start: e.Start, End: e.End()} }

// Row is a host thread or a device stream.
type Row struct {
	Pid, Tid string // as written; of a stream, the device and the stream
	Device   bool
}

// Extra holds an event's less common arguments. Events whose arguments are
// equal share one. An argument of an unexpected type counts as absent.
type Extra struct {
	Bytes      int64     // of a copy or set
	Collective string    // "allreduce", "broadcast", ...; from record_param_comms or the kernel's arguments
	Elements   int64     // that enter the collective
	DType      string    // as written
	Group      int       // ranks taking part; 0 unknown
	Dims       [][]int64 // Input Dims, when shapes were recorded: one entry an input; nil for a scalar; one a tensor of a list
	Types      []string  // Input type, beside Dims
	Stream     int64     // Sync: the stream waited for; -1 none
	Waits      uint32    // Sync: correlation of the record call waited for; 0 unknown
}
