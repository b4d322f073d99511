package collective

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"

	"pgregory.net/rapid"
)

// testingT is what *testing.T and *rapid.T have in common.
type testingT interface {
	Helper()
	Logf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// kinds are the programs that there are.
var kinds = []pair{
	{Ring, cluster.AllReduce}, {Ring, cluster.ReduceScatter}, {Ring, cluster.AllGather}, {Ring, cluster.Broadcast},
	{Direct, cluster.AllReduce}, {Direct, cluster.ReduceScatter}, {Direct, cluster.AllGather},
	{Exchange, cluster.AllReduce}, {Exchange, cluster.Broadcast},
}

// traffic is what an interpretation counted.
type traffic struct {
	steps    int     // messages one after the other that the last one had to wait for, itself included
	messages []int   // sent by each host
	elements []int64 // likewise
}

// interpret executes the programs of all hosts, in one goroutine and in an arbitrary
// order: as long as some message can be handed over, one of those is. Nothing is held
// between the hosts: a message is sent only into the hands of its receiver. data has the
// hosts' contributions, and their results afterwards.
func interpret(t testingT, r *rand.Rand, programs []*Program, data [][]float32) traffic {
	type state struct {
		slots          [][]float32
		depth          []int // of each receive, from 1: its message's step
		sent, received int
		landed         []bool // of each receive: its message is in its slot
	}
	world := len(programs)
	hosts := make([]state, world)
	for h, p := range programs {
		hosts[h] = state{slots: make([][]float32, p.Slots), depth: make([]int, len(p.Recvs)+1), landed: make([]bool, len(p.Recvs))}
		for i := range hosts[h].slots {
			hosts[h].slots[i] = make([]float32, largest(p))
		}
	}
	// lands is which receive of host to takes the next message of host from; none: -1.
	lands := func(from, to int) int {
		s, p := &hosts[to], programs[to]
		for i := s.received; i < min(s.received+ahead, len(p.Recvs)); i++ {
			if r := p.Recvs[i]; r.From == from && !s.landed[i] {
				if r.Free <= s.sent {
					return i
				}
				break // messages of two hosts are in order
			}
		}
		return -1
	}
	out := traffic{messages: make([]int, world), elements: make([]int64, world)}
	for {
		type choice struct{ from, to, recv int } // to < 0: host from acts
		var can []choice
		done := true
		for h, p := range programs {
			s := &hosts[h]
			done = done && s.sent == len(p.Sends) && s.received == len(p.Recvs)
			if s.received < len(p.Recvs) && s.landed[s.received] && s.sent >= p.Recvs[s.received].After {
				can = append(can, choice{h, -1, 0})
			}
			if s.sent == len(p.Sends) || p.Sends[s.sent].After > s.received {
				continue
			}
			if to := p.Sends[s.sent].To; lands(h, to) >= 0 {
				can = append(can, choice{h, to, lands(h, to)})
			}
		}
		if done {
			return out
		}
		if len(can) == 0 {
			for h, p := range programs {
				t.Logf("host %d has sent %d of %d and received %d of %d", h, hosts[h].sent, len(p.Sends), hosts[h].received, len(p.Recvs))
			}
			t.Fatal("nothing can move")
		}
		c := can[r.IntN(len(can))]
		p, s := programs[c.from], &hosts[c.from]
		if c.to < 0 {
			recv := p.Recvs[s.received]
			act(p, recv, s.slots, data[c.from])
			s.received++
			if recv.Do&Combine != 0 { // it has waited for messages of several receives
				s.depth[s.received] = slices.Max(s.depth[s.received-world+2 : s.received+1])
			}
			continue
		}
		send := p.Sends[s.sent]
		to := &hosts[c.to]
		recv := programs[c.to].Recvs[c.recv]
		if send.Tag != recv.Tag || p.Chunks[send.Chunk].Elements != programs[c.to].Chunks[recv.Chunk].Elements {
			t.Fatalf("host %d sends %+v, host %d expects %+v", c.from, send, c.to, recv)
		}
		elements := p.Chunks[send.Chunk].Elements
		if send.Load {
			pack(s.slots[send.Slot], data[c.from], p.Chunks[send.Chunk])
		}
		copy(to.slots[recv.Slot][:elements], s.slots[send.Slot])
		depth := 1 + s.depth[send.After]
		to.depth[1+c.recv] = depth
		out.steps = max(out.steps, depth)
		out.messages[c.from]++
		out.elements[c.from] += elements
		s.sent++
		to.landed[c.recv] = true
	}
}

func largest(p *Program) int64 {
	n := int64(0)
	for _, c := range p.Chunks {
		n = max(n, c.Elements)
	}
	return n
}

func pack(slot, data []float32, c Chunk) {
	for _, r := range c.Runs {
		slot = slot[copy(slot, data[r.Start:r.Start+r.Length]):]
	}
}

func act(p *Program, r Recv, slots [][]float32, data []float32) {
	i := int64(0)
	for _, run := range p.Chunks[r.Chunk].Runs {
		for e := run.Start; e < run.Start+run.Length; e++ {
			slot := &slots[r.Slot][i]
			if r.Do&Add != 0 {
				*slot += data[e]
			}
			if r.Do&Combine != 0 {
				sum := float32(math.Copysign(0, -1)) // adds nothing
				for d := range p.World {
					h := (run.Owner + 1 + d) % p.World
					if h == p.Rank {
						sum += data[e]
					} else { // the next host's is in this slot, that of the one after in the slot before
						sum += slots[r.Slot-((h-p.Rank+p.World)%p.World-1)][i]
					}
				}
				*slot = sum
			}
			if r.Do&Store != 0 {
				data[e] = *slot
			}
			i++
		}
	}
}

// bucket draws slices of some tensors.
func bucket(t *rapid.T, most int64) []plan.Slice {
	var out []plan.Slice
	for range rapid.IntRange(0, 3).Draw(t, "slices") {
		out = append(out, plan.Slice{
			Tensor: job.TensorID(rapid.IntRange(0, 9).Draw(t, "tensor")),
			Offset: rapid.Int64Range(0, 5*Block).Draw(t, "offset"),
			Length: rapid.Int64Range(0, most).Draw(t, "length"),
		})
	}
	return out
}

// owners is the owner of every element of a bucket, as the documentation says it.
func owners(slices []plan.Slice, world int) []int {
	var out []int
	for _, s := range slices {
		for e := s.Offset; e < s.Offset+s.Length; e++ {
			out = append(out, int(int64(s.Tensor)+e/1024)%world)
		}
	}
	return out
}

// ringSum adds one element's contributions, from the host after the owner to the owner.
func ringSum(owner int, contribution func(host int) float32, world int) float32 {
	sum := contribution((owner + 1) % world)
	for d := 2; d <= world; d++ {
		sum += contribution((owner + d) % world)
	}
	return sum
}

func floatsOf(r *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(12))))
	}
	return out
}

