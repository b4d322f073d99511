package deft

import (
	"cmp"
	"slices"
)

// item is a bucket that may be sent in a window, in quantised units of time.
type item struct {
	value  int   // its weight on the fast link
	ready  int   // from the start of the window
	weight []int // by link
}

// packing is what a window sends.
type packing struct {
	link  []int // by item; none: not sent
	value int
	// exact: no assignment has a higher value. Otherwise this is the best that
	// was found, and gap is how far it is from a bound.
	exact bool
	gap   int
}

const none = -1

// work counts what all packings together may do: cells of tables and, for more
// each, states of searches. It makes the search end, and end alike everywhere.
type work struct{ left int }

const (
	mostWork  = 1 << 27
	stateWork = 16 // cells
)

func newWork() *work { return &work{mostWork} }

// spend reports whether there was as much left.
func (w *work) spend(cells int) bool {
	w.left -= cells
	return w.left >= 0
}

// packer packs windows: multi_knapsack and release_fill of section 13.5 are both
//
//	x_l = max(ready, x_l) + weight <= capacity
//
// over the items in dispatch order, where x_l is when link l is free, and a
// knapsack is the case that all is ready. It maximises the value; of equals it
// takes, as far as it searched, the set that is first in dispatch order, then, if
// all is ready, the one that loads the slow links (all but the first) least.
//
// The bound on what items i.. can add is exact for each link alone, by dynamic
// programming, and summed over the links. A search over sets, in the order of
// the tie rule, tries to reach the bound: with one link it never goes back, and
// with many buckets some set mostly does. Where it does not, dynamic programming
// over (item, link-free times) decides; it is exact as long as no item has too
// many states, and beyond that keeps the most promising of them.
//
// Once the work is spent, each item goes on the first link that it fits.
type packer struct {
	work     *work
	items    []item
	capacity int
	links    int
	cut      []int     // by item: the most that it and all that follow can add
	alone    [][]int32 // by link: at i·(capacity+1) + x, the most that items i.. add to a link free at x
	path     [][]state // by item: states before it
	steps    int
	seen     index
	sub      *packer // of the rest, in greedy
}

// state is where a set of items may leave the links.
type state struct {
	x    [maxLinks]int32
	from int32 // state before the last item
	link int8  // that the last item took
	// In dynamic programming over sets: the value of the set, and its place
	// among the sets of the states beside it.
	value, rank int32
}

const (
	maxLinks = 4
	// unitBits bounds capacities, so that the free times of all links make a key.
	unitBits    = 12
	searchSteps = 1 << 13 // states of one search
	layerStates = 1 << 14 // states of dynamic programming, over all items, and
	leastStates = 256     // at least so many an item
	assignments = 1 << 16 // so many of items to links are all tried: 10 items on two links
)

// pack fills a window of the given capacity whose links are free from the given
// times on.
func (p *packer) pack(items []item, free []int, capacity int) packing {
	p.items, p.capacity, p.links = items, capacity, len(free)
	var start state
	for l, x := range free {
		start.x[l] = int32(min(x, capacity))
	}
	first := p.firstFit(start)
	if first.exact || !p.work.spend(p.links*len(items)*(capacity+1)) {
		return first
	}
	p.bounds(&start)
	best := p.greedy(start)
	top := p.bound(0, &start)
	best.exact = best.value == top
	found, below := false, true // below: no set has a higher value than the next target
	for k, less := range targets {
		if top-less < best.value {
			break
		}
		got, complete := p.reach(start, top-less)
		if got != nil {
			best, best.exact, found = *got, best.exact || below && less <= k, true
			break
		}
		below = below && complete
	}
	if !best.exact || !found && p.few() {
		if got := p.exhaust(start, best.value); got != nil {
			best = *got
		}
	}
	best.gap = top - best.value
	best.exact = best.exact || best.gap == 0
	return best
}

// firstFit sends each item, in dispatch order, on the first link that it fits.
// That is exact where all go on the fast link, or nothing goes.
func (p *packer) firstFit(s state) packing {
	out := packing{link: make([]int, len(p.items))}
	fast, sent := true, false
	for i := range p.items {
		out.link[i] = none
		for l := range p.links {
			if next := s; p.put(i, l, &next) {
				s, out.link[i] = next, l
				break
			}
		}
		if fast, sent = fast && out.link[i] == 0, sent || out.link[i] != none; out.link[i] == none {
			out.gap += p.items[i].value
		} else {
			out.value += p.items[i].value
		}
	}
	if out.exact = fast || !sent; out.exact {
		out.gap = 0
	}
	return out
}

// few: all assignments can be tried.
func (p *packer) few() bool {
	n := 1
	for range p.items {
		if n *= p.links + 1; n > assignments {
			return false
		}
	}
	return true
}

