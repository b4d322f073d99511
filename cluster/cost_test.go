package cluster

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Sixteen workers, 10 Gbit/s, 25 us a step: alpha = 30·25 us, and
// beta = 2·15/16 · 8/10^10 s a byte = 1.5 ns a byte.
func TestRingByHand(t *testing.T) {
	c := Uniform(16, 1, Link{Name: "net", Latency: 25, Bandwidth: 10e9})
	got, err := c.Cost(0, AllReduce, 1_000_000)
	if want := (Cost{Alpha: 750, Wire: 1500}); err != nil || got != want {
		t.Fatalf("%v, %v; want %v", got, err, want)
	}
}

// The cost of every algorithm is that of its messages, sent one by one: the
// algorithms are written out below, checked to deliver what the collective
// promises, and timed round by round on the ports.
func TestCostAgainstMessages(t *testing.T) {
	const bytes = 1 << 20
	link := Link{Name: "net", Latency: 25, Bandwidth: 10e9}
	fast, slow := Link{Latency: 3, Bandwidth: 200e9}, Link{Latency: 50, Bandwidth: 1e9}
	for nodes := 1; nodes <= 12; nodes++ {
		for _, perNode := range []int{1, 2, 3} {
			for _, a := range []Algorithm{Ring, HalvingDoubling, Hierarchical} {
				for _, k := range []Kind{AllReduce, ReduceScatter, AllGather} {
					name := fmt.Sprintf("%v %v, %d nodes of %d", a, k, nodes, perNode)
					link.Algorithm = a
					c := Uniform(nodes, perNode, link)
					for _, inside := range []*Link{&fast, &slow} {
						c.Inside = inside
						m := newMachine(c, k)
						m.run(t, name, c.rounds(k, m.chunks))
						m.check(t, name, k)
						got, err := c.Cost(0, k, bytes)
						if err != nil {
							t.Fatal(err)
						}
						if want := m.time(bytes); !alike(got.Total(), want) {
							t.Errorf("%s: %v us, by messages %v us", name, got.Total(), want)
						}
					}
				}
			}
		}
	}
}

// message carries chunks from one worker to another, which adds them to its own
// (sum) or takes them.
type message struct {
	from, to int
	chunks   []int
	sum      bool
}

// machine holds, for every worker and chunk, whose contributions are summed in
// its copy, and adds up the rounds' times.
type machine struct {
	c       *Cluster
	chunks  int
	state   [][]uint64
	latency float64
	perByte float64 // us a byte, chunks being fractions of the whole
}

func newMachine(c *Cluster, k Kind) *machine {
	core := 1
	for core*2 <= c.Nodes {
		core *= 2
	}
	// Divisible into parts for the workers of a node, and these among the nodes,
	// by ring and by halving; and, flat, among all workers.
	m := &machine{c: c, chunks: c.PerNode * c.Nodes * core}
	m.state = make([][]uint64, c.World())
	for w := range m.state {
		m.state[w] = make([]uint64, m.chunks)
		for i := range m.state[w] {
			if k != AllGather {
				m.state[w][i] = 1 << w
			}
		}
	}
	if k == AllGather { // the inverse of what a reduce-scatter leaves
		rs := newMachine(c, ReduceScatter)
		rs.run(nil, "", c.rounds(ReduceScatter, rs.chunks))
		full := uint64(1)<<c.World() - 1
		for w := range m.state {
			for i, sum := range rs.state[w] {
				if sum == full {
					m.state[w][i] = full
				}
			}
		}
	}
	return m
}

func (m *machine) run(t *testing.T, name string, rounds [][]message) {
	for _, round := range rounds {
		sent := make([][]uint64, len(round))
		for i, x := range round {
			for _, c := range x.chunks {
				sent[i] = append(sent[i], m.state[x.from][c])
			}
		}
		load := map[string]float64{} // by port and direction, fractions of the whole
		var latency, perByte float64
		for i, x := range round {
			for n, c := range x.chunks {
				switch have := &m.state[x.to][c]; {
				case !x.sum:
					*have = sent[i][n]
				case *have&sent[i][n] != 0:
					if t != nil {
						t.Fatalf("%s: worker %d adds a contribution twice", name, x.to)
					}
				default:
					*have |= sent[i][n]
				}
			}
			link, from, to := &m.c.Links[0], x.from/m.c.PerNode, x.to/m.c.PerNode
			if from == to {
				link, from, to = m.c.Inside, x.from, x.to
			}
			latency = max(latency, link.Latency)
			part := float64(len(x.chunks)) / float64(m.chunks)
			for _, port := range []string{fmt.Sprint(link.Name, " out of ", from), fmt.Sprint(link.Name, " into ", to)} {
				load[port] += part
				perByte = max(perByte, load[port]*8/link.Bandwidth*1e6)
			}
		}
		m.latency += latency
		m.perByte += perByte
	}
}

