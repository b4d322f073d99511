package agent_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/collective"
	"weft/plan"
	"weft/profile"
)

// pass declares all buckets of an iteration and waits for them.
func pass(w *worker.Worker, iteration int) error {
	for b := range w.Welcome.Buckets {
		if err := w.Ready(b, iteration); err != nil {
			return err
		}
	}
	for range w.Welcome.Buckets {
		if _, _, err := w.Done(); err != nil {
			return err
		}
	}
	return nil
}

// Host 0 gets what all workers report and all hosts saw, and every worker what is
// decided.
func TestReview(t *testing.T) { overEach(t, testReview) }

func testReview(t *testing.T, n network) {
	const after, measured = 6, 4 // iterations 1 to 4
	var mu sync.Mutex
	var taken []agent.Reviewed
	o := agent.Config{Review: &agent.Review{After: after, Profile: measured, Take: func(r agent.Reviewed) (agent.Decided, error) {
		mu.Lock()
		defer mu.Unlock()
		taken = append(taken, r)
		return agent.Decided{Decision: protocol.Decision{Review: 17}}, nil
	}}}
	l := collective.Layout{2, 1}
	hosts, _ := newHosts(t, l, n, o)
	none := tensors("float32")
	hello := tensors("float32", 1, 100)
	hello.FirstBucket, hello.BucketBytes = 4, 4 // two buckets, of 400 and 4 bytes
	must(t, hosts, func(w *worker.Worker) error {
		if err := w.Hello(none); err != nil {
			return err
		}
		if w.Welcome.Review != 0 {
			return fmt.Errorf("a review after %d iterations of nothing", w.Welcome.Review)
		}
		if err := w.Hello(hello); err != nil {
			return err
		}
		if w.Welcome.Review != after || w.Welcome.Profile != measured {
			return fmt.Errorf("a review after %d iterations, of %d", w.Welcome.Review, w.Welcome.Profile)
		}
		for i := range after {
			if err := pass(w, i); err != nil {
				return err
			}
		}
		d, err := w.Review(&profile.Report{Times: []float64{float64(w.Rank)}})
		if err != nil || d != (protocol.Decision{Review: 17}) {
			return fmt.Errorf("%+v (%v)", d, err)
		}
		return pass(w, after)
	})
	must(t, hosts, (*worker.Worker).Goodbye)
	mu.Lock()
	defer mu.Unlock()
	if len(taken) != 1 {
		t.Fatalf("reports were taken %d times, want once", len(taken))
	}
	for _, r := range taken {
		if len(r.Hosts) != 2 || len(r.Tensors) != 2 || r.Tensors[1].Elements != 100 || len(r.Plan.Buckets) != 2 {
			t.Fatalf("%+v", r)
		}
		for rank, x := range r.Reports() {
			if len(x.Times) != 1 || x.Times[0] != float64(rank) {
				t.Errorf("the report of rank %d is %+v", rank, x)
			}
		}
		for _, h := range r.Hosts {
			if len(h.Passes) != measured || len(h.Transfers) != 2*measured {
				t.Fatalf("%+v", h)
			}
			seen := map[profile.Transfer]int{}
			for _, x := range h.Transfers {
				if p := h.Passes[x.Iteration]; x.End < x.Start || x.Start < p.First || p.Last < p.First {
					t.Errorf("transfer %+v, pass %+v", x, p)
				}
				seen[profile.Transfer{Iteration: x.Iteration, Bytes: x.Bytes}]++
			}
			for i := range measured {
				for _, bytes := range []int64{4, 400} {
					if seen[profile.Transfer{Iteration: i, Bytes: bytes}] != 1 {
						t.Errorf("%d transfers of %d bytes in iteration %d", seen[profile.Transfer{Iteration: i, Bytes: bytes}], bytes, i)
					}
				}
			}
		}
	}
}

