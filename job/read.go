package job

import (
	"io"
	"math"

	"weft/internal/strict"
)

// Read reads and validates a job file (docs/job.md). It streams: beside the job
// it holds one line number an op. Errors name the line and the field.
func Read(in io.Reader) (*Job, error) {
	j := &Job{}
	if err := strict.Read(in, "job", jobMembers, j, j.Validate); err != nil {
		return nil, err
	}
	return j, nil
}

// The format, member by member. docs/job.md describes it.
var (
	jobMembers = []strict.Member[Job]{
		strict.Version[Job](Version),
		strict.Text("name", false, func(j *Job) *string { return &j.Name }),
		strict.Whole("world", false, func(j *Job) *int { return &j.World }),
		strict.Word("mode", false, ParseMode, func(j *Job) *Mode { return &j.Mode }),
		strict.Objects("lanes", true, MaxLanes, Lane{}, laneMembers, func(j *Job) *[]Lane { return &j.Lanes }),
		strict.Objects("ops", true, MaxOps, Op{Tensor: -1}, opMembers, func(j *Job) *[]Op { return &j.Ops }),
		strict.Field("tensors", true, func(r *strict.Reader, j *Job) error {
			return strict.List(r, MaxTensors, &j.Tensors, func(t *Tensor) error {
				t.Grad = sameAsParam
				if err := strict.Object(r, tensorMembers, t); err != nil {
					return err
				}
				if t.Grad == sameAsParam {
					t.Grad = t.Param
				}
				return nil
			})
		}),
		strict.Whole("optimizer", false, func(j *Job) *int64 { return &j.Optimizer }),
		strict.Objects("collectives", false, MaxOps, Collective{}, collectiveMembers, func(j *Job) *[]Collective { return &j.Collectives }),
		strict.Numbers("barrier", false, func(j *Job) *[]OpID { return &j.Barrier }),
		strict.Field("recorded", false, func(r *strict.Reader, j *Job) error {
			j.Recorded = &Recorded{}
			return strict.Object(r, recordedMembers, j.Recorded)
		}),
		strict.Texts("notes", false, MaxOps, func(j *Job) *[]string { return &j.Notes }),
	}
	laneMembers = []strict.Member[Lane]{
		strict.ID[Lane](),
		strict.Text("name", true, func(l *Lane) *string { return &l.Name }),
		strict.Word("kind", true, parseLaneKind, func(l *Lane) *LaneKind { return &l.Kind }),
	}
	opMembers = []strict.Member[Op]{
		strict.ID[Op](),
		strict.Text("name", true, func(o *Op) *string { return &o.Name }),
		strict.Whole("lane", true, func(o *Op) *LaneID { return &o.Lane }),
		strict.Word("phase", true, parsePhase, func(o *Op) *Phase { return &o.Phase }),
		strict.Word("role", false, parseRole, func(o *Op) *Role { return &o.Role }),
		strict.Whole("micro", false, func(o *Op) *int32 { return &o.Micro }),
		strict.Whole("tensor", false, func(o *Op) *TensorID { return &o.Tensor }),
		strict.Float("time", true, func(o *Op) *float64 { return &o.Time }),
		strict.Whole("output", false, func(o *Op) *int64 { return &o.Output }),
		strict.Numbers("deps", false, func(o *Op) *[]OpID { return &o.Deps }),
	}
	tensorMembers = []strict.Member[Tensor]{
		strict.ID[Tensor](),
		strict.Text("name", true, func(t *Tensor) *string { return &t.Name }),
		strict.Whole("elements", true, func(t *Tensor) *int64 { return &t.Elements }),
		strict.Word("param", true, ParseDType, func(t *Tensor) *DType { return &t.Param }),
		strict.Word("grad", false, ParseDType, func(t *Tensor) *DType { return &t.Grad }),
		strict.Numbers("readers", false, func(t *Tensor) *[]OpID { return &t.Readers }),
		strict.Numbers("producers", true, func(t *Tensor) *[]OpID { return &t.Producers }),
		strict.Numbers("updaters", false, func(t *Tensor) *[]OpID { return &t.Updaters }),
	}
	collectiveMembers = []strict.Member[Collective]{
		strict.Text("name", true, func(c *Collective) *string { return &c.Name }),
		strict.Text("kind", true, func(c *Collective) *string { return &c.Kind }),
		strict.Whole("bytes", false, func(c *Collective) *int64 { return &c.Bytes }),
		strict.Float("time", true, func(c *Collective) *float64 { return &c.Time }),
		strict.Numbers("after", false, func(c *Collective) *[]OpID { return &c.After }),
		strict.Numbers("before", false, func(c *Collective) *[]OpID { return &c.Before }),
	}
	recordedMembers = []strict.Member[Recorded]{
		strict.Text("library", false, func(x *Recorded) *string { return &x.Library }),
		strict.Text("backend", false, func(x *Recorded) *string { return &x.Backend }),
		strict.Objects("buckets", true, MaxOps, RecordedBucket{Op: -1}, bucketMembers, func(x *Recorded) *[]RecordedBucket { return &x.Buckets }),
	}
	bucketMembers = []strict.Member[RecordedBucket]{
		strict.Numbers("tensors", true, func(b *RecordedBucket) *[]OpID { return &b.Tensors }),
		strict.Whole("bytes", true, func(b *RecordedBucket) *int64 { return &b.Bytes }),
		strict.Whole("op", false, func(b *RecordedBucket) *OpID { return &b.Op }),
	}
)

// sameAsParam is a tensor's gradient type until the file states one.
const sameAsParam DType = math.MaxUint8