func (m *machine) time(bytes float64) float64 { return m.latency + m.perByte*bytes }

// check wants what the collective promises: everything everywhere, or each sum
// somewhere and every worker with some.
func (m *machine) check(t *testing.T, name string, k Kind) {
	full := uint64(1)<<m.c.World() - 1
	found := make([]bool, m.chunks)
	for w := range m.state {
		own := 0
		for c, sum := range m.state[w] {
			if sum == full {
				own++
				found[c] = true
			}
		}
		if own == 0 || k != ReduceScatter && own < m.chunks {
			t.Fatalf("%s: worker %d ends with %d of %d chunks", name, w, own, m.chunks)
		}
	}
	if slices.Contains(found, false) {
		t.Fatalf("%s: a sum is nowhere", name)
	}
}

// rounds writes the cluster's collective out.
func (c *Cluster) rounds(k Kind, chunks int) [][]message {
	all := upTo(chunks)
	if c.Links[0].Algorithm == Ring || c.PerNode == 1 {
		scatter, gather := flat(c.Links[0].Algorithm, upTo(c.World()), all)
		return phases(k, scatter, gather)
	}
	var inScatter, inGather, scatter, gather [][]message
	for n := range c.Nodes { // the nodes at the same time
		ranks := upTo(c.PerNode)
		for i := range ranks {
			ranks[i] += n * c.PerNode
		}
		s, g := flat(Ring, ranks, all)
		inScatter, inGather = zip(inScatter, s), zip(inGather, g)
	}
	for l := range c.PerNode { // the workers of a node at the same time, sharing its port
		var ranks []int
		for n := range c.Nodes {
			ranks = append(ranks, n*c.PerNode+l)
		}
		own := split(all, c.PerNode)[(l+1)%c.PerNode] // what the ring leaves with worker l
		s, g := flat(c.Links[0].Algorithm, ranks, own)
		scatter, gather = zip(scatter, s), zip(gather, g)
	}
	return phases(k, slices.Concat(inScatter, scatter), slices.Concat(gather, inGather))
}

func phases(k Kind, scatter, gather [][]message) [][]message {
	switch k {
	case ReduceScatter:
		return scatter
	case AllGather:
		return gather
	}
	// The all-reduce of halving and doubling neither unfolds after the scatter
	// nor folds before the gather: those two rounds would undo each other.
	if n := len(scatter); n > 0 && len(gather) > 0 && !scatter[n-1][0].sum {
		scatter, gather = scatter[:n-1], gather[1:]
	}
	return slices.Concat(scatter, gather)
}

func flat(a Algorithm, ranks, chunks []int) (scatter, gather [][]message) {
	if a == HalvingDoubling {
		return halving(ranks, chunks)
	}
	m := len(ranks)
	parts := split(chunks, m)
	for s := range m - 1 {
		var reduce, copy []message
		for i, w := range ranks {
			next := ranks[(i+1)%m]
			reduce = append(reduce, message{w, next, parts[(i-s+m)%m], true})
			copy = append(copy, message{w, next, parts[(i+1-s+m)%m], false})
		}
		scatter, gather = append(scatter, reduce), append(gather, copy)
	}
	return scatter, gather
}

// halving is recursive halving among the first 2^n ranks; each rank beyond
// folds into a partner before and is given its part after. Doubling is the same
// backwards.
func halving(ranks, chunks []int) (scatter, gather [][]message) {
	m, core := len(ranks), 1
	for core*2 <= m {
		core *= 2
	}
	var fold, give []message
	have := make([][]int, core)
	for i := range have {
		have[i] = chunks
	}
	for e := core; e < m; e++ {
		fold = append(fold, message{ranks[e], ranks[e-core], chunks, true})
	}
	if fold != nil {
		scatter = append(scatter, fold)
	}
	for d := core / 2; d >= 1; d /= 2 {
		var round []message
		keep := make([][]int, core)
		for i := range core {
			low, high := have[i][:len(have[i])/2], have[i][len(have[i])/2:]
			send := high
			if keep[i] = low; i&d != 0 {
				keep[i], send = high, low
			}
			round = append(round, message{ranks[i], ranks[i^d], send, true})
		}
		have = keep
		scatter = append(scatter, round)
	}
	for e := core; e < m; e++ {
		give = append(give, message{ranks[e-core], ranks[e], have[e-core][:len(chunks)/m], false})
	}
	if give != nil {
		scatter = append(scatter, give)
	}
	for i := len(scatter) - 1; i >= 0; i-- {
		var round []message
		for _, x := range scatter[i] {
			round = append(round, message{x.to, x.from, x.chunks, false})
		}
		gather = append(gather, round)
	}
	return scatter, gather
}

