package deft

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// model is a job on a cluster as the solver sees it.
type model struct {
	job     *job.Job
	cluster *cluster.Cluster
	profile *policy.Profile
	links   []int // of the cluster, the fastest first
}

func newModel(j *job.Job, c *cluster.Cluster, copies bool) (*model, error) {
	p, err := policy.NewProfile(j, c, copies)
	if err != nil {
		return nil, err
	}
	m := &model{job: j, cluster: c, profile: p}
	time := make([]float64, len(c.Links))
	for l := range c.Links {
		if time[l], err = m.cost(l, j.Bytes()); err != nil {
			return nil, err
		}
		m.links = append(m.links, l)
	}
	slices.SortStableFunc(m.links, func(a, b int) int { return cmp.Compare(time[a], time[b]) })
	m.links = m.links[:min(len(m.links), maxLinks)]
	return m, nil
}

// cost is the time of an all-reduce on a link of the cluster, microseconds. The
// links of a medium are taken to be busy at once.
func (m *model) cost(link int, bytes int64) (float64, error) {
	x, err := m.cluster.Cost(link, cluster.AllReduce, bytes)
	if err != nil {
		return 0, err
	}
	round := func(us float64) float64 { return math.Round(us*nsPerUs) / nsPerUs }
	return round(x.Alpha) + round(x.Wire*m.shared(link)), nil
}

// shared is by how much the links of a medium slow each other.
func (m *model) shared(link int) float64 {
	own := &m.cluster.Links[link]
	if own.Medium == "" {
		return 1
	}
	var sum, fastest float64
	for l := range m.cluster.Links {
		if x := &m.cluster.Links[l]; x.Medium == own.Medium {
			sum, fastest = sum+x.Bandwidth, max(fastest, x.Bandwidth)
		}
	}
	if sum <= fastest {
		return 1
	}
	return sum / fastest
}

const (
	// A bucket's start-up is amortised once its wire time is so many times as long.
	amortised = 4
	// A job is cut into about so many buckets at most.
	mostBuckets = 256
)

// partition cuts the gradients into buckets in dispatch order (section 13.7, all
// ours): tensors are split until each bucket fits the forward pass on the fast
// link, then neighbours of one element type are fused until the start-up is
// amortised. fits: the start-up alone does not exceed the forward pass, so that
// splitting helps.
func (m *model) partition() (buckets []plan.Bucket, fits bool, err error) {
	fast, total := m.links[0], m.job.Bytes()
	cost := func(bytes int64) float64 {
		t, e := m.cost(fast, bytes)
		err = cmp.Or(err, e)
		return t
	}
	largest := int64(sort.Search(int(total), func(n int) bool { return cost(int64(n)+1) > m.profile.Forward }))
	if fits = largest > 0; !fits {
		largest = math.MaxInt64
	}
	least := total / mostBuckets
	largest = max(largest, least)

	var open *plan.Bucket // the last of buckets, if it may grow
	for _, k := range m.profile.Order {
		t := &m.job.Tensors[k]
		size := t.Grad.Bytes()
		pieces := (t.Elements-1)/max(1, largest/size) + 1
		step := (t.Elements-1)/pieces + 1
		for at := int64(0); at < t.Elements; at += step {
			s := plan.Slice{Tensor: k, Offset: at, Length: min(step, t.Elements-at)}
			if open != nil && m.job.Tensors[open.Slices[0].Tensor].Grad == t.Grad && s.Length*size <= largest-open.Bytes(m.job) {
				open.Slices = append(open.Slices, s)
			} else {
				buckets = append(buckets, plan.Bucket{Slices: []plan.Slice{s}})
				open = &buckets[len(buckets)-1]
			}
			x, e := m.cluster.Cost(fast, cluster.AllReduce, open.Bytes(m.job))
			err = cmp.Or(err, e)
			if x.Wire >= amortised*x.Alpha && open.Bytes(m.job) >= least {
				open = nil
			}
		}
	}
	return buckets, fits, err
}

// problem is what the solver has to know of the buckets.
func (m *model) problem(buckets []plan.Bucket) (Problem, error) {
	p := Problem{
		Forward: m.profile.Forward, Backward: m.profile.Backward,
		Ready: make([]float64, len(buckets)), Cost: make([][]float64, len(m.links)),
	}
	for i := range buckets {
		for _, s := range buckets[i].Slices {
			p.Ready[i] = max(p.Ready[i], m.profile.Ready[s.Tensor])
		}
		for l, link := range m.links {
			t, err := m.cost(link, buckets[i].Bytes(m.job))
			if err != nil {
				return Problem{}, err
			}
			p.Cost[l] = append(p.Cost[l], t)
		}
	}
	return p, nil
}
