package zoo

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"weft/job"
	"weft/plan"
)

var v100 = devices[0]

// residual is a small network with all that lowering knows but ties:
//
//	data 1x2x2 -> a: conv -> b: batch norm -> c: relu -> d: conv -> s: c + d -> loss
func residual() *network {
	n := &network{batch: 2}
	x := n.conv("a", value{data, shape{1, 2, 2}}, 4, square(1, 1, 0))
	x = n.relu("c", n.batchNorm("b", x))
	x = n.sum("s", n.conv("d", x, 4, square(1, 1, 0)), x)
	n.crossEntropy("loss", x)
	return n
}

// TestLower wants the ops in the order of autograd: an addition passes its
// gradient to both sides without an op; what c gets from d is added to what it got
// from s once d's node is done; batch norm sums before it hands on; the data gets
// no gradient.
func TestLower(t *testing.T) {
	j := lower(residual(), v100, v100.Rates[0], Momentum)
	if err := j.Validate(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range j.Ops {
		var deps []string
		for _, d := range o.Deps {
			deps = append(deps, j.Ops[d].Name)
		}
		got = append(got, fmt.Sprintf("%s %s: %s", o.Phase, o.Name, strings.Join(deps, " ")))
	}
	want := []string{
		"forward a: ", "forward b: a", "forward c: b", "forward d: c", "forward s: c d", "forward loss: s",
		"backward loss.dgrad: loss",
		"backward d.dgrad: loss.dgrad", "backward d.wgrad: c loss.dgrad",
		"backward c.sum: loss.dgrad d.dgrad", "backward c.dgrad: c c.sum",
		"backward b.wgrad: a c.dgrad", "backward b.dgrad: a c.dgrad b.wgrad",
		"backward a.wgrad: b.dgrad",
		"update update a.weight: a.wgrad", "update update b.weight: b.wgrad", "update update b.bias: b.wgrad", "update update d.weight: d.wgrad",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i, readers := range [][]job.OpID{{0}, {1, 12}, {1}, {3, 7}} {
		if got := j.Tensors[i].Readers; !slices.Equal(got, readers) {
			t.Errorf("%s: readers %v, want %v", j.Tensors[i].Name, got, readers)
		}
	}
	// All values are 2 x 4 x 2 x 2 floats, 128 bytes. While c.sum runs there are a
	// and c, kept by the forward pass, and three gradients: of s, of c from d, and
	// their sum. Parameters are 4 + 4 + 4 + 16 floats.
	m := plan.MemoryOf(plan.New(j, ""), j)
	if want := (plan.Memory{Weights: 112, Optimizer: 112, Activations: 5 * 128, Gradients: 112}); m != want {
		t.Errorf("memory %+v, want %+v", m, want)
	}
}

// TestTimes works two ops out by hand, on a V100 in fp32: 0.75 x 15.7 TFLOP/s,
// 900 GB/s.
func TestTimes(t *testing.T) {
	n := &network{batch: 64}
	x := n.linear("wide", value{data, shape{4096, 1, 1}}, 4096)
	n.crossEntropy("loss", n.relu("relu", x))
	j := lower(n, v100, v100.Rates[0], AdamW)
	for _, want := range []struct {
		op string
		us float64
	}{
		// 64 x 4096 x 4096 multiply-adds; its 69.2 MB take 76.9 us.
		{"wide", 2 * 64 * 4096 * 4096 / (0.75 * 15.7)},
		// Reads the gradient and the output, writes a gradient: 3 x 64 x 4096 floats.
		{"relu.dgrad", 3 * 64 * 4096 * 4 / 900e3 * 1e6},
		// Reads parameter, gradient and two moments, writes all but the gradient.
		{"update wide.weight", 7 * 4096 * 4096 * 4 / 900e3 * 1e6},
	} {
		i := slices.IndexFunc(j.Ops, func(o job.Op) bool { return o.Name == want.op })
		if got := j.Ops[i].Time; math.Abs(got/(want.us/1e6)-1) > 1e-9 {
			t.Errorf("%s takes %v us, want %v", want.op, got, want.us/1e6)
		}
	}
}

// TestTied: the token table of GPT-2 is read at both ends, and its gradient is
// that of the head, plus that of the embedding.
func TestTied(t *testing.T) {
	j, err := Job("gpt2-small", "a100", Options{})
	if err != nil {
		t.Fatal(err)
	}
	names := func(ids []job.OpID) string {
		var out []string
		for _, o := range ids {
			out = append(out, j.Ops[o].Name)
		}
		return strings.Join(out, ", ")
	}
	x := &j.Tensors[0]
	if got, want := names(x.Readers), "transformer.wte, lm_head, lm_head.dgrad"; got != want {
		t.Errorf("readers %s, want %s", got, want)
	}
	if got, want := names(x.Producers), "lm_head.wgrad, transformer.wte.wgrad, transformer.wte.weight.sum"; got != want {
		t.Errorf("producers %s, want %s", got, want)
	}
}

// TestBranches: ops of parallel branches do not depend on each other.
func TestBranches(t *testing.T) {
	for _, c := range []struct {
		model    string
		branches []string // their last ops
		join     string
	}{
		{"inception-v3", []string{"Mixed_5b.branch1x1.relu", "Mixed_5b.branch5x5_2.relu", "Mixed_5b.branch3x3dbl_3.relu", "Mixed_5b.branch_pool.relu"}, "Mixed_5b.cat"},
		{"inception-v3", []string{"AuxLogits.loss", "loss"}, ""},
		{"resnet50", []string{"layer1.0.bn3", "layer1.0.downsample.1"}, "layer1.0.add"},
		{"bert-base", []string{"bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.0.attention.self.key", "bert.encoder.layer.0.attention.self.value"}, "bert.encoder.layer.0.attention.self"},
		{"llama-2-7b", []string{"model.layers.0.self_attn.q_rotary", "model.layers.0.self_attn.k_rotary", "model.layers.0.self_attn.v_proj"}, "model.layers.0.self_attn"},
		{"gpt2-small", []string{"transformer.h.0.attn.c_attn.dgrad", "transformer.h.0.attn.c_attn.wgrad"}, ""},
	} {
		j, err := Job(c.model, "a100", Options{})
		if err != nil {
			t.Fatal(err)
		}
		at := map[string]int{}
		for i, o := range j.Ops {
			at[o.Name] = i
		}
		for _, a := range c.branches {
			behind := make([]bool, len(j.Ops)) // depends on a
			for i, o := range j.Ops {
				behind[i] = i == at[a] || slices.ContainsFunc(o.Deps, func(d job.OpID) bool { return behind[d] })
			}
			for _, b := range c.branches {
				if i, ok := at[b]; !ok || a != b && behind[i] {
					t.Errorf("%s: %s depends on %s, or is not there", c.model, b, a)
				}
			}
			if c.join != "" && !slices.Contains(j.Ops[at[c.join]].Deps, job.OpID(at[a])) {
				t.Errorf("%s: %s does not read %s", c.model, c.join, a)
			}
		}
	}
}

// TestHalf: in two bytes the optimizer keeps a master of each parameter, and with
// fp16 the loss scaler looks at all gradients before the first update.
func TestHalf(t *testing.T) {
	const parameters = 124_439_808
	for _, c := range []struct {
		p         Precision
		optimizer int64
		gradient  job.DType
		mode      job.Mode
		first     string
	}{
		{FP32, 8 * parameters, job.Float32, job.PerTensor, "update transformer.wte.weight"},
		{TF32, 8 * parameters, job.Float32, job.PerTensor, "update transformer.wte.weight"},
		{BF16, 12 * parameters, job.BFloat16, job.PerTensor, "update transformer.wte.weight"},
		{FP16, 12 * parameters, job.Float16, job.Global, "unscale"},
	} {
		j, err := Job("gpt2-small", "a100", Options{Precision: c.p})
		if err != nil {
			t.Fatal(err)
		}
		first := slices.IndexFunc(j.Ops, func(o job.Op) bool { return o.Phase == job.Update })
		if j.Optimizer != c.optimizer || j.Tensors[0].Grad != c.gradient || j.Mode != c.mode || j.Ops[first].Name != c.first {
			t.Errorf("%v: optimizer %d, gradients %v, mode %v, first update %q", c.p, j.Optimizer, j.Tensors[0].Grad, j.Mode, j.Ops[first].Name)
		}
	}
}
