package fusion

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"weft/job"

	"pgregory.net/rapid"
)

// resnet50 lists the sizes of ResNet-50's 161 parameters, in parameters() order:
// a 7x7 stem, four stages of 3, 4, 6 and 3 bottlenecks, each of 1x1, 3x3 and 1x1
// convolutions with batch norms (weight and bias), and a classifier.
func resnet50() []int64 {
	var n []int64
	conv := func(in, out, k int64) { n = append(n, in*out*k*k, out, out) }
	conv(3, 64, 7)
	in := int64(64)
	for stage, blocks := range []int{3, 4, 6, 3} {
		width := int64(64) << stage
		for b := range blocks {
			conv(in, width, 1)
			conv(width, width, 3)
			conv(width, 4*width, 1)
			if b == 0 {
				conv(in, 4*width, 1) // projection of the shortcut
			}
			in = 4 * width
		}
	}
	return append(n, in*1000, 1000)
}

// The buckets that a recorded run of DDP on two A100 used (section 2 of the
// algorithms): 2, 15, 12, 51 and 81 tensors.
func TestDDPBucketsOfResNet50(t *testing.T) {
	sizes := resnet50()
	if len(sizes) != 161 {
		t.Fatalf("%d tensors, want 161", len(sizes))
	}
	j := &job.Job{}
	var order []job.TensorID
	var total int64
	for i, n := range sizes {
		j.Tensors = append(j.Tensors, job.Tensor{Elements: n})
		order = append(order, job.TensorID(len(sizes)-1-i))
		total += n
	}
	if total != 25557032 {
		t.Fatalf("%d elements, want 25,557,032", total)
	}
	var counts []int
	var bytes []int64
	for _, b := range ddpBuckets(j, order, 1<<20, 25<<20) {
		counts = append(counts, len(b))
		var n int64
		for _, k := range b {
			n += j.Tensors[k].GradBytes()
		}
		bytes = append(bytes, n)
	}
	if want := []int{2, 15, 12, 51, 81}; !slices.Equal(counts, want) {
		t.Errorf("tensors a bucket %v, want %v", counts, want)
	}
	if want := []int64{8196000, 31502336, 26255360, 26550272, 9724160}; !slices.Equal(bytes, want) {
		t.Errorf("bytes a bucket %v, want %v", bytes, want)
	}
}

// Each element type has an open bucket and a first limit of its own; buckets
// leave in the order of their first tensor.
func TestDDPBucketsByType(t *testing.T) {
	j := &job.Job{Tensors: []job.Tensor{
		{Elements: 2},                    // 8 bytes
		{Elements: 3, Grad: job.Float16}, // 6
		{Elements: 2},                    // 8: float32 reaches 16
		{Elements: 4, Grad: job.Float16}, // 8: float16 reaches 14 >= 10
		{Elements: 1},                    // 4, stays open
	}}
	got := ddpBuckets(j, []job.TensorID{0, 1, 2, 3, 4}, 10, 100)
	if want := [][]job.TensorID{{0, 2}, {1, 3}, {4}}; !reflect.DeepEqual(got, want) {
		t.Errorf("buckets %v, want %v", got, want)
	}
}

// A job file may have buckets without tensors, of which no plan can be made.
func TestRecordedBuckets(t *testing.T) {
	j := &job.Job{Recorded: &job.Recorded{Buckets: []job.RecordedBucket{{}, {Tensors: []job.TensorID{1, 0}}, {}}}}
	if got := recordedBuckets(j); !reflect.DeepEqual(got, [][]job.TensorID{{1, 0}}) {
		t.Errorf("buckets %v", got)
	}
	if got := recordedBuckets(&job.Job{}); got != nil {
		t.Errorf("buckets %v of a job that does not say", got)
	}
}

// The example of section 3: threshold 10; A f32 4, B f16 3, C f32 5, D f32 4
// bytes give [A C] [B] [D]: B is skipped (4 + 3 <= 10), C fits (4 + 5 <= 10), D
// does not (9 + 4 > 10) and with B skipped neither may be looked past.
func TestHorovodFusion(t *testing.T) {
	j := &job.Job{Tensors: []job.Tensor{
		{Elements: 4, Grad: job.Int8}, // stands for f32: one byte an element
		{Elements: 3, Grad: job.Uint8},
		{Elements: 5, Grad: job.Int8},
		{Elements: 4, Grad: job.Int8},
	}}
	got := fuse(j, []job.TensorID{0, 1, 2, 3}, 10)
	if want := [][]job.TensorID{{0, 2}, {1}, {3}}; !reflect.DeepEqual(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
}

// finish is when the last group of a contiguous grouping has been reduced.
func finish(ready, bytes []float64, ends []int, alpha, beta float64) float64 {
	at, from := 0.0, 0
	for _, to := range ends {
		size := 0.0
		for _, b := range bytes[from:to] {
			size += b
		}
		at = max(at, ready[to-1]) + alpha + beta*size
		from = to
	}
	return at
}

// Section 4: b = (3,3,4), s = (9,8,7), alpha = 4, beta = 1. Ready, last tensor
// first: 4, 7, 10. Greedy makes one group: 10 + 4 + 24 = 38. {3}, {2,1}: 4 + 11 =
// 15, 15 + 4 + 17 = 36.
func TestGreedyIsNotOptimal(t *testing.T) {
	ready, bytes, unlike := []float64{4, 7, 10}, []float64{7, 8, 9}, make([]bool, 3)
	if got := greedy(ready, bytes, unlike, 4, 1); !slices.Equal(got, []int{3}) {
		t.Errorf("greedy ends %v, want [3]", got)
	}
	if got := exact(ready, bytes, unlike, 4, 1); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("exact ends %v, want [1 3]", got)
	}
}

