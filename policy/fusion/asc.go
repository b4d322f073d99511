package fusion

import (
	"context"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// ASCWFBP merges only while the link is busy, so that merging never waits, and
// hides start-ups by several all-reduces in flight (section 5: the rule of a
// public port of the authors' code; that two are in flight is ours).
var ASCWFBP = policy.Policy{
	Name:  "asc-wfbp",
	Title: "ASC-WFBP: merge while the link is busy, two all-reduces in flight",
	Paper: "Exploiting Simultaneous Communications (INFOCOM 2021)",
	Build: func(ctx context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		o.InFlight = max(o.InFlight, 2)
		return build("asc-wfbp", merged(whileBusy))(ctx, j, c, o)
	},
}

// whileBusy merges a group into the next gradient if the link is still busy
// when that is ready.
func whileBusy(ready, bytes []float64, unlike []bool, alpha, beta float64) []int {
	return merge(ready, bytes, unlike, alpha, beta, func(start, _, next float64) bool { return start > next })
}
