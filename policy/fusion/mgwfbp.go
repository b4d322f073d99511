package fusion

import (
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/policy"
)

// MGWFBP merges a gradient into the next one where that saves a start-up
// (section 4, as in the authors' code). Tensors of unlike element types are
// never merged.
var MGWFBP = policy.Policy{
	Name:  "mg-wfbp",
	Title: "MG-WFBP: merge where a start-up is saved, greedily",
	Paper: "MG-WFBP (INFOCOM 2019; IEEE TPDS 2021)",
	Build: build("mg-wfbp", merged(greedy)),
}

// MGWFBPExact is the best contiguous grouping for MG-WFBP's model, by dynamic
// programming (ours: section 11's push recursion with a segment cost of alpha).
var MGWFBPExact = policy.Policy{
	Name:  "mg-wfbp-exact",
	Title: "the best merging for MG-WFBP's cost model, by dynamic programming",
	Paper: "recursion of DynaComm (arXiv 2101.07968), applied to MG-WFBP's model",
	Build: build("mg-wfbp-exact", merged(exact)),
}

// rule merges gradients in ready order into contiguous groups, and begins one where
// a gradient is unlike the one before. The link has the start-up alpha
// (microseconds) and beta (microseconds a byte). It returns the ends of the groups.
type rule func(ready, bytes []float64, unlike []bool, alpha, beta float64) (ends []int)

// merged applies a rule on the first link.
func merged(r rule) grouping {
	return func(j *job.Job, c *cluster.Cluster, p *policy.Profile, _ policy.Options) ([]policy.Send, error) {
		alpha, beta, err := c.AlphaBeta(0, cluster.AllReduce)
		if err != nil {
			return nil, err
		}
		n := len(p.Order)
		ready, bytes, unlike := make([]float64, n), make([]float64, n), make([]bool, n)
		for i, k := range p.Order {
			ready[i], bytes[i] = p.Ready[k], float64(j.Tensors[k].GradBytes())
			unlike[i] = i > 0 && j.Tensors[k].Grad != j.Tensors[p.Order[i-1]].Grad
		}
		return policy.Sends(policy.Cut(p.Order, r(ready, bytes, unlike, alpha, beta))), nil
	}
}

// greedy merges a group into the next gradient when that one is ready before the
// group is through, and the group has not started by then or waiting for it costs
// less than a start-up.
func greedy(ready, bytes []float64, unlike []bool, alpha, beta float64) []int {
	return merge(ready, bytes, unlike, alpha, beta, func(start, end, next float64) bool {
		return next < end && (start > next || next-start < alpha)
	})
}

// merge walks the gradients in ready order. A group that would start and end at
// the given times on a serial link takes in the next gradient, ready at next, if
// join says so. It returns the ends of the groups.
func merge(ready, bytes []float64, unlike []bool, alpha, beta float64, join func(start, end, next float64) bool) []int {
	var ends []int
	free, size := 0.0, 0.0 // when the link is free; bytes of the open group
	for i := range ready {
		size += bytes[i]
		start := max(free, ready[i])
		end := start + alpha + beta*size
		if i+1 < len(ready) && !unlike[i+1] && join(start, end, ready[i+1]) {
			continue
		}
		ends = append(ends, i+1)
		free, size = end, 0
	}
	return ends
}

// exact minimises the end of the last of contiguous groups:
// H[j] = min over i < j of max(H[i], ready[j]) + alpha + beta·bytes(i+1..j). Of
// equals it takes the shortest last group, where DynaComm's takes the longest.
func exact(ready, bytes []float64, unlike []bool, alpha, beta float64) []int {
	n := len(ready)
	best, cut := make([]float64, n+1), make([]int, n+1)
	for j := 1; j <= n; j++ {
		best[j] = math.Inf(1)
		size := 0.0
		for i := j - 1; i >= 0; i-- {
			size += bytes[i]
			if end := max(best[i], ready[j-1]) + alpha + beta*size; end < best[j] {
				best[j], cut[j] = end, i
			}
			if unlike[i] {
				break
			}
		}
	}
	var ends []int
	for j := n; j > 0; j = cut[j] {
		ends = append(ends, j)
	}
	slices.Reverse(ends)
	return ends
}
