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
		if j.Recorded == nil || len(j.Recorded.Buckets) == 0 {
			return nil, fmt.Errorf("%w: job %q does not say how it was recorded", policy.ErrUnsuitable, j.Name)
		}
		groups := make([][]job.TensorID, len(j.Recorded.Buckets))
		for i, b := range j.Recorded.Buckets {
			groups[i] = b.Tensors
		}
		return policy.Sends(groups), nil
	}),
}
