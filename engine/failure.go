package engine

import (
	"fmt"
	"slices"
	"time"

	"weft/plan"
)

// Phase is what a bucket waited for.
type Phase string

const (
	Gradient Phase = "gradient" // a worker was yet to declare it
	Transfer Phase = "transfer" // it was being reduced
	Flushing Phase = "flush"    // none waited: all that was declared has been reduced, or is
)

// Failure is why training cannot go on.
type Failure struct {
	Rank      int    // whose fault it is; -1: unknown
	Bucket    int    // that waits; -1: none
	Tensor    string // the first of the bucket
	Iteration int    // of the bucket
	Phase     Phase  // empty: no bucket waited
	Elapsed   time.Duration
	Err       error
}

func (f *Failure) Error() string {
	s := f.Err.Error()
	if f.Bucket >= 0 {
		what := map[Phase]string{Gradient: "waiting for its gradient of", Transfer: "reducing"}[f.Phase]
		s += fmt.Sprintf(", while %s tensor %s (bucket %d) of iteration %d", what, f.Tensor, f.Bucket, f.Iteration)
		if f.Elapsed > 0 {
			s += fmt.Sprintf(" for %v", f.Elapsed.Round(time.Millisecond))
		}
	}
	return s
}

func (f *Failure) Unwrap() error { return f.Err }

// about makes a failure that concerns a bucket of a generation.
func (e *Engine) about(rank, b, generation int, phase Phase, elapsed time.Duration, err error) *Failure {
	return &Failure{
		Rank: rank, Bucket: b, Tensor: e.Job.Tensors[e.Plan.Buckets[b].Slices[0].Tensor].Name,
		Iteration: e.Plan.LastIteration(generation), Phase: phase, Elapsed: elapsed, Err: err,
	}
}

// flying makes a failure that concerns a transfer in flight.
func (e *Engine) flying(now time.Duration, rank, l int, f flight, err error) *Failure {
	if t := e.links[l].transfer(f.instance); t.Bucket >= 0 {
		return e.about(rank, t.Bucket, e.generation(l, f.instance), Transfer, now-f.started, err)
	}
	i := e.iteration(l, f.instance)
	return &Failure{
		Rank: rank, Bucket: -1, Iteration: i, Phase: Transfer, Elapsed: now - f.started,
		Err: fmt.Errorf("%w, during %s of iteration %d", err, e.name(e.links[l].transfer(f.instance)), i),
	}
}

// lost says what waited for a rank that is gone; w is its local worker, -1 if it
// is of another host.
func (e *Engine) lost(now time.Duration, rank, w int, cause error) *Failure {
	err := fmt.Errorf("rank %d is lost: %w", rank, cause)
	if w >= 0 {
		if f := e.unmoved(now, w, err); f != nil {
			return f
		}
		if b, g, ok := e.owed(w); ok {
			return e.about(rank, b, g, Gradient, e.waiting(now, b, g), err)
		}
	}
	for l := range e.links {
		for _, f := range e.links[l].flying {
			return e.flying(now, rank, l, f, err)
		}
	}
	if e.drains {
		return &Failure{Rank: rank, Bucket: -1, Phase: Flushing, Err: fmt.Errorf("%w, in a flush", err)}
	}
	if b, g, ok := e.owed(0); ok && w < 0 { // the next that would have needed it
		return e.about(rank, b, g, Gradient, e.waiting(now, b, g), err)
	}
	return &Failure{Rank: rank, Bucket: -1, Err: err}
}

// unmoved makes a failure of a transfer of which a worker has yet to do its part; nil: there
// is none.
func (e *Engine) unmoved(now time.Duration, w int, err error) *Failure {
	for l := range e.links {
		for _, f := range e.links[l].flying {
			if f.moved != nil && !f.moved[w] {
				return e.flying(now, e.Ranks[w], l, f, err)
			}
		}
	}
	return nil
}

