package bound

import (
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// Class of plans, by what bounds their time.
type Class uint8

const (
	InOrder   Class = iota // synchronous, computation in the recorded order
	AnyOrder               // synchronous, computation in any order
	InLimits               // delays within limits, computation in the recorded order
	ByServers              // synchronous, through parameter servers, computation in the recorded order
)

var bounds = []func(*job.Job, *cluster.Cluster, plan.Limits) (Bound, error){
	InOrder:   func(j *job.Job, c *cluster.Cluster, _ plan.Limits) (Bound, error) { return Synchronous(j, c) },
	AnyOrder:  func(j *job.Job, c *cluster.Cluster, _ plan.Limits) (Bound, error) { return Reordered(j, c) },
	InLimits:  Within,
	ByServers: func(j *job.Job, c *cluster.Cluster, _ plan.Limits) (Bound, error) { return Servers(j, c) },
}

// Of bounds every plan of a class. The limits matter to InLimits alone.
func Of(k Class, j *job.Job, c *cluster.Cluster, l plan.Limits) (Bound, error) {
	return bounds[k](j, c, l)
}

// ClassOf tells which class a plan is of.
func ClassOf(p *plan.Plan) Class {
	pushes := func(x plan.Program) bool {
		return slices.ContainsFunc(x.Transfers, func(t plan.Transfer) bool { return t.Kind == cluster.Push })
	}
	switch {
	case slices.ContainsFunc(p.Programs, pushes):
		return ByServers
	case !p.Synchronous():
		return InLimits
	case p.Order != nil:
		return AnyOrder
	}
	return InOrder
}
