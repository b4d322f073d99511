package job

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"
)

// genJob draws jobs whose references are in range and whose elements are valid
// one by one. Dependencies point backwards, so there is no cycle, unless wild:
// then they point anywhere, and updates may come before reads.
func genJob(t *rapid.T, wild bool) *Job {
	j := &Job{Name: rapid.StringN(0, 5, -1).Draw(t, "name"), World: rapid.IntRange(0, 8).Draw(t, "world")}
	j.Optimizer = rapid.Int64Range(0, 1<<40).Draw(t, "optimizer")
	j.Mode = rapid.SampledFrom([]Mode{PerTensor, Global}).Draw(t, "mode")
	compute := rapid.IntRange(1, 3).Draw(t, "compute lanes")
	for l := range compute {
		j.Lanes = append(j.Lanes, Lane{fmt.Sprint("lane", l), rapid.SampledFrom([]LaneKind{Host, Device}).Draw(t, "kind")})
	}
	comm := rapid.IntRange(0, 2).Draw(t, "comm lanes")
	for l := range comm {
		j.Lanes = append(j.Lanes, Lane{fmt.Sprint("comm", l), Comm})
	}
	lanes := rapid.Permutation(j.Lanes).Draw(t, "lanes")
	j.Lanes = lanes
	var computeLanes, commLanes []LaneID
	for l, x := range lanes {
		if x.Kind == Comm {
			commLanes = append(commLanes, LaneID(l))
		} else {
			computeLanes = append(computeLanes, LaneID(l))
		}
	}

	tensors := rapid.IntRange(1, 4).Draw(t, "tensors")
	n := rapid.IntRange(2, 24).Draw(t, "ops")
	// Phases in order of the iteration, so that updates follow reads; wild: any.
	phases := make([]Phase, n)
	for i := range phases {
		phases[i] = rapid.SampledFrom([]Phase{Forward, Backward, Update}).Draw(t, "phase")
	}
	if !wild {
		slices.Sort(phases)
	}
	if !slices.Contains(phases, Backward) {
		phases[0] = Backward
		if !wild {
			slices.Sort(phases)
		}
	}
	byPhase := map[Phase][]OpID{}
	for i, phase := range phases {
		o := Op{
			Name: rapid.StringN(0, 3, -1).Draw(t, "op"), Phase: phase, Tensor: -1,
			Lane:  rapid.SampledFrom(computeLanes).Draw(t, "lane"),
			Micro: rapid.Int32Range(0, 2).Draw(t, "micro"),
			Time:  float64(rapid.IntRange(0, 9).Draw(t, "time")), Output: rapid.Int64Range(0, 1<<40).Draw(t, "output"),
		}
		keepsPhase := phase == Backward && len(byPhase[Backward]) == 0 // one op must produce
		if !keepsPhase && rapid.IntRange(0, 2).Draw(t, "runtime") == 0 {
			o.Phase = Runtime
			o.Role = rapid.SampledFrom([]Role{CopyIn, CopyOut, Library, GradCollective}).Draw(t, "role")
			switch {
			case o.Role == GradCollective && len(commLanes) > 0:
				o.Lane = rapid.SampledFrom(commLanes).Draw(t, "comm lane")
			case o.Role == GradCollective:
				o.Role = Library
			case o.Role != Library:
				o.Tensor = TensorID(rapid.IntRange(0, tensors-1).Draw(t, "tensor"))
			}
		}
		most := i
		if wild {
			most = n
		}
		for range rapid.IntRange(0, 3).Draw(t, "deps") {
			if most == 0 {
				break
			}
			if d := OpID(rapid.IntRange(0, most-1).Draw(t, "dep")); int(d) != i {
				o.Deps = append(o.Deps, d)
			}
		}
		byPhase[o.Phase] = append(byPhase[o.Phase], OpID(i))
		j.Ops = append(j.Ops, o)
	}
	some := func(from []OpID, least int, what string) []OpID {
		if len(from) == 0 {
			return nil
		}
		ids := rapid.SliceOfNDistinct(rapid.SampledFrom(from), least, len(from), rapid.ID).Draw(t, what)
		slices.Sort(ids)
		if len(ids) == 0 {
			return nil
		}
		return ids
	}
	for i := range tensors {
		j.Tensors = append(j.Tensors, Tensor{
			Name: fmt.Sprint("t", i), Elements: rapid.Int64Range(1, 1<<40).Draw(t, "elements"),
			Param:     DType(rapid.IntRange(0, len(dtypeNames)-1).Draw(t, "param")),
			Grad:      DType(rapid.IntRange(0, len(dtypeNames)-1).Draw(t, "grad")),
			Readers:   some(append(slices.Clone(byPhase[Forward]), byPhase[Backward]...), 0, "readers"),
			Producers: some(byPhase[Backward], 1, "producers"),
			Updaters:  some(byPhase[Update], 0, "updaters"),
		})
	}
	var all []OpID
	for v := range j.Ops {
		all = append(all, OpID(v))
	}
	for c := range rapid.IntRange(0, 2).Draw(t, "collectives") {
		x := Collective{Name: fmt.Sprint("c", c), Kind: "broadcast", Bytes: int64(c), Time: float64(c)}
		cut := rapid.IntRange(0, n).Draw(t, "cut")
		if wild {
			x.After, x.Before = some(all, 0, "after"), some(all, 0, "before")
		} else {
			x.After, x.Before = some(all[:cut], 0, "after"), some(all[cut:], 0, "before")
		}
		j.Collectives = append(j.Collectives, x)
	}
	if !wild { // behind all that produce
		producers := byPhase[Backward]
		for _, v := range some(all[producers[len(producers)-1]+1:], 0, "barrier") {
			if lanes[j.Ops[v].Lane].Kind != Comm {
				j.Barrier = append(j.Barrier, v)
			}
		}
	}
	if rapid.Bool().Draw(t, "recorded") {
		j.Recorded = &Recorded{Library: "ddp", Backend: "gloo"}
		for v := range j.Ops {
			if j.Ops[v].Role == GradCollective {
				b := RecordedBucket{Tensors: []TensorID{}, Bytes: 3, Op: OpID(v)}
				if k := len(j.Recorded.Buckets); k < tensors {
					b.Tensors = append(b.Tensors, TensorID(k))
				}
				j.Recorded.Buckets = append(j.Recorded.Buckets, b)
			}
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "notes") {
		j.Notes = append(j.Notes, rapid.String().Draw(t, "note"))
	}
	return j
}

// matrix is a graph as a table: m[a][b] says that a precedes b. Nodes are
// numbered as in edges.
type matrix [][]bool

// newMatrix lists the precedences of a job in the plainest way.
func newMatrix(j *Job) matrix {
	n := len(j.Ops) + len(j.Collectives)
	m := make(matrix, n)
	for v := range m {
		m[v] = make([]bool, n)
	}
	for b := range j.Ops {
		for a := range b {
			if j.Ops[a].Lane == j.Ops[b].Lane {
				m[a][b] = true
			}
		}
		for _, a := range j.Ops[b].Deps {
			m[a][b] = true
		}
	}
	for c := range j.Collectives {
		for _, a := range j.Collectives[c].After {
			m[a][len(j.Ops)+c] = true
		}
		for _, b := range j.Collectives[c].Before {
			m[len(j.Ops)+c][b] = true
		}
	}
	return m
}

// close makes the relation transitive (Floyd and Warshall).
func (m matrix) close() {
	for k := range m {
		for a := range m {
			for b := range m {
				m[a][b] = m[a][b] || m[a][k] && m[k][b]
			}
		}
	}
}

func (m matrix) cyclic() bool {
	for v := range m {
		if m[v][v] {
			return true
		}
	}
	return false
}
