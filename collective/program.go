package collective

import (
	"fmt"

	"weft/cluster"
	"weft/plan"
)

// Algorithm is how the hosts carry a collective out.
type Algorithm uint8

const (
	// Ring passes every part from host to host: the fewest bytes through a port,
	// one peer on each side, the most steps.
	Ring Algorithm = iota
	// Direct sends every part straight to its owner, and from the owner to
	// everyone: the bytes of a ring in one or two steps, from all peers at once.
	Direct
	// Exchange sends everything to everyone: one step, the most bytes.
	Exchange
	// Dissemination is the algorithm of [Barrier].
	Dissemination
)

var algorithmNames = []string{"ring", "direct", "exchange", "dissemination"}

func (a Algorithm) String() string { return algorithmNames[a] }

// Program is what one host does in one collective: it sends its Sends in order and,
// at the same time, receives its Recvs in order. The two lists wait for each other
// by count only. Every two hosts send and receive the messages between them in the
// same order.
//
// A host has its contribution to the bucket, the result, and Slots numbered buffers,
// each as large as the largest chunk: a message is sent from a slot and received into
// one. Contribution and result may be the same memory.
type Program struct {
	Spec
	Rank   int
	Chunks []Chunk
	Slots  int
	Sends  []Send
	Recvs  []Recv
}

// Send sends the slot to a host, as soon as the first After receives are done.
type Send struct {
	To    int
	Tag   uint32 // of the message, unique between the two hosts
	Chunk int
	Slot  int
	After int
	// Load: first the slot is set to the contribution. Result: it has what was stored.
	Load, Result bool
}

// Recv receives a message into the slot, as soon as the first Free sends, which are
// from the same slot, have returned; then, when those before it are done, does what Do
// says. It may begin when those up to the ahead-th before it are done: none of the later
// ones has to do with its slot.
type Recv struct {
	From  int
	Tag   uint32
	Chunk int
	Slot  int
	Free  int
	Do    Action
	After int // before storing, the first After sends, of the contribution there, have returned
}

// Action is what becomes of a message that has been received; a set of:
type Action uint8

const (
	// Add adds the host's contribution to the slot.
	Add Action = 1 << iota
	// Combine sets the slot to the sum of all contributions, each run in its order:
	// the host's own, and those of the other hosts, which were received into the
	// slots up to this one, the last from the host after this one, the one before
	// from the host after that, and so on.
	Combine
	// Store sets the result to the slot.
	Store
)

// Spec is a collective, the same on all hosts.
type Spec struct {
	Kind      cluster.Kind // AllReduce, ReduceScatter, AllGather or Broadcast
	Algorithm Algorithm
	World     int          // hosts
	Root      int          // of a broadcast
	Slices    []plan.Slice // the bucket
	Chunk     int64        // elements, the most that one message carries; 0: all of them
}

// window is how many chunks of each part a ring has under way: enough that a link is
// busy while a chunk is being added, and few enough to stay in the cache.
const window = 4

// Program builds what one host does. After a reduce-scatter, and before an all-gather,
// a host's result is in the elements that it owns. It is an error to ask for a kind
// that the algorithm does not do, or for hosts and slices that do not exist.
func (s Spec) Program(rank int) (*Program, error) {
	switch {
	case s.World < 1 || rank < 0 || rank >= s.World || s.Root < 0 || s.Root >= s.World:
		return nil, fmt.Errorf("collective: rank %d and root %d of %d", rank, s.Root, s.World)
	case s.Chunk < 0:
		return nil, fmt.Errorf("collective: chunks of %d elements", s.Chunk)
	}
	for i, sl := range s.Slices {
		if sl.Tensor < 0 || sl.Offset < 0 || sl.Length < 0 || sl.Offset+sl.Length < 0 {
			return nil, fmt.Errorf("collective: slice %d is %d elements from %d of tensor %d", i, sl.Length, sl.Offset, sl.Tensor)
		}
	}
	if s.Chunk == 0 {
		s.Chunk = max(1, Elements(s.Slices))
	}
	b := &builder{Program: &Program{Spec: s, Rank: rank}}
	build := builders[pair{s.Algorithm, s.Kind}]
	switch {
	case build == nil:
		return nil, fmt.Errorf("collective: kind %d by algorithm %d is not among the programs", s.Kind, s.Algorithm)
	case s.World > 1:
		build(b)
		b.guard()
	}
	return b.Program, nil
}

type pair struct {
	Algorithm
	cluster.Kind
}

