package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weft/cluster"
	"weft/job"
)

// The scripts in testdata describe jobs and plans line by line.
//
// A job:
//
//	tensor NAME ELEMENTS
//	lane NAME                        the ops below run on it, in this order; a
//	                                 device lane if the name begins with stream
//	op NAME [reads=T,..] [makes=T,..] [writes=T,..] [after=OP,..]
//	copy-in T | copy-out T           the recorded library's, on the lane
//	library NAME                     another op of the recorded library
//	collective NAME KIND [after=OP,..] [before=OP,..]
//	barrier OP..
//	global                           update mode
//
// A plan:
//
//	period N
//	generation FIRST LENGTH
//	bucket T | T[FROM:TO] ..
//	link NAME [window=TRANSFERS]     the transfers below are its program
//	KIND BUCKET [gen=N] [gate..]
//	collective NAME iteration=N [gate..]
//	update gen=N at=step|read iteration=N [tensors=T,..]
//	order LANE OP..
//	copies
//	states buffers=N delay=N staleness=N rate=X
//
// with gates: gradient, op=NAME@ITERATION, done=LINK/POSITION,
// boundary=ITERATION, not-before=MICROSECONDS.
type scriptJob struct {
	*job.Job
	ops     map[string]job.OpID
	tensors map[string]job.TensorID
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// options splits words into name=value pairs and others.
func options(words []string) (map[string]string, []string) {
	opts, rest := map[string]string{}, []string{}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			opts[k] = v
		} else {
			rest = append(rest, w)
		}
	}
	return opts, rest
}

func lines(text string) [][]string {
	var out [][]string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 0 {
			out = append(out, words)
		}
	}
	return out
}

func find[K ~int32](what, name string, in map[string]K) K {
	v, ok := in[name]
	if !ok {
		panic(fmt.Sprintf("script: no %s %q", what, name))
	}
	return v
}

func number(s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(fmt.Sprintf("script: %v", err))
	}
	return n
}

func parseJob(text string) *scriptJob {
	s := &scriptJob{&job.Job{Name: "script"}, map[string]job.OpID{}, map[string]job.TensorID{}}
	tensors := func(list string) (out []job.TensorID) {
		for _, t := range splitList(list) {
			out = append(out, find("tensor", t, s.tensors))
		}
		return out
	}
	ops := func(list string) (out []job.OpID) {
		for _, o := range splitList(list) {
			out = append(out, find("op", o, s.ops))
		}
		slices.Sort(out)
		return out
	}
	add := func(name string, o job.Op) job.OpID {
		o.Name, o.Lane, o.Time = name, job.LaneID(len(s.Lanes)-1), 1
		s.Ops = append(s.Ops, o)
		s.ops[name] = job.OpID(len(s.Ops) - 1)
		return s.ops[name]
	}
	for _, words := range lines(text) {
		opts, rest := options(words[1:])
		switch words[0] {
		case "tensor":
			s.tensors[rest[0]] = job.TensorID(len(s.Tensors))
			s.Tensors = append(s.Tensors, job.Tensor{Name: rest[0], Elements: int64(number(rest[1]))})
		case "lane":
			kind := job.Host
			if strings.HasPrefix(rest[0], "stream") {
				kind = job.Device
			}
			s.Lanes = append(s.Lanes, job.Lane{Name: rest[0], Kind: kind})
		case "op":
			phase := job.Forward
			if opts["makes"] != "" {
				phase = job.Backward
			}
			if opts["writes"] != "" {
				phase = job.Update
			}
			o := add(rest[0], job.Op{Phase: phase, Tensor: -1, Deps: ops(opts["after"])})
			for _, t := range tensors(opts["reads"]) {
				s.Tensors[t].Readers = append(s.Tensors[t].Readers, o)
			}
			for _, t := range tensors(opts["makes"]) {
				s.Tensors[t].Producers = append(s.Tensors[t].Producers, o)
			}
			for _, t := range tensors(opts["writes"]) {
				s.Tensors[t].Updaters = append(s.Tensors[t].Updaters, o)
			}
		case "copy-in", "copy-out":
			role := map[string]job.Role{"copy-in": job.CopyIn, "copy-out": job.CopyOut}[words[0]]
			add(words[0]+":"+rest[0], job.Op{Phase: job.Runtime, Role: role, Tensor: find("tensor", rest[0], s.tensors)})
		case "library":
			add(rest[0], job.Op{Phase: job.Runtime, Role: job.Library, Tensor: -1})
		case "collective":
			s.Collectives = append(s.Collectives, job.Collective{Name: rest[0], Kind: rest[1], After: ops(opts["after"]), Before: ops(opts["before"])})
		case "barrier":
			s.Barrier = ops(strings.Join(rest, ","))
		case "global":
			s.Mode = job.Global
		default:
			panic("script: what is " + words[0])
		}
	}
	if err := s.Validate(); err != nil {
		panic(fmt.Sprintf("script: %v", err))
	}
	return s
}

