package server

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// worker is TicTac's view of one worker: receives, and what computation needs
// them. Receives are numbered from 0.
type worker struct {
	time  []float64 // M: of each receive
	needs []need
	known map[string]int32 // by set of receives: position in needs
}

// need is all computation that depends on one set of receives.
type need struct {
	on   set
	time float64
}

func newWorker(receives []float64) *worker {
	return &worker{time: receives, known: map[string]int32{}}
}

// need is the position in needs of those receives.
func (w *worker) need(on set) int32 {
	key := on.key()
	at, ok := w.known[key]
	if !ok {
		at = int32(len(w.needs))
		w.known[key] = at
		w.needs = append(w.needs, need{on: on})
	}
	return at
}

// properties are those of section 8.1, of the receives that are outstanding (R).
type properties struct {
	time  []float64
	left  set       // R
	alone []float64 // P: computation that only this receive blocks
	plus  []float64 // M⁺, of those that are not without: see impend
	// open are the needs of several outstanding receives, by ascending sum; shared
	// is of how many of them a receive is part.
	open   []outstanding
	shared []int32
	// Of open the first next have been looked at for M⁺; the receives without are
	// part of none of them.
	next    int
	without set
	// Room for remove.
	dropped, kept []outstanding
	work          int64 // steps taken so far
}

type outstanding struct {
	*need
	count int
	sum   float64 // M: of the receives outstanding
}

// properties is UpdateProperties for all receives at the given times.
func (w *worker) properties(time []float64) *properties {
	n := len(time)
	p := &properties{time: time, left: newSet(n), alone: make([]float64, n), plus: slices.Repeat([]float64{math.Inf(1)}, n), shared: make([]int32, n)}
	for r := range n {
		p.left.add(r)
	}
	for i := range w.needs {
		o := outstanding{need: &w.needs[i]}
		for r := range o.on.all {
			o.count++
			o.sum += time[r]
		}
		p.open = append(p.open, o)
		for r := range o.on.all {
			p.shared[r]++
		}
	}
	p.open = slices.DeleteFunc(p.open, p.settle)
	slices.SortStableFunc(p.open, func(a, b outstanding) int { return cmp.Compare(a.sum, b.sum) })
	p.restart()
	return p
}

// settle takes a need of at most one outstanding receive out of what is shared,
// and reports whether it was one.
func (p *properties) settle(o outstanding) bool {
	if o.count > 1 {
		return false
	}
	for r := range o.on.all {
		if p.left.has(r) {
			p.alone[r] += o.time
			p.shared[r]--
		}
	}
	return true
}

// remove takes a receive out of those outstanding. The needs that it is part of
// all drop by its time, so they stay in order, as the others do: the two are merged.
func (p *properties) remove(r int) {
	p.left.remove(r)
	p.work += int64(len(p.open))
	p.dropped, p.kept = p.dropped[:0], p.kept[:0]
	for _, o := range p.open {
		if !o.on.has(r) {
			p.kept = append(p.kept, o)
			continue
		}
		o.count--
		o.sum -= p.time[r]
		if !p.settle(o) {
			p.dropped = append(p.dropped, o)
		}
	}
	p.open = p.open[:0]
	rest := p.kept
	for _, o := range p.dropped {
		for len(rest) > 0 && rest[0].sum <= o.sum {
			p.open, rest = append(p.open, rest[0]), rest[1:]
		}
		p.open = append(p.open, o)
	}
	p.open = append(p.open, rest...)
	p.restart()
}

// restart forgets M⁺: none is known.
func (p *properties) restart() {
	p.next = 0
	p.without = append(p.without[:0], p.left...)
}

// impend finds M⁺ of more receives: the least time, its own included, of receives
// that together unblock a computation that it alone does not. That is the sum of
// the first open need that it is part of; impend looks at the next ones, which
// have one sum.
func (p *properties) impend() {
	for sum := p.open[p.next].sum; p.next < len(p.open) && p.open[p.next].sum == sum; p.next++ {
		p.work += int64(len(p.without))
		for i, word := range p.open[p.next].on {
			for hit := word & p.without[i]; hit != 0; hit &= hit - 1 {
				p.plus[i<<6+bits.TrailingZeros64(hit)] = sum
			}
			p.without[i] &^= word
		}
	}
}

// impendAll finds M⁺ of every receive.
func (p *properties) impendAll() {
	for p.next < len(p.open) {
		p.impend()
	}
}

// sooner reports whether r has the lesser M⁺, infinite for one that shares no need.
// It looks no further than to the first that either is part of.
func (p *properties) sooner(r, than int) bool {
	if p.shared[r] == 0 || p.shared[than] == 0 {
		return p.shared[r] > 0 && p.shared[than] == 0
	}
	for p.without.has(r) && p.without.has(than) {
		p.impend()
	}
	return !p.without.has(r) && (p.without.has(than) || p.plus[r] < p.plus[than])
}

// tic gives each receive its priority, 0 first: M⁺ where every receive takes one
// unit and computation nothing. Equal ones share the number of the first of them.
func (w *worker) tic() []int {
	p := w.properties(slices.Repeat([]float64{1}, len(w.time)))
	p.impendAll()
	order := make([]int, len(w.time))
	for r := range order {
		order[r] = r
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.plus[a], p.plus[b]) })
	priority := make([]int, len(order))
	for i, r := range order {
		priority[r] = i
		if i > 0 && p.plus[order[i-1]] == p.plus[r] {
			priority[r] = priority[order[i-1]]
		}
	}
	return priority
}

// maxWork is where ordering takes some seconds.
const maxWork = 1 << 31

// tac orders the receives; whole is false if it was broken off.
func (w *worker) tac() (order []int, whole bool) { return w.properties(w.time).order(maxWork) }

// order takes, time and again, the receive that no other beats. The comparison has
// cycles, so the outstanding are scanned by number, and the best so far gives way
// only to one that is strictly less (section 8.2). Beyond so much work the rest
// follow by number, and whole is false.
func (p *properties) order(limit int64) (order []int, whole bool) {
	for range p.time {
		if p.work > limit {
			return slices.AppendSeq(order, p.left.all), false
		}
		best := -1
		for r := range p.left.all {
			p.work++
			if best < 0 {
				best = r
				continue
			}
			a, b := min(p.alone[best], p.time[r]), min(p.alone[r], p.time[best])
			if a < b || a == b && p.sooner(r, best) {
				best = r
			}
		}
		order = append(order, best)
		p.remove(best)
	}
	return order, true
}

// set is a set of small numbers, a bit each.
type set []uint64

func newSet(n int) set { return make(set, (n+63)/64) }

func (s set) has(i int) bool { return s[i>>6]>>(i&63)&1 != 0 }
func (s set) add(i int)      { s[i>>6] |= 1 << (i & 63) }
func (s set) remove(i int)   { s[i>>6] &^= 1 << (i & 63) }

// within reports whether s is a part of t, which is as large.
func (s set) within(t set) bool {
	for i := range s {
		if s[i]&^t[i] != 0 {
			return false
		}
	}
	return true
}

// all yields the members, ascending.
func (s set) all(yield func(int) bool) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			if !yield(i<<6 + bits.TrailingZeros64(word)) {
				return
			}
		}
	}
}

// key is the set as a string, for maps.
func (s set) key() string {
	b := make([]byte, 0, 8*len(s))
	for _, word := range s {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return string(b)
}