// Whoever reviews alone, or unasked, or without a report, ends all with a message.
func TestReviewRefused(t *testing.T) {
	model := tensors("float32", 5)
	model.FirstBucket, model.BucketBytes = 4, 4
	asked := &agent.Review{After: 2, Profile: 1, Take: func(agent.Reviewed) (d agent.Decided, err error) { return d, errors.New("cannot take it") }}
	report := func(w *worker.Worker) error { _, err := w.Review(new(profile.Report)); return err }
	for _, x := range []struct {
		name, want    string
		review        *agent.Review
		first, second func(w *worker.Worker) error
	}{
		{"unasked", "reports what it has measured, and nobody has asked it to", nil, report, report},
		{"one makes another call", "every rank must make the same calls", asked, report, func(w *worker.Worker) error { return w.Call(protocol.Call{Kind: protocol.Barrier}) }},
		{"one waits for gradients", "while rank 1 waits for its gradients", asked, report, func(w *worker.Worker) error { return pass(w, 0) }},
		{"no report", "reviews have a report, and no other calls", asked, report, func(w *worker.Worker) error { return w.Call(protocol.Call{Kind: protocol.Review}) }},
		{"a report of a barrier", "reviews have a report, and no other calls", asked, report, func(w *worker.Worker) error {
			return w.Call(protocol.Call{Kind: protocol.Barrier, Report: new(profile.Report)})
		}},
		{"nobody wants it", "cannot take it", asked, report, report},
	} {
		for name, l := range map[string]collective.Layout{"one host": {2}, "two hosts": {1, 1}} {
			t.Run(x.name+"/"+name, func(t *testing.T) {
				hosts := []*host{}
				o := agent.Config{Review: x.review, Patience: 10 * time.Millisecond}
				if len(l) == 1 {
					o.World, o.Ranks = 2, []int{0, 1}
					hosts = append(hosts, newHost(t, o))
				} else {
					hosts, _ = newHosts(t, l, networks["memory"], o)
				}
				must(t, hosts, func(w *worker.Worker) error { return w.Hello(model) })
				errs := everywhere(hosts, func(w *worker.Worker) error {
					if w.Rank == 0 {
						return x.first(w)
					}
					return x.second(w)
				})
				for h := range hosts {
					hosts[h].fails(x.want, errs[h])
				}
			})
		}
	}
}

// A change gives all hosts the plan of host 0, from their next hello on, and a next one
// takes it back. Nothing is lost on the way: what is under way is flushed.
func TestReviewChanges(t *testing.T) {
	j := trained()
	p := built(t, j, "deft", plan.DelayLimits(1))
	decisions := []agent.Decided{
		{Decision: protocol.Decision{Review: 5}},
		{Decision: protocol.Decision{Change: true, Review: 4}, Schedule: &agent.Schedule{Plan: p, Limits: plan.DelayLimits(1)}},
		{Decision: protocol.Decision{Change: true}},
	}
	for _, x := range []struct {
		layout collective.Layout
		slow   int // the rank that comes last to everything; -1: none
	}{{collective.Layout{2}, -1}, {collective.Layout{2}, 0}, {collective.Layout{2}, 1}, {collective.Layout{1, 2}, -1}, {collective.Layout{1, 2}, 0}, {collective.Layout{1, 2}, 2}} {
		l := x.layout
		taken := 0
		o := agent.Config{Review: &agent.Review{After: 3, Profile: 1, Take: func(agent.Reviewed) (agent.Decided, error) {
			taken++
			return decisions[taken-1], nil
		}}}
		hosts, _ := newHosts(t, l, networks["memory"], o)
		sum := means(t, j, l)
		comes := taking(l.Workers(), x.slow)
		must(t, hosts, func(w *worker.Worker) error {
			y := &trainee{w, j, sum, nil, nil}
			for _, x := range []struct {
				policy  string
				reviews []int // after so many iterations
			}{{"ddp", []int{3, 5}}, {"deft", []int{4}}, {"ddp", nil}} {
				hello := does(j)
				hello.FirstBucket, hello.BucketBytes = 1<<20, 1<<20
				comes(w.Rank)
				if err := w.Hello(hello); err != nil {
					return err
				}
				if w.Welcome.Policy != x.policy || (w.Welcome.Review > 0) != (x.reviews != nil) || x.reviews != nil && w.Welcome.Review != x.reviews[0] {
					return fmt.Errorf("policy %s, a review after %d iterations; want %s, %v", w.Welcome.Policy, w.Welcome.Review, x.policy, x.reviews)
				}
				if x.policy == "ddp" { // plain buckets leave the table out
					w.Welcome.Period, w.Welcome.Ends, w.Welcome.Updates = 1, []int{0}, []protocol.Update{{At: "step"}}
				}
				y.done = map[[2]int]bool{}
				n := 0
				for _, after := range append(x.reviews, n+2) {
					for ; n < after; n++ {
						comes(w.Rank)
						if err := y.iterate(n); err != nil {
							return err
						}
					}
					if x.reviews == nil {
						return w.Goodbye()
					}
					comes(w.Rank)
					d, err := w.Review(new(profile.Report))
					if err != nil {
						return err
					}
					if d.Change {
						break
					}
				}
				comes(w.Rank)
				if err := y.flush(n); err != nil {
					return err
				}
			}
			return nil
		})
		for _, h := range hosts {
			<-h.agent.Done()
			if err := h.agent.Err(); err != nil {
				t.Error(err)
			}
		}
	}
}

// taking returns what workers call before each thing that they do. The slow one waits there
// until the others are about to do it, or further.
func taking(world, slow int) func(rank int) {
	var mu sync.Mutex
	come, times := sync.NewCond(&mu), make([]int, world)
	return func(rank int) {
		mu.Lock()
		defer mu.Unlock()
		times[rank]++
		come.Broadcast()
		for rank == slow && slices.ContainsFunc(times, func(n int) bool { return n < times[slow] }) {
			come.Wait()
		}
	}
}

