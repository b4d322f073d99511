package agent_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/collective"
	"weft/job"
	"weft/plan"
	"weft/timeline"
)

// teller is a worker that tells what it does.
type teller struct {
	*worker.Worker
	did    []byte
	waited uint64 // ns
}

func clock() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return uint64(now.Nano())
}

// does notes what it has done since a time: a phase and one, or nothing, which is to wait.
func (x *teller) does(what byte, since uint64) {
	x.did = append(x.did, what)
	x.did = binary.LittleEndian.AppendUint64(x.did, since)
	x.did = binary.LittleEndian.AppendUint64(x.did, clock())
}

// stepped notes that the step of an iteration has returned.
func (x *teller) stepped(iteration int) { x.does(4, uint64(iteration)) }

func (x *teller) tell(kind protocol.Kind, index, iteration int) error {
	m := protocol.Message{Kind: kind, Index: index, Iteration: iteration, Payload: binary.LittleEndian.AppendUint64(nil, x.waited)}
	m.Payload, x.did = append(m.Payload, x.did...), nil
	return x.Send(m)
}

// wait waits for a bucket.
func (x *teller) wait() error {
	since := clock()
	_, _, err := x.Done()
	x.does(0, since)
	x.waited += clock() - since
	return err
}

// iterate computes forward, backward with one wait in its middle as if somebody had read a parameter, and updates, behind a barrier.
func (x *teller) iterate(iteration int) error {
	since := clock()
	x.does(1+byte(job.Forward), since)
	since = clock()
	for b := range x.Welcome.Buckets {
		if err := x.tell(protocol.KindReady, b, iteration); err != nil {
			return err
		}
	}
	for range x.Welcome.Buckets {
		if err := x.wait(); err != nil {
			return err
		}
	}
	x.does(1+byte(job.Backward), since)
	since = clock()
	x.does(1+byte(job.Update), since)
	x.stepped(iteration)
	return x.tell(protocol.KindBoundary, 0, iteration)
}

// Two hosts record what they and their workers do: the last iterations, transfers in order and within their iteration,
// computation without the waits in it, and waits that end with the transfer they were for.
func TestTimeline(t *testing.T) { overEach(t, testTimeline) }

func testTimeline(t *testing.T, n network) {
	const iterations = agent.LastIterations + 8
	hosts, _ := newHosts(t, collective.Layout{1, 2}, n, agent.Config{Record: true})
	for _, h := range hosts {
		if h.agent.Timeline() != nil {
			t.Error("a timeline of nothing")
		}
	}
	hello := tensors("float32", 1, 100, 5, 7, 9)
	hello.FirstBucket, hello.BucketBytes, hello.Boundaries = 4, 80, true // of 4 and 2 tensors: {4, 3, 2}, 84 bytes, and so on
	must(t, hosts, func(w *worker.Worker) error {
		if err := w.Hello(tensors("float32")); err != nil || w.Welcome.Timeline {
			return fmt.Errorf("without tensors it is to tell: %v (%w)", w.Welcome.Timeline, err)
		}
		if err := w.Hello(hello); err != nil || !w.Welcome.Timeline {
			return fmt.Errorf("it is to tell: %v (%w)", w.Welcome.Timeline, err)
		}
		x := &teller{Worker: w}
		for i := range iterations {
			if err := x.iterate(i); err != nil {
				return err
			}
		}
		return w.Hello(tensors("float32")) // of which there is nothing to show, and what was stays
	})
	for h, ranks := range [][]int{{0}, {1, 2}} {
		got := hosts[h].agent.Timeline()
		var b bytes.Buffer
		if err := timeline.WriteChrome(&b, got); err != nil {
			t.Fatal(err)
		}
		read, err := timeline.ReadChrome(&b)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(read.Iterations) - 1; n != agent.LastIterations {
			t.Errorf("host %d: %d iterations", h, n)
		}
		if want := fmt.Sprintf("ddp, measured, iterations %d to %d", iterations-agent.LastIterations, iterations-1); read.Name != want {
			t.Errorf("%q, want %q", read.Name, want)
		}
		for w, rank := range ranks {
			if read.Ranks[w].Rank != rank {
				t.Errorf("rank %d in place of %d", read.Ranks[w].Rank, rank)
			}
			looksRight(t, got, int32(w), len(hosts[h].workers[w].Welcome.Buckets))
		}
	}
}

