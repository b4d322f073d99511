package collective

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weft/cluster"
	"weft/collective/kernel"
	"weft/job"
	"weft/plan"
	"weft/transport"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// together runs one transfer a host and returns their errors by rank. The first error
// ends the others.
func together(endpoint func(rank int) transport.Endpoint, ctx context.Context, transfers []*Transfer) []error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(transfers))
	var all sync.WaitGroup
	for h, tr := range transfers {
		all.Go(func() {
			if errs[h] = tr.Run(ctx, endpoint(h)); errs[h] != nil {
				cancel(errs[h])
			}
		})
	}
	all.Wait()
	return errs
}

// contribution is n random elements: numbers of several magnitudes for floating-point
// types, any bits for integers.
func contribution(r *rand.Rand, d job.DType, n int64) []byte {
	b := make([]byte, n*d.Bytes())
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for i := range int(n) {
		f := r.NormFloat64() * math.Exp2(float64(r.IntN(8)))
		switch d {
		case job.Float32:
			binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(float32(f)))
		case job.Float64:
			binary.NativeEndian.PutUint64(b[8*i:], math.Float64bits(f))
		case job.BFloat16:
			binary.NativeEndian.PutUint16(b[2*i:], uint16(math.Float32bits(float32(f))>>16))
		case job.Float16: // from 2^-8 to 2^8
			binary.NativeEndian.PutUint16(b[2*i:], uint16(r.IntN(2)<<15|(7+r.IntN(16))<<10|r.IntN(1<<10)))
		}
	}
	return b
}

// TestReference compares Reference, for float32, with the sum of one element at a time:
// of a host's workers by rank, of the hosts around the ring.
func TestReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var layout Layout
		for range rapid.IntRange(1, 4).Draw(t, "hosts") {
			layout = append(layout, rapid.IntRange(1, 4).Draw(t, "workers"))
		}
		s := bucket(t, 3*Block)
		n := Elements(s)
		scale := rapid.SampledFrom([]float64{0, 1, 0.5, 1.0 / 3}).Draw(t, "scale")
		r := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		var contributions [][]byte
		for range layout.Workers() {
			contributions = append(contributions, contribution(r, job.Float32, n))
		}
		got, err := Reference(Reduction{DType: job.Float32, Scale: scale}, layout, s, contributions)
		if err != nil {
			t.Fatal(err)
		}
		element := func(b []byte, e int) float32 {
			return math.Float32frombits(binary.NativeEndian.Uint32(b[4*e:]))
		}
		for e, o := range owners(s, len(layout)) {
			sum := ringSum(o, func(h int) float32 {
				rank := 0
				for _, w := range layout[:h] {
					rank += w
				}
				var sum float32
				for i := range layout[h] {
					x := element(contributions[rank+i], e)
					if scale != 0 {
						x = float32(x * float32(scale))
					}
					if i == 0 {
						sum = x
					} else {
						sum += x
					}
				}
				return sum
			}, len(layout))
			if x := element(got, e); math.Float32bits(x) != math.Float32bits(sum) {
				t.Fatalf("element %d: %v, want %v", e, x, sum)
			}
		}
	})
}

