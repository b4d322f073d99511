package view

import (
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/timeline"
)

func TestTransferLabels(t *testing.T) {
	times := make([]float64, 9)
	j := job.Chain("chain", times, times, []int64{4, 4, 4, 4, 4, 4, 4, 4, 4})
	p := plan.New(j, "test", "net")
	p.AllReduce(0, plan.WholeTensors(j, 8))
	p.Add(0, cluster.ReduceScatter, p.AddBucket(plan.WholeTensors(j, 7, 6, 5, 4, 3)))
	p.Add(0, cluster.Push, p.AddBucket(plan.Bucket{Slices: []plan.Slice{{Tensor: 7, Length: 1}, {Tensor: 7, Offset: 1, Length: 1}, {Tensor: 0, Length: 1}}}))

	tl := &timeline.Timeline{Iterations: []float64{0, 10, 20, 30}}
	span := func(name string, bucket, iteration int32, start float64) *timeline.Span {
		tl.Spans = append(tl.Spans, timeline.Span{Kind: timeline.Transfer, Name: name, Bucket: bucket, Iteration: iteration, Start: start})
		return &timeline.Span{Kind: timeline.Transfer, Name: name, Bucket: bucket, Iteration: iteration, Start: start}
	}
	// Tensors begin buckets 0: t9; 1 and 2: t8. Of nine tensors these two get the
	// colours 1 and 0.
	tests := map[*timeline.Span]timeline.Label{
		span("all-reduce bucket 0", 0, 1, 15):     {Text: "t9", Group: "t9", Color: 1},
		span("all-reduce bucket 0", 0, 1, 25):     {Text: "t9′", Group: "t9", Color: 1},
		span("all-reduce bucket 0", 0, 0, 20):     {Text: "t9′′", Group: "t9", Color: 1},
		span("reduce-scatter bucket 1", 1, 0, 5):  {Text: "RS t8+t7+t6+t5+...", Group: "t8+t7+t6+t5+...", Color: 0},
		span("push bucket 2", 2, 2, 15):           {Text: "↑t8+t1", Group: "t8+t1", Color: 0},
		span("broadcast of the loss", -1, 0, 100): {Text: "broadcast of the loss", Group: "broadcast of the loss"},
	}
	label, note := transferLabels(tl, j, p)
	for s, want := range tests {
		if got := label(s); got != want {
			t.Errorf("%s at %g: %+v, want %+v", s.Name, s.Start, got, want)
		}
	}
	if want := "RS reduce-scatter, ↑ push, t′ of the iteration before"; note != want {
		t.Errorf("note %q, want %q", note, want)
	}
}
