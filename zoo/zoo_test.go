package zoo

import (
	"math"
	"testing"
)

// TestPublished compares sizes and forward work with what is published:
// torchvision.models.get_weight(...).meta has num_params and _ops, which are 10^9
// multiply-adds of one image.
func TestPublished(t *testing.T) {
	for _, want := range []struct {
		model      string
		tensors    int
		parameters int64
		gmacs      float64
	}{
		{"alexnet", 16, 61_100_840, 0.714},
		{"vgg16", 32, 138_357_544, 15.47},
		{"vgg19", 38, 143_667_240, 19.632},
		{"resnet50", 161, 25_557_032, 4.089},
		{"resnet101", 314, 44_549_160, 7.801},
		{"resnet152", 467, 60_192_808, 11.514},
		{"inception-v3", 292, 27_161_264, 5.713},
	} {
		m, err := find(want.model)
		if err != nil {
			t.Fatal(err)
		}
		n := m.network(1, int64(m.Sequence))
		var parameters int64
		for _, p := range n.params {
			parameters += p.elements
		}
		if len(n.params) != want.tensors || parameters != want.parameters {
			t.Errorf("%s: %d tensors of %d elements, published %d of %d", m.Name, len(n.params), parameters, want.tensors, want.parameters)
		}
		var macs float64
		for _, l := range n.layers {
			macs += l.forward.macs
		}
		if math.Abs(macs/1e9/want.gmacs-1) > 0.01 {
			t.Errorf("%s: %.3f 10^9 multiply-adds, published %.3f", m.Name, macs/1e9, want.gmacs)
		}
	}
}

// TestValid builds every model on every device at every precision.
func TestValid(t *testing.T) {
	for _, m := range Models() {
		for _, d := range Devices() {
			for _, r := range d.Rates {
				if _, err := Job(m.Name, d.Name, Options{Precision: r.Precision}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
