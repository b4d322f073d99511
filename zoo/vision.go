package zoo

import "fmt"

// The networks of torchvision.models, in training mode.

// image is the data of one sample: three colours.
func image(side int64) value { return value{data, shape{3, side, side}} }

func alexnet(n *network, _ int64) {
	x := image(224)
	conv := func(i int, features int64, k kernel) {
		x = n.convBias(fmt.Sprint("features.", i), x, features, k)
		x = n.relu(fmt.Sprint("features.", i+1), x)
	}
	pool := func(i int) { x = n.pool(fmt.Sprint("features.", i), x, square(3, 2, 0)) }
	conv(0, 64, square(11, 4, 2))
	pool(2)
	conv(3, 192, square(5, 1, 2))
	pool(5)
	conv(6, 384, square(3, 1, 1))
	conv(8, 256, square(3, 1, 1))
	conv(10, 256, square(3, 1, 1))
	pool(12)
	x = flatten(n.averagePool("avgpool", x, 6, 6))
	x = n.dropout("classifier.0", x)
	x = n.relu("classifier.2", n.linear("classifier.1", x, 4096))
	x = n.dropout("classifier.3", x)
	x = n.relu("classifier.5", n.linear("classifier.4", x, 4096))
	n.crossEntropy("loss", n.linear("classifier.6", x, 1000))
}

// vgg has five stages of 3x3 convolutions, each stage ending with a pooling.
func vgg(stages ...int) func(*network, int64) {
	return func(n *network, _ int64) {
		x, i := image(224), 0
		name := func() string {
			i++
			return fmt.Sprint("features.", i-1)
		}
		for stage, convs := range stages {
			for range convs {
				x = n.convBias(name(), x, min(int64(64)<<stage, 512), square(3, 1, 1))
				x = n.relu(name(), x)
			}
			x = n.pool(name(), x, square(2, 2, 0))
		}
		x = flatten(n.averagePool("avgpool", x, 7, 7))
		x = n.relu("classifier.1", n.linear("classifier.0", x, 4096))
		x = n.dropout("classifier.2", x)
		x = n.relu("classifier.4", n.linear("classifier.3", x, 4096))
		x = n.dropout("classifier.5", x)
		n.crossEntropy("loss", n.linear("classifier.6", x, 1000))
	}
}

// resnet has four stages of bottlenecks; the first of each stage but the first
// halves the sides, in its 3x3 convolution (version 1.5).
func resnet(stages ...int) func(*network, int64) {
	return func(n *network, _ int64) {
		x := n.conv("conv1", image(224), 64, square(7, 2, 3))
		x = n.relu("relu", n.batchNorm("bn1", x))
		x = n.pool("maxpool", x, square(3, 2, 1))
		for stage, blocks := range stages {
			for block := range blocks {
				stride := int64(1)
				if stage > 0 && block == 0 {
					stride = 2
				}
				x = n.bottleneck(fmt.Sprintf("layer%d.%d", stage+1, block), x, int64(64)<<stage, stride)
			}
		}
		x = flatten(n.averagePool("avgpool", x, 1, 1))
		n.crossEntropy("loss", n.linear("fc", x, 1000))
	}
}

// step is a convolution with batch normalisation and ReLU.
type step struct {
	name     string
	features int64
	kernel
}

// chain runs steps one after another.
func (n *network) chain(name string, x value, steps ...step) value {
	for _, s := range steps {
		x = n.conv(name+s.name+".conv", x, s.features, s.kernel)
		x = n.relu(name+s.name+".relu", n.batchNorm(name+s.name+".bn", x))
	}
	return x
}

// The kernels of Inception-v3. Those that keep sides have padding.
var (
	one          = square(1, 1, 0)
	three        = square(3, 1, 1)
	five         = square(5, 1, 2)
	halve        = square(3, 2, 0)
	wide3, tall3 = kernel{1, 3, 1, 0, 1}, kernel{3, 1, 1, 1, 0}
	wide7, tall7 = kernel{1, 7, 1, 0, 3}, kernel{7, 1, 1, 3, 0}
)

