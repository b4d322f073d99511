// Package random draws jobs and clusters for property tests.
package random

import (
	"fmt"

	"weft/cluster"
	"weft/job"

	"pgregory.net/rapid"
)

// Chain draws a chain of layers on one lane, times and sizes of all magnitudes.
func Chain(t *rapid.T, layers int) *job.Job {
	n := rapid.IntRange(1, layers).Draw(t, "layers")
	fwd, bwd, bytes := make([]float64, n), make([]float64, n), make([]int64, n)
	for i := range n {
		fwd[i], bwd[i] = micros(t, "forward"), micros(t, "backward")
		bytes[i] = 4 * rapid.Int64Range(1, 1<<rapid.IntRange(1, 20).Draw(t, "magnitude")).Draw(t, "elements")
	}
	return job.Chain("chain", fwd, bwd, bytes)
}

// micros draws a time of a whole number of nanoseconds.
func micros(t *rapid.T, label string) float64 {
	return float64(rapid.Int64Range(0, 1<<rapid.IntRange(0, 20).Draw(t, "magnitude")).Draw(t, label)) / 1000
}

// Job draws a job with branches: up to three computing lanes, maybe a host lane
// that launches, parameters read and produced by several ops, several
// micro-batches, maybe a collective of its own and the recorded library's copies.
func Job(t *rapid.T) *job.Job {
	b := &builder{t: t, j: &job.Job{Name: "random", Mode: rapid.SampledFrom([]job.Mode{job.PerTensor, job.Global}).Draw(t, "mode")}}
	j := b.j
	kind, lanes := job.Host, rapid.IntRange(1, 3).Draw(t, "lanes")
	if rapid.Bool().Draw(t, "device") {
		kind = job.Device
		j.Lanes = append(j.Lanes, job.Lane{Name: "host", Kind: job.Host})
	}
	b.first = len(j.Lanes)
	for l := range lanes {
		j.Lanes = append(j.Lanes, job.Lane{Name: fmt.Sprint("lane", l), Kind: kind})
	}
	b.last = len(j.Lanes) - 1
	n := rapid.IntRange(1, 12).Draw(t, "tensors")
	for k := range n {
		j.Tensors = append(j.Tensors, job.Tensor{
			Name: fmt.Sprint("t", k), Elements: rapid.Int64Range(1, 1<<22).Draw(t, "elements"),
			Grad: rapid.SampledFrom([]job.DType{job.Float32, job.Float32, job.Float16}).Draw(t, "dtype"),
		})
	}
	copies := rapid.Bool().Draw(t, "copies")
	for micro := range rapid.IntRange(1, 2).Draw(t, "micro-batches") {
		for k := range n {
			x := b.op(fmt.Sprint("f", k), job.Forward, micro)
			j.Tensors[k].Readers = append(j.Tensors[k].Readers, x)
			if k > 0 && rapid.IntRange(0, 3).Draw(t, "tied") == 0 { // reads another one too
				j.Tensors[k-1].Readers = append(j.Tensors[k-1].Readers, x)
			}
		}
		if micro == 0 && rapid.Bool().Draw(t, "collective") {
			j.Collectives = append(j.Collectives, job.Collective{
				Name: "buffers", Kind: "broadcast", Bytes: 1000, After: []job.OpID{0}, Before: []job.OpID{int32(len(j.Ops) - 1)},
			})
			if len(j.Ops) == 1 {
				j.Collectives = nil
			}
		}
		for k := n - 1; k >= 0; k-- {
			x := b.op(fmt.Sprint("b", k), job.Backward, micro, j.Tensors[k].Readers...)
			j.Tensors[k].Producers = append(j.Tensors[k].Producers, x)
			if copies {
				c := b.op(fmt.Sprint("copy", k), job.Runtime, micro, x)
				j.Ops[c].Role, j.Ops[c].Tensor = job.CopyIn, job.TensorID(k)
			}
		}
	}
	b.record()
	fused := rapid.Bool().Draw(t, "fused")
	var last job.OpID = -1
	for k := range n {
		x := last
		if x < 0 || !fused {
			x = b.op(fmt.Sprint("u", k), job.Update, 0, j.Tensors[k].Producers...)
			last = x
		} else {
			j.Ops[x].Deps = merge(j.Ops[x].Deps, j.Tensors[k].Producers)
		}
		j.Ops[x].Deps = merge(j.Ops[x].Deps, j.Tensors[k].Readers)
		j.Tensors[k].Updaters = append(j.Tensors[k].Updaters, x)
	}
	// Lanes join at the end, or reads of the next iteration could overtake updates.
	for l := b.first; l <= b.last; l++ {
		end := job.Op{Name: fmt.Sprint("end", l), Lane: int32(l), Phase: job.Update, Tensor: -1}
		for k := range n {
			end.Deps = merge(end.Deps, j.Tensors[k].Updaters)
		}
		j.Ops = append(j.Ops, end)
	}
	return j
}

type builder struct {
	t           *rapid.T
	j           *job.Job
	first, last int // lanes that compute
}

