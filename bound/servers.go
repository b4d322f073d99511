package bound

import (
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// Servers bounds every synchronous plan that keeps the recorded compute order
// and reduces by push and pull over any of the cluster's links: the same three
// times as [Synchronous], with the two transfers of each byte in place of one
// reduction. Where pushes and pulls pass each other ([cluster.Cluster.Sides]),
// the slower of the two counts, elsewhere both. It is an error if the cluster has
// no servers.
func Servers(j *job.Job, c *cluster.Cluster) (Bound, error) {
	push, err := halfway(c, cluster.Push)
	if err != nil {
		return Bound{}, err
	}
	pull, err := halfway(c, cluster.Pull)
	if err != nil {
		return Bound{}, err
	}
	element := smallest(j)
	if math.IsInf(element, 1) {
		return every(j, c, paceOf(plan.DefaultLimits), traffic{})
	}
	// The last element that is pushed is pulled behind all pushes, and the first
	// one ahead of all pulls.
	both := push.alpha + pull.alpha
	n := traffic{wire: max(push.beta, pull.beta), floors: []floor{
		{{both + slices.Min(pull.links)*element, push.beta}},
		{{both + slices.Min(push.links)*element, pull.beta}},
	}}
	if c.Sides(cluster.Push)&c.Sides(cluster.Pull) != 0 {
		n.wire = max(
			push.beta*(1+leastRatio(pull.links, push.links)),
			pull.beta*(1+leastRatio(push.links, pull.links)))
		n.floors = append(n.floors, floor{{pull.alpha, n.wire}})
	}
	return every(j, c, paceOf(plan.DefaultLimits), n)
}

// direction is what pushes or pulls take at least: over all links together, and
// the time a byte on each, +Inf where the link has no price for them.
type direction struct {
	line
	links []float64
}

func halfway(c *cluster.Cluster, k cluster.Kind) (direction, error) {
	var missing error
	prices := make([]line, len(c.Links))
	var d direction
	for l := range prices {
		var err error
		if prices[l], err = kindCost(c, l, k); err != nil {
			missing = err
		}
		d.links = append(d.links, prices[l].beta)
	}
	f := fill(c, prices)
	if len(f) == 0 {
		return d, missing
	}
	d.line = line{f[0].alpha, f[len(f)-1].beta}
	return d, nil
}

// leastRatio is the least of a byte's times over those of another kind on the
// same link: in place of a byte of the first kind a link moves at least so much
// of one of the second.
func leastRatio(times, over []float64) float64 {
	least := math.Inf(1)
	for l := range times {
		if over[l] > 0 && !(math.IsInf(times[l], 1) && math.IsInf(over[l], 1)) {
			least = min(least, times[l]/over[l])
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}
