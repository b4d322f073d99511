package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/internal/fault"
	"weft/job"
)

// New starts a synchronous plan for job j: each iteration is a generation of
// its own, applied where the job's update ops stand. Every link gets an empty
// program that sends one transfer at a time. A synchronous policy only has to
// fill the programs:
//
//	p := plan.New(j, "wfbp", "eth0")
//	for _, t := range ready {
//		p.AllReduce(0, plan.WholeTensors(j, t))
//	}
//	return p, p.AddCollectives(j)
func New(j *job.Job, policy string, links ...string) *Plan {
	p := &Plan{
		Policy:      policy,
		Tensors:     j.TensorsFingerprint(),
		Period:      1,
		Generations: []Generation{{First: 0, Length: 1}},
		Updates:     []Update{{At: AtStep}},
		Buffers:     1,
		UpdateRate:  1,
	}
	for _, l := range links {
		p.Programs = append(p.Programs, Program{Link: l, Window: Window{Transfers: 1}})
	}
	return p
}

// WholeTensors is the bucket of all elements of the given tensors, in that order.
func WholeTensors(j *job.Job, tensors ...job.TensorID) Bucket {
	b := Bucket{Slices: make([]Slice, len(tensors))}
	for i, t := range tensors {
		b.Slices[i] = Slice{Tensor: t, Length: j.Tensors[t].Elements}
	}
	return b
}

// AddBucket appends a bucket and returns its position.
func (p *Plan) AddBucket(b Bucket) int {
	p.Buckets = append(p.Buckets, b)
	return len(p.Buckets) - 1
}

// Add appends a transfer of a bucket of generation 0 to the program of a link
// and returns its position there.
func (p *Plan) Add(link int, kind cluster.Kind, bucket int, gates ...Gate) int {
	x := &p.Programs[link]
	x.Transfers = append(x.Transfers, Transfer{Kind: kind, Bucket: bucket, Gates: gates})
	return len(x.Transfers) - 1
}

// AllReduce appends b as a bucket, and to the program of a link its all-reduce,
// released when its gradients are ready. It returns the transfer's position.
func (p *Plan) AllReduce(link int, b Bucket) int {
	return p.Add(link, cluster.AllReduce, p.AddBucket(b), Gate{Kind: GradientReady})
}

// WithBarrier is a synchronous plan with all updates of a generation at the step that
// ends it, and no transfer waiting for the end of an iteration. The transfers and their
// order stay, so it need not hold the rules that p holds.
func (p *Plan) WithBarrier() *Plan {
	out := *p
	out.Updates, out.Programs = nil, slices.Clone(p.Programs)
	for g := range p.Generations {
		out.Updates = append(out.Updates, Update{Generation: g, At: AtStep, Iteration: p.Generations[g].Last()})
	}
	for l := range out.Programs {
		transfers := slices.Clone(out.Programs[l].Transfers)
		for i := range transfers {
			transfers[i].Gates = slices.DeleteFunc(slices.Clone(transfers[i].Gates), func(g Gate) bool { return g.Kind == Boundary })
		}
		out.Programs[l].Transfers = transfers
	}
	return &out
}

// AddCollectives inserts the job's own collectives, once an iteration, into
// the program of the first link, each before the first transfer that is
// released no sooner in a stall-free execution of the job; those that follow
// the barrier come last. Those that the program has already stay where they
// are. Call it when all other transfers are in place: gates that refer to
// positions in that program are adjusted.
//
// It returns an error when the job cannot be executed or the plan has no link.
func (p *Plan) AddCollectives(j *job.Job) error { return p.AddCollectivesAmong(j, math.MaxInt) }

// AddCollectivesAmong is AddCollectives for a plan of period 1 that crosses the
// barrier: of the first program, only the given number of transfers are
// dispatched before the next forward pass begins. What the job itself sends in
// that pass goes in front of the others, or the pass would wait for them all; but
// behind those of parameters that are read before it is sent.
func (p *Plan) AddCollectivesAmong(j *job.Job, early int) error {
	if len(j.Collectives) == 0 {
		return nil
	}
	if len(p.Programs) == 0 {
		return fmt.Errorf("plan: the job's %d collectives need a link, and the plan has no program", len(j.Collectives))
	}
	x, err := newPlacing(p, j, early)
	if err != nil {
		return fmt.Errorf("plan: placing the job's collectives: %w", err)
	}
	own := x.own()
	added, err := x.collectives(own)
	if err != nil {
		return err
	}
	// Stable: at equal times the job's collectives go first, in recorded order.
	all := append(added, own...)
	slices.SortStableFunc(all, func(a, b entry) int { return a.when.compare(b.when) })
	moved := make([]int, len(own))
	out := make([]Transfer, len(all))
	for i, e := range all {
		out[i] = e.Transfer
		if e.old >= 0 {
			moved[e.old] = i
		}
	}
	p.Programs[0].Transfers = out
	p.redirect(moved)
	return nil
}

// placing is the first program while the job's collectives are added.
type placing struct {
	releases
	compute *compute
	barrier []job.OpID // what follows them comes last in its iteration; nil: the next one waits
	early   int        // transfers so far that are dispatched before the next forward pass
}

// entry is a transfer of the program to be.
type entry struct {
	Transfer
	old  int // position so far; -1: it is added
	when instant
}

