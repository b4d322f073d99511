package zoo

import "testing"

// TestMeasured sets the throughput that a job implies beside what others have
// measured on one such device, at their batch; docs/zoo.md shows this table, with
// the sources. Efficiencies are round numbers and not fitted to a row, so the
// test wants no more than half to double.
func TestMeasured(t *testing.T) {
	for _, c := range []struct {
		model, device string
		o             Options
		measured      float64 // samples a second
	}{
		// TensorFlow, "Benchmarks", 2017, one GPU of Amazon EC2's K80, synthetic data.
		{"alexnet", "k80", Options{Batch: 512}, 684},
		{"vgg16", "k80", Options{Batch: 32}, 32.4},
		{"resnet50", "k80", Options{Batch: 64}, 56.3},
		{"resnet152", "k80", Options{Batch: 32}, 20.9},
		{"inception-v3", "k80", Options{Batch: 64}, 30.8},
		// Lambda, "RTX 2080 Ti Deep Learning Benchmarks with TensorFlow", 2019, V100 32 GB.
		{"resnet50", "v100", Options{Batch: 64}, 405},
		{"resnet152", "v100", Options{Batch: 32}, 155},
		{"inception-v3", "v100", Options{Batch: 64}, 259},
		// NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5, container 21.03.
		{"resnet50", "v100", Options{Batch: 112}, 356},
		{"resnet50", "v100", Options{Batch: 256, Precision: FP16}, 1156},
		{"resnet50", "a100", Options{Batch: 256}, 938},
		{"resnet50", "a100", Options{Batch: 256, Precision: FP16}, 2470},
		// NVIDIA DeepLearningExamples, PyTorch BERT-large pre-training, container
		// 20.06; the A100 is that of 40 GB.
		{"bert-large", "v100", Options{Batch: 8, Sequence: 128}, 40},
		{"bert-large", "v100", Options{Batch: 16, Sequence: 128, Precision: FP16}, 158},
		{"bert-large", "a100", Options{Batch: 54, Sequence: 128}, 234},
		{"bert-large", "a100", Options{Batch: 64, Sequence: 128, Precision: FP16}, 415},
		// Karpathy, "Let's reproduce GPT-2 (124M)", 2024, A100 80 GB: 16 samples in
		// 1000, 333 and 300 ms; 96 ms compiled and with fused attention.
		{"gpt2-small", "a100", Options{Batch: 16, Precision: FP32}, 16},
		{"gpt2-small", "a100", Options{Batch: 16}, 48},
		{"gpt2-small", "a100", Options{Batch: 16, Precision: BF16}, 167},
	} {
		j, err := Job(c.model, c.device, c.o)
		if err != nil {
			t.Fatal(err)
		}
		var us float64
		for i := range j.Ops {
			us += j.Ops[i].Time
		}
		got := float64(c.o.Batch) / us * 1e6
		t.Logf("| %s | %.1f | %.1f | %+.0f %% |", j.Name, c.measured, got, 100*(got/c.measured-1))
		if got > 2*c.measured || got < c.measured/2 {
			t.Errorf("%s: %.1f samples/s, measured %.1f", j.Name, got, c.measured)
		}
	}
}
