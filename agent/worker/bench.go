package worker

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"weft/agent/protocol"
)

// Bench is one bucket of float32, to be reduced again and again as the gradients of
// iterations are. All workers use it at the same time, and alike.
type Bench struct {
	worker    *Worker
	in, out   []byte
	iteration int
}

// NewBench makes a bucket of so many bytes, at least 4.
func (w *Worker) NewBench(bytes int64) (*Bench, error) {
	if err := w.Hello(protocol.Hello{
		FirstBucket: bytes, BucketBytes: bytes,
		Tensors: []protocol.Tensor{{Name: "bucket", Elements: bytes / 4, DType: "float32"}},
	}); err != nil {
		return nil, err
	}
	if len(w.Welcome.Buckets) != 1 {
		return nil, fmt.Errorf("the agent made %d buckets of one tensor", len(w.Welcome.Buckets))
	}
	at := w.Welcome.Buckets[0].Region
	b := &Bench{worker: w, in: Region(w.Input, at), out: Region(w.Output, at)}
	for i := range len(b.in) / 4 {
		binary.NativeEndian.PutUint32(b.in[4*i:], math.Float32bits(sample(i, w.Rank)))
	}
	return b, nil
}

// sample is a worker's contribution to an element.
func sample(i, rank int) float32 { return float32(i%251 + rank) }

// Run returns how long each of n iterations took on this worker. One follows the
// other, so no worker is a whole one ahead.
func (b *Bench) Run(n int) ([]time.Duration, error) {
	times := make([]time.Duration, n)
	for i := range times {
		start := time.Now()
		if err := b.worker.Ready(0, b.iteration); err != nil {
			return nil, err
		}
		if _, _, err := b.worker.Done(); err != nil {
			return nil, err
		}
		b.iteration++
		times[i] = time.Since(start)
	}
	return times, nil
}

// Wrong counts the elements that are not the mean of all workers'. Each contribution
// was scaled, and that rounded, before they were added.
func (b *Bench) Wrong() (n int) {
	world := float64(b.worker.World)
	for i := range len(b.out) / 4 {
		got := float64(math.Float32frombits(binary.NativeEndian.Uint32(b.out[4*i:])))
		if want := float64(sample(i, 0)) + (world-1)/2; !(math.Abs(got-want) <= 1e-6*world*want) {
			n++
		}
	}
	return n
}