func (s *scriptJob) parsePlan(text string) *Plan {
	p := &Plan{Policy: "script", Tensors: s.TensorsFingerprint(), Period: 1, Buffers: 1, UpdateRate: 1}
	gates := func(words []string) (out []Gate) {
		for _, w := range words {
			k, v, _ := strings.Cut(w, "=")
			switch k {
			case "gradient":
				out = append(out, Gate{Kind: GradientReady})
			case "op":
				name, iteration, _ := strings.Cut(v, "@")
				out = append(out, Gate{Kind: OpDone, Op: find("op", name, s.ops), Iteration: number(iteration)})
				p.Ops = s.OpsFingerprint()
			case "done":
				link, at, _ := strings.Cut(v, "/")
				l := slices.IndexFunc(p.Programs, func(x Program) bool { return x.Link == link })
				out = append(out, Gate{Kind: TransferDone, Link: l, Transfer: number(at)})
			case "boundary":
				out = append(out, Gate{Kind: Boundary, Iteration: number(v)})
			case "not-before":
				out = append(out, Gate{Kind: NotBefore, Time: float64(number(v))})
			}
		}
		return out
	}
	for _, words := range lines(text) { // links first: gates name them
		if opts, rest := options(words[1:]); words[0] == "link" {
			p.Programs = append(p.Programs, Program{Link: rest[0], Window: Window{Transfers: number(opts["window"])}})
		}
	}
	link := -1
	for _, words := range lines(text) {
		opts, rest := options(words[1:])
		switch words[0] {
		case "period":
			p.Period = number(rest[0])
		case "generation":
			p.Generations = append(p.Generations, Generation{number(rest[0]), number(rest[1])})
		case "bucket":
			var b Bucket
			for _, w := range rest {
				name, part, cut := strings.Cut(strings.TrimSuffix(w, "]"), "[")
				t := find("tensor", name, s.tensors)
				x := Slice{Tensor: t, Length: s.Tensors[t].Elements}
				if cut {
					from, to, _ := strings.Cut(part, ":")
					x.Offset, x.Length = int64(number(from)), int64(number(to)-number(from))
				}
				b.Slices = append(b.Slices, x)
			}
			p.Buckets = append(p.Buckets, b)
		case "link":
			link++
		case "collective":
			c := slices.IndexFunc(s.Collectives, func(c job.Collective) bool { return c.Name == rest[0] })
			kind, err := cluster.ParseKind(s.Collectives[c].Kind)
			if err != nil {
				panic(err)
			}
			p.Programs[link].Transfers = append(p.Programs[link].Transfers,
				Transfer{Kind: kind, Bucket: -1, Collective: c, Iteration: number(opts["iteration"]), Gates: gates(words[2:])})
		case "update":
			u := Update{Generation: number(opts["gen"]), Iteration: number(opts["iteration"])}
			if opts["at"] == "read" {
				u.At = AtRead
			}
			for _, t := range splitList(opts["tensors"]) {
				u.Tensors = append(u.Tensors, find("tensor", t, s.tensors))
			}
			p.Updates = append(p.Updates, u)
		case "order":
			if p.Order == nil {
				p.Order, p.Ops = make([][]job.OpID, len(s.Lanes)), s.OpsFingerprint()
			}
			l := slices.IndexFunc(s.Lanes, func(l job.Lane) bool { return l.Name == rest[0] })
			for _, o := range rest[1:] {
				p.Order[l] = append(p.Order[l], find("op", o, s.ops))
			}
		case "copies":
			p.Copies = true
		case "states":
			p.Buffers, p.MaxDelay, p.MaxStaleness = number(opts["buffers"]), number(opts["delay"]), number(opts["staleness"])
			rate, err := strconv.ParseFloat(opts["rate"], 64)
			if err != nil {
				panic(err)
			}
			p.UpdateRate = rate
		default:
			kind, err := cluster.ParseKind(words[0])
			if err != nil {
				panic(err)
			}
			p.Programs[link].Transfers = append(p.Programs[link].Transfers,
				Transfer{Kind: kind, Bucket: number(rest[0]), Generation: number(opts["gen"]), Gates: gates(words[2:])})
		}
	}
	if len(p.Generations) == 0 {
		p.Generations = []Generation{{0, 1}}
	}
	return p
}

// edit replaces lines of a plan: "- LINE" removes it, a "+ LINE" below takes its
// place; without one before, it goes to the end.
func edit(text, edits string) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	at := len(all)
	for line := range strings.Lines(edits) {
		line = strings.TrimSpace(line)
		switch body := strings.TrimSpace(strings.TrimLeft(line, "+-")); {
		case strings.HasPrefix(line, "-"):
			if at = slices.IndexFunc(all, func(s string) bool { return strings.TrimSpace(s) == body }); at < 0 {
				panic("script: no line " + body)
			}
			all = slices.Delete(all, at, at+1)
		case strings.HasPrefix(line, "+"):
			all = slices.Insert(all, at, body)
			at++
		}
	}
	return strings.Join(all, "\n")
}
