package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
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
// have the same one: they compare its digest before they begin. Workers that have no
// tensors yet are given none.
type Schedule struct {
	Plan *plan.Plan
	// Job is that of the plan, and the workers have its tensors; nil: it is made of what
	// they say.
	Job *job.Job
	// Limits are those that the plan must keep.
	Limits plan.Limits
	// Links are what the plan's programs run on, one each; none: all workers are of this
	// host, or the programs run on the rails between hosts.
	Links []Link
	// Costs are what is known of the links between hosts, by name: how buckets travel on a
	// link is chosen by its latency and bandwidth. All hosts have the same.
	Costs []cluster.Link
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
	// Ready is when its gates were open on this host, if the agent keeps a timeline.
	Ready, Start, End time.Time
}

// maxLinks bounds the programs of a plan, each of which has channels of its own.
const maxLinks = 1 << 10

// executable refuses a plan that agents cannot execute, and names the transfer.
func (x *Schedule) executable(j *job.Job, alone bool) error {
	if n := len(x.Links); !alone && n > 0 && n != len(x.Plan.Programs) {
		return fmt.Errorf("the plan has programs for %d links, this host %d links", len(x.Plan.Programs), n)
	}
	if n := len(x.Plan.Programs); n > maxLinks {
		return fmt.Errorf("the plan has programs for %d links, and agents execute at most %d", n, maxLinks)
	}
	declared, workers := make([]bool, len(x.Plan.Buckets)), x.workersLink()
	for l := range x.Plan.Programs {
		p := &x.Plan.Programs[l]
		for i := range p.Transfers {
			t := &p.Transfers[i]
			if err := x.transferable(t, j, p.Link == workers); err != nil {
				what := fmt.Sprintf("bucket %d", t.Bucket)
				if t.Bucket < 0 {
					what = fmt.Sprintf("the job's own collective %d", t.Collective)
				}
				return fmt.Errorf("link %s, transfer %d (%s of %s): %w", p.Link, i, t.Kind, what, err)
			}
			for _, g := range t.Gates {
				if g.Kind == plan.GradientReady {
					declared[t.Bucket] = true
				}
			}
		}
	}
	if b := slices.Index(declared, false); b >= 0 {
		return fmt.Errorf("bucket %d: no transfer waits for its gradients; agents gather the buckets that they scatter", b)
	}
	return nil
}

// workersLink is that of the plan whose transfers the workers run; "": there is none.
func (x *Schedule) workersLink() string {
	if x == nil || x.Replay || !slices.ContainsFunc(x.Plan.Programs, func(p plan.Program) bool { return p.Link == protocol.C10D && len(p.Transfers) > 0 }) {
		return ""
	}
	return protocol.C10D
}

// transferable refuses a transfer that agents, or if they run it the workers, cannot run.
func (x *Schedule) transferable(t *plan.Transfer, j *job.Job, workers bool) error {
	if t.Kind == cluster.Push || t.Kind == cluster.Pull {
		return errors.New("agents reduce among workers, and have no parameter servers")
	}
	for _, g := range t.Gates {
		if g.Kind == plan.OpDone && !x.Replay {
			return fmt.Errorf("it waits for op %d, and workers do not tell when ops end: only weft replay runs such plans", g.Op)
		}
	}
	if t.Bucket < 0 {
		return nil
	}
	if workers && t.Kind != cluster.AllReduce {
		return errors.New("workers run all-reduces alone: torch.distributed cuts one in halves as it likes")
	}
	first := x.Plan.Buckets[t.Bucket].Slices[0].Tensor
	for _, s := range x.Plan.Buckets[t.Bucket].Slices {
		a, b := &j.Tensors[first], &j.Tensors[s.Tensor]
		if a.Grad != b.Grad {
			return fmt.Errorf("its gradients are of different types: %s of %v, %s of %v", a.Name, a.Grad, b.Name, b.Grad)
		}
	}
	return reducible(j.Tensors[first].Grad)
}