func zip(a, b [][]message) [][]message {
	for i, round := range b {
		if i == len(a) {
			a = append(a, nil)
		}
		a[i] = append(a[i], round...)
	}
	return a
}

func split(chunks []int, parts int) [][]int {
	return slices.Collect(slices.Chunk(chunks, len(chunks)/parts))
}

func upTo(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// A broadcast along a ring in small pieces: piece p leaves worker h when it has
// come and the piece before it has left. With pieces going to nothing this is
// (m-1) latencies and one passage of the bytes.
func TestRingBroadcastAgainstPieces(t *testing.T) {
	const latency, perByte, bytes = 25.0, 8e-4, 1e6
	for m := 2; m <= 9; m++ {
		const pieces = 1 << 12
		came := make([]float64, pieces) // at the worker so far along the ring
		for range m - 1 {
			free := 0.0
			for p := range came {
				free = max(free, came[p]) + perByte*bytes/pieces
				came[p] = free + latency
			}
		}
		c := Uniform(m, 1, Link{Name: "net", Latency: latency, Bandwidth: 10e9})
		got, _ := c.Cost(0, Broadcast, bytes)
		// Each worker after the first holds a piece back until all of it has come.
		if want := came[pieces-1] - float64(m-2)*perByte*bytes/pieces; !alike(got.Total(), want) {
			t.Errorf("%d workers: %v us, by pieces %v us", m, got.Total(), want)
		}
	}
}

// Halving and doubling broadcasts by scatter, then all-gather; ports beyond the
// power of two are given everything at the end.
func TestHalvingDoublingBroadcast(t *testing.T) {
	for _, c := range []struct {
		m    int
		want rounds
	}{
		{2, rounds{2, 1}},             // 1/2, 1/2
		{4, rounds{4, 1.5}},           // 1/2 + 1/4, 1/4 + 1/2
		{5, rounds{5, 2.5}},           // and all to the fifth
		{8, rounds{6, 1.75}},          // 1/2 + 1/4 + 1/8, twice
		{15, rounds{7, 1.75 + 1}},     // seven ports beyond eight, at the same time
		{16, rounds{8, 2 * 15. / 16}}, // 15/16, twice
	} {
		if got := roundsOf(HalvingDoubling, Broadcast, c.m); got != c.want {
			t.Errorf("%d ports: %v, want %v", c.m, got, c.want)
		}
	}
}

// Two binary trees, each for half the bytes (Sanders, Speck and Träff 2009): the
// second is the first mirrored (even m) or shifted by one (odd m), so that what
// is an inner port of one is a leaf of the other. The table's steps are at
// least their depths, its share exactly the busiest port's.
func TestTreeAgainstTwoTrees(t *testing.T) {
	for m := 2; m <= 70; m++ {
		first := inorder(m)
		second := make([]int, m+1)
		place := func(v int) int {
			if m%2 == 0 {
				return m + 1 - v
			}
			return v%m + 1
		}
		for v := 1; v <= m; v++ {
			if first[v] != 0 {
				second[place(v)] = place(first[v])
			}
		}
		depth := 0
		out, in := make([]float64, m+1), make([]float64, m+1) // up the trees
		for _, parent := range [][]int{first, second} {
			for v := 1; v <= m; v++ {
				d := 0
				for u := v; parent[u] != 0; u = parent[u] {
					d++
				}
				depth = max(depth, d)
				if parent[v] != 0 {
					out[v] += 0.5
					in[parent[v]] += 0.5
				}
			}
		}
		share := 0.0
		for v := 1; v <= m; v++ {
			share = max(share, out[v]+in[v]) // up, and down again with out and in exchanged
		}
		got := roundsOf(Tree, AllReduce, m)
		if got.Share != share {
			t.Errorf("%d ports: share %v, of the trees %v", m, got.Share, share)
		}
		if low := 2 * float64(depth); got.Steps < low || got.Steps > low+2 {
			t.Errorf("%d ports: %v steps, the trees are %d deep", m, got.Steps, depth)
		}
		if b := roundsOf(Tree, Broadcast, m); b.Steps != got.Steps/2 || b.Share != 1 {
			t.Errorf("%d ports: broadcast %v", m, b)
		}
		for _, k := range []Kind{ReduceScatter, AllGather} {
			if roundsOf(Tree, k, m) != roundsOf(Ring, k, m) {
				t.Errorf("%v by trees is not the ring's", k)
			}
		}
	}
}

// inorder gives the parent (0: none) of 1..m in the binary tree that visits them
// in order: a port's height is its number of trailing zeros, leaves are odd.
func inorder(m int) []int {
	parent := make([]int, m+1)
	var build func(low, high, above int)
	build = func(low, high, above int) {
		if low > high {
			return
		}
		root := low
		for v := low; v <= high; v++ {
			if v&-v > root&-root {
				root = v
			}
		}
		parent[root] = above
		build(low, root-1, root)
		build(root+1, high, root)
	}
	build(1, m, 0)
	return parent
}

// Every worker sends every server its share; what stays on a node needs no
// port. Whatever order the flows take, the busiest port bounds the time, and an
// order that reaches the bound exists (preemptive open shop: Gonzalez and
// Sahni 1976).
func TestServersAgainstFlows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Uniform(rapid.IntRange(1, 6).Draw(t, "nodes"), rapid.IntRange(1, 3).Draw(t, "per node"), Link{Name: "net", Latency: 25, Bandwidth: 10e9})
		s := &Servers{
			Count:     rapid.IntRange(1, 9).Draw(t, "servers"),
			Colocated: rapid.Bool().Draw(t, "colocated"),
			MergeRate: rapid.SampledFrom([]float64{0, 1e8, 1e9, 1e10}).Draw(t, "merge rate"),
		}
		c.Servers = s
		bytes := rapid.Int64Range(1, 1<<30).Draw(t, "bytes")
		share := float64(bytes) / float64(s.Count)
		node, server := make([]float64, c.Nodes), make([]float64, s.Count+c.Nodes) // bytes through ports, towards the servers
		merged := 0.0
		for range c.PerNode {
			for n := range c.Nodes {
				for i := range s.Count {
					port := c.Nodes + i // a host of its own
					if s.Colocated {
						port = i % c.Nodes
					}
					if port != n {
						node[n] += share
						server[port] += share
					}
				}
				merged += share // by one server
			}
		}
		wire := max(slices.Max(node), slices.Max(server)) * 8 / 10e9 * 1e6
		want := map[Kind]float64{Push: wire, Pull: wire}
		if s.MergeRate > 0 {
			want[Push] = max(wire, merged/s.MergeRate*1e6)
		}
		for k, wire := range want {
			got, err := c.Cost(0, k, bytes)
			alpha := 25.0
			if c.World() == 1 {
				alpha, wire = 0, 0
			}
			if err != nil || got.Alpha != alpha || !alike(got.Wire, wire) {
				t.Fatalf("%v: %v, %v; want alpha %v, wire %v", k, got, err, alpha, wire)
			}
		}
	})
}