// inception is Inception-v3 with its auxiliary classifier, as torchvision
// trains it.
func inception(n *network, _ int64) {
	x := n.chain("", image(299),
		step{"Conv2d_1a_3x3", 32, halve}, step{"Conv2d_2a_3x3", 32, square(3, 1, 0)}, step{"Conv2d_2b_3x3", 64, three})
	x = n.pool("maxpool1", x, halve)
	x = n.chain("", x, step{"Conv2d_3b_1x1", 80, one}, step{"Conv2d_4a_3x3", 192, square(3, 1, 0)})
	x = n.pool("maxpool2", x, halve)
	x = n.mixed35("Mixed_5b.", x, 32)
	x = n.mixed35("Mixed_5c.", x, 64)
	x = n.mixed35("Mixed_5d.", x, 64)
	x = n.reduce35("Mixed_6a.", x)
	x = n.mixed17("Mixed_6b.", x, 128)
	x = n.mixed17("Mixed_6c.", x, 160)
	x = n.mixed17("Mixed_6d.", x, 160)
	x = n.mixed17("Mixed_6e.", x, 192)

	aux := n.pool("AuxLogits.pool", x, square(5, 3, 0))
	aux = n.chain("AuxLogits.", aux, step{"conv0", 128, one}, step{"conv1", 768, square(5, 1, 0)})
	aux = n.linear("AuxLogits.fc", flatten(n.averagePool("AuxLogits.avgpool", aux, 1, 1)), 1000)

	x = n.reduce17("Mixed_7a.", x)
	x = n.mixed8("Mixed_7b.", x)
	x = n.mixed8("Mixed_7c.", x)
	x = n.dropout("dropout", n.averagePool("avgpool", x, 1, 1))
	x = n.linear("fc", flatten(x), 1000)
	n.crossEntropy("loss", x)
	n.crossEntropy("AuxLogits.loss", aux)
}

func (n *network) mixed35(name string, x value, pooled int64) value {
	a := n.chain(name, x, step{"branch1x1", 64, one})
	b := n.chain(name, x, step{"branch5x5_1", 48, one}, step{"branch5x5_2", 64, five})
	c := n.chain(name, x, step{"branch3x3dbl_1", 64, one}, step{"branch3x3dbl_2", 96, three}, step{"branch3x3dbl_3", 96, three})
	d := n.chain(name, n.pool(name+"pool", x, three), step{"branch_pool", pooled, one})
	return n.concat(name+"cat", a, b, c, d)
}

func (n *network) reduce35(name string, x value) value {
	a := n.chain(name, x, step{"branch3x3", 384, halve})
	b := n.chain(name, x, step{"branch3x3dbl_1", 64, one}, step{"branch3x3dbl_2", 96, three}, step{"branch3x3dbl_3", 96, halve})
	return n.concat(name+"cat", a, b, n.pool(name+"pool", x, halve))
}

func (n *network) mixed17(name string, x value, f int64) value {
	a := n.chain(name, x, step{"branch1x1", 192, one})
	b := n.chain(name, x, step{"branch7x7_1", f, one}, step{"branch7x7_2", f, wide7}, step{"branch7x7_3", 192, tall7})
	c := n.chain(name, x, step{"branch7x7dbl_1", f, one}, step{"branch7x7dbl_2", f, tall7}, step{"branch7x7dbl_3", f, wide7},
		step{"branch7x7dbl_4", f, tall7}, step{"branch7x7dbl_5", 192, wide7})
	d := n.chain(name, n.pool(name+"pool", x, three), step{"branch_pool", 192, one})
	return n.concat(name+"cat", a, b, c, d)
}

func (n *network) reduce17(name string, x value) value {
	a := n.chain(name, x, step{"branch3x3_1", 192, one}, step{"branch3x3_2", 320, halve})
	b := n.chain(name, x, step{"branch7x7x3_1", 192, one}, step{"branch7x7x3_2", 192, wide7},
		step{"branch7x7x3_3", 192, tall7}, step{"branch7x7x3_4", 192, halve})
	return n.concat(name+"cat", a, b, n.pool(name+"pool", x, halve))
}

func (n *network) mixed8(name string, x value) value {
	a := n.chain(name, x, step{"branch1x1", 320, one})
	b := n.chain(name, x, step{"branch3x3_1", 384, one})
	b = n.concat(name+"branch3x3.cat", n.chain(name, b, step{"branch3x3_2a", 384, wide3}), n.chain(name, b, step{"branch3x3_2b", 384, tall3}))
	c := n.chain(name, x, step{"branch3x3dbl_1", 448, one}, step{"branch3x3dbl_2", 384, three})
	c = n.concat(name+"branch3x3dbl.cat", n.chain(name, c, step{"branch3x3dbl_3a", 384, wide3}), n.chain(name, c, step{"branch3x3dbl_3b", 384, tall3}))
	d := n.chain(name, n.pool(name+"pool", x, three), step{"branch_pool", 192, one})
	return n.concat(name+"cat", a, b, c, d)
}

func (n *network) bottleneck(name string, x value, width, stride int64) value {
	step := func(i int, x value, features int64, k kernel) value {
		x = n.conv(fmt.Sprint(name, ".conv", i), x, features, k)
		return n.batchNorm(fmt.Sprint(name, ".bn", i), x)
	}
	y := n.relu(name+".relu1", step(1, x, width, square(1, 1, 0)))
	y = n.relu(name+".relu2", step(2, y, width, square(3, stride, 1)))
	y = step(3, y, 4*width, square(1, 1, 0))
	if x.shape != y.shape {
		x = n.conv(name+".downsample.0", x, 4*width, square(1, stride, 0))
		x = n.batchNorm(name+".downsample.1", x)
	}
	return n.relu(name+".relu3", n.sum(name+".add", y, x))
}
