package caramel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/policy"
)

// branches is a job on one device lane: layers in a row, of so many ops each in
// forward, whose input and weight gradients are ops of their own, and every fourth
// layer skips the next three.
func branches(layers, opsEach int, seed uint64) *job.Job {
	r := rand.New(rand.NewPCG(seed, 0))
	j := &job.Job{Name: "branches", Lanes: []job.Lane{{Name: "compute", Kind: job.Device}}}
	op := func(name string, phase job.Phase, time float64, deps ...job.OpID) job.OpID {
		j.Ops = append(j.Ops, job.Op{Name: name, Phase: phase, Time: time, Tensor: -1, Deps: deps})
		return job.OpID(len(j.Ops) - 1)
	}
	at := job.OpID(-1)
	after := func() []job.OpID {
		if at < 0 {
			return nil
		}
		return []job.OpID{at}
	}
	for l := range layers {
		j.Tensors = append(j.Tensors, job.Tensor{Name: fmt.Sprint("t", l), Elements: 1 + r.Int64N(1<<20)})
		for range opsEach {
			at = op(fmt.Sprint("f", l), job.Forward, 1+10*r.Float64(), after()...)
		}
		j.Tensors[l].Readers = []job.OpID{at}
	}
	var skip job.OpID = -1
	for l := layers - 1; l >= 0; l-- {
		j.Tensors[l].Producers = []job.OpID{op(fmt.Sprint("w", l), job.Backward, 5+20*r.Float64(), at)}
		for range opsEach {
			at = op(fmt.Sprint("i", l), job.Backward, 1+10*r.Float64(), at)
		}
		if l%4 == 0 {
			if skip >= 0 {
				at = op(fmt.Sprint("sum", l), job.Backward, 1, at, skip)
			}
			skip = at
		}
	}
	for l := range layers {
		j.Tensors[l].Updaters = []job.OpID{op(fmt.Sprint("u", l), job.Update, 1, j.Tensors[l].Producers...)}
	}
	return j
}

func sixteen() *cluster.Cluster {
	return cluster.Uniform(16, 1, cluster.Link{Name: "net", Latency: 25, Bandwidth: 1e10})
}

// 100,000 ops and 10,000 tensors: under 2 s is the aim.
func BenchmarkOrder(b *testing.B) {
	j, c := branches(10000, 4, 1), sixteen()
	for b.Loop() {
		x := &builder{job: j, stripped: j, cluster: c, crossing: true}
		t, err := measure(j, c, true)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := x.orders(t); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(j.Ops)), "ops")
}

func BenchmarkBuild(b *testing.B) {
	for _, x := range []struct{ layers, ops int }{{300, 1}, {300, 4}, {10000, 4}, {1000, 400}} {
		j, c := branches(x.layers, x.ops, 1), sixteen()
		b.Run(fmt.Sprintf("tensors=%d/ops=%d", x.layers, len(j.Ops)), func(b *testing.B) {
			for b.Loop() {
				if _, err := Caramel.Build(context.Background(), j, c, policy.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
