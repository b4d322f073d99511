// Package replay runs a plan in real time: the engine and an agent for each host,
// in one process; gradients of the job's sizes, in shared memory; links that hold
// messages back as the cluster's would. Only the computation is played, by the
// job's times. What comes out lies beside what the simulator says of the same plan.
package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/cluster"
	"weft/collective"
	"weft/engine"
	"weft/internal/alarm"
	"weft/internal/parallel"
	"weft/job"
	"weft/plan"
	"weft/sim"
	"weft/timeline"
	"weft/transport"
)

// Options of a replay.
type Options struct {
	Iterations int // 0: twelve periods of the plan
	// Progress, if there is one, is told how many iterations the first rank has ended.
	Progress func(done, total int)
}

// Result is what was measured, and what the simulator predicts. Times are microseconds.
type Result struct {
	Iterations []float64 // the length of each, over all ranks
	Steady     int       // the first that counts in Mean and Worst, as in Predicted
	Mean       timeline.Breakdown
	Worst      timeline.Breakdown
	WorstRank  int
	Timeline   *timeline.Timeline
	Predicted  *sim.Result
	// Late is by how much the agents were told late what had happened, ascending.
	Late []float64
	// CPU is the part of the machine's processors that this process was busy with.
	CPU float64
	// Elements is how many sums were checked, over all hosts.
	Elements int64
	Notes    []string
}

const (
	periods = 12 // of a replay whose iterations are not given
	// lead is how long after all is ready the first op starts.
	lead = 20 * time.Millisecond
	// ahead is what links buffer, longer than a goroutine waits for a processor.
	ahead = 5 * time.Millisecond
)

// run is what all players share.
type run struct {
	job         *job.Job
	plan        *plan.Plan
	cluster     *cluster.Cluster
	computation *sim.Computation
	iterations  int
	tensors     [][]job.TensorID  // by bucket
	carriers    [][]int           // by tensor: buckets
	declared    [][]bool          // by bucket and iteration of the period
	gates       map[job.OpID]bool // ops that the agents are told of
	expect      struct{ starts, messages int }
	content     *content
	clock       *alarm.Clock
	origin      time.Time
	ends        [][]float64 // by iteration, then rank
	progress    func(done, total int)

	players []*player
	agents  []*agent.Agent

	mu      sync.Mutex
	flights [][]agent.Flight // by host
	flown   chan struct{}    // closed once all hosts have done all transfers
}

func (r *run) now() float64              { return float64(time.Since(r.origin).Nanoseconds()) / 1e3 }
func (r *run) time(us float64) time.Time { return r.origin.Add(time.Duration(us * 1e3)) }
func (r *run) since(t time.Time) float64 { return float64(t.Sub(r.origin).Nanoseconds()) / 1e3 }
func (r *run) hosts() int                { return r.cluster.Nodes }
func (r *run) passed(rank, iteration int) {
	if rank == 0 && r.progress != nil {
		r.progress(iteration+1, r.iterations)
	}
}

// Run replays plan p, which must be checked, of job j on cluster c.
func Run(ctx context.Context, j *job.Job, c *cluster.Cluster, p *plan.Plan, o Options) (*Result, error) {
	c, p, notes, err := playable(j, c, p)
	if err != nil {
		return nil, err
	}
	r := &run{job: j, plan: p, cluster: c, iterations: cmp.Or(o.Iterations, periods*p.Period), progress: o.Progress}
	predicted, err := sim.Run(ctx, j, c, p, sim.Options{Iterations: r.iterations, Timeline: true, Ranks: 1})
	if err != nil {
		return nil, err
	}
	if r.computation, err = sim.NewComputation(j, c, p); err != nil {
		return nil, err
	}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	if r.clock, err = alarm.New(); err != nil {
		return nil, err
	}
	defer r.clock.Close()
	defer func() {
		r.close()
		for _, p := range r.players {
			p.worker.Close()
		}
	}()
	before, began := processor(), time.Time{}
	if err := r.play(ctx, func() { before, began = processor(), time.Now() }); err != nil {
		return nil, err
	}
	out := &Result{Steady: predicted.Steady, Predicted: predicted, Notes: notes}
	out.CPU = (processor() - before).Seconds() / time.Since(began).Seconds() / float64(runtime.NumCPU())
	out.Elements, err = r.verify(ctx)
	if err != nil {
		return nil, err
	}
	r.measure(out)
	return out, nil
}