func build(t testingT, s Spec) []*Program {
	var out []*Program
	for rank := range s.World {
		p, err := s.Program(rank)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// TestPrograms executes random programs of every kind and compares the results, bit by
// bit, with sums in the documented order.
func TestPrograms(t *testing.T) {
	for _, k := range kinds {
		t.Run(fmt.Sprintf("%v by %v", k.Kind, k.Algorithm), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				world := rapid.IntRange(1, 6).Draw(t, "world")
				s := Spec{k.Kind, k.Algorithm, world, rapid.IntRange(0, world-1).Draw(t, "root"), bucket(t, 2*Block), rapid.Int64Range(200, 2000).Draw(t, "chunk")}
				programs := build(t, s)
				r := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
				owner := owners(s.Slices, world)
				before, data := make([][]float32, world), make([][]float32, world)
				for h := range data {
					before[h] = floatsOf(r, len(owner))
					data[h] = append([]float32(nil), before[h]...)
				}
				interpret(t, r, programs, data)
				for e, o := range owner {
					sum := ringSum(o, func(h int) float32 { return before[h][e] }, world)
					for h := range world {
						want := map[cluster.Kind]float32{cluster.AllReduce: sum, cluster.ReduceScatter: sum, cluster.AllGather: before[o][e], cluster.Broadcast: before[s.Root][e]}[k.Kind]
						if k.Kind == cluster.ReduceScatter && h != o {
							continue
						}
						if got := data[h][e]; math.Float32bits(got) != math.Float32bits(want) {
							t.Fatalf("host %d, element %d of owner %d: %v, want %v", h, e, o, got, want)
						}
					}
				}
				for _, p := range programs {
					checkGuards(t, p)
				}
			})
		})
	}
}

