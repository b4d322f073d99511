package kineto

import (
	"path/filepath"
	"testing"
)

// BenchmarkJob derives the job from a trace of 100 times five steps, 1.3 million
// events.
func BenchmarkJob(b *testing.B) {
	tr := repeat(load(b, filepath.Join("..", "..", "testdata", "traces", "resnet18-gloo-torch2.6", "rank0.json.gz")), 100)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tr.Job(JobOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(tr.Events))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mevents/s")
}

func BenchmarkInspect(b *testing.B) {
	tr := repeat(load(b, filepath.Join("..", "..", "testdata", "traces", "resnet18-gloo-torch2.6", "rank0.json.gz")), 100)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tr.Inspect(); err != nil {
			b.Fatal(err)
		}
	}
}

// repeat plays a trace's events n times, one after the other.
func repeat(tr *Trace, n int) *Trace {
	out := *tr
	out.Events = nil
	last := &tr.Events[len(tr.Events)-1]
	length := last.End() - tr.Events[0].Start + 1_000_000_000
	for k := range n {
		for _, e := range tr.Events {
			e.Start += int64(k) * length
			out.Events = append(out.Events, e)
		}
	}
	return &out
}
