package agent_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/collective"
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

// Every host gets what all workers report and all hosts saw, and every worker what is
// decided.
func TestReview(t *testing.T) { overEach(t, testReview) }

func testReview(t *testing.T, n network) {
	const after, measured = 6, 4 // iterations 1 to 4
	var mu sync.Mutex
	var taken []agent.Reviewed
	o := agent.Config{Review: &agent.Review{After: after, Profile: measured, Take: func(r agent.Reviewed) (protocol.Decision, error) {
		mu.Lock()
		defer mu.Unlock()
		taken = append(taken, r)
		return protocol.Decision{Review: 17}, nil
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
	if len(taken) != len(hosts) {
		t.Fatalf("%d hosts took reports, want %d", len(taken), len(hosts))
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
	asked := &agent.Review{After: 2, Profile: 1, Take: func(agent.Reviewed) (d protocol.Decision, err error) { return d, errors.New("cannot take it") }}
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
