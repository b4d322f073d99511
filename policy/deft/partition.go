package deft

import (
	"cmp"
	"errors"
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
	links   []int // of the cluster, those that carry gradients, the fastest first
}

func newModel(j *job.Job, c *cluster.Cluster, copies bool) (*model, error) {
	p, err := policy.NewProfile(j, c, copies)
	if err != nil {
		return nil, err
	}
	m := &model{job: j, cluster: c, profile: p}
	time := map[int]float64{}
	var links []int
	for l := range c.Links {
		t, e := m.cost(l, cluster.AllReduce, j.Bytes())
		if e != nil {
			err = cmp.Or(err, e)
			continue
		}
		links, time[l] = append(links, l), t
	}
	if len(links) == 0 {
		return nil, cmp.Or(err, errors.New("deft: the cluster has no link"))
	}
	slices.SortStableFunc(links, func(a, b int) int { return cmp.Compare(time[a], time[b]) })
	m.links = links[:min(len(links), maxLinks)]
	return m, nil
}

// on is the model with the fastest links only.
func (m *model) on(links int) *model {
	out := *m
	out.links = m.links[:links]
	return &out
}

// cost is the time of a transfer on a link of the cluster, microseconds. The
// links of a medium are taken to be busy at once.
func (m *model) cost(link int, kind cluster.Kind, bytes int64) (float64, error) {
	x, err := m.cluster.Cost(link, kind, bytes)
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
			fastest = max(fastest, x.Bandwidth)
			if slices.Contains(m.links, l) {
				sum += x.Bandwidth
			}
		}
	}
	if !(sum > fastest) {
		return 1
	}
	return sum / fastest
}

// cut is a way to cut the gradients into buckets.
type cut struct {
	// fit splits tensors until each bucket fits the forward pass on the fast link,
	// if its start-up alone does.
	fit bool
	// amortised closes a bucket once its wire time is so many start-ups.
	amortised float64
}

// cuts are tried in this order. The first is that of section 13.7; the others
// pay fewer start-ups, in buckets that may span passes.
var cuts = []cut{{true, 4}, {false, 4}, {false, 16}, {false, 64}}

// A job is cut into about so many buckets at most.
const mostBuckets = 256

// buckets cuts the gradients, in dispatch order: tensors of one element type that
// become ready after each other are fused, and tensors split, as the cut says.
func (m *model) buckets(how cut) ([]plan.Bucket, error) {
	fast, total := m.links[0], m.job.Bytes()
	shared := m.shared(fast)
	var failed error
	cost := func(bytes int64) cluster.Cost {
		x, err := m.cluster.Cost(fast, cluster.AllReduce, bytes)
		failed = cmp.Or(failed, err)
		x.Wire *= shared
		return x
	}
	least := total / mostBuckets
	largest := int64(math.MaxInt64)
	if how.fit {
		taken, err := m.taken()
		if err != nil {
			return nil, err
		}
		room := m.profile.Forward - taken[0][forward]
		fits := sort.Search(int(total), func(n int) bool { return cost(int64(n)+1).Total() > room })
		if fits > 0 {
			largest = max(int64(fits), least)
		}
	}
	type open struct {
		at    int
		bytes int64
	}
	var out []plan.Bucket
	growing := map[job.DType]open{} // buckets that may still grow
	for _, k := range m.profile.Order {
		t := &m.job.Tensors[k]
		size := t.Grad.Bytes()
		pieces := (t.Elements-1)/max(1, largest/size) + 1
		step := (t.Elements-1)/pieces + 1
		for at := int64(0); at < t.Elements; at += step {
			s := plan.Slice{Tensor: k, Offset: at, Length: min(step, t.Elements-at)}
			bytes := s.Length * size
			b, ok := growing[t.Grad]
			if !ok || bytes > largest-b.bytes {
				b = open{at: len(out)}
				out = append(out, plan.Bucket{})
			}
			out[b.at].Slices = append(out[b.at].Slices, s)
			b.bytes += bytes
			growing[t.Grad] = b
			if x := cost(b.bytes); x.Wire >= how.amortised*x.Alpha && b.bytes >= least {
				delete(growing, t.Grad)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b plan.Bucket) int { return cmp.Compare(m.ready(a), m.ready(b)) })
	return out, failed
}

// ready is when all gradients of a bucket are, from the start of the backward pass.
func (m *model) ready(b plan.Bucket) float64 {
	at := 0.0
	for _, s := range b.Slices {
		at = max(at, m.profile.Ready[s.Tensor])
	}
	return at
}

// problem is what the solver has to know of the buckets.
func (m *model) problem(buckets []plan.Bucket) (problem, error) {
	p := problem{
		Forward: m.profile.Forward, Backward: m.profile.Backward,
		Cost: make([][]float64, len(m.links)),
	}
	for i := range buckets {
		p.Ready = append(p.Ready, m.ready(buckets[i]))
		for l, link := range m.links {
			t, err := m.cost(link, cluster.AllReduce, buckets[i].Bytes(m.job))
			if err != nil {
				return problem{}, err
			}
			p.Cost[l] = append(p.Cost[l], t)
		}
	}
	var err error
	p.Taken, err = m.taken()
	return p, err
}

// taken is how long the job's own collectives take each link, in the forward and
// in the backward pass: they are on the first link of the cluster.
func (m *model) taken() ([][2]float64, error) {
	out := make([][2]float64, len(m.links))
	first := slices.Index(m.links, 0)
	if first < 0 {
		return out, nil
	}
	for i, at := range m.profile.Collectives {
		x := &m.job.Collectives[i]
		kind, err := cluster.ParseKind(x.Kind)
		if err != nil {
			return nil, err
		}
		t, err := m.cost(0, kind, x.Bytes)
		if err != nil {
			return nil, err
		}
		pass := backward
		if at < 0 {
			pass = forward
		}
		out[first][pass] += t
	}
	return out, nil
}

// load is the time of a generation that keeps all links busy at once.
func (p *problem) load() float64 {
	rate := 0.0
	for l := range p.Cost {
		sum := 0.0
		for _, t := range p.Cost[l] {
			sum += t
		}
		if sum == 0 {
			return 0
		}
		rate += 1 / sum
	}
	return 1 / rate
}
