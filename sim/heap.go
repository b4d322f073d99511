package sim

import "weft/internal/splitmix"

// eventKind orders events at one time: gradients becoming ready, then
// completions; dispatch follows when all of them are taken (section 0.2 of the
// algorithms, "Ties").
type eventKind uint8

const (
	opDone       eventKind = iota // a: worker, b: lane
	timerDone                     // a: link, b: position
	wireDone                      // a: link
	transferDone                  // a: link, b: position
)

type event struct {
	at     float64
	seq    uint64
	token  uint64
	a, b   int32
	kind   eventKind
	slowed bool // at is in the slowed lanes' clock
}

func (e event) before(f event) bool {
	if e.at != f.at {
		return e.at < f.at
	}
	if e.kind != f.kind {
		return e.kind < f.kind
	}
	return e.seq < f.seq
}

// heap is a binary heap of events, earliest first. With internal/heap, which
// cannot inline before, a run takes half as long again.
type heap []event

func (h *heap) push(e event) {
	*h = append(*h, e)
	s := *h
	i := len(s) - 1
	for i > 0 {
		p := (i - 1) / 2
		if !e.before(s[p]) {
			break
		}
		s[i] = s[p]
		i = p
	}
	s[i] = e
}

func (h *heap) pop() {
	s := *h
	n := len(s) - 1
	e := s[n]
	s = s[:n]
	*h = s
	if n == 0 {
		return
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && s[c+1].before(s[c]) {
			c++
		}
		if !s[c].before(e) {
			break
		}
		s[i] = s[c]
		i = c
	}
	s[i] = e
}

// jitter is uniform in [-1, 1): a hash of its arguments, so that
// it does not depend on the order of events.
func jitter(seed uint64, rank, iteration int, op int32) float64 {
	x := seed
	for _, v := range [...]uint64{uint64(rank), uint64(iteration), uint64(op)} {
		x = splitmix.Mix(x + v + splitmix.Step)
	}
	return 2*splitmix.Float(x) - 1
}
