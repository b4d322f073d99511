package pair

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// Member is a job and the plan that it would run alone.
type Member struct {
	Job  *job.Job
	Plan *plan.Plan // legal for Job
}

// Joined is what several jobs do together, as one job and one plan, which the
// checker proves and the simulator runs. Its iteration is one round of the token.
type Joined struct {
	Job     *job.Job
	Cluster *cluster.Cluster
	Plan    *plan.Plan
}

// Join lays the members out as one job. turns lists them, by position, in the
// order in which they hold the token in a round; each holds it at least once. A
// turn is one iteration of its member, from the update on:
//
//	wait for the transfers; acquire; update; forward; backward; release
//
// The token is a lane of its own, so its order is the same on all workers. All
// ops of a turn follow the token's arrival, and it leaves when all are done.
// Each member has a program of its own on every link, and the programs of a link
// share its medium: the transfers of one member never stand in the other's
// queue, and together they never exceed the wire.
//
// Updates at the step move to the start of the next turn, and what follows the
// barrier moves with them: the joint plan updates these tensors when the token's
// arrival "reads" them, and so waits for all. Turns of a member that are not its
// last of the round send their gradients as collectives of the joint job, for
// which its next turn waits.
//
// The error wraps [policy.ErrUnsuitable] if a member's plan cannot be run in turns.
func Join(c *cluster.Cluster, members []Member, turns []int) (*Joined, error) {
	x := &joiner{job: &job.Job{Lanes: []job.Lane{{Name: "token", Kind: job.Host}}}}
	count := make([]int, len(members))
	for _, i := range turns {
		count[i]++
	}
	on := share(c, len(members))
	for _, l := range on.Links {
		x.programs = append(x.programs, plan.Program{Link: l.Name})
	}
	var names []string
	for i, m := range members {
		if m.Job.HasDevice() != members[0].Job.HasDevice() {
			return nil, fmt.Errorf("%w: jobs %q and %q share no device: one computes on devices, the other on hosts", policy.ErrUnsuitable, members[0].Job.Name, m.Job.Name)
		}
		p, err := newPart(m, count[i])
		if err != nil {
			return nil, fmt.Errorf("job %q under %s: %w", m.Job.Name, m.Plan.Policy, err)
		}
		p.label = fmt.Sprintf("%d: ", i+1)
		x.adopt(p, i*len(c.Links))
		names = append(names, m.Job.Name)
	}
	if members[0].Job.HasDevice() {
		x.job.Lanes[0].Kind = job.Device
	}
	x.job.Name = strings.Join(names, " + ")
	for _, i := range turns {
		x.turn(x.parts[i])
	}
	p := plan.New(x.job, "crossover")
	p.Ops = x.job.OpsFingerprint()
	p.Buckets, p.Programs = x.buckets, x.programs
	p.Updates[0].At = plan.AtRead
	return &Joined{x.job, on, p}, nil
}

// share is the cluster in which each of n jobs has links of its own, on the
// media of the links of c.
func share(c *cluster.Cluster, n int) *cluster.Cluster {
	s := *c
	s.Links = nil
	for i := range n {
		for k, l := range c.Links {
			l.Medium = cmp.Or(l.Medium, fmt.Sprint("link ", k+1))
			if l.Bandwidth == 0 { // its curve has all costs; equal shares
				l.Bandwidth, l.Algorithm = 1, cluster.Ring
			}
			l.Name = fmt.Sprintf("%d.%d: %.80s", i+1, k+1, l.Name)
			s.Links = append(s.Links, l)
		}
	}
	return &s
}

// part is a member made ready to take turns. Its ops are those of its job
// without what the recorded library did.
type part struct {
	job   *job.Job
	plan  *plan.Plan
	now   []job.OpID   // by op as recorded: its id in job; -1: gone
	lanes [][]job.OpID // by lane: its ops in the order of a turn
	ready [][]job.OpID // by tensor: after these its gradient may travel
	step  []bool       // by tensor: updated at the step, behind a barrier
	late  []bool       // by op, then collective: follows the barrier
	order [][]int      // by program: its transfers in the order of a turn
	place [][]int      // by program and transfer: where it is in that order

	label    string       // of its names in the joint job
	lane     job.LaneID   // its first in the joint job
	link     int          // its first program in the joint plan
	left     int          // turns of the round to come
	readers  [][]job.OpID // by tensor: of the round so far
	awaiting []int        // collectives of the joint job that its next turn waits for
}

