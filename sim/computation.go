package sim

import (
	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/timeline"
)

// Computation is what a worker computes under a plan: the job's ops as the plan
// orders them, its updates, and which transfers they wait for. It is what this
// simulator executes, for executors that do so in real time. Lanes run their ops
// in order, iteration after iteration, without end.
type Computation struct {
	Lanes  []ComputeLane
	Ops    []ComputeOp
	Period int
	// Producers is, by tensor, how many ops of an iteration make its gradient.
	Producers []int32
	// Waits are, by iteration of the period, the ops that wait for transfers.
	Waits [][]Wait
	times [][]float64 // by iteration of the period, then op, nanoseconds
}

// ComputeLane is a lane and its ops, positions in Computation.Ops.
type ComputeLane struct {
	timeline.Lane
	Computes bool // does the job's computation
	Ops      []int32
}

// ComputeOp is an op of every iteration.
type ComputeOp struct {
	Name  string
	Lane  int32
	Phase job.Phase
	ID    job.OpID // in the job; -1: an update that the plan has put elsewhere
	// Deps and Prev are how many ops of its own iteration and of the one before it
	// waits for, its lane's aside; Next and Later are who waits for it, in its own
	// iteration and in the next.
	Deps, Prev  int32
	Next, Later []int32
	Gradients   []int32 // tensors to whose gradient it contributes
}

// Wait is an op and the transfers that it waits for.
type Wait struct {
	Op        int32
	Transfers []TransferRef
}

// TransferRef names the transfer at a position of a program, Shift periods after
// that of the iteration that refers to it.
type TransferRef struct{ Link, Index, Shift int }

// NewComputation lays out plan p of job j on cluster c, with the errors of [Run].
func NewComputation(j *job.Job, c *cluster.Cluster, p *plan.Plan) (*Computation, error) {
	x, err := compile(j, c, p)
	if err != nil {
		return nil, err
	}
	_, origin := j.Strip(p.Copies)
	out := &Computation{Period: x.period, Producers: x.producers, times: x.times}
	for _, l := range x.lanes {
		out.Lanes = append(out.Lanes, ComputeLane{timeline.Lane{Name: l.name, Kind: l.kind}, l.computes, l.ops})
	}
	for o := range x.ops {
		id := job.OpID(-1)
		if o < len(origin) {
			id = origin[o]
		}
		y := &x.ops[o]
		out.Ops = append(out.Ops, ComputeOp{y.name, y.lane, y.phase, id, y.deps, y.prev, x.succ[o], x.next[o], x.grads[o]})
	}
	for _, waits := range x.waits {
		var all []Wait
		for _, w := range waits {
			y := Wait{Op: w.op}
			for _, r := range w.refs {
				y.Transfers = append(y.Transfers, TransferRef{int(r.link), int(r.index), r.shift})
			}
			all = append(all, y)
		}
		out.Waits = append(out.Waits, all)
	}
	return out, nil
}

// Duration is how long an op of an iteration takes on a worker of the cluster,
// microseconds.
func (x *Computation) Duration(c *cluster.Cluster, rank, iteration int, op int32) float64 {
	scale, spread := c.WorkerFactor(rank)
	return duration(x.times[iteration%x.Period][op], scale, spread, c.Seed, rank, iteration, op) / nsPerUs
}

// duration is the time of an op on a worker, in nanoseconds, given that of the job.
func duration(t, scale, spread float64, seed uint64, rank, iteration int, op int32) float64 {
	if scale == 1 && spread == 0 {
		return t
	}
	u := jitter(seed, rank, iteration, op)
	return ns(float64(t*scale*(1+spread*u)) / nsPerUs)
}
