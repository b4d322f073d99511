package worker

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
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

// A measurement reduces as much together, bytes, in neither few nor many iterations.
const (
	volume         = 256 << 20
	warmUp         = 2 // more, before, which touch the memory
	fewIterations  = 5
	manyIterations = 1000
)

// Measured is what reducing a bucket of one size took.
type Measured struct {
	Iterations int
	Median     time.Duration // of an iteration, on this worker
	Wrong      int           // elements that are not the mean
}

// Measure reduces a bucket of so many bytes, at least 4, as often as the size
// allows. All workers do so at the same time.
func (w *Worker) Measure(bytes int64) (m Measured, err error) {
	b, err := w.NewBench(bytes)
	if err != nil {
		return m, err
	}
	if _, err := b.Run(warmUp); err != nil {
		return m, err
	}
	times, err := b.Run(int(min(max(volume/bytes, fewIterations), manyIterations)))
	if err != nil {
		return m, err
	}
	slices.Sort(times)
	return Measured{Iterations: len(times), Median: times[len(times)/2], Wrong: b.Wrong()}, nil
}
