package zoo

import (
	"slices"

	"weft/job"
)

// lowering turns a network into a job, as autograd does: the backward pass visits
// the layers in reverse, and where several ops contribute to one gradient it
// adds each up as it comes.
type lowering struct {
	*network
	device Device
	rate   Rate
	size   int64 // bytes of an element
	job    *job.Job

	needs []bool     // by layer: its output has a gradient
	grads []job.OpID // by layer: the op that has the gradient of its output so far; none
}

const none job.OpID = -1

func lower(n *network, d Device, r Rate, o Optimizer) *job.Job {
	kind := r.Precision.dtype()
	b := &lowering{
		network: n, device: d, rate: r, size: kind.Bytes(),
		job:   &job.Job{Lanes: []job.Lane{{Name: d.Name, Kind: job.Device}}},
		needs: make([]bool, len(n.layers)),
		grads: slices.Repeat([]job.OpID{none}, len(n.layers)),
	}
	for _, p := range n.params {
		b.job.Tensors = append(b.job.Tensors, job.Tensor{Name: p.name, Elements: p.elements, Param: kind, Grad: kind})
	}
	for k := range n.layers {
		b.forward(k)
	}
	for k := range slices.Backward(n.layers) {
		if b.needs[k] {
			b.backward(k)
		}
	}
	b.update(o)
	return b.job
}

// op appends an op; deps may hold none, and an op twice. A layer's forward op has
// the layer's position as id.
func (b *lowering) op(name string, phase job.Phase, w work, output int64, deps ...job.OpID) job.OpID {
	deps = slices.Clone(deps)
	slices.Sort(deps)
	deps = slices.Compact(deps)
	if len(deps) > 0 && deps[0] == none {
		deps = deps[1:]
	}
	b.job.Ops = append(b.job.Ops, job.Op{
		Name: name, Phase: phase, Tensor: -1, Deps: deps, Output: output,
		Time: b.device.time(b.rate, w, b.size),
	})
	return job.OpID(len(b.job.Ops) - 1)
}

func (b *lowering) forward(k int) {
	l := &b.layers[k]
	b.needs[k] = len(l.params) > 0
	for _, x := range l.inputs {
		b.needs[k] = b.needs[k] || x.layer != data && b.needs[x.layer]
	}
	id := b.op(l.name, job.Forward, l.forward, b.network.size(l.output)*b.size, inputs(l)...)
	for _, p := range l.params {
		t := &b.job.Tensors[p]
		t.Readers = append(t.Readers, id)
	}
}

// inputs are the forward ops whose results a layer reads.
func inputs(l *layer) []job.OpID {
	out := make([]job.OpID, len(l.inputs))
	for i, x := range l.inputs {
		out[i] = job.OpID(x.layer) // data is none
	}
	return out
}

// backward appends the ops that one node of autograd runs, and hands what they
// have to the layer's inputs.
func (b *lowering) backward(k int) {
	l := &b.layers[k]
	id := b.grads[k]
	if !l.passes {
		needs, forInput := []job.OpID{id}, []job.OpID{id}
		if l.keepsOutput {
			forInput = append(forInput, job.OpID(k))
		}
		if l.keepsInputs {
			needs = append(needs, inputs(l)...)
			if !l.linear {
				forInput = append(forInput, inputs(l)...)
			}
		}
		if l.sums {
			forInput = append(forInput, b.wgrad(l, needs))
		}
		id = b.dgrad(l, forInput)
		if !l.sums && len(l.params) > 0 {
			b.wgrad(l, needs)
		}
	}
	if id != none {
		for _, x := range l.inputs {
			b.contribute(x, id)
		}
	}
}

// dgrad appends the op that has the gradients of the layer's inputs, if any has
// one.
func (b *lowering) dgrad(l *layer, needs []job.OpID) job.OpID {
	var output int64
	for _, x := range l.inputs {
		if x.layer != data && b.needs[x.layer] {
			output += b.network.size(b.layers[x.layer].output) * b.size
		}
	}
	if output == 0 {
		return none
	}
	id := b.op(l.name+".dgrad", job.Backward, l.dgrad, output, needs...)
	if len(l.params) > 0 {
		t := &b.job.Tensors[l.params[0]]
		t.Readers = append(t.Readers, id)
	}
	return id
}

// wgrad appends the op that has the gradients of the layer's parameters. Where a
// tied one has a gradient already, another op adds the two.
func (b *lowering) wgrad(l *layer, needs []job.OpID) job.OpID {
	id := b.op(l.name+".wgrad", job.Backward, l.wgrad, 0, needs...)
	for _, p := range l.params {
		t := &b.job.Tensors[p]
		if t.Producers = append(t.Producers, id); len(t.Producers) > 1 {
			b.job.Ops[id].Output += t.GradBytes() // beside the first, which lies in the gradient buffer
			sum := b.op(t.Name+".sum", job.Backward, work{elements: 3 * t.Elements}, 0, t.Producers...)
			t.Producers = append(t.Producers, sum)
		}
	}
	return id
}

// contribute adds what op id has to the gradient of x.
func (b *lowering) contribute(x value, id job.OpID) {
	if x.layer == data || !b.needs[x.layer] {
		return
	}
	g := &b.grads[x.layer]
	if *g != none {
		l := &b.layers[x.layer]
		e := b.network.size(l.output)
		id = b.op(l.name+".sum", job.Backward, work{elements: 3 * e}, e*b.size, *g, id)
	}
	*g = id
}

// update appends the optimizer's step: an op a tensor, in the order of the
// tensors. An element's parameter (its master, if it has one) and moments are
// read and written as float32; its gradient is read, and the parameter that has
// a master is written: 12 bytes, and 8 for each moment, at any precision.
func (b *lowering) update(o Optimizer) {
	kept := 4 * o.moments()
	if b.size < 4 {
		kept += 4
	}
	unscale := none
	if b.rate.Precision == FP16 {
		b.job.Mode = job.Global
		var producers []job.OpID
		for i := range b.job.Tensors {
			producers = append(producers, b.job.Tensors[i].Producers...)
		}
		unscale = b.op("unscale", job.Update, work{elements: 2 * b.job.Bytes() / b.size}, 0, producers...)
	}
	for i := range b.job.Tensors {
		t := &b.job.Tensors[i]
		b.job.Optimizer += kept * t.Elements
		deps := append(slices.Clip(t.Producers), unscale)
		id := b.op("update "+t.Name, job.Update, work{elements: (12 + 8*o.moments()) * t.Elements / b.size}, 0, deps...)
		t.Updaters = []job.OpID{id}
	}
}
