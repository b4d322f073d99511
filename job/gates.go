package job

import "slices"

// Computes reports whether lane l does the job's computation: a device lane, or
// in a CPU job a host lane. Only such lanes wait for communication.
func (j *Job) Computes(l LaneID) bool {
	if j.HasDevice() {
		return j.Lanes[l].Kind == Device
	}
	return j.Lanes[l].Kind == Host
}

// BarrierOps lists the ops that wait for the gradient transfers of their
// iteration in a plan with a barrier, given the ops of each lane in the order
// in which they run: j.Barrier, or if that is empty the first update op of each
// computing lane. A job without either has its next iteration wait: then next is
// true, and the ops are the first of each computing lane.
func (j *Job) BarrierOps(lanes [][]OpID) (ops []OpID, next bool) {
	if len(j.Barrier) > 0 {
		return j.Barrier, false
	}
	for l, lane := range lanes {
		at := slices.IndexFunc(lane, func(o OpID) bool { return j.Ops[o].Phase == Update })
		if at >= 0 && j.Computes(LaneID(l)) {
			ops = append(ops, lane[at])
		}
	}
	if len(ops) > 0 {
		return ops, false
	}
	for l, lane := range lanes {
		if len(lane) > 0 && j.Computes(LaneID(l)) {
			ops = append(ops, lane[0])
		}
	}
	return ops, true
}

// ReadyOps lists, by tensor, the ops after which its gradient may travel: its
// producers, and the copies into its bucket if the job has kept them.
func (j *Job) ReadyOps() [][]OpID {
	out := make([][]OpID, len(j.Tensors))
	for k := range j.Tensors {
		out[k] = slices.Clip(j.Tensors[k].Producers)
	}
	for o := range j.Ops {
		if x := &j.Ops[o]; x.Role == CopyIn {
			out[x.Tensor] = append(out[x.Tensor], OpID(o))
		}
	}
	return out
}