// checkGuards proves that no memory is written while it is being sent, and that tags
// are unique, whatever the timing.
func checkGuards(t *rapid.T, p *Program) {
	type message struct {
		peer int
		tag  uint32
	}
	tags := map[message]bool{}
	for i, s := range p.Sends {
		if m := (message{s.To, s.Tag}); tags[m] {
			t.Fatalf("send %d: tag %d to %d is used twice", i, s.Tag, s.To)
		} else {
			tags[m] = true
		}
		if s.Load && (s.Slot != 0 || s.After != 0) || !s.Load && (s.After == 0 || p.Recvs[s.After-1].Slot != s.Slot || p.Recvs[s.After-1].Chunk != s.Chunk) {
			t.Fatalf("send %d %+v does not send what was received last into its slot", i, s)
		}
		waited := []int{0} // of each receive, from 1: the sends that it or an earlier one waited for
		for j, r := range p.Recvs {
			if r.Slot == 0 {
				t.Fatalf("receive %d is into the slot of loads", j)
			}
			done := max(j+1-ahead, 0) // earlier receives that it waits for
			free, after := max(r.Free, waited[done]), r.After
			waited = append(waited, max(r.Free, waited[j]))
			// What receive s.After left in the slot is overwritten by a later one only after the send.
			if !s.Load && j >= s.After && r.Slot == s.Slot && free <= i {
				t.Fatalf("receive %d %+v overwrites what send %d %+v sends", j, r, i, s)
			}
			if s.Load && r.Do&Store != 0 && r.Chunk == s.Chunk && after <= i {
				t.Fatalf("receive %d %+v stores over the contribution that send %d %+v sends", j, r, i, s)
			}
		}
	}
}

// TestCosts counts what is sent, and how many steps follow each other, and compares
// with the table of docs/collectives.md; and that with the cost model, for the programs that
// it has a price for.
func TestCosts(t *testing.T) {
	for _, k := range kinds {
		for world := 2; world <= 6; world++ {
			w, n := float64(world), float64(world*6*Block) // equal parts
			s := Spec{Kind: k.Kind, Algorithm: k.Algorithm, World: world, Slices: []plan.Slice{{Tensor: 3, Length: int64(n)}}, Chunk: Block}
			programs := build(t, s)
			data := make([][]float32, world)
			for h := range data {
				data[h] = make([]float32, int(n))
			}
			got := interpret(t, rand.New(rand.NewPCG(3, 4)), programs, data)

			// Of docs/collectives.md: steps, and elements out of the busiest port.
			want := map[pair]struct{ steps, elements float64 }{
				{Ring, cluster.AllReduce}:       {2 * (w - 1), 2 * (w - 1) / w * n},
				{Ring, cluster.ReduceScatter}:   {w - 1, (w - 1) / w * n},
				{Ring, cluster.AllGather}:       {w - 1, (w - 1) / w * n},
				{Ring, cluster.Broadcast}:       {w - 1, n},
				{Direct, cluster.AllReduce}:     {2, 2 * (w - 1) / w * n},
				{Direct, cluster.ReduceScatter}: {1, (w - 1) / w * n},
				{Direct, cluster.AllGather}:     {1, (w - 1) / w * n},
				{Exchange, cluster.AllReduce}:   {1, (w - 1) * n},
				{Exchange, cluster.Broadcast}:   {1, (w - 1) * n},
			}[k]
			if steps, share := s.Rounds(); steps != want.steps || math.Abs(share*n-want.elements) > 1e-6 {
				t.Errorf("%v, %d hosts: Rounds says %v steps and %v elements, want %v and %v", s, world, steps, share*n, want.steps, want.elements)
			}
			busiest, messages := int64(0), 0
			for h, p := range programs {
				busiest = max(busiest, got.elements[h])
				messages = max(messages, got.messages[h])
				if p.Bytes(4) != 4*got.elements[h] {
					t.Errorf("%v, %d hosts: host %d sent %d bytes, Bytes says %d", s, world, h, 4*got.elements[h], p.Bytes(4))
				}
			}
			if float64(got.steps) != want.steps || math.Abs(float64(busiest)-want.elements) > 1e-6 || math.Abs(float64(messages)-want.elements/Block) > 1e-6 {
				t.Errorf("%v, %d hosts: %d steps, %d elements and %d messages from the busiest port; want %v, %v and %v",
					s, world, got.steps, busiest, messages, want.steps, want.elements, want.elements/Block)
			}
			if k.Algorithm != Ring {
				continue
			}
			c := cluster.Cluster{Nodes: world, PerNode: 1, Links: []cluster.Link{{Latency: 1, Bandwidth: 8e6}}} // a microsecond a step, and a byte
			cost, err := c.Cost(0, k.Kind, int64(n))
			if err != nil {
				t.Fatal(err)
			}
			if cost.Alpha != float64(got.steps) || math.Abs(cost.Wire-float64(busiest)) > 1e-6 {
				t.Errorf("%v, %d hosts: the cost model says %v steps and %v elements, counted %d and %d", s, world, cost.Alpha, cost.Wire, got.steps, busiest)
			}
		}
	}
}