// playable is the cluster and the plan as they are played, and how they differ
// from those given.
func playable(j *job.Job, c *cluster.Cluster, p *plan.Plan) (*cluster.Cluster, *plan.Plan, []string, error) {
	var notes []string
	on, as := *c, *p
	if c.World() > maxWorkers {
		return nil, nil, nil, fmt.Errorf("a replay has at most %d workers, the cluster has %d", maxWorkers, c.World())
	}
	if on.Overlap > 0 {
		on.Overlap = 0
		notes = append(notes, "computation is played, so transfers do not slow it as the cluster says; neither do they in the prediction")
	}
	on.Links = slices.Clone(c.Links)
	media := map[string]string{}
	for l := range min(len(p.Programs), len(on.Links)) {
		x := &on.Links[l]
		switch {
		case x.Algorithm != cluster.Ring:
			return nil, nil, nil, fmt.Errorf("link %s: agents have rings, not %v", x.Name, x.Algorithm)
		case x.Bandwidth <= 0:
			return nil, nil, nil, fmt.Errorf("link %s is given by measured times only; a replay needs its latency and bandwidth", x.Name)
		case x.Medium != "" && media[x.Medium] != "":
			return nil, nil, nil, fmt.Errorf("links %s and %s share medium %s, which a replay cannot play: use one of them (--links)", media[x.Medium], x.Name, x.Medium)
		case len(x.Curve) > 0:
			x.Curve = nil
			notes = append(notes, fmt.Sprintf("link %s is played and predicted by its latency and bandwidth, not by its measured times", x.Name))
		}
		media[x.Medium] = x.Name
	}
	as.Programs = slices.Clone(p.Programs)
	timed := false
	for l := range as.Programs {
		x := &as.Programs[l]
		if l < len(on.Links) {
			x.Window = x.Window.Within(on.Links[l].InFlight)
		}
		x.Transfers = slices.Clone(x.Transfers)
		for i := range x.Transfers {
			t := &x.Transfers[i]
			n := len(t.Gates)
			t.Gates = slices.DeleteFunc(slices.Clone(t.Gates), func(g plan.Gate) bool { return g.Kind == plan.NotBefore })
			timed = timed || len(t.Gates) < n
		}
	}
	if timed {
		notes = append(notes, "gates on a time are for simulation only: here they are open, in the prediction too")
	}
	return &on, &as, append(notes, j.Notes...), nil
}

// prepare works out what players have to know of the plan.
func (r *run) prepare() error {
	e, err := engine.New(engine.Config{Plan: r.plan, Job: r.job, Ranks: []int{0}, SeesOps: true})
	if err != nil {
		return err
	}
	r.gates = map[job.OpID]bool{}
	for _, o := range e.Ops() {
		r.gates[o] = true
	}
	p := r.plan
	r.carriers = make([][]int, len(r.job.Tensors))
	var dtypes []job.DType
	for b := range p.Buckets {
		r.tensors = append(r.tensors, p.Buckets[b].Tensors())
		for _, k := range r.tensors[b] {
			r.carriers[k] = append(r.carriers[k], b)
		}
		r.declared = append(r.declared, make([]bool, p.Period))
		dtypes = append(dtypes, r.job.Tensors[r.tensors[b][0]].Grad)
	}
	for l := range p.Programs {
		for _, t := range p.Programs[l].Transfers {
			if slices.ContainsFunc(t.Gates, func(g plan.Gate) bool { return g.Kind == plan.GradientReady }) {
				last := p.LastIteration(t.Generation) % p.Period
				r.declared[t.Bucket][(last+p.Period)%p.Period] = true
			}
		}
	}
	r.content = newContent(dtypes, r.cluster.World())
	r.ends = make([][]float64, r.iterations)
	for i := range r.ends {
		r.ends[i] = make([]float64, r.cluster.World())
	}
	return r.dry(e)
}

// dry counts what an engine does in the run: told all that happens, with transfers
// that take no time. What waits for a later iteration never starts.
func (r *run) dry(e *engine.Engine) error {
	queue := []engine.Event{}
	step := func(v engine.Event) error {
		for queue = append(queue[:0], v); len(queue) > 0; {
			v, queue = queue[0], queue[1:]
			for _, a := range e.Step(0, v) {
				switch a.Kind {
				case engine.Start:
					r.expect.starts++
					queue = append(queue, engine.Event{Kind: engine.TransferDone, Link: a.Link, Instance: a.Instance})
				case engine.Complete:
					r.expect.messages++
				case engine.Abort:
					return a.Failure
				}
			}
		}
		return nil
	}
	for i := range r.iterations {
		for _, o := range e.Ops() {
			if err := step(engine.Event{Kind: engine.OpDone, Op: o, Iteration: i}); err != nil {
				return err
			}
		}
		for b := range r.declared {
			if !r.declared[b][i%r.plan.Period] {
				continue
			}
			if err := step(engine.Event{Kind: engine.Ready, Bucket: b, Iteration: i}); err != nil {
				return err
			}
		}
		if err := step(engine.Event{Kind: engine.Boundary, Iteration: i}); err != nil {
			return err
		}
	}
	return nil
}