func newPart(m Member, turns int) (*part, error) {
	if err := alternates(m.Plan, turns > 1); err != nil {
		return nil, err
	}
	s, old := m.Job.Strip(m.Plan.Copies)
	n := len(s.Tensors)
	p := &part{
		job: s, plan: m.Plan, left: turns, ready: s.ReadyOps(),
		now:   slices.Repeat([]job.OpID{-1}, len(m.Job.Ops)),
		lanes: make([][]job.OpID, len(s.Lanes)),
		step:  make([]bool, n), readers: make([][]job.OpID, n),
	}
	for o, was := range old {
		p.now[was] = job.OpID(o)
		l := s.Ops[o].Lane
		p.lanes[l] = append(p.lanes[l], job.OpID(o))
	}
	for l, ops := range m.Plan.Order {
		if ops != nil {
			p.lanes[l] = p.renumber(ops)
		}
	}
	for _, u := range m.Plan.Updates {
		for k := range n {
			p.step[k] = p.step[k] || u.At == plan.AtStep && (u.Tensors == nil || slices.Contains(u.Tensors, job.TensorID(k)))
		}
	}
	p.findLate()
	for c := range s.Collectives {
		if x := &s.Collectives[c]; len(x.Before) > 0 && !p.late[len(s.Ops)+c] && !slices.ContainsFunc(x.Before, p.early) {
			return nil, fmt.Errorf("%w: its collective %q lies between the backward pass and the update", policy.ErrUnsuitable, x.Name)
		}
	}
	p.lateFirst()
	return p, nil
}

// alternates tells why a plan cannot be run in turns, or several in a row.
func alternates(p *plan.Plan, inARow bool) error {
	unsuitable := func(why string) error { return fmt.Errorf("%w: %s", policy.ErrUnsuitable, why) }
	if p.Period != 1 || !p.Synchronous() {
		return unsuitable("jobs that take turns need synchronous plans, and this one delays updates")
	}
	if inARow && slices.ContainsFunc(p.Updates, func(u plan.Update) bool { return u.At != plan.AtStep }) {
		return unsuitable("only plans behind a barrier take several turns in a row")
	}
	for l := range p.Programs {
		for _, t := range p.Programs[l].Transfers {
			if inARow && t.Kind > cluster.Broadcast {
				return unsuitable("only plans that reduce among workers take several turns in a row")
			}
			for _, g := range t.Gates {
				if g.Kind == plan.NotBefore {
					return unsuitable("the plan sends at fixed times after the start of the backward pass, and a round has a pass a turn")
				}
				if inARow && g.Kind != plan.GradientReady && g.Kind != plan.TransferDone {
					return unsuitable("only plans that wait for nothing but gradients and transfers take several turns in a row")
				}
			}
		}
	}
	return nil
}

// renumber turns recorded ops into those of the part's job.
func (p *part) renumber(ops []job.OpID) []job.OpID {
	var out []job.OpID
	for _, o := range ops {
		if p.now[o] >= 0 {
			out = append(out, p.now[o])
		}
	}
	return out
}

// findLate marks what follows the barrier: its ops, copies out of buckets, and
// all that these precede.
func (p *part) findLate() {
	j := p.job
	p.late = make([]bool, len(j.Ops)+len(j.Collectives))
	if !slices.Contains(p.step, true) {
		return
	}
	var found []int32
	if ops, next := j.BarrierOps(p.lanes); !next {
		found = slices.Clone(ops)
	}
	succ := make([][]int32, len(p.late))
	edges := func(from []job.OpID, to ...int32) {
		for _, o := range from {
			succ[o] = append(succ[o], to...)
		}
	}
	for _, ops := range p.lanes {
		for i := 1; i < len(ops); i++ {
			edges(ops[i-1:i], ops[i])
		}
	}
	for o := range j.Ops {
		edges(j.Ops[o].Deps, int32(o))
		if j.Ops[o].Role == job.CopyOut {
			found = append(found, int32(o))
		}
	}
	for c := range j.Collectives {
		node := int32(len(j.Ops) + c)
		edges(j.Collectives[c].After, node)
		edges([]int32{node}, j.Collectives[c].Before...)
	}
	for len(found) > 0 {
		v := found[len(found)-1]
		found = found[:len(found)-1]
		if !p.late[v] {
			p.late[v] = true
			found = append(found, succ[v]...)
		}
	}
}

func (p *part) early(o job.OpID) bool { return !p.late[o] }

// lateFirst makes turns begin with what follows the barrier: on every lane, and
// in every program the job's own collectives.
func (p *part) lateFirst() {
	first := func(late bool) int {
		if late {
			return 0
		}
		return 1
	}
	for l := range p.lanes {
		slices.SortStableFunc(p.lanes[l], func(a, b job.OpID) int { return first(p.late[a]) - first(p.late[b]) })
	}
	for l := range p.plan.Programs {
		ts := p.plan.Programs[l].Transfers
		late := func(i int) bool { return ts[i].Bucket < 0 && p.late[len(p.job.Ops)+ts[i].Collective] }
		order := make([]int, len(ts))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return first(late(a)) - first(late(b)) })
		place := make([]int, len(ts))
		for to, i := range order {
			place[i] = to
		}
		p.order, p.place = append(p.order, order), append(p.place, place)
	}
}