// layout is the plan as these workers execute it, and a place for everything that it
// moves. What they cannot do of it the note says; "" is nothing.
func (x *Schedule) layout(h *protocol.Hello, alone bool) (l *layout, note string, err error) {
	j, err := newJob(h.Tensors)
	if err != nil {
		return nil, "", err
	}
	if j.Mode, err = mode(h); err != nil {
		return nil, "", err
	}
	if fp := j.TensorsFingerprint(); fp != x.Plan.Tensors {
		return nil, "", x.other(j)
	}
	l = &layout{job: j, plan: x.Plan, given: x}
	if x.Replay {
		l.job = x.Job
	}
	if err := x.executable(l.job, alone); err != nil {
		return nil, "", err
	}
	workers := x.workersLink() != ""
	if workers && h.C10D == "" {
		return nil, "", fmt.Errorf("the plan sends over link %s, through torch.distributed, and the workers do not: wrap(model, optimizer, c10d=\"gloo\"), or give a plan without that link", protocol.C10D)
	}
	if !x.Replay {
		if l.plan, note, err = x.adapt(j, h.Boundaries); err != nil {
			return nil, "", err
		}
	}
	if err := l.place(h.World); err != nil {
		return nil, "", err
	}
	l.describe()
	if l.welcome.C10D = workers; workers {
		through := fmt.Sprintf("what the plan sends over link %s, torch.distributed (%s) adds in an order of its own: weights are those of other plans within rounding", protocol.C10D, h.C10D)
		note = strings.TrimPrefix(note+"; "+through, "; ")
	}
	return l, note, nil
}

// Check refuses a plan that no training can execute, whatever its workers have: what is
// known before they say so.
func (x *Schedule) Check() error {
	sizes, err := sizes(x.Plan)
	if err != nil {
		return err
	}
	tensors := make([]protocol.Tensor, len(sizes))
	for k, n := range sizes {
		tensors[k] = protocol.Tensor{Name: fmt.Sprint(k), Elements: n, DType: job.Float32.String()}
	}
	j, err := newJob(tensors)
	if err == nil {
		err = x.executable(j, true)
	}
	if err == nil {
		err = x.proved(x.Plan, j)
	}
	return err
}

// proved refuses a plan that breaks a rule, for workers whose ops are not known: they
// compute in the order that they do, and make calls of their own when they do.
func (x *Schedule) proved(p *plan.Plan, j *job.Job) error {
	theirs, plain := *j, *p
	plain.Tensors, plain.Ops, plain.Order = j.TensorsFingerprint(), "", nil
	for l := range p.Programs {
		for i := range p.Programs[l].Transfers {
			if t := &p.Programs[l].Transfers[i]; t.Bucket < 0 {
				if t.Collective > maxCollectives {
					return fmt.Errorf("the plan repeats collective %d of its job; at most %d have a place", t.Collective, maxCollectives)
				}
				for len(theirs.Collectives) <= t.Collective {
					theirs.Collectives = append(theirs.Collectives, job.Collective{Name: "call"})
				}
				theirs.Collectives[t.Collective].Kind = t.Kind.String()
			}
		}
	}
	return plan.Check(&plain, &theirs, x.Limits).Err()
}

// maxCollectives bounds the memory that a plan can ask for.
const maxCollectives = 1 << 20

// adapt returns the plan as workers can execute it who update tensors as the job says,
// and tell the ends of iterations or not, and what of it they do not.
func (x *Schedule) adapt(j *job.Job, boundaries bool) (p *plan.Plan, note string, err error) {
	p = x.Plan
	if p.Order != nil {
		note = "the plan orders the ops of the backward pass: models that are compiled with weft.torch.backend run them so, others as they do"
	}
	err = x.proved(p, j)
	switch {
	case err == nil && boundaries:
		return p, note, nil
	case err == nil && p.MaxDelay > 0:
		return nil, "", errNoDelay
	case err == nil && !awaitsBoundary(p):
		return p, note, nil
	case err != nil && (j.Mode != job.Global || p.MaxDelay > 0):
		return nil, "", err
	}
	// The nearest exact plan: the same transfers, behind a barrier.
	if barred := p.WithBarrier(); x.proved(barred, j) == nil {
		why := "the plan updates tensors one by one, and this training all at once"
		if err == nil {
			why = "the plan waits for the ends of iterations, which these workers do not tell"
		}
		return barred, why + ": its transfers are executed, and optimizer.step() waits for all of them", nil
	}
	return nil, "", cmp.Or(err, errors.New("the plan waits for the ends of iterations, which these workers do not tell"))
}

// errNoDelay is why workers whose step() cannot be taken apart, or that need the averages
// of each iteration, are given plain buckets in place of a plan.
var errNoDelay = errors.New("the plan delays updates, which this training cannot bear: its optimizer updates all tensors at once, or it needs the averages of each iteration (hello without boundaries)")

func awaitsBoundary(p *plan.Plan) bool {
	return slices.ContainsFunc(p.Programs, func(x plan.Program) bool {
		return slices.ContainsFunc(x.Transfers, func(t plan.Transfer) bool {
			return slices.ContainsFunc(t.Gates, func(g plan.Gate) bool { return g.Kind == plan.Boundary })
		})
	})
}

