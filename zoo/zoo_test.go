package zoo

import (
	"math"
	"strings"
	"testing"
)

// TestPublished compares sizes and forward work with what torchvision publishes of
// its weights, as num_params and GFLOPS, which are 10^9 multiply-adds of one image
// (https://pytorch.org/vision/stable/models.html). Inception-v3's are without the
// auxiliary classifier, which adds 0.1 %.
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
		if got := macs(n) / 1e9; math.Abs(got/want.gmacs-1) > 0.01 {
			t.Errorf("%s: %.3f 10^9 multiply-adds, published %.3f", m.Name, got, want.gmacs)
		}
	}
}

// TestPublishedLanguage compares with what is published of the networks of language. Elements are those
// of the model cards and of sum(p.numel() for p in model.parameters()) in
// Hugging Face's transformers; multiply-adds of one sample follow from the shapes
// by the formula of Narayanan et al. (SC 2021, arXiv 2104.04473, appendix): a
// forward pass takes 24Bslh^2 + 4Bs^2lh + 2BshV FLOPs.
func TestPublishedLanguage(t *testing.T) {
	transformer := func(s, l, h, v float64) float64 { return (24*s*l*h*h + 4*s*s*l*h + 2*s*h*v) / 2 }
	// Llama has three matrices of 4096 x 11008 a layer in place of two of h x 4h.
	const s, l, h = 4096.0, 32, 4096.0
	llama := s*l*(4*h*h+3*h*11008) + 2*s*s*l*h + s*h*32000
	for _, want := range []struct {
		model      string
		prefix     string // of the tensors that are counted
		tensors    int
		parameters int64
		macs       float64
	}{
		{"bert-base", "bert.", 199, 109_482_240, transformer(128, 12, 768, 30522)},
		{"bert-base", "", 206, 110_106_428, transformer(128, 12, 768, 30522)},
		{"bert-large", "bert.", 391, 335_141_888, transformer(128, 24, 1024, 30522)},
		{"bert-large", "", 398, 336_226_108, transformer(128, 24, 1024, 30522)},
		{"gpt2-small", "", 148, 124_439_808, transformer(1024, 12, 768, 50257)},
		{"gpt2-medium", "", 292, 354_823_168, transformer(1024, 24, 1024, 50257)},
		{"gpt2-large", "", 436, 774_030_080, transformer(1024, 36, 1280, 50257)},
		{"llama-2-7b", "", 291, 6_738_415_616, llama},
	} {
		m, err := find(want.model)
		if err != nil {
			t.Fatal(err)
		}
		n := m.network(1, int64(m.Sequence))
		tensors, parameters := 0, int64(0)
		for _, p := range n.params {
			if strings.HasPrefix(p.name, want.prefix) {
				tensors++
				parameters += p.elements
			}
		}
		if tensors != want.tensors || parameters != want.parameters {
			t.Errorf("%s: %d tensors of %d elements, published %d of %d", m.Name, tensors, parameters, want.tensors, want.parameters)
		}
		// BERT's heads, which the formula leaves out, are 1 % of it.
		if got := macs(n); math.Abs(got/want.macs-1) > 0.011 {
			t.Errorf("%s: %.4g multiply-adds, published %.4g", m.Name, got, want.macs)
		}
	}
}

func macs(n *network) (sum float64) {
	for _, l := range n.layers {
		sum += l.forward.macs
	}
	return sum
}

// TestValid builds every model on every device at every precision.
func TestValid(t *testing.T) {
	for _, m := range Models() {
		for _, d := range Devices() {
			for _, r := range d.Rates {
				j, err := Job(m.Name, d.Name, Options{Precision: r.Precision})
				if err != nil {
					t.Fatal(err)
				}
				if len(j.Tensors) != m.Tensors {
					t.Errorf("%s: %d tensors, listed are %d", j.Name, len(j.Tensors), m.Tensors)
				}
				for _, x := range j.Tensors {
					if len(x.Readers) == 0 || len(x.Producers) == 0 || len(x.Updaters) != 1 {
						t.Errorf("%s: tensor %s: readers %v, producers %v, updaters %v", j.Name, x.Name, x.Readers, x.Producers, x.Updaters)
					}
				}
			}
		}
	}
}

// TestErrors: what is out of range is named, with a near spelling.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		model, device string
		o             Options
		want          string
	}{
		{"resnet5O", "a100", Options{}, `unknown model "resnet5O"; did you mean "resnet50"?`},
		{"resnet50", "a1000", Options{}, `unknown device "a1000"; did you mean "a100"?`},
		{"resnet50", "tpu-pod-slice", Options{}, `unknown device "tpu-pod-slice"; known: [v100 a100 h100 k80 cpu-core]`},
		{"resnet50", "v100", Options{Precision: BF16}, "v100 does not compute in bf16; it has [fp32 fp16]"},
		{"resnet50", "v100", Options{Batch: -1}, "batch -1: 1 to 65536 samples"},
		{"resnet50", "v100", Options{Batch: MaxBatch + 1}, "batch 65537: 1 to 65536 samples"},
		{"resnet50", "v100", Options{Sequence: 1}, "resnet50 is trained on images: it has no sequence length"},
		{"gpt2-small", "v100", Options{Sequence: 1025}, "sequence 1025: 1 to 1024 tokens, which are the positions that gpt2-small has"},
		{"gpt2-small", "v100", Options{Sequence: -1}, "sequence -1: 1 to 1024 tokens, which are the positions that gpt2-small has"},
		{"llama-2-7b", "cpu-core", Options{Batch: MaxBatch}, "llama-2-7b, batch 65536 of 4096 tokens, fp32 on cpu-core: job: ops[15].time: the times up to here sum to more than 1e+12 us"},
	} {
		if _, err := Job(c.model, c.device, c.o); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
	for _, p := range precisionNames {
		if got, err := ParsePrecision(p); err != nil || got.String() != p {
			t.Errorf("%s: %v, %v", p, got, err)
		}
	}
}
