package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"weft/agent/protocol"
	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/fusion"
)

const (
	bucketAlign = 64      // a cache line, which two buckets never share
	regionBytes = 1 << 46 // of all buckets: more than any host has
	own         = "weft." // begins the names of tensors that are the client's, not the model's
)

const (
	callsBytes = 24 << 20  // that all calls under way on a host, and what comes out, may take
	callAlign  = 256 << 10 // each in multiples of this
)

// callBytes is how much a worker's calls under way may carry together. It depends on nothing
// that differs between hosts, because large tensors are cut by it: most is how many workers
// the host has that has most.
func callBytes(most int) int64 {
	return max(callsBytes/callAlign/int64(most+1), 1) * callAlign
}

// layout is what the workers' tensors become: a plan, and a place for everything.
// A bucket's tensors follow each other without gaps.
type layout struct {
	job     *job.Job
	plan    *plan.Plan
	given   *Schedule   // nil: plain buckets
	dtypes  []job.DType // by bucket
	welcome protocol.Welcome
}

// newLayout plans plain buckets, as DistributedDataParallel forms them, for what
// workers said in hello.
func newLayout(h *protocol.Hello) (*layout, error) {
	j, err := newJob(h.Tensors)
	if err != nil {
		return nil, err
	}
	l := &layout{job: j}
	c := cluster.Uniform(1, h.World, assumed)
	if len(j.Tensors) == 0 {
		l.plan = plan.New(j, fusion.DDP.Name, c.Links[0].Name)
	} else {
		l.plan, err = fusion.DDP.Build(context.Background(), j, c, policy.Options{FirstBucket: h.FirstBucket, Bucket: h.BucketBytes})
		if err != nil {
			return nil, err
		}
	}
	return l, l.place(h.World)
}

// newJob is a job with the given tensors, whose gradients become ready from the
// last to the first. How long that takes is not known yet.
func newJob(tensors []protocol.Tensor) (*job.Job, error) {
	n := len(tensors)
	none := make([]float64, n)
	j := job.Chain("workers", none, none, make([]int64, n))
	for k, t := range tensors {
		d, err := job.ParseDType(t.DType)
		if err == nil {
			err = reducible(d)
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		x := &j.Tensors[k]
		x.Name, x.Elements, x.Param, x.Grad = t.Name, t.Elements, d, d
	}
	if n == 0 {
		return j, nil
	}
	if strings.HasPrefix(tensors[0].Name, own) {
		// No op of the model reads it, but any update may wait for it. That is before the
		// next backward pass, so it must not wait for that.
		j.Tensors[0].Readers = []job.OpID{job.OpID(n - 1)}
	}
	return j, j.Validate()
}

// ForWorld is a job that was measured with another number of workers: what clients say
// of themselves has an element a worker.
func ForWorld(j *job.Job, world int) *job.Job {
	if len(j.Tensors) == 0 || !strings.HasPrefix(j.Tensors[0].Name, own) || j.World == 0 || j.World == world {
		return j
	}
	out := *j
	out.World, out.Tensors = world, slices.Clone(j.Tensors)
	out.Tensors[0].Elements += int64(world - j.World)
	return &out
}

// mode is how a worker's tensors may be updated. One that does not say cannot do more
// than wait for all gradients.
func mode(h *protocol.Hello) (job.Mode, error) {
	if h.Mode == "" {
		return job.Global, nil
	}
	return job.ParseMode(h.Mode)
}

// differ tells the first thing in which two workers' hellos differ, or nil.
func differ(a, b *protocol.Hello) error {
	var models error
	for k := range max(len(a.Tensors), len(b.Tensors)) {
		x, y := tensor(a, k), tensor(b, k)
		if x == y {
			continue
		}
		models = fmt.Errorf("the workers train different models: tensor %d is %s on rank %d, %s on rank %d", k, x, a.Rank, y, b.Rank)
		if !strings.HasPrefix(x, own) && !strings.HasPrefix(y, own) {
			break // the client's own differ because another one does, which says more
		}
	}
	return cmp.Or(
		unequal(a, b, "c10d", cmp.Or(a.C10D, "none"), cmp.Or(b.C10D, "none")), // first: to wrap a model, workers say hello with it alone
		models,
		unequal(a, b, "weft", a.Weft, b.Weft),
		unequal(a, b, "bucket_bytes", a.BucketBytes, b.BucketBytes),
		unequal(a, b, "first_bucket_bytes", a.FirstBucket, b.FirstBucket),
		unequal(a, b, "mode", a.Mode, b.Mode),
		unequal(a, b, "boundaries", a.Boundaries, b.Boundaries),
	)
}

func unequal[T comparable](a, b *protocol.Hello, what string, x, y T) error {
	if x == y {
		return nil
	}
	return fmt.Errorf("%s is %v on rank %d, %v on rank %d", what, x, a.Rank, y, b.Rank)
}

func tensor(h *protocol.Hello, k int) string {
	if k >= len(h.Tensors) {
		return "missing"
	}
	t := h.Tensors[k]
	return tensorName(t.Name, t.Elements, t.DType)
}

func tensorName(name string, elements int64, dtype string) string {
	return fmt.Sprintf("%s (%d elements of %s)", name, elements, dtype)
}
