// Package usbyte holds US-Byte: blocks of unequal size, cut so that each ends
// about when the next gradient becomes ready.
package usbyte

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

// USByte schedules blocks in two phases (section 9): while gradients still become
// ready, by ranks that a local search improves; afterwards each remainder as one
// block, input first. Three slips of the public code are resolved as the section
// says. The unit is searched for on a grid; the paper tunes it by Bayesian
// optimisation.
var USByte = policy.Policy{
	Name:  "us-byte",
	Title: "US-Byte: unequal blocks, cut where the next gradient becomes ready",
	Paper: "US-Byte (IEEE TPDS 2023, DOI 10.1109/TPDS.2023.3331372)",
	Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		p, err := policy.NewProfile(j, c, o.Copies)
		if err != nil {
			return nil, err
		}
		alpha, beta, err := c.AlphaBeta(0, cluster.AllReduce)
		if err != nil {
			return nil, err
		}
		if n := len(j.Tensors); n > maxTensors {
			return nil, fmt.Errorf("%w: us-byte's search grows with the cube of the tensors, and the job has %d, more than %d", policy.ErrUnsuitable, n, maxTensors)
		}
		largest := int64(1)
		for k := range j.Tensors {
			largest = max(largest, j.Tensors[k].Elements)
		}
		units := []int64{min(o.Unit, largest)}
		if o.Unit <= 0 {
			units = []int64{1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22}
		}
		var best *model
		least := math.Inf(1)
		for _, unit := range units {
			m := newModel(j, p, unit, alpha, beta)
			if t := m.search(); t < least {
				best, least = m, t
			}
		}
		return best.plan(j, c, o)
	},
}

// maxTensors is where the search takes some seconds.
const maxTensors = 1000

// model is one unit size. Layers are numbered from 0 in forward order, taken
// from the order in which their gradients become ready, the last first.
type model struct {
	unit    int64 // elements
	alpha   float64
	forward float64
	layers  []layer
	blocks  []block
}

type layer struct {
	tensor   job.TensorID
	elements int64
	units    int
	perUnit  float64 // wire time of a unit
	cut      float64 // by which the block with the last, partial unit is shorter
	ready    float64
	read     float64 // from the start of the forward pass
}

// block is units of a layer, from start on.
type block struct {
	layer, units int
	start, end   float64
}

func newModel(j *job.Job, p *policy.Profile, unit int64, alpha, beta float64) *model {
	m := &model{unit: unit, alpha: alpha, forward: p.Forward}
	for _, k := range slices.Backward(p.Order) {
		t := &j.Tensors[k]
		l := layer{
			tensor: k, elements: t.Elements, units: int((t.Elements + unit - 1) / unit),
			perUnit: beta * float64(unit*t.Grad.Bytes()), ready: p.Ready[k], read: min(p.Read[k], p.Forward),
		}
		l.cut = (float64(l.units) - float64(t.Elements)/float64(unit)) * l.perUnit
		m.layers = append(m.layers, l)
	}
	return m
}

// time of a block of u > 0 units of a layer.
func (m *model) time(l *layer, u int) float64 { return m.alpha + l.perUnit*float64(u) }

// schedule fills m.blocks for given ranks of phase 1 (smaller first) and returns
// the end of the next forward pass.
func (m *model) schedule(rank []int) float64 {
	n := len(m.layers)
	m.blocks = m.blocks[:0]
	rest := make([]int, n)
	t := m.layers[n-1].ready
	for i := n - 1; i >= 0; i-- {
		for now := m.layers[i].ready; t < now; {
			k := -1
			for x := range m.layers {
				if rest[x] > 0 && (k < 0 || rank[x] < rank[k]) {
					k = x
				}
			}
			if k < 0 {
				t = now
				break
			}
			t = m.add(k, t, now, rest)
		}
		rest[i] = m.layers[i].units
	}
	t = max(t, m.layers[0].ready)
	for i := range m.layers {
		if rest[i] > 0 {
			t = m.append(block{layer: i, units: rest[i], start: t}, true)
		}
	}
	end := make([]float64, n)
	for _, b := range m.blocks {
		end[b.layer] = b.end
	}
	last := m.layers[0].ready
	for i := range m.layers {
		last = max(last, end[i]-m.layers[i].read)
	}
	return last + m.forward
}

// add appends a block of layer k from t on that ends about at now. It extends the
// previous block where that is of the same layer and ends at t, saving a start-up.
func (m *model) add(k int, t, now float64, rest []int) float64 {
	l := &m.layers[k]
	start := t
	if n := len(m.blocks); n > 0 && m.blocks[n-1].layer == k && m.blocks[n-1].end == t {
		start = m.blocks[n-1].start
		rest[k] += m.blocks[n-1].units
		m.blocks = m.blocks[:n-1]
	}
	u := rest[k]
	switch gap := now - start; {
	case gap < m.alpha:
		u = 1
	case gap < m.time(l, rest[k]):
		u = int(math.Ceil((gap - m.alpha) / l.perUnit))
	}
	u = min(max(u, 1), rest[k])
	rest[k] -= u
	return m.append(block{layer: k, units: u, start: start}, rest[k] == 0)
}

func (m *model) append(b block, final bool) float64 {
	l := &m.layers[b.layer]
	b.end = b.start + m.time(l, b.units)
	if final {
		b.end -= l.cut
	}
	m.blocks = append(m.blocks, b)
	return b.end
}

// search improves the ranks of phase 1: a layer whose whole would end late is
// tried at the rank of the layer that becomes ready before that. It leaves the
// best schedule in m.blocks and returns its time.
func (m *model) search() float64 {
	n := len(m.layers)
	rank := make([]int, n)
	for i := range rank {
		rank[i] = i
	}
	best := m.schedule(rank)
	kept := slices.Clone(m.blocks)
	for i := n - 1; i >= 1; {
		k := m.target(i, kept)
		if k < 0 || rank[i] <= rank[k] {
			i--
			continue
		}
		trial := slices.Clone(rank)
		for x := range trial {
			if trial[x] >= rank[k] && trial[x] < rank[i] {
				trial[x]++
			}
		}
		trial[i] = rank[k]
		if t := m.schedule(trial); t < best {
			best, rank, kept = t, trial, slices.Clone(m.blocks)
			i = min(k, i-1)
		} else {
			i--
		}
	}
	m.blocks = kept
	return best
}

// target is the layer k <= i whose rank layer i may take: with r_k before the end
// of i sent whole from its first block, and that before r_(k-1). Only layers
// with a block in phase 1 move.
func (m *model) target(i int, blocks []block) int {
	at := slices.IndexFunc(blocks, func(b block) bool { return b.layer == i && b.start < m.layers[0].ready })
	if at < 0 {
		return -1
	}
	l := &m.layers[i]
	end := blocks[at].start + m.time(l, l.units) - l.cut
	for k := i; k >= 1; k-- {
		if m.layers[k].ready < end && end <= m.layers[k-1].ready {
			return k
		}
	}
	return 0
}

func (m *model) plan(j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
	p, err := policy.Crossing("us-byte", j, c, o)
	if err != nil {
		return nil, err
	}
	sent := make([]int64, len(m.layers))
	early := 0
	for _, b := range m.blocks {
		if b.start < m.layers[0].ready {
			early++
		}
		l := &m.layers[b.layer]
		n := min(int64(b.units)*m.unit, l.elements-sent[b.layer])
		p.AllReduce(0, plan.Bucket{Slices: []plan.Slice{{Tensor: l.tensor, Offset: sent[b.layer], Length: n}}})
		sent[b.layer] += n
	}
	return p, p.AddCollectivesAmong(j, early)
}
