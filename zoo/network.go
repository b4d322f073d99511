package zoo

import "weft/job"

// network is a model as its definition builds it: parameters in the order in
// which the usual implementation registers them, layers in the order in which
// its forward pass runs them.
type network struct {
	batch  int64
	params []param
	layers []layer
}

type param struct {
	name     string
	elements int64
}

// value is the output of a layer.
type value struct {
	layer int // position in network.layers; data: a batch of samples
	shape
}

const data = -1

// shape is that of one sample: features at each of height x width positions.
// Tokens of a sequence are positions, one wide.
type shape struct{ features, height, width int64 }

func (s shape) positions() int64 { return s.height * s.width }
func (s shape) elements() int64  { return s.features * s.positions() }

// work is what one op does for the whole batch.
type work struct {
	macs     float64 // multiply-adds of convolutions and matrix products
	elements int64   // read from memory and written to it
}

// layer is one op of the forward pass with what the backward pass does for it.
type layer struct {
	name    string
	inputs  []value
	params  []job.TensorID // the backward pass reads the first again, if any
	output  shape
	forward work

	// passes: the gradient of the output is, whole or in part, that of each
	// input, and takes no op. Otherwise one op, dgrad, has the gradients of all
	// inputs, and if there are parameters another, wgrad, has theirs.
	passes       bool
	dgrad, wgrad work
	// What the backward pass needs of the forward pass. Of a linear layer the
	// inputs are for wgrad alone.
	keepsInputs, keepsOutput, linear bool
	// sums: dgrad needs what wgrad has summed (batch normalisation).
	sums bool
}

// param registers a parameter.
func (n *network) param(name string, elements int64) job.TensorID {
	n.params = append(n.params, param{name, elements})
	return job.TensorID(len(n.params) - 1)
}

func (n *network) add(l layer) value {
	n.layers = append(n.layers, l)
	return value{len(n.layers) - 1, l.output}
}

// size is the elements of a value for the whole batch.
func (n *network) size(s shape) int64 { return n.batch * s.elements() }

// product is a layer y = f(x, w) that is a matrix product of x and w at each
// position of y, or a convolution: each output takes depth multiply-adds.
func (n *network) product(name string, x value, output shape, depth int64, params ...job.TensorID) value {
	var weights int64
	for _, p := range params {
		weights += n.params[p].elements
	}
	in, out := n.size(x.shape), n.size(output)
	w := work{float64(out) * float64(depth), in + weights + out}
	return n.add(layer{
		name: name, inputs: []value{x}, params: params, output: output,
		forward: w, dgrad: w, wgrad: w, keepsInputs: true, linear: true,
	})
}

// kernel is the window of a convolution or a pooling.
type kernel struct{ height, width, stride, padHeight, padWidth int64 }

// square is a kernel of equal sides.
func square(side, stride, pad int64) kernel { return kernel{side, side, stride, pad, pad} }

// over is the output of a kernel that slides over x.
func (k kernel) over(x shape, features int64) shape {
	return shape{features, (x.height+2*k.padHeight-k.height)/k.stride + 1, (x.width+2*k.padWidth-k.width)/k.stride + 1}
}

// conv is a convolution without bias.
func (n *network) conv(name string, x value, features int64, k kernel) value {
	depth := x.features * k.height * k.width
	return n.product(name, x, k.over(x.shape, features), depth, n.param(name+".weight", features*depth))
}

// convBias is a convolution with bias.
func (n *network) convBias(name string, x value, features int64, k kernel) value {
	depth := x.features * k.height * k.width
	return n.product(name, x, k.over(x.shape, features), depth, n.param(name+".weight", features*depth), n.param(name+".bias", features))
}

// linear is a fully connected layer with bias, at each position.
func (n *network) linear(name string, x value, features int64) value {
	return n.project(name, x, features, n.param(name+".weight", features*x.features), n.param(name+".bias", features))
}

// project is a fully connected layer of parameters that are registered already.
func (n *network) project(name string, x value, features int64, params ...job.TensorID) value {
	return n.product(name, x, shape{features, x.height, x.width}, x.features, params...)
}

// flatten makes features of all positions. It takes no op.
func flatten(x value) value { return value{x.layer, shape{x.elements(), 1, 1}} }

// elementwise is a layer that makes of each element another; the backward pass
// reads the gradient and what is kept, and writes the gradient.
func (n *network) elementwise(name string, x value, keepsInput, keepsOutput bool) value {
	e := n.size(x.shape)
	dgrad := 2 * e
	if keepsInput || keepsOutput {
		dgrad += e
	}
	return n.add(layer{
		name: name, inputs: []value{x}, output: x.shape,
		forward: work{elements: 2 * e}, dgrad: work{elements: dgrad},
		keepsInputs: keepsInput, keepsOutput: keepsOutput,
	})
}

