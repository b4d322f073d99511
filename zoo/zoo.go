// Package zoo computes the jobs of well-known networks from their layers: shapes
// give floating-point operations and bytes, a device's data sheet gives times.
// Nothing is recorded and nothing is typed in but the definitions themselves;
// docs/zoo.md has the formulas, and what they leave out.
package zoo

import (
	"fmt"
	"slices"

	"weft/internal/fault"
	"weft/internal/near"
	"weft/job"
)

// Model is a network that the zoo can build.
type Model struct {
	Name  string // as flags spell it
	Title string // as its paper calls it
	// Batch is the default number of samples of a worker, Sequence that of tokens
	// of a sample, at most Positions; both are 0 for images.
	Batch, Sequence, Positions int
	Optimizer                  Optimizer
	Tensors                    int   // parameters, tied ones once
	Parameters                 int64 // their elements

	define func(n *network, sequence int64)
}

// Optimizer is the rule by which parameters are updated.
type Optimizer uint8

const (
	Momentum Optimizer = iota // stochastic gradient descent with momentum
	AdamW
)

var optimizerNames = []string{"SGD with momentum", "AdamW"}

func (o Optimizer) String() string { return optimizerNames[o] }

// moments is how many float32 values the optimizer keeps for an element.
func (o Optimizer) moments() int64 { return 1 + int64(o) }

// Options are what a job may vary.
type Options struct {
	Batch     int       // samples of a worker; 0: the model's default
	Sequence  int       // tokens of a sample; 0: the model's default, or images
	Precision Precision // zero: the device's default
}

// MaxBatch bounds Options.Batch.
const MaxBatch = 1 << 16

// models in the order of their tables.
var models = []Model{
	{Name: "alexnet", Title: "AlexNet", Batch: 128, define: alexnet},
	{Name: "vgg16", Title: "VGG-16", Batch: 32, define: vgg(2, 2, 3, 3, 3)},
	{Name: "vgg19", Title: "VGG-19", Batch: 32, define: vgg(2, 2, 4, 4, 4)},
	{Name: "resnet50", Title: "ResNet-50", Batch: 64, define: resnet(3, 4, 6, 3)},
	{Name: "resnet101", Title: "ResNet-101", Batch: 64, define: resnet(3, 4, 23, 3)},
	{Name: "resnet152", Title: "ResNet-152", Batch: 32, define: resnet(3, 8, 36, 3)},
	{Name: "inception-v3", Title: "Inception-v3", Batch: 64, define: inception},
	{Name: "bert-base", Title: "BERT base", Batch: 32, Sequence: 128, Positions: 512, Optimizer: AdamW, define: bert(12, 768)},
	{Name: "bert-large", Title: "BERT large", Batch: 16, Sequence: 128, Positions: 512, Optimizer: AdamW, define: bert(24, 1024)},
	{Name: "gpt2-small", Title: "GPT-2", Batch: 8, Sequence: 1024, Positions: 1024, Optimizer: AdamW, define: gpt2(12, 768)},
	{Name: "gpt2-medium", Title: "GPT-2 medium", Batch: 4, Sequence: 1024, Positions: 1024, Optimizer: AdamW, define: gpt2(24, 1024)},
	{Name: "gpt2-large", Title: "GPT-2 large", Batch: 2, Sequence: 1024, Positions: 1024, Optimizer: AdamW, define: gpt2(36, 1280)},
	{Name: "llama-2-7b", Title: "Llama 2 7B", Batch: 1, Sequence: 4096, Positions: 4096, Optimizer: AdamW, define: llama},
}

// Models lists all models, with their sizes.
func Models() []Model {
	out := slices.Clone(models)
	for i := range out {
		m := &out[i]
		n := m.network(1, int64(m.Sequence))
		m.Tensors = len(n.params)
		for _, p := range n.params {
			m.Parameters += p.elements
		}
	}
	return out
}

// network is the model's network for a batch.
func (m *Model) network(batch, sequence int64) *network {
	n := &network{batch: batch}
	m.define(n, sequence)
	return n
}

// Known reports whether a model has this name.
func Known(model string) bool {
	return slices.ContainsFunc(models, func(m Model) bool { return m.Name == model })
}

// Names lists the names of all models.
func Names() []string {
	out := make([]string, len(models))
	for i := range models {
		out[i] = models[i].Name
	}
	return out
}

func find(model string) (*Model, error) {
	for i := range models {
		if models[i].Name == model {
			return &models[i], nil
		}
	}
	return nil, fmt.Errorf("unknown model %q%s", fault.Short(model), near.Hint(model, Names()))
}

// Job is one iteration of training the model on one worker that is the device: a
// single device lane, on which forward, backward and update run in PyTorch's
// order, with all dependencies that the network has. The errors name an unknown
// model or device, or the option that is out of range.
func Job(model, device string, o Options) (*job.Job, error) {
	m, err := find(model)
	if err != nil {
		return nil, err
	}
	d, err := FindDevice(device)
	if err != nil {
		return nil, err
	}
	r, err := d.rate(o.Precision)
	if err != nil {
		return nil, err
	}
	batch, sequence := o.Batch, o.Sequence
	if batch == 0 {
		batch = m.Batch
	}
	switch {
	case batch < 1 || batch > MaxBatch:
		return nil, fmt.Errorf("batch %d: 1 to %d samples", batch, MaxBatch)
	case sequence != 0 && m.Positions == 0:
		return nil, fmt.Errorf("%s is trained on images: it has no sequence length", m.Name)
	case sequence < 0 || sequence > m.Positions:
		return nil, fmt.Errorf("sequence %d: 1 to %d tokens, which are the positions that %s has", sequence, m.Positions, m.Name)
	case sequence == 0:
		sequence = m.Sequence
	}
	j := lower(m.network(int64(batch), int64(sequence)), d, r, m.Optimizer)
	samples := fmt.Sprintf("batch %d", batch)
	if sequence > 0 {
		samples += fmt.Sprintf(" of %d tokens", sequence)
	}
	j.Name = fmt.Sprintf("%s, %s, %s on %s", m.Name, samples, r.Precision, d.Name)
	j.Notes = []string{
		fmt.Sprintf("computed from layer shapes: an op takes max(FLOPs / (%.0f %% of %g TFLOP/s), bytes / %g GB/s) on %s; launch gaps are not modelled, and there is no host lane", r.Efficiency*100, r.Peak/1e12, d.Bandwidth/1e9, d.Title),
	}
	if err := j.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", j.Name, err)
	}
	return j, nil
}