// As many servers as workers, on their hosts: push and pull together carry what
// a ring all-reduce carries, in two latencies.
func TestColocatedServersEqualRing(t *testing.T) {
	c := Uniform(8, 1, Link{Name: "net", Latency: 25, Bandwidth: 10e9})
	c.Servers = &Servers{Count: 8, Colocated: true}
	push, _ := c.Cost(0, Push, 1e6)
	pull, _ := c.Cost(0, Pull, 1e6)
	ring, _ := c.Cost(0, AllReduce, 1e6)
	if push.Alpha+pull.Alpha != 50 || !alike(push.Wire+pull.Wire, ring.Wire) {
		t.Errorf("push %v, pull %v, all-reduce %v", push, pull, ring)
	}
}

// BytePS's optimum (OSDI 2020): with n GPU machines and k more of CPUs each port
// carries 2n(n-1)/(n² + kn - 2k) times the bytes each way, for k = 0 those of servers
// on the workers' hosts and for k = n those of servers on hosts of their own, where
// pushes and pulls pass each other.
func TestServersEqualBytePS(t *testing.T) {
	const n = 8
	c := Uniform(n, 1, Link{Name: "net", Bandwidth: 8e6}) // a byte takes 1 us
	for _, x := range []struct {
		colocated bool
		k         float64
		sides     [2]Sides
	}{{true, 0, [2]Sides{Both, Both}}, {false, n, [2]Sides{Out, In}}} {
		c.Servers = &Servers{Count: n, Colocated: x.colocated}
		var busy [2]float64 // outgoing, incoming
		for i, k := range []Kind{Push, Pull} {
			cost, err := c.Cost(0, k, 1e6)
			if err != nil || c.Sides(k) != x.sides[i] {
				t.Fatalf("%v: %v, sides %d", k, err, c.Sides(k))
			}
			for side := range busy {
				if c.Sides(k)>>side&1 != 0 {
					busy[side] += cost.Wire
				}
			}
		}
		want := 1e6 * 2 * n * (n - 1) / (n*n + x.k*n - 2*x.k)
		if !alike(busy[0], want) || !alike(busy[1], want) {
			t.Errorf("colocated %t: %v us out and in, want %v", x.colocated, busy, want)
		}
	}
}

