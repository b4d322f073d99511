package worker

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"weft/agent/protocol"
)

// Measurement is of one bucket, reduced again and again as an iteration's gradients
// are. See [Worker.Measure].
type Measurement struct {
	Bytes int64           // of the bucket: float32
	Times []time.Duration // of each iteration, on this worker
	Wrong int             // elements that are not the mean
}

// warmUp is how many iterations come before those that are measured: they touch the
// memory.
const warmUp = 2

// Measure reduces a bucket of so many bytes, at least 4, in so many iterations. All
// workers do so at the same time; one iteration follows the other, so that no worker
// is a whole one ahead.
func (w *Worker) Measure(bytes int64, iterations int) (*Measurement, error) {
	n := int(bytes / 4)
	if err := w.Hello(protocol.Hello{
		FirstBucket: bytes, BucketBytes: bytes,
		Tensors: []protocol.Tensor{{Name: "bucket", Elements: int64(n), DType: "float32"}},
	}); err != nil {
		return nil, err
	}
	if len(w.Welcome.Buckets) != 1 {
		return nil, fmt.Errorf("the agent made %d buckets of one tensor", len(w.Welcome.Buckets))
	}
	at := w.Welcome.Buckets[0].Region
	in, out := Region(w.Input, at), Region(w.Output, at)
	for i := range n {
		binary.NativeEndian.PutUint32(in[4*i:], math.Float32bits(sample(i, w.Rank)))
	}
	m := &Measurement{Bytes: bytes, Times: make([]time.Duration, 0, iterations)}
	for i := range warmUp + iterations {
		start := time.Now()
		if err := w.Ready(0, i); err != nil {
			return nil, err
		}
		if _, _, err := w.Done(); err != nil {
			return nil, err
		}
		if i >= warmUp {
			m.Times = append(m.Times, time.Since(start))
		}
	}
	for i := range n {
		got := float64(math.Float32frombits(binary.NativeEndian.Uint32(out[4*i:])))
		// Each contribution was scaled, and that rounded, before they were added.
		if want := float64(sample(i, 0)) + float64(w.World-1)/2; !(math.Abs(got-want) <= 1e-6*float64(w.World)*want) {
			m.Wrong++
		}
	}
	return m, nil
}

// sample is a worker's contribution to an element.
func sample(i, rank int) float32 { return float32(i%251 + rank) }