// sizes are the tensors that the plan moves, elements each.
func sizes(p *plan.Plan) ([]int64, error) {
	of := map[job.TensorID]int64{}
	for _, b := range p.Buckets {
		for _, s := range b.Slices {
			of[s.Tensor] = max(of[s.Tensor], s.Offset+s.Length)
		}
	}
	out := make([]int64, len(of))
	for k := range out {
		n, ok := of[job.TensorID(k)]
		if !ok {
			return nil, fmt.Errorf("the plan moves %d tensors, and not tensor %d", len(of), k)
		}
		out[k] = n
	}
	return out, nil
}

// other tells how the workers' tensors differ from those of the plan. A plan alone has
// but their sizes.
func (x *Schedule) other(j *job.Job) error {
	const other, advice = "the plan is for another model: ", "; make it from a job that weft profile wrote for this one"
	if x.Job != nil {
		for k := range max(len(x.Job.Tensors), len(j.Tensors)) {
			if a, b := named(x.Job, k), named(j, k); a != b {
				return fmt.Errorf(other+"tensor %d is %s in its job, %s in the training"+advice, k, a, b)
			}
		}
	}
	planned, err := sizes(x.Plan)
	if err != nil {
		return err
	}
	if len(planned) != len(j.Tensors) {
		return fmt.Errorf(other+"it moves %d tensors, and the training has %d"+advice, len(planned), len(j.Tensors))
	}
	clients := 0 // tensors of the client, which tells of the model's and of workers
	if len(planned) > 0 && strings.HasPrefix(j.Tensors[0].Name, own) {
		clients = 1
	}
	for k := clients; k < len(planned); k++ {
		if planned[k] != j.Tensors[k].Elements {
			return fmt.Errorf(other+"tensor %d has %d elements in the plan, and is %s in the training"+advice, k, planned[k], named(j, k))
		}
	}
	if clients > 0 && planned[0] != j.Tensors[0].Elements {
		of := int64(len(planned) - clients) // an element each, and one a worker
		return fmt.Errorf("the plan is for %d workers, and the training has %d", planned[0]-of, j.Tensors[0].Elements-of)
	}
	return fmt.Errorf(other+"its tensors have the sizes of those in the training, and other names or types (fingerprint %s, not %s)"+advice, x.Plan.Tensors, j.TensorsFingerprint())
}

func named(j *job.Job, k int) string {
	if k >= len(j.Tensors) {
		return "missing"
	}
	return tensorName(j.Tensors[k].Name, j.Tensors[k].Elements, j.Tensors[k].Grad.String())
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
		Version: protocol.Version, World: world, Digest: p.Digest(), Policy: p.Policy,
		Tensors: []protocol.Region{}, Buckets: []protocol.Bucket{},
	}
	w := &l.welcome
	if p.Order != nil {
		w.Order, w.OrderOf = p.Order, p.Ops
	}
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
	return nil
}

