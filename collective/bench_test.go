package collective

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/transport"
)

// networks are what benchmarks run over, connected.
var networks = map[string]func(t testing.TB, world int) []transport.Endpoint{
	"memory": func(t testing.TB, world int) []transport.Endpoint {
		m := transport.NewMemory(world, transport.MemoryOptions{})
		var out []transport.Endpoint
		for rank := range world {
			out = append(out, m.Endpoint(rank))
		}
		return out
	},
	"loopback": func(t testing.TB, world int) []transport.Endpoint {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var listeners []*transport.Listener
		o := transport.TCPOptions{Secret: bytes.Repeat([]byte("s"), transport.MinSecret)}
		for range world {
			l, err := transport.Listen(ctx, "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			listeners = append(listeners, l)
			o.Addrs = append(o.Addrs, l.Addr().String())
		}
		out, errs := make([]transport.Endpoint, world), make([]error, world)
		var all sync.WaitGroup
		for rank, l := range listeners {
			o := o
			o.Rank = rank
			all.Go(func() { out[rank], errs[rank] = l.Connect(ctx, o) })
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		return out
	},
}

func connect(t testing.TB, network string, world int) []transport.Endpoint {
	out := networks[network](t, world)
	t.Cleanup(func() {
		var all sync.WaitGroup
		for _, e := range out {
			all.Go(func() { e.Close() })
		}
		all.Wait()
	})
	return out
}

// Buckets of sizes that take either way through a transport, by the algorithm that is
// chosen, over each network, and twice: the second uses the first one's memory.
func TestNetworks(t *testing.T) {
	link := cluster.Link{Latency: 20, Bandwidth: 10e9}
	const world = 3
	op := uint64(0)
	for name := range networks {
		es := connect(t, name, world)
		for _, bytes := range []int64{0, 4, 4 << 10, 64 << 10, 1 << 20, 1 << 20} {
			spec := Spec{Kind: cluster.AllReduce, World: world, Slices: []plan.Slice{{Length: bytes / 4}}}.Choose(link, 4)
			r := rand.New(rand.NewPCG(1, uint64(bytes)))
			op++
			var ts []*Transfer
			var contributions [][]byte
			for rank := range world {
				p, err := spec.Program(rank)
				if err != nil {
					t.Fatal(err)
				}
				contributions = append(contributions, contribution(r, job.Float32, bytes/4))
				ts = append(ts, &Transfer{
					Program: p, Reduction: Reduction{DType: job.Float32}, Op: op,
					Result: make([]byte, bytes), Sources: contributions[rank : rank+1],
				})
			}
			for _, err := range together(func(h int) transport.Endpoint { return es[h] }, t.Context(), ts) {
				if err != nil {
					t.Fatal(err)
				}
			}
			want, err := Reference(ts[0].Reduction, Layout{1, 1, 1}, spec.Slices, contributions)
			if err != nil {
				t.Fatal(err)
			}
			for rank, x := range ts {
				if !slices.Equal(x.Result, want) {
					t.Errorf("%s: rank %d has another result of %d bytes by %v", name, rank, bytes, spec.Algorithm)
				}
			}
		}
	}
}

// TestChoose has the choices on a link of 25 us and 1 Gbit/s, 125 bytes a microsecond,
// calculated by hand.
func TestChoose(t *testing.T) {
	link := cluster.Link{Latency: 25, Bandwidth: 1e9}
	for _, c := range []struct {
		kind  cluster.Kind
		world int
		bytes int64
		want  Algorithm
	}{
		// 2 hosts: exchange 25 + n/125, ring and direct 50 + n/125.
		{cluster.AllReduce, 2, 4, Exchange},
		{cluster.AllReduce, 2, 1 << 30, Exchange},
		// 4 hosts: exchange 25 + 3n/125, direct 50 + 1.5n/125: equal at n = 2083. Ring 150 +
		// 1.5n/125 is within 5 % once 100 < 0.05 (50 + 1.5n/125), n > 162500.
		{cluster.AllReduce, 4, 2000, Exchange},
		{cluster.AllReduce, 4, 2200, Direct},
		{cluster.AllReduce, 4, 162000, Direct},
		{cluster.AllReduce, 4, 163000, Ring},
		// Reduce-scatter, 4 hosts: direct 25 + 0.75n/125, ring 75 + 0.75n/125: n > 162500.
		{cluster.ReduceScatter, 4, 162000, Direct},
		{cluster.ReduceScatter, 4, 163000, Ring},
		// Broadcast, 4 hosts: exchange 25 + 3n/125, ring 75 + n/125: 75 + n/125 < 1.05 (25 + 3n/125)
		// once 48.75 < 2.15n/125, n > 2834.
		{cluster.Broadcast, 4, 2800, Exchange},
		{cluster.Broadcast, 4, 2900, Ring},
		{cluster.AllReduce, 1, 1000, Ring},
	} {
		s := Spec{Kind: c.kind, World: c.world, Slices: []plan.Slice{{Length: c.bytes / 4}}}.Choose(link, 4)
		if s.Algorithm != c.want {
			t.Errorf("%v of %d bytes among %d: %v, want %v", c.kind, c.bytes, c.world, s.Algorithm, c.want)
		}
		if s.Chunk*4 < leastChunk || s.Chunk*4 > mostChunk {
			t.Errorf("%v of %d bytes among %d: chunks of %d elements", c.kind, c.bytes, c.world, s.Chunk)
		}
	}
}

func BenchmarkAllReduce(b *testing.B) {
	op := uint64(0)
	for _, name := range []string{"memory", "loopback"} {
		for _, world := range []int{2, 4} {
			es := connect(b, name, world)
			for _, bytes := range []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20} {
				for _, alg := range []Algorithm{Ring, Direct, Exchange} {
					b.Run(fmt.Sprintf("%s/%d/%dKiB/%v", name, world, bytes>>10, alg), func(b *testing.B) {
						spec := Spec{Kind: cluster.AllReduce, Algorithm: alg, World: world, Slices: []plan.Slice{{Length: bytes / 4}}}.cut(4)
						var ts []*Transfer
						for rank := range world {
							p, err := spec.Program(rank)
							if err != nil {
								b.Fatal(err)
							}
							ts = append(ts, &Transfer{Program: p, Reduction: Reduction{DType: job.Float32}, Result: make([]byte, bytes)})
						}
						run := func() {
							op++
							for _, t := range ts {
								t.Op = op
							}
							for _, err := range together(func(h int) transport.Endpoint { return es[h] }, context.Background(), ts) {
								if err != nil {
									b.Fatal(err)
								}
							}
						}
						run() // touches memory for the first time
						b.SetBytes(bytes)
						for b.Loop() {
							run()
						}
					})
				}
			}
		}
	}
}