// Servers that nobody gave are one a node, on the workers' hosts; given ones stay.
func TestWithServers(t *testing.T) {
	c := Uniform(3, 2, Link{Name: "net", Bandwidth: 1e9})
	with := c.WithServers()
	if c.Servers != nil || *with.Servers != (Servers{Count: 3, Colocated: true}) {
		t.Errorf("%+v of %+v", with.Servers, c.Servers)
	}
	if with.WithServers() != with {
		t.Error("given servers do not stay")
	}
	if s := c.Sides(Push); s != Both {
		t.Errorf("without servers a push has sides %d", s)
	}
}

func TestCostProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genCluster(t)
		link := rapid.IntRange(0, len(c.Links)-1).Draw(t, "link")
		k := Kind(rapid.IntRange(0, len(kindNames)-1).Draw(t, "kind"))
		a, b := rapid.Int64Range(0, 1<<40).Draw(t, "a"), rapid.Int64Range(0, 1<<40).Draw(t, "b")
		if a > b {
			a, b = b, a
		}
		small, err := c.Cost(link, k, a)
		if served := k == Push || k == Pull; err != nil {
			if !served || c.Servers != nil {
				t.Fatal(err)
			}
			return
		}
		large, _ := c.Cost(link, k, b)
		if small.Alpha < 0 || small.Wire < 0 || math.IsNaN(small.Total()) || math.IsInf(small.Total(), 0) {
			t.Fatalf("%v", small)
		}
		if large.Total() < small.Total()*(1-1e-12) {
			t.Fatalf("%d bytes cost %v, %d bytes %v", a, small, b, large)
		}
		if a > 0 && small.Alpha != large.Alpha {
			t.Fatalf("the start-up depends on the size: %v, %v", small, large)
		}
		if (a == 0 || c.World() == 1) && small != (Cost{}) {
			t.Fatalf("%d bytes among %d workers cost %v", a, c.World(), small)
		}
		c.Links[link].Bandwidth /= 2
		if half, _ := c.Cost(link, k, b); half.Total() < large.Total() {
			t.Fatalf("%v at half the bandwidth, %v at all of it", half, large)
		}
		c.Links[link].Bandwidth *= 2
		if len(c.Links[link].Curve) == 0 {
			alpha, beta, err := c.AlphaBeta(link, k)
			if err != nil || b > 0 && !alike(alpha+beta*float64(b), large.Total()) {
				t.Fatalf("alpha %v, beta %v, %v; %d bytes cost %v", alpha, beta, err, b, large)
			}
		}
	})
}

func TestCostErrors(t *testing.T) {
	c := Uniform(2, 1, Link{Name: "net", Curve: []Point{{AllReduce, 1000, 10}}})
	for _, x := range []struct {
		link  int
		k     Kind
		bytes int64
		want  string
	}{
		{1, AllReduce, 1, "cluster: there is no link 1; there are 1, from 0"},
		{0, AllReduce, -1, "cluster: all-reduce of -1 bytes"},
		{0, 77, 1, "cluster: unknown kind 77"},
		{0, Push, 1, "cluster: push needs parameter servers; the cluster has none (servers: {count: 2})"},
		{0, AllGather, 1, `cluster: link "net" has neither a measured curve for all-gather nor a bandwidth`},
	} {
		if _, err := c.Cost(x.link, x.k, x.bytes); err == nil || err.Error() != x.want {
			t.Errorf("got %v, want %v", err, x.want)
		}
	}
}

func alike(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

func BenchmarkCost(b *testing.B) {
	c := Uniform(16, 8, Link{Name: "net", Latency: 25, Bandwidth: 10e9, Algorithm: Hierarchical})
	c.Inside = &Link{Latency: 3, Bandwidth: 200e9}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Cost(0, AllReduce, 1e6); err != nil {
			b.Fatal(err)
		}
	}
}