// builders is the table of algorithms.
var builders = map[pair]func(*builder){
	{Ring, cluster.AllReduce}:       func(b *builder) { b.ring(true, true) },
	{Ring, cluster.ReduceScatter}:   func(b *builder) { b.ring(true, false) },
	{Ring, cluster.AllGather}:       func(b *builder) { b.ring(false, true) },
	{Ring, cluster.Broadcast}:       (*builder).pipeline,
	{Direct, cluster.AllReduce}:     func(b *builder) { b.direct(true, true) },
	{Direct, cluster.ReduceScatter}: func(b *builder) { b.direct(true, false) },
	{Direct, cluster.AllGather}:     func(b *builder) { b.direct(false, true) },
	{Exchange, cluster.AllReduce}:   (*builder).exchange,
	{Exchange, cluster.Broadcast}:   (*builder).fan,
}

// builder makes a program. Messages are tagged with their chunk, those that carry
// results apart from those that carry sums.
type builder struct {
	*Program
	parts [][]int // of each owner: chunks
	had   []int   // of each chunk: receives done when the slot has what is to be sent on
	slot  []int   // of each chunk: that slot
}

// host is the host that is distance further in the ring.
func (b *builder) host(distance int) int { return ((b.Rank+distance)%b.World + b.World) % b.World }

// cut fills the table of chunks: by owner, or across owners.
func (b *builder) cut(byOwner bool) {
	all := runs(b.Slices, b.World)
	if !byOwner {
		b.Chunks = chunks(all, b.Spec.Chunk)
	} else {
		for _, part := range parts(all, b.World) {
			cs := chunks(part, b.Spec.Chunk)
			var numbers []int
			for range cs {
				numbers = append(numbers, len(b.Chunks)+len(numbers))
			}
			b.Chunks = append(b.Chunks, cs...)
			b.parts = append(b.parts, numbers)
		}
	}
	b.had, b.slot = make([]int, len(b.Chunks)), make([]int, len(b.Chunks))
}

// group is the i-th group of a part's chunks, of size chunks; empty past the end.
func (b *builder) group(part, i, size int) []int {
	p := b.parts[part]
	return p[min(i*size, len(p)):min((i+1)*size, len(p))]
}

// groups is the number of groups in the largest part.
func (b *builder) groups(size int) int {
	n := 0
	for _, p := range b.parts {
		n = max(n, (len(p)+size-1)/size)
	}
	return n
}

func (b *builder) tag(chunk int, gather bool) uint32 {
	if gather {
		chunk += len(b.Chunks)
	}
	return uint32(chunk)
}

// load sends the contribution, by way of slot 0, which nothing else uses.
func (b *builder) load(to, chunk int, gather bool) {
	b.Sends = append(b.Sends, Send{To: to, Tag: b.tag(chunk, gather), Chunk: chunk, Load: true})
	b.Slots = max(b.Slots, 1)
}

// forward sends what the last receive of the chunk left in its slot.
func (b *builder) forward(to, chunk int, gather bool) {
	b.Sends = append(b.Sends, Send{To: to, Tag: b.tag(chunk, gather), Chunk: chunk, Slot: b.slot[chunk], After: b.had[chunk], Result: gather})
}

func (b *builder) recv(from, chunk int, gather bool, slot int, do Action) {
	b.Recvs = append(b.Recvs, Recv{From: from, Tag: b.tag(chunk, gather), Chunk: chunk, Slot: slot, Do: do})
	b.had[chunk], b.slot[chunk] = len(b.Recvs), slot
	b.Slots = max(b.Slots, slot+1)
}

// ring runs in groups of chunks. In each round of a group every host sends one part's
// chunks to the next host, and receives another's from the one before. A part's sum
// starts at the host after its owner, comes to the owner in the last round, and goes
// round once more as the result.
func (b *builder) ring(reduce, gather bool) {
	b.cut(true)
	next, before := b.host(1), b.host(-1)
	turn := 0
	slot := func() int { // twice the window, so that sending may lag behind
		turn++
		return 1 + turn%(2*window)
	}
	for g := range b.groups(window) {
		for round := range b.World - 1 {
			if !reduce {
				break
			}
			for _, c := range b.group(b.host(-1-round), g, window) {
				if round == 0 {
					b.load(next, c, false)
				} else {
					b.forward(next, c, false)
				}
			}
			for _, c := range b.group(b.host(-2-round), g, window) {
				do := Add
				if round == b.World-2 {
					do |= Store
				}
				b.recv(before, c, false, slot(), do)
			}
		}
		for round := range b.World - 1 {
			if !gather {
				break
			}
			for _, c := range b.group(b.host(-round), g, window) {
				if round == 0 && !reduce {
					b.load(next, c, true)
				} else {
					b.forward(next, c, true)
				}
			}
			for _, c := range b.group(b.host(-1-round), g, window) {
				b.recv(before, c, true, slot(), Store)
			}
		}
	}
}