// looksRight looks at what a rank did, behind a barrier.
func looksRight(t *testing.T, x *timeline.Timeline, rank int32, buckets int) {
	t.Helper()
	last := float64(0) // end on the host lane
	transfers := map[[2]int32]int{}
	phases := ""
	for i, s := range x.Spans {
		if s.Rank != rank || s.Iteration < 0 || int(s.Iteration) >= len(x.Iterations)-1 {
			continue
		}
		from, to := x.Iterations[s.Iteration], x.Iterations[s.Iteration+1]
		if s.Start < from || s.Start > to || s.End > to && s.Lane > 0 { // a worker may be faster than the one that ends last
			t.Errorf("%+v is not within its iteration, %v to %v", s, from, to)
		}
		switch s.Kind {
		case timeline.Transfer:
			transfers[[2]int32{s.Iteration, s.Bucket}]++
			if want := fmt.Sprintf("all-reduce bucket %d", s.Bucket); s.Name != want || s.Bytes == 0 || !strings.HasPrefix(s.Tensors, "t") {
				t.Errorf("%+v, want %s", s, want)
			}
		case timeline.Queued:
			if !slices.ContainsFunc(x.Spans, func(o timeline.Span) bool {
				return o.Kind == timeline.Transfer && o.Rank == rank && o.Bucket == s.Bucket && o.Start == s.End
			}) {
				t.Errorf("%+v: no transfer begins at its end", s)
			}
		default:
			if s.Start < last {
				t.Errorf("%+v begins before %v, when the one before ends", s, last)
			}
			last = s.End
			if s.Kind == timeline.Compute {
				phases += s.Name[:1]
			} else if at := slices.IndexFunc(x.Flows, func(f timeline.Flow) bool { return int(f.To) == i }); at >= 0 {
				if o := x.Spans[x.Flows[at].From]; o.End <= s.Start || o.End > s.End || s.Name != "wait: "+o.Name {
					t.Errorf("%+v is for %+v", s, o)
				}
			} else if s.Name != "wait" {
				t.Errorf("%+v waits for nothing that came", s)
			}
		}
	}
	for i := range int32(len(x.Iterations) - 1) {
		for b := range int32(buckets) {
			if n := transfers[[2]int32{i, b}]; n != 1 {
				t.Errorf("%d transfers of bucket %d in iteration %d", n, b, i)
			}
		}
	}
	// What takes no time that a clock must see is not there.
	if n := strings.Count(phases, "b"); n < len(x.Iterations)-1 || !regexp.MustCompile(`^[bu]*(f?b+u?)*f?$`).MatchString(phases) {
		t.Errorf("phases %q", phases)
	}
}

// Of a plan in halves, the second half of a bucket is ready when the first is done, on another link too.
func TestTimelineOfHalves(t *testing.T) {
	j := trained()
	p := built(t, j, "dear", plan.DefaultLimits)
	hosts, _ := newHosts(t, collective.Layout{1, 1}, networks["memory"], agent.Config{Record: true, Schedule: &agent.Schedule{Plan: p, Limits: plan.DefaultLimits}})
	must(t, hosts, func(w *worker.Worker) error {
		if err := w.Hello(does(j)); err != nil {
			return err
		}
		for i := range 6 {
			if err := pass(w, i); err != nil {
				return err
			}
			if err := w.Boundary(i); err != nil {
				return err
			}
		}
		return nil
	})
	for _, h := range hosts {
		x := h.agent.Timeline()
		done, halves := map[[2]int32]float64{}, 0
		for _, s := range x.Spans {
			key := [2]int32{s.Iteration, s.Bucket}
			switch kind, _, _ := strings.Cut(s.Name, " "); {
			case s.Kind == timeline.Transfer && kind == "reduce-scatter":
				done[key] = s.End
			case kind == "all-gather":
				if at, ok := done[key]; ok {
					halves++
					if s.Start < at {
						t.Errorf("%+v begins before %v, when its gradients were scattered", s, at)
					}
				}
			}
		}
		if halves < 5*len(p.Buckets) {
			t.Errorf("%d halves", halves)
		}
	}
}

// What a worker tells that cannot be ends all, by name; times of another clock are left out.
func TestTimelineHostile(t *testing.T) {
	for _, x := range []struct {
		name, want string
		record     bool
		did        func() []byte
	}{
		{"nobody asked", "rank 0: a ready of 25 bytes, and nobody has asked what it did", false, func() []byte { return make([]byte, 17) }},
		{"cut", "rank 0: a ready: 16 bytes of what it did", true, func() []byte { return make([]byte, 16) }},
		{"no such phase", "rank 0: a ready: 5 from", true, func() []byte { return append([]byte{5}, make([]byte, 16)...) }},
		{"backwards", "rank 0: a ready: 1 from 1 to 0 ns", true, func() []byte { return append([]byte{1, 1}, make([]byte, 15)...) }},
		{"another clock", "", true, func() []byte { return append(make([]byte, 16), 127) }},
	} {
		h := newHost(t, agent.Config{World: 1, Ranks: []int{0}, Record: x.record})
		h.must(func(w *worker.Worker) error { return w.Hello(tensors("float32", 1)) })
		errs := h.all(func(w *worker.Worker) error {
			y := &teller{Worker: w, did: x.did()}
			for i := range 3 {
				if err := y.tell(protocol.KindReady, 0, i); err != nil {
					return err
				}
				if _, _, err := w.Done(); err != nil {
					return err
				}
			}
			return nil
		})
		if x.want != "" {
			h.fails(x.want, errs...)
			continue
		}
		if got := h.agent.Timeline(); errs[0] != nil || got == nil || slices.ContainsFunc(got.Spans, func(s timeline.Span) bool { return s.Lane == 0 }) {
			t.Errorf("%s: %v, %+v", x.name, errs, got)
		}
	}
}
