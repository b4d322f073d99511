package plan

import (
	"weft/cluster"
	"weft/job"
)

// Bytes is the size of the bucket's gradients in bytes.
func (b *Bucket) Bytes(j *job.Job) int64 {
	var n int64
	for _, s := range b.Slices {
		n += s.Length * j.Tensors[s.Tensor].Grad.Bytes()
	}
	return n
}

// Tensors lists the tensors that the bucket holds slices of, each once, in the
// order of their first slice.
func (b *Bucket) Tensors() []job.TensorID {
	seen := make(map[job.TensorID]bool, len(b.Slices))
	out := make([]job.TensorID, 0, len(b.Slices))
	for _, s := range b.Slices {
		if !seen[s.Tensor] {
			seen[s.Tensor] = true
			out = append(out, s.Tensor)
		}
	}
	return out
}

// MeanTransfers is how many transfers of buckets an iteration has, over the period.
func (p *Plan) MeanTransfers() float64 {
	n := 0
	for i := range p.Programs {
		for k := range p.Programs[i].Transfers {
			if p.Programs[i].Transfers[k].Bucket >= 0 {
				n++
			}
		}
	}
	return float64(n) / float64(p.Period)
}

// reduces and Completes tell the two halves of a reduction apart; all-reduce is
// both.
func (t *Transfer) reduces() bool {
	switch t.Kind {
	case cluster.AllReduce, cluster.ReduceScatter, cluster.Push:
		return t.Bucket >= 0
	}
	return false
}

// Completes reports whether the bucket's gradients are reduced, on every
// worker, once this transfer is done.
func (t *Transfer) Completes() bool {
	switch t.Kind {
	case cluster.AllReduce, cluster.AllGather, cluster.Pull:
		return t.Bucket >= 0
	}
	return false
}