// targets are what the search tries to reach, below the bound: it is mostly near.
var targets = []int{0, 1, 2, 8, 32}

// bounds fills alone and cut.
func (p *packer) bounds(start *state) {
	n, width := len(p.items), p.capacity+1
	for len(p.alone) < p.links {
		p.alone = append(p.alone, nil)
	}
	for l := range p.links {
		p.alone[l] = resize(p.alone[l], (n+1)*width)
		clear(p.alone[l][n*width:])
		for i := n - 1; i >= 0; i-- {
			it := &p.items[i]
			row, next := p.alone[l][i*width:(i+1)*width], p.alone[l][(i+1)*width:(i+2)*width]
			copy(row, next)
			w, v := it.weight[l], int32(it.value)
			last := p.capacity - w // the latest start
			if it.ready > last {
				continue
			}
			early := v + next[it.ready+w]
			for x := range it.ready {
				row[x] = max(row[x], early)
			}
			for x := it.ready; x <= last; x++ {
				row[x] = max(row[x], v+next[x+w])
			}
		}
	}
	// Links become free later and later: what items j.. can add at the start they
	// can at most add at any time, to the value of all that lies before j.
	p.cut = resize(p.cut, n+1)
	p.cut[n] = 0
	for i := n - 1; i >= 0; i-- {
		p.cut[i] = min(p.items[i].value+p.cut[i+1], p.sum(i, start))
	}
}

