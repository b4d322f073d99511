package engine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/cluster"
	"weft/job"
	"weft/plan"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata/*. The commands:
//
//	plan [ranks=2] [period=N] [generations=(1,2)] [buffers=N] [timeout=MS] [ops=N] [workers=LINK]
//	    a plan whose input is its transfers, one a line: link, kind, bucket, then
//	    generation=N and gates: gradient, op=OP.ITERATION, boundary=ITERATION,
//	    done=LINK.POSITION. A line "window LINK transfers=N bytes=N" bounds a link,
//	    "LINK collective ITERATION" is the job's collective, which follows op 0.
//	    Bucket b is tensor "t<b>" of 4 bytes. With ops the engine is told of them.
//	run
//	    events, one a line, and below each what it makes the engine do:
//	    ready RANK BUCKET ITERATION, boundary RANK ITERATION, op RANK OP ITERATION,
//	    done LINK INSTANCE, moved RANK BUCKET ITERATION,
//	    left RANK, lost RANK CAUSE, flush, tick. "at MS" in front moves the time on.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			run, ok := map[string]func(*testing.T, *datadriven.TestData) error{"plan": s.plan, "run": s.run}[d.Cmd]
			if !ok {
				d.Fatalf(t, "no command %s", d.Cmd)
			}
			s.out.Reset()
			if err := run(t, d); err != nil {
				fmt.Fprintln(&s.out, "error:", err)
			}
			return s.out.String()
		})
	})
}

type script struct {
	engine *Engine
	now    time.Duration
	out    strings.Builder
}

func (s *script) plan(t *testing.T, d *datadriven.TestData) error {
	ranks, timeout, ops := 2, 0, 0
	p := &plan.Plan{Period: 1, Buffers: 1, UpdateRate: 1}
	lengths := []int{1}
	d.MaybeScanArgs(t, "ranks", &ranks)
	d.MaybeScanArgs(t, "timeout", &timeout)
	d.MaybeScanArgs(t, "buffers", &p.Buffers)
	d.MaybeScanArgs(t, "ops", &ops)
	workers := ""
	d.MaybeScanArgs(t, "workers", &workers)
	for _, a := range d.CmdArgs {
		if a.Key == "generations" {
			lengths = nil
			for _, v := range a.Vals {
				lengths = append(lengths, number(v))
			}
		}
	}
	p.Period = 0
	for _, n := range lengths {
		p.Generations = append(p.Generations, plan.Generation{First: p.Period, Length: n})
		p.Period += n
	}
	for line := range strings.Lines(d.Input) {
		s.line(p, strings.Fields(line))
	}
	j := &job.Job{}
	for b := range p.Buckets {
		j.Tensors = append(j.Tensors, job.Tensor{Name: fmt.Sprint("t", b), Elements: 1})
	}
	if ops > 0 {
		j.Lanes = []job.Lane{{Name: "cpu"}}
		j.Ops = make([]job.Op, ops)
		j.Collectives = []job.Collective{{Name: "buffers", Kind: "broadcast", Bytes: 8, After: []job.OpID{0}}}
	}
	p.Tensors = j.TensorsFingerprint()
	c := Config{Plan: p, Job: j, SeesOps: ops > 0, Workers: workers, Timeout: time.Duration(timeout) * time.Millisecond}
	for r := range ranks {
		c.Ranks = append(c.Ranks, r)
	}
	e, err := New(c)
	s.engine, s.now = e, 0
	return err
}

func (s *script) line(p *plan.Plan, words []string) {
	if words[0] == "window" {
		for _, w := range words[2:] {
			key, value, _ := strings.Cut(w, "=")
			if key == "transfers" {
				program(p, words[1]).Window.Transfers = number(value)
			} else {
				program(p, words[1]).Window.Bytes = int64(number(value))
			}
		}
		return
	}
	kinds := map[string]cluster.Kind{}
	for k := cluster.AllReduce; k <= cluster.Pull; k++ {
		kinds[k.String()] = k
	}
	if words[1] == "collective" {
		to := program(p, words[0])
		to.Transfers = append(to.Transfers, plan.Transfer{Kind: cluster.Broadcast, Bucket: -1, Iteration: number(words[2])})
		return
	}
	x := plan.Transfer{Kind: kinds[words[1]], Bucket: number(words[2])}
	for x.Bucket >= len(p.Buckets) {
		p.AddBucket(plan.Bucket{Slices: []plan.Slice{{Tensor: job.TensorID(len(p.Buckets)), Length: 1}}})
	}
	for _, w := range words[3:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "generation":
			x.Generation = number(value)
		case "gradient":
			x.Gates = append(x.Gates, plan.Gate{Kind: plan.GradientReady})
		case "op":
			op, i, _ := strings.Cut(value, ".")
			x.Gates = append(x.Gates, plan.Gate{Kind: plan.OpDone, Op: job.OpID(number(op)), Iteration: number(i)})
		case "boundary":
			x.Gates = append(x.Gates, plan.Gate{Kind: plan.Boundary, Iteration: number(value)})
		case "done":
			link, at, _ := strings.Cut(value, ".")
			l := slices.IndexFunc(p.Programs, func(x plan.Program) bool { return x.Link == link })
			x.Gates = append(x.Gates, plan.Gate{Kind: plan.TransferDone, Link: l, Transfer: number(at)})
		}
	}
	to := program(p, words[0])
	to.Transfers = append(to.Transfers, x)
}

func program(p *plan.Plan, link string) *plan.Program {
	l := slices.IndexFunc(p.Programs, func(x plan.Program) bool { return x.Link == link })
	if l < 0 {
		l = len(p.Programs)
		p.Programs = append(p.Programs, plan.Program{Link: link})
	}
	return &p.Programs[l]
}

func (s *script) run(_ *testing.T, d *datadriven.TestData) error {
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		fmt.Fprintln(&s.out, strings.TrimSpace(line))
		if words[0] == "at" {
			s.now = time.Duration(number(words[1])) * time.Millisecond
			words = words[2:]
		}
		for _, a := range s.engine.Step(s.now, s.event(words)) {
			link := ""
			if len(s.engine.Plan.Programs) > 0 {
				link = s.engine.Plan.Programs[a.Link].Link
			}
			what := fmt.Sprintf("bucket %d, generation %d of iteration %d", a.Bucket, a.Generation, a.Iteration)
			if a.Transfer != nil && a.Bucket < 0 {
				what = fmt.Sprintf("collective %d of iteration %d", a.Transfer.Collective, a.Iteration)
			}
			switch a.Kind {
			case Start:
				fmt.Fprintf(&s.out, "  start %s %d: %s %s\n", link, a.Instance, a.Transfer.Kind, what)
			case Complete:
				fmt.Fprintf(&s.out, "  complete %s\n", what)
			case Flushed:
				fmt.Fprintln(&s.out, "  flushed")
			case Abort:
				fmt.Fprintf(&s.out, "  abort, rank %d: %v\n", a.Failure.Rank, a.Failure)
			}
		}
	}
	return nil
}

func (s *script) event(words []string) Event {
	n := func(i int) int { return number(words[i]) }
	switch words[0] {
	case "ready":
		return Event{Kind: Ready, Rank: n(1), Bucket: n(2), Iteration: n(3)}
	case "moved":
		return Event{Kind: Moved, Rank: n(1), Bucket: n(2), Iteration: n(3)}
	case "boundary":
		return Event{Kind: Boundary, Rank: n(1), Iteration: n(2)}
	case "op":
		return Event{Kind: OpDone, Rank: n(1), Op: job.OpID(n(2)), Iteration: n(3)}
	case "done":
		l := slices.IndexFunc(s.engine.Plan.Programs, func(x plan.Program) bool { return x.Link == words[1] })
		return Event{Kind: TransferDone, Link: l, Instance: n(2)}
	case "flush":
		return Event{Kind: Flush}
	case "left":
		return Event{Kind: Left, Rank: n(1)}
	case "lost":
		return Event{Kind: PeerLost, Rank: n(1), Err: errors.New(strings.Join(words[2:], " "))}
	}
	return Event{Kind: Deadline}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err) // of the script
	}
	return n
}
