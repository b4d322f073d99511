package policy

import (
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/plan"
)

// Spread makes of a plan that uses only the first link one that uses them all:
// each bucket is cut into a part a link, sized so that all parts take equally
// long, alone on their links; a bucket too small to gain from a link leaves it out.
// The order of transfers, their gates and all updates stay. The job's own
// collectives stay on the first link. It returns nil where that changes nothing.
func Spread(j *job.Job, c *cluster.Cluster, p *plan.Plan) (*plan.Plan, error) {
	if len(p.Programs) < 2 || slices.ContainsFunc(p.Programs[1:], func(x plan.Program) bool { return len(x.Transfers) > 0 }) {
		return nil, nil
	}
	s := spreader{job: j, cluster: c, shares: map[load][]int64{}}
	out := *p
	out.Buckets = nil
	parts := make([][]int, len(p.Buckets)) // by old bucket, link: the new one, or -1
	out.Programs = slices.Clone(p.Programs)
	for l := range out.Programs {
		out.Programs[l].Transfers = nil
		out.Programs[l].Window.Transfers = p.Programs[0].Window.Transfers
	}
	moved := make([][]int, len(p.Programs[0].Transfers)) // by old position, link: the new one, or -1
	origin := make([][]int, len(p.Programs))             // by link, new position: the old bucket
	carried := make([]int64, len(p.Programs))
	for i, t := range p.Programs[0].Transfers {
		moved[i] = slices.Repeat([]int{-1}, len(out.Programs))
		if t.Bucket < 0 {
			moved[i][0] = len(out.Programs[0].Transfers)
			origin[0] = append(origin[0], t.Bucket)
			out.Programs[0].Transfers = append(out.Programs[0].Transfers, t)
			continue
		}
		if parts[t.Bucket] == nil {
			cut, err := s.cut(p.Buckets[t.Bucket], t.Kind)
			if err != nil {
				return nil, err
			}
			for l := range cut {
				at := -1
				if len(cut[l].Slices) > 0 {
					at = out.AddBucket(cut[l])
					carried[l] += cut[l].Bytes(j)
				}
				parts[t.Bucket] = append(parts[t.Bucket], at)
			}
		}
		for l, bucket := range parts[t.Bucket] {
			if bucket < 0 {
				continue
			}
			part := t
			part.Bucket = bucket
			moved[i][l] = len(out.Programs[l].Transfers)
			origin[l] = append(origin[l], t.Bucket)
			out.Programs[l].Transfers = append(out.Programs[l].Transfers, part)
		}
	}
	if len(out.Programs[1].Transfers) == 0 && !slices.ContainsFunc(carried[1:], func(n int64) bool { return n > 0 }) {
		return nil, nil
	}
	for l := range out.Programs {
		for t := range out.Programs[l].Transfers {
			x := &out.Programs[l].Transfers[t]
			x.Gates = follow(p, x.Gates, origin[l][t], l, moved)
		}
		// What is in flight is shared out as the bytes are.
		if w := p.Programs[0].Window.Bytes; w > 0 {
			share := float64(carried[l]) / float64(max(1, slices.Max(carried)))
			out.Programs[l].Window.Bytes = max(1, int64(share*float64(w)))
		}
	}
	out.Notes = append(slices.Clone(p.Notes), fmt.Sprintf("each bucket is spread over %d links", len(out.Programs)))
	return &out, nil
}

// follow redirects a part's gates on transfers to their parts: on its own link to
// that of a transfer of the same bucket, which is cut alike, and to all parts of
// another.
func follow(p *plan.Plan, gates []plan.Gate, bucket, link int, moved [][]int) []plan.Gate {
	var out []plan.Gate
	for _, g := range gates {
		if g.Kind != plan.TransferDone {
			out = append(out, g)
			continue
		}
		alike := bucket >= 0 && bucket == p.Programs[0].Transfers[g.Transfer].Bucket && moved[g.Transfer][link] >= 0
		for l, at := range moved[g.Transfer] {
			if at >= 0 && (!alike || l == link) {
				g.Link, g.Transfer = l, at
				out = append(out, g)
			}
		}
	}
	return out
}

type load struct {
	kind  cluster.Kind
	bytes int64
}

type spreader struct {
	job     *job.Job
	cluster *cluster.Cluster
	shares  map[load][]int64
}

// cut cuts a bucket into a part a link, in the order of its slices.
func (s *spreader) cut(b plan.Bucket, kind cluster.Kind) ([]plan.Bucket, error) {
	shares, err := s.share(load{kind, b.Bytes(s.job)})
	if err != nil {
		return nil, err
	}
	out := make([]plan.Bucket, len(shares))
	l := 0
	left := shares[0]
	for _, x := range b.Slices {
		size := s.job.Tensors[x.Tensor].Grad.Bytes()
		for x.Length > 0 {
			for left < size && l < len(shares)-1 {
				l++
				left = shares[l]
			}
			n := x.Length
			if l < len(shares)-1 {
				n = min(n, left/size)
			}
			part := x
			part.Length = n
			out[l].Slices = append(out[l].Slices, part)
			x.Offset, x.Length = x.Offset+n, x.Length-n
			left -= n * size
		}
	}
	return out, nil
}

// share is the bytes of a load that each link takes, so that the last is done as
// early as can be: by bisection on that time, for any cost that grows with size.
func (s *spreader) share(x load) ([]int64, error) {
	if known, ok := s.shares[x]; ok {
		return known, nil
	}
	shares := make([]int64, len(s.cluster.Links))
	alone := math.Inf(1)
	for l := range shares {
		cost, err := s.cluster.Cost(l, x.kind, x.bytes)
		if err != nil {
			return nil, err
		}
		alone = min(alone, cost.Total())
	}
	carry := func(within float64) (total int64) {
		for l := range shares {
			shares[l] = s.carries(l, x, within)
			total += shares[l]
		}
		return total
	}
	low, high := 0.0, alone
	for range 50 {
		if mid := (low + high) / 2; carry(mid) >= x.bytes {
			high = mid
		} else {
			low = mid
		}
	}
	carry(high)
	// The links together may carry a little more than there is.
	over := sum(shares) - x.bytes
	for l := len(shares) - 1; l >= 0; l-- {
		n := min(max(over, 0), shares[l])
		shares[l], over = shares[l]-n, over-n
	}
	s.shares[x] = shares
	return shares, nil
}

// carries is the most bytes of x that link l moves within a time.
func (s *spreader) carries(l int, x load, within float64) int64 {
	low, high := int64(0), x.bytes
	for low < high {
		mid := high - (high-low)/2
		if cost, err := s.cluster.Cost(l, x.kind, mid); err == nil && cost.Total() <= within {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

func sum(x []int64) (n int64) {
	for _, v := range x {
		n += v
	}
	return n
}