// play runs agents and players; ready is called when the first op is about to start.
func (r *run) play(ctx context.Context, ready func()) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, r.close)
	defer func() {
		stop()
		if err != nil {
			r.close()
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause // what players say of it is a consequence
		}
	}()
	if err := r.enough(); err != nil {
		return err
	}
	if err := r.gather(ctx, cancel); err != nil {
		return err
	}
	ready()
	r.origin = time.Now().Add(lead)
	return r.each(func(p *player) error {
		p.begin()
		var both sync.WaitGroup
		var heard error
		both.Go(func() {
			if heard = p.listen(); heard != nil {
				cancel(heard)
			}
		})
		said := p.talk(ctx.Done())
		if said != nil {
			cancel(said)
		}
		both.Wait()
		if err := errors.Join(said, heard); err != nil {
			return err
		}
		select {
		case <-r.flown:
		case <-ctx.Done():
		}
		return nil
	})
}

// each runs f for all players at once, and returns the first error, by rank.
func (r *run) each(f func(p *player) error) error {
	errs := make([]error, len(r.players))
	var all sync.WaitGroup
	for i, p := range r.players {
		all.Go(func() { errs[i] = f(p) })
	}
	all.Wait()
	return cmp.Or(errs...)
}

// enough refuses gradients that the machine has no memory for.
func (r *run) enough() error {
	bytes := int64(0)
	for b := range r.plan.Buckets {
		bytes += r.plan.Buckets[b].Bytes(r.job)
	}
	copies := int64(r.plan.Buffers) * int64(r.cluster.World()+r.hosts())
	if free, ok := agent.Available(); ok && bytes > free/copies {
		return fmt.Errorf("the gradients of %d workers on %d hosts take %d times %d bytes of memory, and %d are free: take fewer workers (-n)",
			r.cluster.World(), r.hosts(), copies, bytes, free)
	}
	return nil
}