func resize[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// bound is the most that items i.. can add to s.
func (p *packer) bound(i int, s *state) int { return min(p.sum(i, s), p.cut[i]) }

// sum adds up what items i.. can add on each link alone.
func (p *packer) sum(i int, s *state) int {
	sum := 0
	for l := range p.links {
		sum += int(p.alone[l][i*(p.capacity+1)+int(s.x[l])])
	}
	return sum
}

// put sends item i over link l; false if it does not fit.
func (p *packer) put(i, l int, s *state) bool {
	x := max(int32(p.items[i].ready), s.x[l]) + int32(p.items[i].weight[l])
	if int(x) > p.capacity {
		return false
	}
	s.x[l], s.link = x, int8(l)
	return true
}

// wait moves the links of s to when item i is ready: nothing goes before.
func (p *packer) wait(i int, s *state) {
	if i < len(p.items) {
		for l := range p.links {
			s.x[l] = max(s.x[l], int32(min(p.items[i].ready, p.capacity)))
		}
	}
}

// greedy fills one link after the other, each as well as it can be.
func (p *packer) greedy(s state) packing {
	out := packing{link: make([]int, len(p.items))}
	width := p.capacity + 1
	for i := range out.link {
		out.link[i] = none
	}
	for l := range p.links {
		if l > 0 { // what is sent by now can no longer be
			var rest []int
			for i, at := range out.link {
				if at == none {
					rest = append(rest, i)
				}
			}
			if p.sub == nil {
				p.sub = &packer{work: p.work, links: 1}
			}
			q := p.sub
			p.work.spend(len(rest) * (p.capacity + 1))
			q.capacity, q.items = p.capacity, make([]item, len(rest))
			for k, i := range rest {
				q.items[k] = item{p.items[i].value, p.items[i].ready, p.items[i].weight[l : l+1]}
			}
			t := state{x: [maxLinks]int32{s.x[l]}}
			q.bounds(&t)
			for k, i := range rest {
				was := q.bound(k, &t)
				if next := t; q.put(k, 0, &next) && q.items[k].value+q.bound(k+1, &next) == was {
					t, out.link[i], out.value = next, l, out.value+q.items[k].value
				}
			}
			continue
		}
		for i := range p.items {
			next, v := s, int32(p.items[i].value)
			if p.put(i, 0, &next) && v+p.alone[0][(i+1)*width+int(next.x[0])] == p.alone[0][i*width+int(s.x[0])] {
				s, out.link[i], out.value = next, 0, out.value+p.items[i].value
			}
		}
	}
	return out
}

// begin starts path, and keeps its memory.
func (p *packer) begin(start state) {
	for len(p.path) <= len(p.items) {
		p.path = append(p.path, nil)
	}
	p.wait(0, &start)
	p.path[0] = append(p.path[0][:0], start)
}

// reach looks for the first set, in dispatch order, of at least the value
// target. complete: if it found none, there is none.
func (p *packer) reach(start state, target int) (found *packing, complete bool) {
	p.begin(start)
	p.steps = searchSteps
	done := p.search(0, 0, target)
	p.work.spend(stateWork * (searchSteps - p.steps))
	if !done {
		return nil, p.steps > 0
	}
	out := &packing{link: make([]int, len(p.items))}
	last := p.path[len(p.items)]
	at := 0
	for k := range last {
		if p.sooner(&last[k], &last[at]) {
			at = k
		}
	}
	for i := len(p.items) - 1; i >= 0; i-- {
		s := &p.path[i+1][at]
		if out.link[i], at = int(s.link), int(s.from); s.link != none {
			out.value += p.items[i].value
		}
	}
	return out, true
}

// sooner: the slow links are free sooner, then the fast one.
func (p *packer) sooner(a, b *state) bool {
	var x, y int32
	for l := 1; l < p.links; l++ {
		x, y = x+a.x[l], y+b.x[l]
	}
	return cmp.Or(cmp.Compare(x, y), cmp.Compare(a.x[0], b.x[0])) < 0
}

// search decides on items i.., given the value of the set so far; path holds
// all ways to assign it to links.
func (p *packer) search(i, value, target int) bool {
	if i == len(p.items) {
		return value >= target
	}
	for _, take := range []bool{true, false} {
		v := value
		if take {
			v += p.items[i].value
		}
		p.path[i+1] = p.advance(p.path[i+1][:0], i, take, target-v)
		if p.steps -= len(p.path[i]); p.steps <= 0 {
			return false
		}
		if len(p.path[i+1]) > 0 && p.search(i+1, v, target) {
			return true
		}
		if p.steps <= 0 {
			return false
		}
	}
	return false
}

// advance appends to out the states after item i, taken or not, from which the items behind
// it can still add need. Of states that differ on the last link only, one is kept.
func (p *packer) advance(out []state, i int, take bool, need int) []state {
	if !take {
		for at := range p.path[i] {
			s := p.path[i][at]
			if p.wait(i+1, &s); p.bound(i+1, &s) >= need {
				s.from, s.link = int32(at), none
				out = append(out, s)
			}
		}
		return out
	}
	last := p.links - 1
	p.seen.reset(p.links - 1)
	for at := range p.path[i] {
		for l := range p.links {
			s := p.path[i][at]
			if !p.put(i, l, &s) {
				continue
			}
			if p.wait(i+1, &s); p.bound(i+1, &s) < need {
				continue
			}
			s.from = int32(at)
			switch k, ok := p.seen.find(&s, len(out)); {
			case !ok:
				out = append(out, s)
			case s.x[last] < out[k].x[last]:
				out[k] = s
			}
		}
	}
	return out
}

// exhaust is the best of all packings of at least the value least, by dynamic
// programming over the items and the times at which links are free; nil if it
// lost them all.
func (p *packer) exhaust(start state, least int) *packing {
	n := len(p.items)
	p.begin(start)
	few, exact := p.few(), true
	for i := range n {
		out := p.path[i+1][:0]
		p.seen.reset(p.links)
		for at := range p.path[i] {
			for l := none; l < p.links; l++ {
				s := p.path[i][at]
				s.from, s.link, s.rank = int32(at), none, 2*s.rank+1
				if l >= 0 {
					if !p.put(i, l, &s) {
						continue
					}
					s.value += int32(p.items[i].value)
					s.rank--
				}
				p.wait(i+1, &s)
				if int(s.value)+p.bound(i+1, &s) < least {
					continue
				}
				switch k, ok := p.seen.find(&s, len(out)); {
				case !ok:
					out = append(out, s)
				case better(&s, &out[k]) < 0:
					out[k] = s
				}
			}
		}
		if most := max(layerStates/n, leastStates); !few && len(out) > most {
			slices.SortFunc(out, func(a, b state) int {
				return cmp.Compare(int(b.value)+p.bound(i+1, &b), int(a.value)+p.bound(i+1, &a))
			})
			out, exact = out[:most], false
		}
		rerank(out)
		p.path[i+1] = out
		p.work.spend(stateWork * len(out))
	}
	last := p.path[n]
	if len(last) == 0 {
		return nil
	}
	at := 0
	for k := range last {
		if c := better(&last[k], &last[at]); c < 0 || c == 0 && p.sooner(&last[k], &last[at]) {
			at = k
		}
	}
	out := &packing{link: make([]int, n), value: int(last[at].value), exact: exact}
	for i := n - 1; i >= 0; i-- {
		s := &p.path[i+1][at]
		out.link[i], at = int(s.link), int(s.from)
	}
	return out
}

// better compares sets: the higher value first, then the order of dispatch.
func better(a, b *state) int {
	return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(a.rank, b.rank))
}

// rerank numbers the ranks from 0, without gaps, so that they never overflow.
func rerank(s []state) {
	ranks := make([]int32, len(s))
	for i := range s {
		ranks[i] = s[i].rank
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	for i := range s {
		at, _ := slices.BinarySearch(ranks, s[i].rank)
		s[i].rank = int32(at)
	}
}
