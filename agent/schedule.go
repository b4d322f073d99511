package agent

import (
	"fmt"
	"slices"
	"time"

	"weft/agent/protocol"
	"weft/cluster"
	"weft/collective"
	"weft/collective/kernel"
	"weft/engine"
	"weft/job"
	"weft/plan"
	"weft/transport"
)

// Schedule is a plan that an agent is given, in place of plain buckets. All hosts
// have the same one: they compare its digest before they begin.
type Schedule struct {
	Plan *plan.Plan // checked
	Job  *job.Job   // of the plan; the workers have its tensors
	// Links are what the plan's programs run on, one each; none if all workers are of
	// this host.
	Links []Link
	// Replay says that the workers play the job: they tell of the ops and iterations
	// that transfers wait for, its own collectives are run with bytes that mean nothing,
	// and gradients are summed, not averaged, so that small whole numbers stay exact.
	Replay bool
	// Watch, if there is one, is told of each transfer that is done on this host, from
	// one goroutine at a time. It must not call the agent.
	Watch func(Flight)
}

// Link is what a program of a plan runs on.
type Link struct {
	Net transport.Endpoint
	// Cost is by whose latency and bandwidth algorithms are chosen. Without a latency
	// they are rings.
	Cost cluster.Link
}

// Flight is a transfer that this host has done.
type Flight struct {
	engine.Action
	Start, End time.Time
}

// executable refuses a plan that agents cannot execute, and names the transfer.
func (x *Schedule) executable(alone bool) error {
	if !alone && len(x.Links) != len(x.Plan.Programs) {
		return fmt.Errorf("the plan has programs for %d links, this host %d links", len(x.Plan.Programs), len(x.Links))
	}
	for l := range x.Plan.Programs {
		p := &x.Plan.Programs[l]
		for i := range p.Transfers {
			t := &p.Transfers[i]
			if err := x.transferable(t); err != nil {
				what := fmt.Sprintf("bucket %d", t.Bucket)
				if t.Bucket < 0 {
					what = fmt.Sprintf("the job's own collective %d", t.Collective)
				}
				return fmt.Errorf("link %s, transfer %d (%s of %s): %w", p.Link, i, t.Kind, what, err)
			}
		}
	}
	return nil
}

func (x *Schedule) transferable(t *plan.Transfer) error {
	if t.Kind == cluster.Push || t.Kind == cluster.Pull {
		return fmt.Errorf("agents reduce among workers, and have no parameter servers")
	}
	for _, g := range t.Gates {
		if g.Kind == plan.Boundary && !x.Replay {
			return fmt.Errorf("it waits for the end of an iteration, which workers do not tell")
		}
	}
	if t.Bucket < 0 {
		return nil
	}
	first := x.Plan.Buckets[t.Bucket].Slices[0].Tensor
	for _, s := range x.Plan.Buckets[t.Bucket].Slices {
		a, b := &x.Job.Tensors[first], &x.Job.Tensors[s.Tensor]
		if a.Grad != b.Grad {
			return fmt.Errorf("its gradients are of different types: %s of %v, %s of %v", a.Name, a.Grad, b.Name, b.Grad)
		}
	}
	return reducible(x.Job.Tensors[first].Grad)
}

// layout is a place for everything that the plan moves.
func (x *Schedule) layout(h *protocol.Hello, alone bool) (*layout, error) {
	if err := x.executable(alone); err != nil {
		return nil, err
	}
	j, err := newJob(h.Tensors)
	if err != nil {
		return nil, err
	}
	if fp := j.TensorsFingerprint(); fp != x.Plan.Tensors {
		return nil, fmt.Errorf("the plan is for other tensors (fingerprint %s) than the workers have (%s)", x.Plan.Tensors, fp)
	}
	l := &layout{job: x.Job, plan: x.Plan}
	if err := l.place(h.World); err != nil {
		return nil, err
	}
	l.describe()
	return l, nil
}

// describe tells workers what they need to know of a plan that is not plain buckets.
func (l *layout) describe() {
	w := &l.welcome
	w.Period = l.plan.Period
	for _, g := range l.plan.Generations {
		w.Ends = append(w.Ends, g.Last())
	}
	for _, u := range l.plan.Updates {
		w.Updates = append(w.Updates, protocol.Update{Generation: u.Generation, At: u.At.String(), Iteration: u.Iteration, Tensors: u.Tensors})
	}
}

// place gives every bucket its place: one copy for each buffer of the plan.
func (l *layout) place(world int) error {
	p, j := l.plan, l.job
	l.welcome = protocol.Welcome{
		Version: protocol.Version, World: world, CallBytes: callBytes(world), Digest: p.Digest(), Policy: p.Policy,
		Tensors: []protocol.Region{}, Buckets: []protocol.Bucket{},
	}
	w := &l.welcome
	whole := wholeTensors(p, j)
	if whole {
		w.Tensors = make([]protocol.Region, len(j.Tensors))
	}
	at := int64(0)
	for b := range p.Buckets {
		x := protocol.Bucket{Tensors: p.Buckets[b].Tensors(), Region: protocol.Region{Offset: at, Bytes: p.Buckets[b].Bytes(j)}}
		if x.Bytes > regionBytes/int64(p.Buffers)-at {
			return fmt.Errorf("the gradients take more than %d bytes of shared memory", int64(regionBytes))
		}
		size := j.Tensors[x.Tensors[0]].Grad.Bytes()
		for _, s := range p.Buckets[b].Slices {
			if whole {
				w.Tensors[s.Tensor] = protocol.Region{Offset: at, Bytes: s.Length * size}
			} else {
				x.Slices = append(x.Slices, protocol.Slice(s))
			}
			at += s.Length * size
		}
		at = (at + bucketAlign - 1) &^ (bucketAlign - 1)
		w.Buckets = append(w.Buckets, x)
		l.dtypes = append(l.dtypes, j.Tensors[x.Tensors[0]].Grad)
	}
	if p.Buffers > 1 {
		w.Buffers, w.BufferBytes = p.Buffers, at
		at *= int64(p.Buffers)
	}
	w.CallOffset = at
	w.InputBytes, w.OutputBytes = at+w.CallBytes, at+w.CallBytes
	return nil
}