// call gives calls their place, behind all buckets.
func (l *layout) call(bytes int64) {
	w := &l.welcome
	w.CallBytes = bytes
	w.InputBytes, w.OutputBytes = w.CallOffset+bytes, w.CallOffset+bytes
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

// agreePlan does then once all hosts have said that they were given the same plan, or
// none, and review it at the same iteration.
func (a *Agent) agreePlan(then func()) {
	mine := "none"
	if a.Schedule != nil {
		mine = a.Schedule.Plan.Digest()
		for _, l := range a.Schedule.Costs {
			mine += fmt.Sprintf(", link %s of %g bit/s and %g us", l.Name, l.Bandwidth, l.Latency)
		}
	}
	if a.reviewing.after > 0 {
		mine += fmt.Sprintf(" until a review after %d iterations", a.reviewing.after)
	}
	a.agree(mine, func(host int, other []byte) error {
		var theirs string
		if err := protocol.Decode(other, &theirs); err != nil {
			return err
		}
		return fmt.Errorf("rank %d has plan %s, rank %d plan %s: give every host the same plan, or the same flags", a.Ranks[0], mine, a.first(host), theirs)
	}, then)
}

// programs are what this host does in each transfer of the plan, by link.
func (a *Agent) programs(s *session) ([][]*collective.Program, error) {
	out := make([][]*collective.Program, len(s.plan.Programs))
	type key struct {
		kind         cluster.Kind
		bucket, coll int
	}
	for x := range s.plan.Programs {
		made := map[key]*collective.Program{}
		for i := range s.plan.Programs[x].Transfers {
			t := &s.plan.Programs[x].Transfers[i]
			if t.Bucket < 0 && !s.replays() || s.workersRun(x) {
				out[x] = append(out[x], nil)
				continue
			}
			k := key{t.Kind, t.Bucket, t.Collective}
			if made[k] == nil {
				spec, d := s.spec(t)
				spec.World = len(a.hosts)
				p, err := spec.Choose(s.links[x].Cost, d.Bytes()).Program(a.host())
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

// links are what the programs of a plan run on: those that the agent was given, or the
// rails that have the names of the programs' links. On one rail all do, whatever their
// names.
func (a *Agent) links(l *layout) ([]Link, error) {
	if l.given != nil && len(l.given.Links) > 0 {
		return l.given.Links, nil
	}
	rails := make([]string, len(a.rails))
	for i := range rails {
		rails[i] = transport.RailName(i)
	}
	var out []Link
	used := 0
	for i, x := range l.plan.Programs {
		if l.workersRun(i) {
			out = append(out, Link{})
			continue
		}
		rail := 0
		if len(x.Transfers) > 0 {
			used++
		}
		if len(rails) > 1 {
			rail = slices.Index(rails, x.Link)
		}
		if rail < 0 {
			return nil, fmt.Errorf("the plan has a program for link %s, and the rails between hosts are %s: name its links like those", x.Link, strings.Join(rails, ", "))
		}
		out = append(out, Link{Net: a.rails[rail], Cost: l.given.cost(x.Link)})
	}
	if used > 1 && len(rails) == 1 && a.Ranks[0] == 0 && a.Warn != nil {
		a.Warn(fmt.Sprintf("the plan sends over %d links, and one network joins the hosts: they share it (weft run --rails has several)", used))
	}
	return out, nil
}

// cost is what is known of a link, or assumed.
func (x *Schedule) cost(link string) cluster.Link {
	if x != nil {
		for _, l := range x.Costs {
			if l.Name == link && l.Bandwidth > 0 {
				return l
			}
		}
	}
	return assumed
}

// workersRun says that the workers run the transfers of a link.
func (l *layout) workersRun(link int) bool {
	return l.welcome.C10D && l.plan.Programs[link].Link == protocol.C10D
}

// replays says that the workers play a job.
func (l *layout) replays() bool { return l.given != nil && l.given.Replay }

// region is where a bucket lies for the generation of an iteration.
func (s *session) region(x engine.Action) protocol.Region {
	r := s.layout.welcome.Buckets[x.Bucket].Region
	r.Offset += s.layout.welcome.BufferBytes * int64(x.Generation%s.plan.Buffers)
	return r
}

// transfer runs a transfer of the plan. With several rails, an error names its own.
func (a *Agent) transfer(s *session, x engine.Action) error {
	err := a.move(s, x)
	if err == nil || len(a.rails) < 2 {
		return err
	}
	name := s.plan.Programs[x.Link].Link
	if lost, ok := errors.AsType[*transport.PeerLost](err); ok {
		return &transport.PeerLost{Rank: lost.Rank, Cause: fmt.Errorf("on rail %s: %w", name, lost.Cause)}
	}
	return fmt.Errorf("on rail %s: %w", name, err)
}

func (a *Agent) move(s *session, x engine.Action) error {
	t := &collective.Transfer{Channel: linkChannel + uint16(x.Link), Op: s.epoch<<32 | uint64(x.Instance)}
	if !a.alone() {
		at := x.Instance % len(s.programs[x.Link])
		t.Program = s.programs[x.Link][at]
	}
	if x.Bucket < 0 {
		return a.emulate(t, s.net(x))
	}
	t.Reduction = mean(s.dtypes[x.Bucket], a.World)
	if s.replays() {
		t.Scale = 0
	}
	r, net := s.region(x), s.net(x)
	switch {
	case x.Transfer.Kind != cluster.AllGather:
		return a.reduce(t, net, s.target(r), s.sources(r))
	case a.alone():
		return nil
	}
	t.Result = s.target(r)
	return t.Run(a.ctx, net)
}

// net is what a transfer goes over; nil: one host.
func (s *session) net(x engine.Action) transport.Endpoint {
	if s.links == nil {
		return nil
	}
	return s.links[x.Link].Net
}

// emulate runs one of the job's own collectives, with bytes that mean nothing.
func (a *Agent) emulate(t *collective.Transfer, net transport.Endpoint) error {
	if a.alone() {
		return nil
	}
	t.Reduction = collective.Reduction{DType: job.Float32, Op: kernel.Sum}
	t.Result = make([]byte, 4*collective.Elements(t.Slices))
	return t.Run(a.ctx, net)
}
