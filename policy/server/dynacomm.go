package server

import (
	"context"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// DynaComm cuts the pulls, in the order in which parameters are read, and the
// pushes, in the order in which gradients become ready, each into the contiguous
// segments that finish soonest on a serial link, by dynamic programming (section
// 11; the recurrences are ours).
var DynaComm = policy.Policy{
	Name:  "dynacomm",
	Title: "DynaComm: pushes and pulls in the best contiguous segments",
	Paper: "DynaComm (IEEE JSAC 2021, arXiv 2101.07968)",
	Class: policy.Servers,
	Build: func(ctx context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		if err := policy.NeedServers("dynacomm", c); err != nil {
			return nil, err
		}
		out, err := policy.Crossing("dynacomm", j, c, o)
		if err != nil {
			return nil, err
		}
		p, err := policy.NewProfile(j, c, o.Copies)
		if err != nil {
			return nil, err
		}
		if n := len(j.Tensors); n > maxLayers {
			return nil, fmt.Errorf("%w: dynacomm's search grows with the cube of the tensors, and the job has %d, more than %d", policy.ErrUnsuitable, n, maxLayers)
		}
		alpha, beta, err := c.AlphaBeta(0, cluster.Push)
		if err != nil {
			return nil, err
		}
		_, pushes := push(sizes(j, p.Order, beta), ready(p), alpha)
		if alpha, beta, err = c.AlphaBeta(0, cluster.Pull); err != nil {
			return nil, err
		}
		_, pulls := pull(sizes(j, p.Use, beta), reads(p), alpha)
		o.InFlight = 1
		return fill(out, j, policy.Cut(p.Order, pushes), policy.Cut(p.Use, pulls), o)
	},
}

// maxLayers is where the search takes some seconds.
const maxLayers = 1500

// sizes are the wire times of tensors, in their order.
func sizes(j *job.Job, order []job.TensorID, beta float64) []float64 {
	out := make([]float64, len(order))
	for i, k := range order {
		out[i] = beta * float64(j.Tensors[k].GradBytes())
	}
	return out
}

// ready is when gradients become ready, in their order, from the start of the
// backward pass.
func ready(p *policy.Profile) []float64 {
	out := make([]float64, len(p.Order))
	for i, k := range p.Order {
		out[i] = p.Ready[k]
	}
	return out
}

// reads is when a forward pass that waits for nothing reads the parameters, in
// their order, and then when it ends, from its start.
func reads(p *policy.Profile) []float64 {
	out := make([]float64, len(p.Use), len(p.Use)+1)
	for i, k := range p.Use {
		out[i] = p.Read[k]
	}
	return append(out, max(p.Forward, out[len(out)-1]))
}

// push finds the contiguous segments of transfers that end soonest: transfer i
// takes size[i] beside d for its segment, which starts when the last of it is
// ready and the one before has ended. ready never falls. It returns the end and
// where each segment ends, exclusive. With H(j) the earliest end of the first j,
//
//	H(0) = 0;  H(j) = min over i < j of max(H(i), ready(j)) + d + size(i+1..j)
func push(size, ready []float64, d float64) (end float64, cuts []int) {
	n := len(size)
	sent := sums(size)
	h, from := make([]float64, n+1), make([]int, n+1)
	for j := 1; j <= n; j++ {
		h[j] = math.Inf(1)
		for i := range j {
			if t := max(h[i], ready[j-1]) + d + sent[j] - sent[i]; t < h[j] {
				h[j], from[j] = t, i
			}
		}
	}
	for j := n; j > 0; j = from[j] {
		cuts = append(cuts, j)
	}
	slices.Reverse(cuts)
	return h[n], cuts
}

// pull finds the contiguous segments of transfers, sent one behind the other from
// time 0, that let the computation which they feed end soonest: what transfer i
// brings is computed with from at[i] to at[i+1], counted in a computation that
// waits for nothing. It returns the end and where each segment ends, exclusive.
// With S(j, k) the least that the computation has waited when it needs transfer
// j+1, the first j having come in k segments (the section's G less at),
//
//	S(0, 0) = 0;  S(j, k) = min over k-1 <= i < j of
//	    max(S(i, k-1), k·d + size(1..j) - at(i+1))
//
// The second term grows as i falls, so that the rest need not be looked at once it
// reaches the least so far; nor need more segments whose start-ups alone do.
func pull(size, at []float64, d float64) (end float64, cuts []int) {
	n := len(size)
	came := sums(size)
	s, next := slices.Repeat([]float64{math.Inf(1)}, n+1), make([]float64, n+1)
	s[0] = 0
	from := make([][]int32, n+1) // by segments, then transfers
	best, least := 0, math.Inf(1)
	for k := 1; k <= n && float64(k)*d+came[n]-at[n-1] < least; k++ {
		from[k] = make([]int32, n+1)
		for j := range next {
			next[j] = math.Inf(1)
			arrival := float64(k)*d + came[j]
			for i := j - 1; i >= k-1 && arrival-at[i] < next[j]; i-- {
				if t := max(s[i], arrival-at[i]); t < next[j] {
					next[j], from[k][j] = t, int32(i)
				}
			}
		}
		s, next = next, s
		if s[n] < least {
			least, best = s[n], k
		}
	}
	for j, k := n, best; k > 0; k-- {
		cuts = append(cuts, j)
		j = int(from[k][j])
	}
	slices.Reverse(cuts)
	return least + at[n], cuts
}

// sums are those of the first 0, 1, 2, ... values.
func sums(values []float64) []float64 {
	out := make([]float64, len(values)+1)
	for i, v := range values {
		out[i+1] = out[i] + v
	}
	return out
}