func (n *network) relu(name string, x value) value    { return n.elementwise(name, x, false, true) }
func (n *network) tanh(name string, x value) value    { return n.elementwise(name, x, false, true) }
func (n *network) gelu(name string, x value) value    { return n.elementwise(name, x, true, false) }
func (n *network) silu(name string, x value) value    { return n.elementwise(name, x, true, false) }
func (n *network) rotary(name string, x value) value  { return n.elementwise(name, x, false, false) }
func (n *network) dropout(name string, x value) value { return n.elementwise(name, x, false, false) } // its mask is not counted

// multiply is the product of two values, element by element.
func (n *network) multiply(name string, x, y value) value {
	e := n.size(x.shape)
	return n.add(layer{
		name: name, inputs: []value{x, y}, output: x.shape,
		forward: work{elements: 3 * e}, dgrad: work{elements: 5 * e}, keepsInputs: true,
	})
}

// batchNorm reads its input twice: for the statistics, and to apply them. Its
// backward pass sums before it can tell the gradient of the input.
func (n *network) batchNorm(name string, x value) value {
	e := n.size(x.shape)
	return n.add(layer{
		name: name, inputs: []value{x}, output: x.shape,
		params:  []job.TensorID{n.param(name+".weight", x.features), n.param(name+".bias", x.features)},
		forward: work{elements: 3 * e}, wgrad: work{elements: 2 * e}, dgrad: work{elements: 3 * e},
		keepsInputs: true, sums: true,
	})
}

// pool slides a kernel over each feature.
func (n *network) pool(name string, x value, k kernel) value {
	return n.reduce(name, x, k.over(x.shape, x.features))
}

// averagePool leaves height x width positions, whatever their number was.
func (n *network) averagePool(name string, x value, height, width int64) value {
	return n.reduce(name, x, shape{x.features, height, width})
}

func (n *network) reduce(name string, x value, output shape) value {
	w := work{elements: n.size(x.shape) + n.size(output)}
	return n.add(layer{name: name, inputs: []value{x}, output: output, forward: w, dgrad: w, keepsInputs: true})
}

// sum adds values of one shape.
func (n *network) sum(name string, x ...value) value {
	return n.add(layer{
		name: name, inputs: x, output: x[0].shape, passes: true,
		forward: work{elements: int64(len(x)+1) * n.size(x[0].shape)},
	})
}

// concat joins the features of values.
func (n *network) concat(name string, x ...value) value {
	out := x[0].shape
	out.features = 0
	for _, v := range x {
		out.features += v.features
	}
	return n.add(layer{name: name, inputs: x, output: out, passes: true, forward: work{elements: 2 * n.size(out)}})
}

// norm normalises each position over its features (layer normalisation, or with
// one parameter that of the root mean square).
func (n *network) norm(name string, x value, params ...job.TensorID) value {
	e := n.size(x.shape)
	return n.add(layer{
		name: name, inputs: []value{x}, params: params, output: x.shape,
		forward: work{elements: 2 * e}, wgrad: work{elements: 2 * e}, dgrad: work{elements: 3 * e},
		keepsInputs: true,
	})
}

func (n *network) layerNorm(name string, x value) value {
	return n.norm(name, x, n.param(name+".weight", x.features), n.param(name+".bias", x.features))
}

// embedding looks each token of a sequence up in a table, whose gradient is
// dense: cleared, then added to.
func (n *network) embedding(name string, sequence, features int64, table job.TensorID) value {
	out := shape{features, sequence, 1}
	e := n.size(out)
	return n.add(layer{
		name: name, params: []job.TensorID{table}, output: out,
		forward: work{elements: 2 * e}, wgrad: work{elements: 2*e + n.params[table].elements},
	})
}

// attention is softmax(QK')V as one fused op, which keeps no scores: its backward
// pass computes them again, five products where the forward pass has two. x are
// queries, keys and values, or one value that has all three. Masked scores count.
func (n *network) attention(name string, features int64, x ...value) value {
	out := shape{features, x[0].height, x[0].width}
	e, product := n.size(out), float64(n.size(out))*float64(out.positions())
	return n.add(layer{
		name: name, inputs: x, output: out,
		forward: work{2 * product, 4 * e}, dgrad: work{5 * product, 8 * e},
		keepsInputs: true, keepsOutput: true,
	})
}

// crossEntropy is the loss of a choice among the features, at each position. The
// backward pass starts here.
func (n *network) crossEntropy(name string, x value) {
	e := n.size(x.shape)
	n.add(layer{
		name: name, inputs: []value{x}, output: x.shape,
		forward: work{elements: 2 * e}, dgrad: work{elements: 2 * e}, keepsOutput: true,
	})
}
