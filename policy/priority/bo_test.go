package priority

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/policy"
	"weft/trace/kineto"
)

// At gain 0 and deviation 1 the improvement is the density at 0, 1/sqrt(2π) =
// 0.39894; at gain 1 and deviation 1 it is Φ(1) + φ(1) = 0.84134 + 0.24197; where
// nothing is uncertain it is the gain.
func TestExpectedImprovement(t *testing.T) {
	for _, x := range []struct{ gain, deviation, want float64 }{
		{0, 1, 0.39894}, {1, 1, 1.08332}, {0, 2, 0.79788}, {3, 0, 3}, {-3, 0, 0},
	} {
		if got := expectedImprovement(x.gain, x.deviation); math.Abs(got-x.want) > 1e-5 {
			t.Errorf("gain %v, deviation %v: %v, want %v", x.gain, x.deviation, got, x.want)
		}
	}
}

// The process goes through what it has seen and is sure of it; far from all
// points it knows nothing: mean 0, deviation 1. Two values, -1 and 1, have the
// standard deviation sqrt(2).
func TestProcess(t *testing.T) {
	b := bayes{points: []point{{0, 0}, {1, 1}}, values: []float64{-1, 1}}
	g, ok := b.fit()
	if !ok {
		t.Fatal("no fit")
	}
	for i, p := range b.points {
		mean, deviation := g.predict(p)
		if want := b.values[i] / math.Sqrt2; math.Abs(mean-want) > 1e-3 || deviation > 1e-2 {
			t.Errorf("at %v: %v ± %v, want %v", p, mean, deviation, want)
		}
	}
	if mean, deviation := g.predict(point{100, -100}); math.Abs(mean) > 1e-3 || math.Abs(deviation-1) > 1e-3 {
		t.Errorf("far away: %v ± %v, want 0 ± 1", mean, deviation)
	}
	flat := bayes{points: []point{{0, 0}, {1, 1}}, values: []float64{3, 3}}
	if _, ok := flat.fit(); ok {
		t.Error("values that are all equal have a fit")
	}
}

// In a bowl the last five points come closer to the bottom than the ten drawn.
func TestSearchLearns(t *testing.T) {
	bowl := func(p point) float64 { return math.Hypot(p[0]-0.3, p[1]-0.7) }
	var b bayes
	for range boSteps {
		p := b.next()
		b.tell(p, bowl(p))
	}
	least := func(values []float64) float64 {
		l := math.Inf(1)
		for _, v := range values {
			l = min(l, v)
		}
		return l
	}
	drawn, learned := least(b.values[:boRandom]), least(b.values[boRandom:])
	if learned >= drawn || learned > 0.1 {
		t.Errorf("drawn %v from the bottom, learned %v", drawn, learned)
	}
}

// beside is the time of what Bayesian optimisation finds over that of the grid.
func beside(t *testing.T, j *job.Job, latency, bandwidth float64) float64 {
	t.Helper()
	c := cluster.Uniform(16, 1, cluster.Link{Name: "net", Latency: latency, Bandwidth: bandwidth})
	bo, err := optimise(j, c, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	grid, err := gridSearch(j, c, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return bo.time / grid.time
}

// The published ranges are for large models: the tensors of these recordings
// have at most 2.4 million elements, and partitions at least 2 million, so the
// optimisation hardly cuts them. On a link slow enough for that to matter it ends
// 16 % above the grid, which goes down to partitions of 131,072.
func TestBesideGridOnRecordings(t *testing.T) {
	for _, name := range []string{"gpt-gloo-torch2.6", "resnet18-gloo-torch2.6"} {
		f, err := os.Open(filepath.Join("../../testdata/traces", name, "rank0.json.gz"))
		if err != nil {
			t.Fatal(err)
		}
		x, err := kineto.Read(t.Context(), f, kineto.ReadOptions{Name: name})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		j, err := x.Job(kineto.JobOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slow, fast := beside(t, j, 25, 1e9), beside(t, j, 25, 10e9)
		t.Logf("%s: over the grid %.3f at 1 Gbit/s, %.3f at 10 Gbit/s", name, slow, fast)
		if slow < 1.15 || slow > 1.17 || fast < 1 || fast > 1.01 {
			t.Errorf("%s: over the grid %.3f at 1 Gbit/s, %.3f at 10 Gbit/s; want 1.15 to 1.17, 1 to 1.01", name, slow, fast)
		}
	}
}

// Chains of 4 to 12 layers with tensors of 1 to 64 million elements, all-reduced
// in 0.5 to 2 times what they compute: here the published ranges fit. The
// optimisation ends from where the grid does to 9 % above, 3 % on average.
func TestBesideGridOnLargeJobs(t *testing.T) {
	const jobs = 20
	var r bayes // its draws
	least, most, sum := math.Inf(1), 0.0, 0.0
	for range jobs {
		n := 4 + int(9*r.draw()[0])
		fwd, bwd, bytes := make([]float64, n), make([]float64, n), make([]int64, n)
		var total, compute float64
		for k := range n {
			times, size := r.draw(), r.draw()
			fwd[k], bwd[k] = 1000*(1+4*times[0]), 1000*(2+8*times[1])
			bytes[k] = 4 * int64(1e6*math.Pow(64, size[0]))
			compute += fwd[k] + bwd[k]
			total += float64(bytes[k])
		}
		net := r.draw()
		const onWire = 2 * 15. / 16 // of a ring of 16: each byte passes a port about twice
		bandwidth := 8e6 * onWire * total / (compute * (0.5 + 1.5*net[0]))
		x := beside(t, job.Chain("random", fwd, bwd, bytes), 5+95*net[1], bandwidth)
		least, most, sum = min(least, x), max(most, x), sum+x
	}
	t.Logf("over the grid: %.3f to %.3f, %.3f on average", least, most, sum/jobs)
	if least < 0.99 || least > 1.01 || most < 1.05 || most > 1.1 || sum/jobs < 1.01 || sum/jobs > 1.04 {
		t.Errorf("over the grid: %.3f to %.3f, %.3f on average; want 1 to 1.09, 1.03", least, most, sum/jobs)
	}
}

// The search depends on nothing but the job and the cluster, and stays within
// the ranges.
func TestOptimiseInRanges(t *testing.T) {
	j := job.Chain("chain", []float64{2000, 4000}, []float64{4000, 8000}, []int64{40e6, 160e6})
	c := cluster.Uniform(4, 1, cluster.Link{Name: "net", Latency: 25, Bandwidth: 10e9})
	first, err := optimise(j, c, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	again, _ := optimise(j, c, policy.Options{})
	if first.partition != again.partition || first.credit != again.credit {
		t.Errorf("(%d, %d), and then (%d, %d)", first.partition, first.credit, again.partition, again.credit)
	}
	if first.partition < 2e6 || first.partition > 32e6 || first.credit < 4*4e6 || first.credit > 4*64e6 {
		t.Errorf("partition %d elements, credit %d bytes of 4-byte elements: outside of 2 to 32 and 4 to 64 million elements", first.partition, first.credit)
	}
}