// owed is the bucket that a worker had to declare next, in program order, and of
// which generation.
func (e *Engine) owed(w int) (b, generation int, ok bool) {
	for l := range e.links {
		x := &e.links[l]
		for i := x.head; !x.idle && i < x.head+(e.Plan.Buffers+1)*len(x.gates); i++ {
			if e.absent(l, i) {
				continue
			}
			t, g := x.transfer(i), e.generation(l, i)
			gradient := t.Bucket >= 0 && slices.ContainsFunc(t.Gates, func(g plan.Gate) bool { return g.Kind == plan.GradientReady })
			if gradient && e.buckets[t.Bucket].declared[w] < g {
				return t.Bucket, g, true
			}
		}
	}
	return 0, 0, false
}

// waiting is how long a declared generation of a bucket has waited for the
// workers that are behind.
func (e *Engine) waiting(now time.Duration, b, generation int) time.Duration {
	if x := &e.buckets[b]; slices.Max(x.declared) >= generation {
		return now - x.since
	}
	return 0
}

// abandoned finds a worker that has left although another waits for its
// gradient of bucket b.
func (e *Engine) abandoned(b int) *Failure {
	x := &e.buckets[b]
	most := slices.Max(x.declared)
	for w, left := range e.left {
		if left && x.declared[w] < most {
			ahead := e.Ranks[slices.Index(x.declared, most)]
			return e.about(e.Ranks[w], b, most, Gradient, 0,
				fmt.Errorf("rank %d has ended its training and rank %d goes on: give every rank the same number of iterations", e.Ranks[w], ahead))
		}
	}
	return nil
}

// Behind is what a transfer waits for here that another host has started: the worker
// that has yet to declare its gradient, or that of an earlier transfer of the link, or to
// do its part of it; nil: none.
func (e *Engine) Behind(link, instance int) *Failure {
	if link < 0 || link >= len(e.links) {
		return nil
	}
	if at, flying := e.links[link].find(instance); flying {
		f := e.links[link].flying[at]
		if w := f.slow(); w >= 0 {
			return e.flying(0, e.Ranks[w], link, flight{instance: instance}, fmt.Errorf("rank %d is too slow", e.Ranks[w]))
		}
	}
	if instance < e.links[link].head {
		return nil
	}
	head := e.links[link].head
	t, g := e.links[link].transfer(head), e.generation(link, head)
	if t.Bucket < 0 {
		return nil
	}
	for w, declared := range e.buckets[t.Bucket].declared {
		if declared < g {
			return e.about(e.Ranks[w], t.Bucket, g, Gradient, 0, fmt.Errorf("rank %d is too slow", e.Ranks[w]))
		}
	}
	return nil
}

// slow is a worker that has yet to do its part of a transfer, where another one has; -1: none.
func (f *flight) slow() int {
	if !slices.Contains(f.moved, true) {
		return -1
	}
	return slices.Index(f.moved, false)
}

// LateTransfer finds one that is in flight for longer than that.
func (e *Engine) LateTransfer(now, than time.Duration) (link, instance int, ok bool) {
	for l := range e.links {
		for _, f := range e.links[l].flying {
			if now-f.started > than {
				return l, f.instance, true
			}
		}
	}
	return 0, 0, false
}

// Late finds what has waited longer than that, and whom for where that is a worker of
// this host; nil: nothing has, or that is 0.
func (e *Engine) Late(now, than time.Duration) *Failure {
	if than == 0 {
		return nil
	}
	for b := range e.buckets {
		x := &e.buckets[b]
		most, least := slices.Max(x.declared), slices.Min(x.declared)
		if least < most && now-x.since > than {
			rank := e.Ranks[slices.Index(x.declared, least)]
			return e.about(rank, b, most, Gradient, now-x.since, fmt.Errorf("rank %d is too slow", rank))
		}
	}
	if l, instance, ok := e.LateTransfer(now, than); ok {
		x := &e.links[l]
		at, _ := x.find(instance)
		f := x.flying[at]
		if w := f.slow(); w >= 0 {
			return e.flying(now, e.Ranks[w], l, f, fmt.Errorf("rank %d is too slow", e.Ranks[w]))
		}
		return e.flying(now, -1, l, f, fmt.Errorf("%s on link %s takes too long", x.transfer(instance).Kind, x.program.Link))
	}
	return nil
}