// instance draws gradients of 1 to 20 bytes, up to 20 us apart, and a start-up of
// up to 20 us; a byte takes 1 us.
func instance(r *rand.Rand, n int) (ready, bytes []float64, alpha float64) {
	at := 0.0
	for range n {
		at += float64(r.IntN(21))
		ready, bytes = append(ready, at), append(bytes, float64(1+r.IntN(20)))
	}
	return ready, bytes, float64(r.IntN(21))
}

// How often a better grouping exists than the greedy rule's, which is never worse
// than none: the figure of docs/policies/mg-wfbp.md.
func TestGreedyMisses(t *testing.T) {
	const instances = 20000
	r := rand.New(rand.NewPCG(1, 0))
	missed := 0
	for range instances {
		n := 2 + r.IntN(9)
		ready, bytes, alpha := instance(r, n)
		unlike := make([]bool, n)
		alone := make([]int, n)
		for i := range alone {
			alone[i] = i + 1
		}
		got := finish(ready, bytes, greedy(ready, bytes, unlike, alpha, 1), alpha, 1)
		if got > finish(ready, bytes, alone, alpha, 1) {
			t.Fatalf("greedy is worse than no merging: ready %v, bytes %v, alpha %v", ready, bytes, alpha)
		}
		if finish(ready, bytes, exact(ready, bytes, unlike, alpha, 1), alpha, 1) < got {
			missed++
		}
	}
	t.Logf("greedy missed the best grouping of %.1f %%", 100*float64(missed)/instances)
	if missed == 0 {
		t.Error("greedy missed none")
	}
}

func BenchmarkExact(b *testing.B) {
	for _, n := range []int{300, 3000} {
		b.Run(fmt.Sprintf("tensors=%d", n), func(b *testing.B) {
			ready, bytes, alpha := instance(rand.New(rand.NewPCG(1, 0)), n)
			for b.Loop() {
				exact(ready, bytes, make([]bool, n), alpha, 1)
			}
		})
	}
}

// The exact grouping is the best of all 2^(N-1), and the greedy one never worse
// than none. Both keep element types apart.
func TestGroupingsAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 10).Draw(t, "tensors")
		ready, bytes, unlike := make([]float64, n), make([]float64, n), make([]bool, n)
		at := 0.0
		for i := range n {
			at += float64(rapid.IntRange(0, 20).Draw(t, "backward"))
			ready[i], bytes[i] = at, float64(rapid.IntRange(1, 20).Draw(t, "bytes"))
			unlike[i] = i > 0 && rapid.IntRange(0, 4).Draw(t, "unlike") == 0
		}
		alpha := float64(rapid.IntRange(0, 20).Draw(t, "alpha"))

		best, alone := math.Inf(1), 0.0
		for cuts := range 1 << (n - 1) {
			var ends []int
			legal := true
			for i := 1; i < n; i++ {
				if cuts>>(i-1)&1 == 1 {
					ends = append(ends, i)
				} else if unlike[i] {
					legal = false
				}
			}
			f := finish(ready, bytes, append(ends, n), alpha, 1)
			if legal {
				best = min(best, f)
			}
			alone = f // the last has every cut
		}
		for name, rule := range map[string]rule{"greedy": greedy, "exact": exact} {
			ends := rule(ready, bytes, unlike, alpha, 1)
			for i := 1; i < n; i++ {
				if unlike[i] && !slices.Contains(ends, i) {
					t.Fatalf("%s merges unlike tensors %d and %d: ends %v", name, i-1, i, ends)
				}
			}
			f := finish(ready, bytes, ends, alpha, 1)
			if name == "exact" && f != best {
				t.Fatalf("exact finishes at %v, brute force at %v", f, best)
			}
			if f > alone {
				t.Fatalf("%s finishes at %v, without merging %v", name, f, alone)
			}
		}
	})
}
