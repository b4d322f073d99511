package plan

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"weft/job"
)

// Memory is what a plan needs on each worker, bytes. It leaves out what neither
// the plan nor the job knows: the runtime's own memory, workspaces of kernels,
// fragmentation, and what a transport stages.
type Memory struct {
	Weights   int64 // the parameters
	Optimizer int64 // what the optimizer keeps: job.Job.Optimizer
	// Activations is the most that the results of ops take at a time: each from
	// the start of its op until the last op that depends on it is done, ops
	// running in the plan's compute order. Where several lanes compute, one runs
	// ahead of the others only as far as it can without them, the first first.
	Activations int64
	// Gradients are the buffers that the plan states, each of all gradients, and
	// one more if the plan copies gradients into buckets.
	Gradients int64
	// Partial: the job does not say what its ops' results take, as recorded jobs
	// do not, and Activations is 0.
	Partial bool
	Least   bool // a plan may need more: see [LeastMemory]
}

// LeastMemory is what every plan for job j needs at least, in whatever order it
// computes: one buffer of gradients, and while the first backward op runs, the
// results that ops which must precede it leave to ops which must follow it.
func LeastMemory(j *job.Job) Memory {
	m := MemoryOf(New(j, ""), j)
	m.Activations, m.Least = across(j, slices.IndexFunc(j.Ops, func(o job.Op) bool { return o.Phase == job.Backward })), true
	return m
}

// MemoryOf is the memory of plan p, which must hold plan rules 0 and 2, for job
// j. Sizes beyond 2^63-1 are 2^63-1. The time is linear in the size of the job.
func MemoryOf(p *Plan, j *job.Job) Memory {
	m := Memory{Optimizer: j.Optimizer}
	for i := range j.Tensors {
		t := &j.Tensors[i]
		m.Weights = plus(m.Weights, times64(t.Elements, t.Param.Bytes()))
	}
	buffers := int64(p.Buffers)
	if p.Copies {
		buffers++
	}
	m.Gradients = times64(j.Bytes(), buffers)
	m.Partial = !slices.ContainsFunc(j.Ops, func(o job.Op) bool { return o.Output > 0 })
	if !m.Partial {
		m.Activations = activations(j, sequence(j, p.Order))
	}
	return m
}

// Total is the sum.
func (m Memory) Total() int64 {
	return plus(plus(m.Weights, m.Optimizer), plus(m.Activations, m.Gradients))
}

// Plus is the memory of two plans that are resident together.
func (m Memory) Plus(n Memory) Memory {
	return Memory{
		Weights: plus(m.Weights, n.Weights), Optimizer: plus(m.Optimizer, n.Optimizer),
		Activations: plus(m.Activations, n.Activations), Gradients: plus(m.Gradients, n.Gradients),
		Partial: m.Partial || n.Partial, Least: m.Least || n.Least,
	}
}

// Within is nil if the memory is at most limit, else a [*MemoryError].
func (m Memory) Within(limit int64) error {
	if m.Total() <= limit {
		return nil
	}
	return &MemoryError{m, limit}
}

// MemoryError is that a plan does not fit into memory.
type MemoryError struct {
	Need  Memory
	Limit int64 // bytes
}

// Error names the need, the limit, by how much they differ, and what the need
// consists of. It rounds needs up, so that a limit of the need as printed is
// enough.
func (e *MemoryError) Error() string {
	m, total := e.Need, e.Need.Total()
	what, atLeast := ", activations "+gigabytes(m.Activations), ""
	if m.Partial {
		what = "; activations are unknown"
	}
	if m.Partial || m.Least {
		atLeast = "at least "
	}
	return fmt.Sprintf("it needs %s%s of memory, %s more than the limit of %s: weights %s, optimizer %s, gradients %s%s",
		atLeast, gigabytes(total), gigabytes(total-e.Limit), gigabytes(e.Limit),
		gigabytes(m.Weights), gigabytes(m.Optimizer), gigabytes(m.Gradients), what)
}