// TestRun runs random buckets of every element type through every algorithm, on networks
// that hold messages and on one that holds none, and compares with Reference.
func TestRun(t *testing.T) {
	dtypes := []job.DType{job.Float32, job.Float64, job.Float16, job.BFloat16, job.Int32, job.Int64}
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom(kinds).Draw(t, "kind")
		d := rapid.SampledFrom(dtypes).Draw(t, "type")
		var layout Layout
		for range rapid.IntRange(1, 5).Draw(t, "hosts") {
			layout = append(layout, rapid.IntRange(1, 3).Draw(t, "workers"))
		}
		world := len(layout)
		single := rapid.Bool().Draw(t, "single")
		if single {
			layout = slices.Repeat(Layout{1}, world)
		}
		spec := Spec{k.Kind, k.Algorithm, world, rapid.IntRange(0, world-1).Draw(t, "root"), bucket(t, 4*Block), rapid.Int64Range(300, 4000).Draw(t, "chunk")}
		red := Reduction{DType: d, Op: kernel.Op(rapid.IntRange(0, 2).Draw(t, "op"))}
		if red.Op == kernel.Sum && d != job.Int32 && d != job.Int64 {
			red.Scale = rapid.SampledFrom([]float64{1, 0.5, 1.0 / 3}).Draw(t, "scale")
		}
		n := Elements(spec.Slices)
		r := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		var contributions [][]byte
		for range layout.Workers() {
			contributions = append(contributions, contribution(r, d, n))
		}
		sum, err := Reference(red, layout, spec.Slices, contributions)
		if err != nil {
			t.Fatal(err)
		}

		reduces := k.Kind == cluster.AllReduce || k.Kind == cluster.ReduceScatter
		var before [][]byte
		var transfers []*Transfer
		first := 0
		for h, p := range build(t, spec) {
			tr := &Transfer{Program: p, Reduction: red, Channel: 7, Op: 11, Single: single}
			for _, c := range contributions[first : first+layout[h]] {
				tr.Sources = append(tr.Sources, slices.Clone(c))
			}
			first += layout[h]
			switch {
			case !reduces:
				tr.Result, tr.Sources = tr.Sources[0], nil
			case layout[h] == 1 && rapid.Bool().Draw(t, "in place, no sources"):
				tr.Result, tr.Sources = tr.Sources[0], nil
			case rapid.Bool().Draw(t, "in place"):
				tr.Result = tr.Sources[rapid.IntRange(0, layout[h]-1).Draw(t, "which")]
			default:
				tr.Result = make([]byte, n*d.Bytes())
			}
			before = append(before, slices.Clone(tr.Result))
			transfers = append(transfers, tr)
		}
		m := transport.NewMemory(world, transport.MemoryOptions{Window: rapid.SampledFrom([]int{0, -1, 4 << 10}).Draw(t, "window")})
		for h, err := range together(m.Endpoint, context.Background(), transfers) {
			if err != nil {
				t.Fatalf("host %d: %v", h, err)
			}
		}
		size := d.Bytes()
		for e, o := range owners(spec.Slices, world) {
			from, to := int64(e)*size, int64(e+1)*size
			for h, tr := range transfers {
				want := map[cluster.Kind][]byte{cluster.AllReduce: sum, cluster.ReduceScatter: sum, cluster.AllGather: before[o], cluster.Broadcast: before[spec.Root]}[k.Kind]
				if k.Kind == cluster.ReduceScatter && h != o {
					continue
				}
				if string(tr.Result[from:to]) != string(want[from:to]) {
					t.Fatalf("host %d, element %d of owner %d: %x, want %x", h, e, o, tr.Result[from:to], want[from:to])
				}
			}
		}
		// What the network carried is what the programs say.
		for h, tr := range transfers {
			var messages int
			var bytes int64
			for to := range world {
				n, b := m.Sent(h, to)
				messages += n
				bytes += b
			}
			if messages != len(tr.Sends) || bytes != tr.Bytes(size) {
				t.Fatalf("host %d sent %d messages of %d bytes, its program has %d of %d", h, messages, bytes, len(tr.Sends), tr.Bytes(size))
			}
		}
	})
}

// TestSingle: contributions that are scaled where they are added give the bits of those
// that are scaled before they travel.
func TestSingle(t *testing.T) {
	for _, d := range []job.DType{job.Float32, job.Float64, job.Float16, job.BFloat16} {
		for _, a := range []Algorithm{Ring, Direct, Exchange} {
			for world := 1; world <= 3; world++ {
				spec := Spec{Kind: cluster.AllReduce, Algorithm: a, World: world, Slices: []plan.Slice{{Length: 5*Block + 3}}, Chunk: 2000}
				red := Reduction{DType: d, Scale: 1.0 / 3}
				r := rand.New(rand.NewPCG(1, 2))
				var contributions [][]byte
				var transfers []*Transfer
				for _, p := range build(t, spec) {
					b := contribution(r, d, Elements(spec.Slices))
					contributions = append(contributions, b)
					transfers = append(transfers, &Transfer{Program: p, Reduction: red, Sources: [][]byte{b}, Result: make([]byte, len(b)), Single: true})
				}
				want, err := Reference(red, slices.Repeat(Layout{1}, world), spec.Slices, contributions)
				if err != nil {
					t.Fatal(err)
				}
				m := transport.NewMemory(world, transport.MemoryOptions{})
				for h, err := range together(m.Endpoint, context.Background(), transfers) {
					if err != nil || !bytes.Equal(transfers[h].Result, want) {
						t.Errorf("%v of %d, %v: host %d has other bits (%v)", spec, world, d, h, err)
					}
				}
			}
		}
	}
}