// op adds an op that depends on the ops given and, maybe, on earlier ones.
func (b *builder) op(name string, phase job.Phase, micro int, deps ...job.OpID) job.OpID {
	l := int32(rapid.IntRange(b.first, b.last).Draw(b.t, "lane"))
	if b.first > 0 {
		launch := job.Op{Name: "launch " + name, Phase: phase, Micro: int32(micro), Time: micros(b.t, "launch"), Tensor: -1}
		if phase == job.Runtime {
			launch.Role = job.Library
		}
		b.j.Ops = append(b.j.Ops, launch)
		deps = append([]job.OpID{job.OpID(len(b.j.Ops) - 1)}, deps...)
	}
	id := job.OpID(len(b.j.Ops))
	if id > 0 && rapid.Bool().Draw(b.t, "dep") {
		deps = append([]job.OpID{job.OpID(rapid.IntRange(0, int(id)-1).Draw(b.t, "on"))}, deps...)
	}
	b.j.Ops = append(b.j.Ops, job.Op{
		Name: name, Lane: l, Phase: phase, Micro: int32(micro), Time: micros(b.t, "time"), Tensor: -1, Deps: merge(nil, deps),
	})
	return id
}

// record adds the buckets of a recorded run, on a comm lane, which later ops may
// depend on.
func (b *builder) record() {
	j := b.j
	lane := job.LaneID(len(j.Lanes))
	j.Lanes = append(j.Lanes, job.Lane{Name: "transfers", Kind: job.Comm})
	j.Recorded = &job.Recorded{Library: "ddp", Backend: "gloo"}
	var x job.RecordedBucket
	var deps []job.OpID
	for k := len(j.Tensors) - 1; k >= 0; k-- {
		x.Tensors, x.Bytes = append(x.Tensors, job.TensorID(k)), x.Bytes+j.Tensors[k].GradBytes()
		deps = merge(deps, j.Tensors[k].Producers)
		if k == 0 || rapid.Bool().Draw(b.t, "close bucket") {
			x.Op = job.OpID(len(j.Ops))
			j.Ops = append(j.Ops, job.Op{
				Name: "all-reduce", Lane: lane, Phase: job.Runtime, Role: job.GradCollective, Time: micros(b.t, "transfer"), Tensor: -1, Deps: deps,
			})
			j.Recorded.Buckets = append(j.Recorded.Buckets, x)
			x, deps = job.RecordedBucket{}, nil
		}
	}
}

// merge is the union of two lists, ascending.
func merge(a, b []job.OpID) []job.OpID {
	seen := map[job.OpID]bool{}
	var out []job.OpID
	for _, x := range append(append([]job.OpID(nil), a...), b...) {
		at := len(out)
		for at > 0 && out[at-1] > x {
			at--
		}
		if !seen[x] {
			seen[x] = true
			out = append(out[:at], append([]job.OpID{x}, out[at:]...)...)
		}
	}
	return out
}

// Cluster draws a cluster of equal workers with one link, maybe with parameter servers.
func Cluster(t *rapid.T) *cluster.Cluster {
	c := cluster.Uniform(rapid.IntRange(1, 16).Draw(t, "nodes"), rapid.IntRange(1, 4).Draw(t, "workers a node"), cluster.Link{
		Name:      "net",
		Latency:   float64(rapid.IntRange(0, 200).Draw(t, "latency")),
		Bandwidth: float64(rapid.IntRange(1, 400).Draw(t, "Gbit")) * 1e9,
		Algorithm: rapid.SampledFrom([]cluster.Algorithm{cluster.Ring, cluster.HalvingDoubling, cluster.Tree}).Draw(t, "algorithm"),
	})
	if c.PerNode > 1 {
		c.Inside = &cluster.Link{Name: "inside", Latency: 1, Bandwidth: 400e9}
	}
	if rapid.Bool().Draw(t, "servers") {
		c.Servers = &cluster.Servers{
			Count:     rapid.IntRange(1, 20).Draw(t, "servers"),
			Colocated: rapid.Bool().Draw(t, "colocated"),
			MergeRate: float64(rapid.IntRange(0, 20).Draw(t, "merge GB/s")) * 1e9,
		}
	}
	return c
}

// Unequal draws what makes workers differ: scales, jitter, slowdown under overlap.
func Unequal(t *rapid.T, c *cluster.Cluster) {
	c.Overlap = float64(rapid.IntRange(0, 40).Draw(t, "overlap %")) / 100
	c.Jitter = float64(rapid.IntRange(0, 30).Draw(t, "jitter %")) / 100
	c.Seed = rapid.Uint64().Draw(t, "seed")
	for r := range c.World() {
		if rapid.IntRange(0, 3).Draw(t, "differs") == 0 {
			c.Workers = append(c.Workers, cluster.Worker{
				Rank: r, Scale: float64(rapid.IntRange(50, 200).Draw(t, "scale %")) / 100,
				Jitter: float64(rapid.IntRange(0, 30).Draw(t, "own jitter %")) / 100,
			})
		}
	}
}
