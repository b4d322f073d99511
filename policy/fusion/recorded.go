package fusion

import (
	"fmt"

	"weft/cluster"
	"weft/job"
	"weft/policy"
)

// Recorded repeats the buckets of the recorded run, in the order of its
// collectives: what the job would do on another cluster with nothing changed.
var Recorded = policy.Policy{
	Name:  "recorded",
	Title: "the buckets of the recorded run",
	Paper: "the trace itself",
	Build: build("recorded", func(j *job.Job, _ *cluster.Cluster, _ *policy.Profile, _ policy.Options) ([]policy.Send, error) {
		groups := recordedBuckets(j)
		if len(groups) == 0 {
			return nil, fmt.Errorf("%w: job %q does not say how it was recorded", policy.ErrUnsuitable, j.Name)
		}
		return policy.Sends(groups), nil
	}),
}

// recordedBuckets are the buckets in which something was recorded; none: the job does not say.
func recordedBuckets(j *job.Job) (groups [][]job.TensorID) {
	if j.Recorded == nil {
		return nil
	}
	for _, b := range j.Recorded.Buckets {
		if len(b.Tensors) > 0 {
			groups = append(groups, b.Tensors)
		}
	}
	return groups
}