// wholeTensors tells whether each tensor is in one bucket, whole.
func wholeTensors(p *plan.Plan, j *job.Job) bool {
	in := make([]int, len(j.Tensors))
	for b := range p.Buckets {
		for _, s := range p.Buckets[b].Slices {
			if s.Length != j.Tensors[s.Tensor].Elements {
				return false
			}
			in[s.Tensor]++
		}
	}
	return !slices.ContainsFunc(in, func(n int) bool { return n > 1 })
}

// agreePlan does then once all hosts have said that they were given the same plan.
func (a *Agent) agreePlan(then func()) {
	if a.Schedule == nil {
		then()
		return
	}
	digest := a.Schedule.Plan.Digest()
	a.agree(digest, func(host int, other []byte) error {
		return fmt.Errorf("rank %d has plan %s, rank %d plan %s: give every host the same plan", a.Ranks[0], digest, a.first(host), other)
	}, then)
}

// programs are what this host does in each transfer of the plan, by link.
func (a *Agent) programs(l *layout) ([][]*collective.Program, error) {
	out := make([][]*collective.Program, len(l.plan.Programs))
	type key struct {
		kind         cluster.Kind
		bucket, coll int
	}
	for x := range l.plan.Programs {
		made := map[key]*collective.Program{}
		for i := range l.plan.Programs[x].Transfers {
			t := &l.plan.Programs[x].Transfers[i]
			if t.Bucket < 0 && (a.Schedule == nil || !a.Schedule.Replay) {
				out[x] = append(out[x], nil)
				continue
			}
			k := key{t.Kind, t.Bucket, t.Collective}
			if made[k] == nil {
				s, d := l.spec(t)
				s.World = len(a.hosts)
				p, err := s.Choose(a.link(x).Cost, d.Bytes()).Program(a.host())
				if err != nil {
					return nil, err
				}
				made[k] = p
			}
			out[x] = append(out[x], made[k])
		}
	}
	return out, nil
}

// spec is what a transfer moves.
func (l *layout) spec(t *plan.Transfer) (collective.Spec, job.DType) {
	if t.Bucket >= 0 {
		return collective.Spec{Kind: t.Kind, Slices: l.plan.Buckets[t.Bucket].Slices}, l.dtypes[t.Bucket]
	}
	words := (l.job.Collectives[t.Collective].Bytes + 3) / 4
	return collective.Spec{Kind: t.Kind, Slices: []plan.Slice{{Length: words}}}, job.Float32
}

// link is what a program of the plan runs on.
func (a *Agent) link(l int) Link {
	if a.Schedule == nil || len(a.Schedule.Links) == 0 {
		return Link{Net: a.net, Cost: assumed}
	}
	return a.Schedule.Links[l]
}

// region is where a bucket lies for the generation of an iteration.
func (s *session) region(x engine.Action) protocol.Region {
	r := s.layout.welcome.Buckets[x.Bucket].Region
	r.Offset += s.layout.welcome.BufferBytes * int64(x.Generation%s.plan.Buffers)
	return r
}

// transfer runs a transfer of the plan.
func (a *Agent) transfer(s *session, x engine.Action) error {
	t := &collective.Transfer{Channel: linkChannel + uint16(x.Link), Op: s.epoch<<32 | uint64(x.Instance)}
	if !a.alone() {
		at := x.Instance % len(s.programs[x.Link])
		t.Program = s.programs[x.Link][at]
	}
	if x.Bucket < 0 {
		return a.emulate(t, x.Link)
	}
	t.Reduction = mean(s.dtypes[x.Bucket], a.World)
	if a.Schedule != nil && a.Schedule.Replay {
		t.Scale = 0
	}
	r := s.region(x)
	switch {
	case x.Transfer.Kind != cluster.AllGather:
		return a.reduce(t, a.link(x.Link).Net, s.target(r), s.sources(r))
	case a.alone():
		return nil
	}
	t.Result = s.target(r)
	return t.Run(a.ctx, a.link(x.Link).Net)
}

// emulate runs one of the job's own collectives, with bytes that mean nothing.
func (a *Agent) emulate(t *collective.Transfer, link int) error {
	if a.alone() {
		return nil
	}
	t.Reduction = collective.Reduction{DType: job.Float32, Op: kernel.Sum}
	t.Result = make([]byte, 4*collective.Elements(t.Slices))
	return t.Run(a.ctx, a.link(link).Net)
}