// TestBucketsDoNotMatter: however tensors are cut into slices, put into buckets, and
// whatever algorithm each bucket takes, the bits are the same.
func TestBucketsDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(2, 5).Draw(t, "hosts")
		tensors := rapid.SliceOfN(rapid.Int64Range(1, 4*Block), 1, 4).Draw(t, "tensors")
		var whole []plan.Slice
		for i, n := range tensors {
			whole = append(whole, plan.Slice{Tensor: job.TensorID(i), Length: n})
		}
		r := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		n := Elements(whole)
		var contributions [][]byte
		layout := make(Layout, world)
		for h := range layout {
			layout[h] = 1
			contributions = append(contributions, contribution(r, job.Float32, n))
		}
		red := Reduction{DType: job.Float32}
		want, err := Reference(red, layout, whole, contributions)
		if err != nil {
			t.Fatal(err)
		}

		// Cut the tensors, and deal the pieces into buckets.
		buckets := make([][]plan.Slice, rapid.IntRange(1, 4).Draw(t, "buckets"))
		for _, s := range whole {
			for s.Length > 0 {
				piece := s
				piece.Length = rapid.Int64Range(1, s.Length).Draw(t, "piece")
				b := rapid.IntRange(0, len(buckets)-1).Draw(t, "bucket")
				buckets[b] = append(buckets[b], piece)
				s.Offset += piece.Length
				s.Length -= piece.Length
			}
		}
		m := transport.NewMemory(world, transport.MemoryOptions{})
		place := func(s plan.Slice) (from, to int64) { // of a slice in the whole
			for _, n := range tensors[:s.Tensor] {
				from += n
			}
			from += s.Offset
			return 4 * from, 4 * (from + s.Length)
		}
		for op, slices := range buckets {
			spec := Spec{cluster.AllReduce, rapid.SampledFrom([]Algorithm{Ring, Direct, Exchange}).Draw(t, "algorithm"), world, 0, slices, rapid.Int64Range(100, 5000).Draw(t, "chunk")}
			var transfers []*Transfer
			for h, p := range build(t, spec) {
				tr := &Transfer{Program: p, Reduction: red, Op: uint64(op)}
				for _, s := range slices {
					from, to := place(s)
					tr.Result = append(tr.Result, contributions[h][from:to]...)
				}
				transfers = append(transfers, tr)
			}
			for h, err := range together(m.Endpoint, context.Background(), transfers) {
				if err != nil {
					t.Fatal(err)
				}
				result := transfers[h].Result
				for _, s := range slices {
					from, to := place(s)
					if string(result[:to-from]) != string(want[from:to]) {
						t.Fatalf("host %d, %v: %+v differs", h, spec, s)
					}
					result = result[to-from:]
				}
			}
		}
	})
}

// TestFailures: whatever goes wrong on the way, every host ends with an error that says
// where; a host that is told nothing ends with its context.
func TestFailures(t *testing.T) {
	const world = 3
	spec := Spec{Kind: cluster.AllReduce, World: world, Slices: []plan.Slice{{Tensor: 4, Offset: 100, Length: 20 * Block}}, Chunk: Block}
	for _, alg := range []Algorithm{Ring, Direct, Exchange} {
		for _, kind := range []transport.FaultKind{transport.Disconnect, transport.Truncate, transport.Corrupt, transport.Partition} {
			for after := range 7 {
				t.Run(fmt.Sprintf("%v, %v after %d", alg, kind, after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						spec := spec
						spec.Algorithm = alg
						m := transport.NewMemory(world, transport.MemoryOptions{Window: -1, Faults: []transport.Fault{{From: 0, To: 1, After: after, Kind: kind}}})
						// As an agent does: a host that fails leaves, so that its peers fail too.
						ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
						defer cancel()
						errs := make([]error, world)
						var all sync.WaitGroup
						for h, p := range build(t, spec) {
							all.Go(func() {
								tr := &Transfer{Program: p, Reduction: Reduction{DType: job.Float32}, Result: make([]byte, 4*Elements(spec.Slices))}
								errs[h] = tr.Run(ctx, m.Endpoint(h))
								if errs[h] != nil {
									m.Endpoint(h).Close()
								}
							})
						}
						all.Wait()
						named := false
						for h, err := range errs {
							e, ok := errors.AsType[*Error](err)
							if !ok {
								t.Fatalf("host %d: %v", h, err)
							}
							if e.Tensor != 4 || e.Offset < 100 || e.Step < 1 || e.Step > e.Of || !strings.Contains(err.Error(), "tensor 4") {
								t.Errorf("host %d: %v", h, err)
							}
							named = named || h <= 1 && e.Peer == 1-h
						}
						// Of messages that vanish nobody knows; all hosts wait for each other until they give up.
						if !named && kind != transport.Partition {
							t.Errorf("nobody names the connection that broke: %v", errs)
						}
					})
				})
			}
		}
	}
}