// gigabytes writes a size, rounded up to a tenth of a GB, or of a MB if it is
// less than one GB.
func gigabytes(bytes int64) string {
	unit, name := 1e9, " GB"
	if bytes < 1e9 {
		unit, name = 1e6, " MB"
	}
	return strconv.FormatFloat(math.Ceil(float64(bytes)/unit*10)/10, 'f', -1, 64) + name
}

// plus and times64 keep to what 64 bits hold. Neither argument is negative.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func times64(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// sequence lists the ops of j in one order that the lanes, in the given order
// where it is not nil, and the dependencies allow.
func sequence(j *job.Job, order [][]job.OpID) []job.OpID {
	lanes := make([][]job.OpID, len(j.Lanes))
	for o := range j.Ops {
		if l := j.Ops[o].Lane; int(l) >= len(order) || order[l] == nil {
			lanes[l] = append(lanes[l], job.OpID(o))
		}
	}
	for l, ops := range order {
		if ops != nil {
			lanes[l] = ops
		}
	}
	pos := slices.Repeat([]int{-1}, len(j.Ops)) // of an op in its lane; -1: not of this plan
	for _, ops := range lanes {
		for i, o := range ops {
			pos[o] = i
		}
	}
	out := make([]job.OpID, 0, len(j.Ops))
	next, busy := make([]int, len(lanes)), make([]bool, len(lanes))
	var run func(l job.LaneID, last int)
	run = func(l job.LaneID, last int) { // ops of lane l up to position last
		if busy[l] {
			return // only if ops wait for each other: rule 2
		}
		busy[l] = true
		for ; next[l] <= last; next[l]++ {
			o := lanes[l][next[l]]
			for _, d := range j.Ops[o].Deps {
				run(j.Ops[d].Lane, pos[d])
			}
			out = append(out, o)
		}
		busy[l] = false
	}
	for l := range lanes {
		run(job.LaneID(l), len(lanes[l])-1)
	}
	return out
}

// activations is the most that results of ops take at a time when ops run one
// after another.
func activations(j *job.Job, ops []job.OpID) int64 {
	last := make([]job.OpID, len(j.Ops)) // the op after which the result is dropped
	for _, o := range ops {
		last[o] = o
		for _, d := range j.Ops[o].Deps {
			last[d] = o
		}
	}
	var now, most int64
	held := make([]int64, len(j.Ops)) // by op, of its result
	drop := func(o job.OpID) { now, held[o] = now-held[o], 0 }
	for _, o := range ops {
		held[o] = j.Ops[o].Output
		now += held[o]
		most = max(most, now)
		if last[o] == o {
			drop(o)
		}
		for _, d := range j.Ops[o].Deps {
			if last[d] == o {
				drop(d)
			}
		}
	}
	return most
}

// across is the size of what is in memory while op number v runs, whatever the
// order of the others: its result, and those of ops that it depends on, through
// others or not, on which it depends itself or ops do that depend on it.
func across(j *job.Job, v int) int64 {
	if v < 0 {
		return 0
	}
	before, after := make([]bool, len(j.Ops)), make([]bool, len(j.Ops))
	before[v], after[v] = true, true
	ops := sequence(j, nil)
	for _, o := range slices.Backward(ops) {
		for _, d := range j.Ops[o].Deps {
			before[d] = before[d] || before[o]
		}
	}
	kept := make([]bool, len(j.Ops))
	kept[v] = true
	for _, o := range ops {
		for _, d := range j.Ops[o].Deps {
			after[o] = after[o] || after[d]
		}
		for _, d := range j.Ops[o].Deps {
			kept[d] = kept[d] || before[d] && after[o]
		}
	}
	var sum int64
	for o := range j.Ops {
		if kept[o] {
			sum += j.Ops[o].Output
		}
	}
	return sum
}
