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