// Who is lost at any point of a switch is named to all others, with what they were doing.
func TestLostInSwitch(t *testing.T) {
	model := tensors("float32", 5)
	for _, l := range []collective.Layout{{2}, {1, 1}, {2, 1}} {
		for _, x := range []struct {
			name, want string
			at         int  // which thing it does not do any more
			decided    bool // it is lost in the middle of the one before
		}{
			{name: "review", want: "makes call 0 (review)", at: 0},
			{name: "decision", want: "makes call 0 (review)", at: 1, decided: true},
			{name: "flush", want: "makes call 1 (flush)", at: 1},
			{name: "hello", want: "says hello", at: 2},
			{name: "gradient", want: "waiting for its gradient of tensor t0 (bucket 0) of iteration 0", at: 3},
		} {
			t.Run(fmt.Sprint(l, " ", x.name), func(t *testing.T) {
				t.Parallel()
				var told sync.Once
				waits, deciding, gone := make(chan string, 10), make(chan bool), make(chan bool)
				o := agent.Config{Patience: time.Millisecond, Warn: func(s string) { waits <- s }, Review: &agent.Review{After: 1, Take: func(agent.Reviewed) (d agent.Decided, err error) {
					d.Change = true
					if x.decided {
						close(deciding)
						<-gone // what is decided does not matter any more
					}
					return d, nil
				}}}
				var hosts []*host
				if len(l) == 1 {
					o.World, o.Ranks = 2, []int{0, 1}
					hosts = append(hosts, newHost(t, o))
				} else {
					hosts, _ = newHosts(t, l, networks["memory"], o)
				}
				must(t, hosts, func(w *worker.Worker) error { return cmp.Or(w.Hello(model), pass(w, 0)) })
				victim := l.Workers() - 1
				errs := everywhere(hosts, func(w *worker.Worker) error {
					if x.decided && w.Rank == victim {
						go func() {
							<-deciding
							w.Close()
						}()
					}
					for at, do := range []func() error{
						func() error { _, err := w.Review(new(profile.Report)); return err },
						func() error { return w.Call(protocol.Call{Kind: protocol.Flush}) },
						func() error { return w.Hello(model) },
						func() error { return pass(w, 0) },
					} {
						if w.Rank == victim && at == x.at && !x.decided {
							<-waits // the others are there
							return w.Close()
						}
						if err := do(); err != nil {
							if w.Rank != victim {
								told.Do(func() { close(gone) })
							}
							return err
						}
					}
					return errors.New("it went on")
				})
				mustFail(t, errs[:victim], fmt.Sprintf("rank %d is lost: its connection ended (", victim))
				mustFail(t, errs[:victim], x.want)
			})
		}
	}
}

// A plan is for the model that was reviewed. Another one begins in plain buckets, and its
// first review is known as such.
func TestReviewAnotherModel(t *testing.T) {
	j := trained()
	var mu sync.Mutex
	var first []bool
	o := agent.Config{Review: &agent.Review{After: 1, Take: func(r agent.Reviewed) (d agent.Decided, err error) {
		mu.Lock()
		first = append(first, r.First)
		mu.Unlock()
		d.Decision = protocol.Decision{Change: true, Review: 1}
		d.Schedule = &agent.Schedule{Plan: built(t, j, "mg-wfbp", plan.DefaultLimits), Limits: plan.DefaultLimits}
		return d, r.Executable(d.Schedule)
	}}}
	for _, l := range []collective.Layout{{2}, {1, 2}} {
		mu.Lock()
		first = nil
		mu.Unlock()
		hosts, _ := newHosts(t, l, networks["memory"], o)
		must(t, hosts, func(w *worker.Worker) error {
			says := func(h protocol.Hello, want string) error {
				h.FirstBucket, h.BucketBytes = 1<<20, 1<<20
				if err := w.Hello(h); err != nil || w.Welcome.Policy != want || w.Welcome.Review != 1 {
					return fmt.Errorf("policy %s, a review after %d iterations (%v); want %s, 1", w.Welcome.Policy, w.Welcome.Review, err, want)
				}
				return pass(w, 0)
			}
			reviews := func() error { _, err := w.Review(new(profile.Report)); return err }
			if err := says(does(j), "ddp"); err != nil {
				return err
			}
			for range 2 {
				if err := cmp.Or(reviews(), says(does(j), "mg-wfbp")); err != nil {
					return err
				}
			}
			other := does(j)
			other.Tensors = append(other.Tensors, protocol.Tensor{Name: "more", Elements: 3, DType: "float32"})
			if err := says(other, "ddp"); err != nil {
				return err
			}
			return cmp.Or(says(does(j), "ddp"), reviews())
		})
		mu.Lock()
		if want := []bool{true, false, true}; !slices.Equal(first, want) {
			t.Errorf("first reviews: %v, want %v", first, want)
		}
		mu.Unlock()
	}
}
