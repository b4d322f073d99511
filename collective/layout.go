// Package collective reduces and spreads buckets among hosts: all-reduce,
// reduce-scatter, all-gather, broadcast and barrier. What each host does is a
// [Program], data that is built without a network and proved by tests; [Run] carries
// it out over a transport. docs/collectives.md has the algorithms, their costs and
// the order of additions.
//
// Members of a collective are the hosts, numbered from 0. A host's contribution is
// that of its workers together, who share memory.
package collective

import (
	"weft/job"
	"weft/plan"
)

// Block is the number of elements of a tensor, from a multiple of Block on, that
// have the same owner. Small, so that the owners' parts of a bucket are nearly
// equal; large enough for the loops over a run of elements to be worth their start.
const Block = 1024

// Layout is the number of workers on each host; ranks are counted host by host.
type Layout []int

// Workers is the number of workers on all hosts.
func (l Layout) Workers() int {
	n := 0
	for _, w := range l {
		n += w
	}
	return n
}

// owner is the host that ends up with the reduced element at offset of a tensor.
// Blocks go round the hosts, from another host for each tensor, so that tensors
// smaller than a few blocks do not all burden the first.
//
// The owner fixes the order of additions: around the ring, from the host after the
// owner to the owner itself. Nothing else does, so it depends on the element's tensor,
// its position there, and the hosts; never on buckets, algorithm or time.
func owner(tensor job.TensorID, offset int64, hosts int) int {
	return int((int64(tensor) + offset/Block) % int64(hosts))
}

// Run is Length elements of a bucket from Start that have one owner.
type Run struct {
	Start, Length int64
	Owner         int
}

// runs cuts a bucket where the owner changes.
func runs(slices []plan.Slice, hosts int) []Run {
	var out []Run
	start := int64(0)
	for _, s := range slices {
		for offset, end := s.Offset, s.Offset+s.Length; offset < end; {
			length := min(end, (offset/Block+1)*Block) - offset
			o := owner(s.Tensor, offset, hosts)
			if n := len(out); n > 0 && out[n-1].Owner == o {
				out[n-1].Length += length
			} else {
				out = append(out, Run{start, length, o})
			}
			offset += length
			start += length
		}
	}
	return out
}

// Elements is the number of elements of a bucket.
func Elements(slices []plan.Slice) int64 {
	n := int64(0)
	for _, s := range slices {
		n += s.Length
	}
	return n
}

// Chunk is what one message carries: runs by ascending start.
type Chunk struct {
	Runs     []Run
	Elements int64
}

// contiguous tells whether there are runs that follow each other without a gap.
func (c *Chunk) contiguous() bool {
	if len(c.Runs) == 0 {
		return false
	}
	first, last := c.Runs[0], c.Runs[len(c.Runs)-1]
	return last.Start+last.Length-first.Start == c.Elements
}

// chunks cuts runs into chunks of size elements; the last may be smaller.
func chunks(runs []Run, size int64) []Chunk {
	var out []Chunk
	var c Chunk
	for _, r := range runs {
		for r.Length > 0 {
			take := min(r.Length, size-c.Elements)
			c.Runs = append(c.Runs, Run{r.Start, take, r.Owner})
			c.Elements += take
			r.Start += take
			r.Length -= take
			if c.Elements == size {
				out, c = append(out, c), Chunk{}
			}
		}
	}
	if c.Elements > 0 {
		out = append(out, c)
	}
	return out
}

// parts are the runs of each owner.
func parts(runs []Run, hosts int) [][]Run {
	out := make([][]Run, hosts)
	for _, r := range runs {
		out[r.Owner] = append(out[r.Owner], r)
	}
	return out
}
