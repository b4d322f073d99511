package agent

import (
	"encoding/binary"
	"testing"
	"time"

	"weft/agent/protocol"
	"weft/job"
	"weft/plan"
)

// What two workers tell of a plan of two iterations: 10 ms each, of which one waits 3 ms and the other 1. The first period,
// what is profiled and what lies behind another hello do not count, and one period that somebody disturbed hardly.
func TestRan(t *testing.T) {
	j := job.Chain("j", []float64{0}, []float64{0}, []int64{4})
	p := plan.New(j, "two", "net")
	p.Period = 2
	a := &Agent{Config: Config{Ranks: []int{0, 1}}}
	const ms = time.Millisecond
	now, waited := time.Second, []time.Duration{5 * ms, 7 * ms}
	says := func(s *session, w, iteration int) {
		payload := binary.LittleEndian.AppendUint64(nil, uint64(waited[w]))
		if err := s.passes(w, protocol.Message{Kind: protocol.KindReady, Iteration: iteration, Payload: payload}, now); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 2 {
		s := &session{layout: &layout{job: j, plan: p}, marks: []mark{{iteration: -1}, {iteration: -1}}, measured: &measured{first: 4, last: 6}}
		s.layout.welcome.Digest = "two"
		s.pace = a.pace(s.layout)
		for i := range 12 {
			long := time.Duration(1)
			if i < 2 || i == 8 && n == 0 || s.measured.sees(i) {
				long = 50
			}
			now += 10 * ms * long
			waited[0] += 3 * ms * long
			waited[1] += 1 * ms * long
			for range 2 { // buckets
				says(s, 0, i)
				says(s, 1, i)
			}
		}
		now += time.Hour
	}
	// Of each session the periods that end with iterations 3, 9 and 11, of which 9 of the first is disturbed: 5 and 7
	// are profiled, in part.
	ran := a.Ran()
	if len(ran) != 1 || ran[0].Iterations != 2*2*3 || ran[0].Time != 10e3 || ran[0].Exposed != 2e3 || !ran[0].Plain {
		t.Errorf("%+v", ran)
	}
	if got, want := ran[0].String(), "10.0 ms an iteration, 2.0 ms of it exposed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s := &session{layout: &layout{job: j, plan: p}, marks: []mark{{iteration: -1}}}
	if err := s.passes(0, protocol.Message{Kind: protocol.KindReady, Payload: make([]byte, 7)}, now); err == nil {
		t.Error("7 bytes say how long a worker waited")
	}
}

// No more plans are kept than there is room for, and of each no more periods.
func TestRanBounded(t *testing.T) {
	j := job.Chain("j", []float64{0}, []float64{0}, []int64{4})
	a := &Agent{Config: Config{Ranks: []int{0}}}
	for _, digest := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "a", "i"} {
		l := &layout{job: j, plan: plan.New(j, digest, "net")}
		l.welcome.Digest = digest
		s := &session{layout: l, pace: a.pace(l), marks: []mark{{iteration: -1}}}
		for i := range lastPeriods + 9 {
			if err := s.passes(0, protocol.Message{Iteration: i}, time.Duration(i)*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got string
	for _, r := range a.Ran() {
		got += r.Plan.Policy
	}
	if n := len(a.paces[0].workers[0].times.kept); got != "cdefghai" || n != lastPeriods {
		t.Errorf("plans %s, %d periods", got, n)
	}
}