func newPlacing(p *Plan, j *job.Job, early int) (*placing, error) {
	s, old := j.Strip(p.Copies)
	_, end, err := s.Schedule()
	if err != nil {
		return nil, err
	}
	c, err := newCompute(s, nil)
	if err != nil {
		return nil, err
	}
	barrier, next := s.BarrierOps(c.lanes)
	if next {
		barrier = nil
	}
	return &placing{releases{p, s, renumber(len(j.Ops), old), end, s.ReadyOps()}, c, barrier, early}, nil
}

// own are the program's transfers so far, when they are dispatched.
func (x *placing) own() []entry {
	var out []entry
	var latest instant
	for i, t := range x.plan.Programs[0].Transfers {
		latest = later(latest, x.transfer(&t)) // in-order dispatch
		if i >= x.early {
			latest = instant{1, float64(i)}
		}
		out = append(out, entry{t, i, latest})
	}
	return out
}

// collectives are those of the job that the program does not have, when they are
// dispatched among its own transfers.
func (x *placing) collectives(own []entry) ([]entry, error) {
	placed := map[[2]int]bool{} // collective, iteration
	for _, e := range own {
		if e.Bucket < 0 {
			placed[[2]int{e.Collective, e.Iteration}] = true
		}
	}
	behind := x.early // own transfers in front of the job's next
	var out []entry
	for i := range x.plan.Period {
		for c := range x.job.Collectives {
			if placed[[2]int{c, i}] {
				continue
			}
			k := &x.job.Collectives[c]
			kind, err := cluster.ParseKind(k.Kind)
			if err != nil {
				return nil, fmt.Errorf("plan: collective %d %q of the job: %w", c, fault.Short(k.Name), err)
			}
			iteration, when := i, x.issued(i, k)
			if x.early < len(own) && when.compare(own[0].when) <= 0 {
				iteration = i + 1
				behind = x.behind(behind, k.After)
				when = instant{1, float64(behind) - 0.5}
			}
			out = append(out, entry{Transfer{Kind: kind, Bucket: -1, Collective: c, Iteration: iteration}, -1, when})
		}
	}
	return out, nil
}

// issued is when a collective of the job can be sent in an iteration.
func (x *placing) issued(iteration int, k *job.Collective) instant {
	when := instant{iteration, math.Inf(-1)}
	for _, o := range k.After {
		when = later(when, instant{iteration, x.end[o]})
		if slices.ContainsFunc(x.barrier, func(b job.OpID) bool { return x.compute.precedes(b, o) }) {
			when.time = math.Inf(1)
		}
	}
	return when
}

// behind is where in the program so far, from position at on, a collective may
// stand that follows the given ops: behind all transfers of tensors that these
// ops, or ops before them, read.
func (x *placing) behind(at int, after []job.OpID) int {
	p := x.plan
	for i := at; i < len(p.Programs[0].Transfers); i++ {
		for _, k := range p.Buckets[p.Programs[0].Transfers[i].Bucket].Tensors() {
			for _, r := range x.job.Tensors[k].Readers {
				if slices.ContainsFunc(after, func(o job.OpID) bool { return x.compute.precedes(r, o) }) {
					at = i + 1
				}
			}
		}
	}
	return at
}

// redirect lets gates follow the transfers of the first program, of which the
// one at position i is now at moved[i].
func (p *Plan) redirect(moved []int) {
	for l := range p.Programs {
		for t := range p.Programs[l].Transfers {
			gates := p.Programs[l].Transfers[t].Gates
			for g := range gates {
				if gates[g].Kind == TransferDone && gates[g].Link == 0 {
					gates[g].Transfer = moved[gates[g].Transfer]
				}
			}
		}
	}
}

// instant is a time within an iteration, relative to the period.
type instant struct {
	iteration int
	time      float64
}

func (a instant) compare(b instant) int {
	return cmp.Or(cmp.Compare(a.iteration, b.iteration), cmp.Compare(a.time, b.time))
}

func later(a, b instant) instant {
	if a.compare(b) < 0 {
		return b
	}
	return a
}

// releases tells when the gates of transfers open in a stall-free execution.
type releases struct {
	plan     *Plan
	job      *job.Job // stripped
	renumber []job.OpID
	end      []float64
	ready    [][]job.OpID // by tensor
}

func (r *releases) transfer(t *Transfer) instant {
	when := instant{math.MinInt, 0}
	for _, g := range t.Gates {
		switch g.Kind {
		case GradientReady:
			last := r.plan.LastIteration(t.Generation)
			for _, k := range r.plan.Buckets[t.Bucket].Tensors() {
				for _, o := range r.ready[k] {
					when = later(when, instant{last, r.end[o]})
				}
			}
		case OpDone:
			if o := r.renumber[g.Op]; o >= 0 {
				when = later(when, instant{g.Iteration, r.end[o]})
			}
		case Boundary:
			when = later(when, instant{g.Iteration + 1, math.Inf(-1)})
		}
	}
	return when
}

// LastIteration is the last iteration of a generation, both relative to the
// period; the generation may be of another period.
func (p *Plan) LastIteration(generation int) int {
	n, r := divide(generation, len(p.Generations))
	return n*p.Period + p.Generations[r].Last()
}

// divide is the division that rounds down, with its remainder in [0, b).
func divide(a, b int) (quotient, remainder int) {
	quotient, remainder = a/b, a%b
	if remainder < 0 {
		return quotient - 1, remainder + b
	}
	return quotient, remainder
}

// renumber inverts the mapping of job.Strip: -1 for ops that it removed.
func renumber(n int, old []job.OpID) []job.OpID {
	out := make([]job.OpID, n)
	for i := range out {
		out[i] = -1
	}
	for i, o := range old {
		out[o] = job.OpID(i)
	}
	return out
}
