package kineto

import (
	"weft/job"
)

// TensorInfo is one line of a tensors file: a parameter's name, its elements
// and its element type, in named_parameters() order.
type TensorInfo struct {
	Name     string
	Elements int64
	DType    job.DType
}

// JobOptions say what the trace cannot.
type JobOptions struct {
	Tensors []TensorInfo // nil: none
	Update  *job.Mode    // nil: as recognised
	// Step chooses the times: 0 takes per-op medians over the recorded steps,
	// i > 0 those of the i-th recorded step alone (for replay).
	Step int
}

// Job derives the job that the trace recorded.
func (t *Trace) Job(o JobOptions) (*job.Job, error) { return nil, nil }