// gather starts agents and players, and fills the gradients.
func (r *run) gather(ctx context.Context, cancel func(error)) error {
	dir, err := os.MkdirTemp("", "weft-replay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // whoever has connected needs it no more
	hosts := r.hosts()
	r.flights, r.flown = make([][]agent.Flight, hosts), make(chan struct{})
	left := hosts
	if r.expect.starts == 0 {
		close(r.flown)
	}
	control := transport.NewMemory(hosts, transport.MemoryOptions{})
	var links []*transport.Memory
	for range r.plan.Programs {
		links = append(links, transport.NewMemory(hosts, transport.MemoryOptions{}))
	}
	for h := range hosts {
		s := &agent.Schedule{Plan: r.plan, Job: r.job, Replay: true, Watch: func(f agent.Flight) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.flights[h] = append(r.flights[h], f); len(r.flights[h]) == r.expect.starts {
				if left--; left == 0 {
					close(r.flown)
				}
			}
		}}
		config := agent.Config{World: r.cluster.World(), Socket: filepath.Join(dir, fmt.Sprint(h)), Schedule: s}
		if hosts > 1 {
			config.Meet = func(context.Context) ([]transport.Endpoint, collective.Layout, error) {
				return []transport.Endpoint{control.Endpoint(h)}, slices.Repeat(collective.Layout{r.cluster.PerNode}, hosts), nil
			}
			for l, m := range links {
				x := r.cluster.Links[l]
				e := transport.Emulate(m.Endpoint(h), transport.Link{
					Latency: time.Duration(x.Latency * 1e3), Bandwidth: x.Bandwidth, Clock: r.clock, Ahead: ahead,
				})
				s.Links = append(s.Links, agent.Link{Net: e, Cost: cluster.Link{Name: x.Name, Bandwidth: x.Bandwidth}}) // a ring
			}
		}
		for k := range r.cluster.PerNode {
			config.Ranks = append(config.Ranks, h*r.cluster.PerNode+k)
		}
		a, err := agent.Listen(config)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.agents = append(r.agents, a)
		r.mu.Unlock()
		for k, rank := range config.Ranks {
			p := newPlayer(r, rank)
			if p.worker, err = worker.Dial(config.Socket, rank, config.World, k); err != nil {
				return err
			}
			r.players = append(r.players, p)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	hello := protocol.Hello{Weft: "replay", Tensors: []protocol.Tensor{}}
	for i := range r.job.Tensors {
		t := &r.job.Tensors[i]
		hello.Tensors = append(hello.Tensors, protocol.Tensor{Name: t.Name, Elements: t.Elements, DType: t.Grad.String()})
	}
	return r.each(func(p *player) error {
		if err := p.worker.Hello(hello); err != nil {
			cancel(err)
			return err
		}
		agent.Touch(p.worker.Output)
		for b := range r.tensors {
			for copy := range r.plan.Buffers {
				at := p.worker.Welcome.Buckets[b].Region
				at.Offset += p.worker.Welcome.BufferBytes * int64(copy)
				r.content.fill(p.worker.Input, at, b, p.rank)
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
		}
		return nil
	})
}

// close ends all agents, and with them the players.
func (r *run) close() {
	r.mu.Lock()
	agents := r.agents
	r.agents = nil
	r.mu.Unlock()
	var all sync.WaitGroup
	for _, a := range agents {
		all.Go(func() { a.Close() })
	}
	all.Wait()
}

// verify checks every sum that is left when all is done, and counts them.
func (r *run) verify(ctx context.Context) (elements int64, err error) {
	type part struct {
		p                 *player
		bucket, iteration int
		protocol.Region
	}
	var parts []part
	for rank := 0; rank < len(r.players); rank += r.cluster.PerNode {
		p := r.players[rank]
		last := map[[2]int64]part{} // by bucket and place
		for m := range p.arrivals {
			if m.index >= len(r.tensors) {
				continue
			}
			at := p.worker.Welcome.Place(m.index, m.iteration)
			k := [2]int64{int64(m.index), at.Offset}
			if x, ok := last[k]; !ok || x.iteration < m.iteration {
				last[k] = part{p, m.index, m.iteration, at}
			}
		}
		for _, x := range last {
			parts = append(parts, x)
			elements += x.Bytes / r.content.size[x.bucket]
		}
	}
	return elements, parallel.Do(ctx, len(parts), nil, func(i int) error {
		x := parts[i]
		return r.content.verify(x.p.worker.Output, x.Region, x.bucket, x.iteration)
	})
}

// measure sums the run up.
func (r *run) measure(out *Result) {
	t := &timeline.Timeline{Name: fmt.Sprintf("%s under %s, replayed", r.job.Name, r.plan.Policy), Iterations: []float64{0}}
	lanes := int32(len(r.computation.Lanes))
	for _, l := range r.computation.Lanes {
		t.Lanes = append(t.Lanes, l.Lane)
	}
	for l := range r.plan.Programs {
		t.Lanes = append(t.Lanes, timeline.Lane{Name: r.plan.Programs[l].Link, Kind: timeline.Link})
	}
	for i, ends := range r.ends {
		t.Iterations = append(t.Iterations, slices.Max(ends))
		out.Iterations = append(out.Iterations, t.Iterations[i+1]-t.Iterations[i])
	}
	for rank, p := range r.players {
		t.Ranks = append(t.Ranks, timeline.Rank{Rank: rank})
		t.Spans = append(t.Spans, p.spans...)
		for _, f := range r.flights[rank/r.cluster.PerNode] {
			s := timeline.Span{
				Rank: int32(rank), Lane: lanes + int32(f.Link), Kind: timeline.Transfer, Iteration: int32(f.Iteration),
				Start: r.since(f.Start), End: r.since(f.End), Bucket: int32(f.Bucket),
			}
			if f.Bucket >= 0 {
				s.Name, s.Bytes = fmt.Sprintf("%s bucket %d", f.Transfer.Kind, f.Bucket), r.plan.Buckets[f.Bucket].Bytes(r.job)
			} else {
				x := &r.job.Collectives[f.Transfer.Collective]
				s.Name, s.Bytes = x.Name, x.Bytes
			}
			t.Spans = append(t.Spans, s)
		}
		out.Late = append(out.Late, p.late...)
	}
	t.Sort()
	slices.Sort(out.Late)
	m := t.Metrics(out.Steady, r.iterations)
	out.Mean, out.Worst, out.WorstRank, out.Timeline = m.Mean, m.Worst, m.WorstRank, t
}

// processor is the processor time that this process has used.
func processor() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