func TestRunRefuses(t *testing.T) {
	p := build(t, Spec{Kind: cluster.AllReduce, World: 2, Slices: []plan.Slice{{Length: 8}}})[0]
	gather := build(t, Spec{Kind: cluster.AllGather, World: 2, Slices: []plan.Slice{{Length: 8}}})[0]
	m := transport.NewMemory(3, transport.MemoryOptions{})
	two := transport.NewMemory(2, transport.MemoryOptions{})
	buffer := make([]byte, 40)
	float := Reduction{DType: job.Float32}
	for name, c := range map[string]struct {
		tr Transfer
		ep transport.Endpoint
	}{
		"world":     {Transfer{Program: p, Reduction: float, Result: buffer[:32]}, m.Endpoint(0)},
		"rank":      {Transfer{Program: p, Reduction: float, Result: buffer[:32]}, two.Endpoint(1)},
		"type":      {Transfer{Program: p, Reduction: Reduction{DType: job.Bool}, Result: buffer[:8]}, two.Endpoint(0)},
		"scale":     {Transfer{Program: p, Reduction: Reduction{DType: job.Int32, Scale: 0.5}, Result: buffer[:32]}, two.Endpoint(0)},
		"short":     {Transfer{Program: p, Reduction: float, Result: buffer[:28]}, two.Endpoint(0)},
		"source":    {Transfer{Program: p, Reduction: float, Result: buffer[:32], Sources: [][]byte{buffer[:36]}}, two.Endpoint(0)},
		"unaligned": {Transfer{Program: p, Reduction: float, Result: buffer[1:33]}, two.Endpoint(0)},
		"gathered":  {Transfer{Program: gather, Reduction: float, Result: buffer[:32], Sources: [][]byte{buffer[:32]}}, two.Endpoint(0)},
	} {
		if err := c.tr.Run(t.Context(), c.ep); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := ReduceLocal(float, buffer[:32]); err == nil {
		t.Error("nothing was reduced")
	}
	if _, err := Reference(float, Layout{2}, nil, [][]byte{nil}); err == nil {
		t.Error("one contribution of two workers")
	}
}

// pipes are a network without memory of its own: Send waits for its Recv.
type pipes struct {
	world int
	data  []chan []byte // [from*world + to]
	taken []chan struct{}
}

func newPipes(world int) *pipes {
	p := &pipes{world: world}
	for range world * world {
		p.data = append(p.data, make(chan []byte))
		p.taken = append(p.taken, make(chan struct{}))
	}
	return p
}

type pipe struct {
	*pipes
	rank int
}

func (p *pipes) Endpoint(rank int) transport.Endpoint { return pipe{p, rank} }
func (p pipe) Rank() int                              { return p.rank }
func (p pipe) World() int                             { return p.world }
func (p pipe) Close() error                           { return nil }

func (p pipe) Send(_ context.Context, to int, _ transport.Tag, data []byte) error {
	i := p.rank*p.world + to
	p.data[i] <- data
	<-p.taken[i]
	return nil
}

func (p pipe) Recv(_ context.Context, from int, _ transport.Tag, dst []byte) error {
	i := from*p.world + p.rank
	copy(dst, <-p.data[i])
	p.taken[i] <- struct{}{}
	return nil
}

// TestAllocations: a transfer of many chunks allocates no more than one of few.
func TestAllocations(t *testing.T) {
	for _, alg := range []Algorithm{Ring, Direct, Exchange} {
		allocations := func(chunks int64) float64 {
			const world = 3
			net := newPipes(world)
			var transfers []*Transfer
			for _, p := range build(t, Spec{Kind: cluster.AllReduce, Algorithm: alg, World: world, Slices: []plan.Slice{{Length: world * Block * chunks}}, Chunk: Block}) {
				transfers = append(transfers, &Transfer{Program: p, Reduction: Reduction{DType: job.Float32, Scale: 0.5},
					Result: make([]byte, 4*world*Block*chunks), Sources: [][]byte{make([]byte, 4*world*Block*chunks), make([]byte, 4*world*Block*chunks)}})
			}
			var endpoints []transport.Endpoint
			for h := range world {
				endpoints = append(endpoints, net.Endpoint(h))
			}
			return testing.AllocsPerRun(5, func() {
				together(func(h int) transport.Endpoint { return endpoints[h] }, context.Background(), transfers)
			})
		}
		// The pool may be emptied by a collection, so a few more are no sign.
		few, many := allocations(2), allocations(30)
		if many > few+8 {
			t.Errorf("%v: %v allocations for 2 chunks a part, %v for 30", alg, few, many)
		}
		t.Logf("%v: %v and %v allocations, for 3 hosts", alg, few, many)
	}
}