// direct sends every part to its owner and, one chunk later so that the owner has
// something to do meanwhile, the result from the owner to everyone. At distance d
// every host sends to the one d further, so that no two send to the same.
func (b *builder) direct(reduce, gather bool) {
	b.cut(true)
	rounds := b.groups(1)
	for i := range rounds + 1 {
		if reduce && i < rounds {
			for d := 1; d < b.World; d++ {
				for _, c := range b.group(b.host(d), i, 1) {
					b.load(b.host(d), c, false)
				}
			}
			for d := 1; d < b.World; d++ {
				for _, c := range b.group(b.Rank, i, 1) {
					b.contribution(d, c, i%2)
				}
			}
		}
		if gather && i > 0 {
			for d := 1; d < b.World; d++ {
				for _, c := range b.group(b.Rank, i-1, 1) {
					if reduce {
						b.forward(b.host(d), c, true)
					} else {
						b.load(b.host(d), c, true)
					}
				}
			}
			for d := 1; d < b.World; d++ {
				for _, c := range b.group(b.host(-d), i-1, 1) {
					b.recv(b.host(-d), c, true, 1+2*(b.World-1)+len(b.Recvs)%2, Store)
				}
			}
		}
	}
}

// exchange sends everything to everyone.
func (b *builder) exchange() {
	b.cut(false)
	for c := range b.Chunks {
		for d := 1; d < b.World; d++ {
			b.load(b.host(d), c, false)
		}
		for d := 1; d < b.World; d++ {
			b.contribution(d, c, c%2)
		}
	}
}

// contribution receives a chunk from the host at distance d before this one, one of
// World-1, in one of two sets of slots; the last, from the next host, combines them.
func (b *builder) contribution(d, chunk, set int) {
	do := Action(0)
	if d == b.World-1 {
		do = Combine | Store
	}
	b.recv(b.host(-d), chunk, false, set*(b.World-1)+d, do)
}

// pipeline passes the root's chunks along the ring.
func (b *builder) pipeline() {
	b.cut(false)
	place := b.host(-b.Root) // along the ring, from the root
	for c := range b.Chunks {
		if place > 0 {
			b.recv(b.host(-1), c, true, 1+c%window, Store)
		}
		switch {
		case place == 0:
			b.load(b.host(1), c, true)
		case place < b.World-1:
			b.forward(b.host(1), c, true)
		}
	}
}

// fan sends the root's chunks to everyone.
func (b *builder) fan() {
	b.cut(false)
	for c := range b.Chunks {
		if b.Rank != b.Root {
			b.recv(b.Root, c, true, 1+c%2, Store)
			continue
		}
		for d := 1; d < b.World; d++ {
			b.load(b.host(d), c, true)
		}
	}
}

// guard makes receives wait for the sends whose memory they write.
func (b *builder) guard() {
	from := make([]int, len(b.Recvs)+1) // of each receive, from 1: sends up to the last of what it left in its slot
	loads := make([]int, len(b.Chunks)) // of each chunk: sends up to the last of the contribution
	for i, s := range b.Sends {
		if s.Load {
			loads[s.Chunk] = i + 1
		} else {
			from[s.After] = i + 1
		}
	}
	written := make([]int, b.Slots) // of each slot: the last receive into it
	for i := range b.Recvs {
		r := &b.Recvs[i]
		r.Free = from[written[r.Slot]]
		if r.Do&Store != 0 {
			r.After = loads[r.Chunk]
		}
		written[r.Slot] = i + 1
	}
}

// Barrier is a program that carries no data: it is done on a host only when it has begun
// on all. In round k every host tells the one 2^k further, having heard from the one
// 2^(k-1) before (Hensgen, Finkel and Manber, "Two algorithms for barrier
// synchronization", 1988).
func Barrier(rank, world int) (*Program, error) {
	if world < 1 || rank < 0 || rank >= world {
		return nil, fmt.Errorf("collective: rank %d of %d", rank, world)
	}
	b := &builder{Program: &Program{Spec: Spec{Algorithm: Dissemination, World: world}, Rank: rank, Chunks: []Chunk{{}}, Slots: 1}}
	for k := 0; 1<<k < world; k++ {
		b.Sends = append(b.Sends, Send{To: b.host(1 << k), Tag: uint32(k), After: k})
		b.Recvs = append(b.Recvs, Recv{From: b.host(-1 << k), Tag: uint32(k)})
	}
	return b.Program, nil
}

func (s Spec) String() string {
	if s.Algorithm == Dissemination {
		return "barrier"
	}
	return fmt.Sprintf("%v by %v", s.Kind, s.Algorithm)
}

// Bytes is what the program sends, of elements of the given size.
func (p *Program) Bytes(size int64) int64 {
	n := int64(0)
	for _, s := range p.Sends {
		n += p.Chunks[s.Chunk].Elements * size
	}
	return n
}
