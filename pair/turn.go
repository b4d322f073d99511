package pair

import (
	"slices"

	"weft/job"
	"weft/plan"
)

// joiner builds the joint job and plan, turn by turn. The first lane is the token.
type joiner struct {
	job      *job.Job
	buckets  []plan.Bucket
	programs []plan.Program
	parts    []*part
}

// adopt gives a part lanes in the joint job, and programs from the given one on.
func (x *joiner) adopt(p *part, link int) {
	p.link, p.lane = link, job.LaneID(len(x.job.Lanes))
	for _, l := range p.job.Lanes {
		x.job.Lanes = append(x.job.Lanes, job.Lane{Name: p.label + l.Name, Kind: l.Kind})
	}
	for l := range p.plan.Programs {
		x.programs[link+l].Window = p.plan.Programs[l].Window
	}
	x.parts = append(x.parts, p)
}

func (x *joiner) add(o job.Op) job.OpID {
	x.job.Ops = append(x.job.Ops, o)
	return job.OpID(len(x.job.Ops) - 1)
}

// turn is one turn of a part.
type turn struct {
	*part
	last       bool         // of the part's in the round
	at         []job.OpID   // by op of the part: its op in the joint job
	release    job.OpID     // the end
	tensor     job.TensorID // where in the joint job or plan the part's first is, of each:
	bucket     int
	collective int
	transfer   []int // by program
}

// turn appends a turn of p: what it computes, and what it sends.
func (x *joiner) turn(p *part) {
	p.left--
	t := &turn{
		part: p, last: p.left == 0, at: make([]job.OpID, len(p.job.Ops)),
		tensor: job.TensorID(len(x.job.Tensors)), bucket: len(x.buckets), collective: len(x.job.Collectives),
	}
	for l := range p.plan.Programs {
		t.transfer = append(t.transfer, len(x.programs[p.link+l].Transfers))
	}
	acquire := x.compute(t)
	for _, c := range p.awaiting {
		x.job.Collectives[c].Before = []job.OpID{acquire}
	}
	p.awaiting = nil
	for k := range p.readers {
		if p.step[k] && p.readers[k] == nil {
			p.readers[k] = []job.OpID{acquire}
		}
		p.readers[k] = append(p.readers[k], t.ops(p.job.Tensors[k].Readers)...)
	}
	x.collectives(t)
	if t.last {
		x.tensors(t)
	}
	x.transfers(t)
}

// compute adds the ops of a turn, and returns the one that acquires the token.
func (x *joiner) compute(t *turn) (acquire job.OpID) {
	token := job.Op{Phase: job.Forward, Tensor: -1}
	token.Name = t.label + "acquire"
	acquire = x.add(token)
	var starts, ends []job.OpID
	for _, ops := range t.lanes {
		for _, id := range ops {
			o := t.job.Ops[id]
			o.Lane, o.Tensor, o.Deps = o.Lane+t.lane, -1, nil
			switch o.Role { // what remains of the library's work are copies
			case job.CopyIn:
				o.Phase = job.Backward
			case job.CopyOut:
				o.Phase = job.Update
			}
			o.Role = job.NoRole
			t.at[id] = x.add(o)
		}
		if len(ops) > 0 {
			starts, ends = append(starts, t.at[ops[0]]), append(ends, t.at[ops[len(ops)-1]])
		}
	}
	for o, id := range t.at {
		for _, d := range t.job.Ops[o].Deps {
			if t.late[d] || !t.late[o] { // else d is of the turn before, which is over
				x.job.Ops[id].Deps = append(x.job.Ops[id].Deps, t.at[d])
			}
		}
	}
	for _, id := range starts {
		x.job.Ops[id].Deps = append(x.job.Ops[id].Deps, acquire)
	}
	token.Name, token.Deps = t.label+"release", ends
	t.release = x.add(token)
	return acquire
}

// ops are the turn's, of ops of the part's job; ascending.
func (t *turn) ops(of []job.OpID) []job.OpID {
	var out []job.OpID
	for _, o := range of {
		out = append(out, t.at[o])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// collectives adds those of the part's job. Those before the barrier hold no
// later turn up: it begins when their own is over.
func (x *joiner) collectives(t *turn) {
	for c := range t.job.Collectives {
		k := t.job.Collectives[c]
		late := t.late[len(t.job.Ops)+c]
		keep := func(ops []job.OpID) []job.OpID {
			return t.ops(slices.DeleteFunc(slices.Clone(ops), func(o job.OpID) bool { return t.late[o] != late }))
		}
		k.Name, k.After, k.Before = t.label+k.Name, keep(k.After), keep(k.Before)
		x.job.Collectives = append(x.job.Collectives, k)
	}
}

// tensors adds the part's tensors and buckets; its last turn of a round sends
// them.
func (x *joiner) tensors(t *turn) {
	for k, from := range t.job.Tensors {
		from.Name = t.label + from.Name
		from.Producers, from.Readers, from.Updaters = t.ops(t.ready[k]), t.readers[k], t.ops(from.Updaters)
		if t.step[k] {
			from.Updaters = nil // they run as ops of the turn, at its start
		}
		x.job.Tensors = append(x.job.Tensors, from)
	}
	for _, b := range t.plan.Buckets {
		b.Slices = slices.Clone(b.Slices)
		for i := range b.Slices {
			b.Slices[i].Tensor += t.tensor
		}
		x.buckets = append(x.buckets, b)
	}
}

// transfers adds the plan's programs to the joint ones.
func (x *joiner) transfers(t *turn) {
	for l, order := range t.order {
		to := &x.programs[t.link+l]
		for _, i := range order {
			send := t.plan.Programs[l].Transfers[i]
			from := send.Gates
			send.Gates = nil
			for _, g := range from {
				if g, ok := t.gate(g); ok {
					send.Gates = append(send.Gates, g)
				}
			}
			switch {
			case send.Bucket < 0:
				send.Collective += t.collective
			case t.last:
				send.Bucket += t.bucket
			default:
				send.Bucket, send.Collective = -1, x.gradients(t, &t.plan.Buckets[send.Bucket], send.Kind.String())
			}
			to.Transfers = append(to.Transfers, send)
		}
	}
}

// gradients adds a collective that carries the gradients of a bucket, and for
// which the part's next turn waits.
func (x *joiner) gradients(t *turn, b *plan.Bucket, kind string) int {
	k := job.Collective{Name: t.label + "gradients", Kind: kind, Bytes: b.Bytes(t.job)}
	for _, tensor := range b.Tensors() {
		k.After = append(k.After, t.ready[tensor]...)
	}
	k.After = t.ops(k.After)
	x.job.Collectives = append(x.job.Collectives, k)
	t.awaiting = append(t.awaiting, len(x.job.Collectives)-1)
	return len(x.job.Collectives) - 1
}

// gate is a gate of the part's plan in the joint one, if it is needed there: a
// collective waits for gradients by itself.
func (t *turn) gate(g plan.Gate) (plan.Gate, bool) {
	switch g.Kind {
	case plan.GradientReady:
		return g, t.last
	case plan.TransferDone:
		g.Transfer = t.transfer[g.Link] + t.place[g.Link][g.Transfer]
		g.Link += t.link
	case plan.OpDone:
		o := t.now[g.Op]
		if o < 0 {
			return g, false
		}
		if g.Op = t.at[o]; t.late[o] {
			g.Iteration++ // it has moved to the next turn
		}
	case plan.Boundary:
		g.Kind, g.Op = plan.OpDone, t.release
	}
	return g, true
}
