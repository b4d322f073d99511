package bound

import (
	"cmp"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
)

// traffic is what moving gradients takes at least, for plans of one class.
type traffic struct {
	wire float64 // microseconds of the links, all together, for a byte
	// From the first transfer of a set of tensors to the completion of their
	// last no less passes than any of these.
	floors []floor
}

// time is tau: how long moving a set of tensors of so many bytes takes at least.
func (t traffic) time(bytes float64) float64 {
	most := 0.0
	for _, f := range t.floors {
		most = max(most, f.time(bytes))
	}
	return most
}

// floor is the least of its lines.
type floor []line

func (f floor) time(bytes float64) float64 {
	least := math.Inf(1)
	for _, l := range f {
		least = min(least, l.alpha+l.beta*bytes)
	}
	return least
}

// line is alpha + beta·bytes, microseconds.
type line struct{ alpha, beta float64 }

// never is the price of what a link cannot do.
var never = line{math.Inf(1), math.Inf(1)}

// reductions is the traffic of plans that reduce among workers: each element by
// an all-reduce, or by a reduce-scatter and then an all-gather, which may take
// different links.
//
// Wires end some time before the last gradient is complete: before the start-up
// of an all-reduce or an all-gather, or that of a reduce-scatter and a whole
// all-gather of an element at least. All wires are one bound. The other are those
// of reduce-scatters with the first half of each all-reduce's: none of these is
// followed by an all-gather's start-up alone. Many short all-gathers can hide the
// start-ups of reduce-scatters, but not the wires of both.
//
// A link without a price for any of them takes no part. The error is that of a
// price that is missing, where the links together cannot reduce.
func reductions(c *cluster.Cluster, j *job.Job) (traffic, error) {
	element := smallest(j)
	if math.IsInf(element, 1) {
		return traffic{}, nil
	}
	type prices struct{ reduce, scatter, gather line }
	links := make([]prices, len(c.Links))
	gathered := math.Inf(1) // the least time of an all-gather
	var missing error
	for l := range links {
		p := &links[l]
		var errs [3]error
		p.reduce, errs[0] = kindCost(c, l, cluster.AllReduce)
		p.scatter, errs[1] = kindCost(c, l, cluster.ReduceScatter)
		p.gather, errs[2] = kindCost(c, l, cluster.AllGather)
		missing = cmp.Or(missing, errs[0], errs[1], errs[2])
		gathered = min(gathered, p.gather.alpha+p.gather.beta*element)
	}
	all, first := make([]line, len(links)), make([]line, len(links))
	for l, p := range links {
		all[l] = line{
			min(p.reduce.alpha, p.gather.alpha, p.scatter.alpha+gathered),
			2 * min(p.reduce.beta/2, p.gather.beta, p.scatter.beta),
		}
		first[l] = line{
			min(p.reduce.alpha+p.reduce.beta/2*element, p.scatter.alpha+gathered),
			min(p.reduce.beta/2, p.scatter.beta),
		}
	}
	n := traffic{floors: []floor{fill(c, all), fill(c, first)}}
	if len(n.floors[1]) == 0 {
		return traffic{}, missing
	}
	n.wire = n.floors[0][len(n.floors[0])-1].beta
	return n, nil
}

// smallest is the size of an element, in bytes: no transfer is smaller. +Inf: the
// job has none.
func smallest(j *job.Job) float64 {
	element := math.Inf(1)
	for k := range j.Tensors {
		if t := &j.Tensors[k]; t.Elements > 0 {
			element = min(element, float64(t.Grad.Bytes()))
		}
	}
	return element
}

// fill is the least time in which the links can move bytes together, given for
// each link how long before the end its wire ends, and its time a byte; the
// first line is that of the link whose wire ends last, the last that of all. In
// time t link l moves (t - alpha)/beta bytes at most, so any set of links that
// has the smallest alphas gives a line, and the least of them is exact.
//
// Links that share a medium count as one where it limits them. It serves at most
// the bandwidth of its fastest link, and a byte on link l takes
// beta·bandwidth of what it can serve in a microsecond.
func fill(c *cluster.Cluster, links []line) floor {
	media := map[string][]int{}
	var single []line // alpha and beta
	for l, x := range links {
		switch name := c.Links[l].Medium; {
		case math.IsInf(x.alpha, 1) || math.IsInf(x.beta, 1):
		case name == "" || c.Links[l].Bandwidth == 0 || x.beta == 0:
			single = append(single, x)
		default:
			media[name] = append(media[name], l)
		}
	}
	for _, group := range media {
		sum, fastest, work, alpha := 0.0, 0.0, math.Inf(1), math.Inf(1)
		for _, l := range group {
			sum += 1 / links[l].beta
			fastest = max(fastest, c.Links[l].Bandwidth)
			work = min(work, links[l].beta*c.Links[l].Bandwidth)
			alpha = min(alpha, links[l].alpha)
		}
		if sum > fastest/work {
			single = append(single, line{alpha, work / fastest})
			continue
		}
		for _, l := range group {
			single = append(single, links[l])
		}
	}
	slices.SortFunc(single, func(a, b line) int { return cmp.Or(cmp.Compare(a.alpha, b.alpha), cmp.Compare(a.beta, b.beta)) })
	var f floor
	var rate, lost float64 // bytes a microsecond, and in the time before the start of each
	for _, x := range single {
		if x.beta == 0 {
			return append(f, x)
		}
		rate += 1 / x.beta
		lost += x.alpha / x.beta
		f = append(f, line{lost / rate, 1 / rate})
	}
	return f
}

// kindCost is the start-up and the least time a byte of a kind on a link. Between
// two points of a curve the time a byte is between theirs, and beyond the last it
// approaches that of the last segment. A link that has no price for the kind
// gives never, and the error that says so.
func kindCost(c *cluster.Cluster, l int, k cluster.Kind) (line, error) {
	sizes := []int64{1 << 40}
	for _, p := range c.Links[l].Curve {
		sizes = append(sizes, max(p.Bytes, 1))
	}
	x := never
	for _, n := range sizes {
		cost, err := c.Cost(l, k, n)
		if err != nil {
			return never, err
		}
		x = line{cost.Alpha, min(x.beta, cost.Wire/float64(n))}
	}
	return x, nil
}