// TestBarrier: no host is done before every host has begun, in log2 steps.
func TestBarrier(t *testing.T) {
	for world := 1; world <= 20; world++ {
		var programs []*Program
		for rank := range world {
			p, err := Barrier(rank, world)
			if err != nil {
				t.Fatal(err)
			}
			programs = append(programs, p)
		}
		// heard[h] is the set of hosts that h knows to have begun, after each round.
		heard := make([]uint, world)
		for h := range heard {
			heard[h] = 1 << h
		}
		for round := range programs[0].Sends {
			next := append([]uint(nil), heard...)
			for h, p := range programs {
				if p.Sends[round].After != round {
					t.Fatalf("round %d does not wait for the one before", round)
				}
				next[p.Sends[round].To] |= heard[h]
			}
			heard = next
		}
		for h, set := range heard {
			if set != 1<<world-1 {
				t.Errorf("of %d hosts, host %d has heard of %b", world, h, set)
			}
		}
		got := interpret(t, rand.New(rand.NewPCG(5, 6)), programs, make([][]float32, world))
		if want := int(math.Ceil(math.Log2(float64(world)))); got.steps != want {
			t.Errorf("%d hosts: %d steps, want %d", world, got.steps, want)
		}
	}
}

func TestProgramRefuses(t *testing.T) {
	good := Spec{Kind: cluster.AllReduce, World: 2, Slices: []plan.Slice{{Length: 1}}}
	if _, err := good.Program(1); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(s *Spec) (rank int){
		"rank":        func(*Spec) int { return 2 },
		"negative":    func(*Spec) int { return -1 },
		"world":       func(s *Spec) int { s.World = 0; return 0 },
		"root":        func(s *Spec) int { s.Root = 2; return 0 },
		"chunk":       func(s *Spec) int { s.Chunk = -1; return 0 },
		"kind":        func(s *Spec) int { s.Kind = cluster.Push; return 0 },
		"wrong kind":  func(s *Spec) int { s.Kind = 99; return 0 },
		"algorithm":   func(s *Spec) int { s.Algorithm = 99; return 0 },
		"tensor":      func(s *Spec) int { s.Slices = []plan.Slice{{Tensor: -1, Length: 1}}; return 0 },
		"long slices": func(s *Spec) int { s.Slices = []plan.Slice{{Offset: math.MaxInt64, Length: 1}}; return 0 },
	} {
		s := good
		rank := change(&s)
		if _, err := s.Program(rank); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
