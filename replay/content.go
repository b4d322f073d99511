package replay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"weft/agent/protocol"
	"weft/internal/splitmix"
	"weft/job"
)

// content is what gradients hold: whole numbers from 0 to 3, which the element, the
// bucket and the rank decide, and at the marks the iteration too. So sums are exact
// in every type and order, and everybody knows them.
type content struct {
	world int
	size  []int64    // by bucket: bytes of an element
	code  [][][]byte // by bucket, then number
}

const (
	digits = 4 // numbers 0 to digits-1
	// maxWorkers keeps sums within the whole numbers of a bfloat16, 256.
	maxWorkers = 64
	// markEvery is how many elements lie between marks. The last is one, too.
	markEvery = 1 << 16
	always    = -1 // iteration of all that is no mark
)

func newContent(dtypes []job.DType, world int) *content {
	c := &content{world: world}
	for _, d := range dtypes {
		codes := make([][]byte, (digits-1)*world+1)
		for v := range codes {
			codes[v] = encode(d, v)
		}
		c.size = append(c.size, d.Bytes())
		c.code = append(c.code, codes)
	}
	return c
}

// encode writes a whole number below 256.
func encode(d job.DType, v int) []byte {
	n := binary.NativeEndian
	switch d {
	case job.Float64:
		return n.AppendUint64(nil, math.Float64bits(float64(v)))
	case job.Int64:
		return n.AppendUint64(nil, uint64(v))
	case job.Int32:
		return n.AppendUint32(nil, uint32(v))
	case job.BFloat16:
		return n.AppendUint16(nil, uint16(math.Float32bits(float32(v))>>16))
	case job.Float16:
		if v == 0 {
			return n.AppendUint16(nil, 0)
		}
		e := bits.Len(uint(v)) - 1
		return n.AppendUint16(nil, uint16((e+15)<<10|(v<<10>>e)&0x3ff))
	}
	return n.AppendUint32(nil, math.Float32bits(float32(v)))
}

// numbers are those of all ranks for an element, two bits each; ranks 32 apart
// have the same.
func numbers(bucket int, element int64, iteration int) uint64 {
	return splitmix.Mix(uint64(element)<<20 ^ uint64(bucket)<<8 ^ uint64(iteration+1)*splitmix.Step)
}

func number(all uint64, rank int) int { return int(all >> (rank % 32 * 2) % digits) }

// sum is that of an element over all ranks.
func (c *content) sum(bucket int, element int64, iteration int) []byte {
	all, v := numbers(bucket, element, iteration), 0
	for rank := range c.world {
		v += number(all, rank)
	}
	return c.code[bucket][v]
}

// marks calls f for the elements of a bucket that change with the iteration.
func (c *content) marks(r protocol.Region, bucket int, f func(element, at int64) error) error {
	size := c.size[bucket]
	n := r.Bytes / size
	for e := int64(0); e < n; e += markEvery {
		if err := f(e, r.Offset+e*size); err != nil {
			return err
		}
	}
	return f(n-1, r.Offset+(n-1)*size)
}

// fill sets a rank's contribution to a bucket.
func (c *content) fill(memory []byte, r protocol.Region, bucket, rank int) {
	size := c.size[bucket]
	for e := range r.Bytes / size {
		copy(memory[r.Offset+e*size:], c.code[bucket][number(numbers(bucket, e, always), rank)])
	}
}

// mark sets the marks of a rank's contribution for an iteration.
func (c *content) mark(memory []byte, r protocol.Region, bucket, iteration, rank int) {
	c.marks(r, bucket, func(e, at int64) error {
		copy(memory[at:], c.code[bucket][number(numbers(bucket, e, iteration), rank)])
		return nil
	})
}

// marked checks the sums at the marks of a bucket.
func (c *content) marked(memory []byte, r protocol.Region, bucket, iteration int) error {
	return c.marks(r, bucket, func(e, at int64) error { return c.check(memory, at, bucket, e, iteration, iteration) })
}

// verify checks every element of a bucket, which was last reduced in an iteration.
func (c *content) verify(memory []byte, r protocol.Region, bucket, iteration int) error {
	size := c.size[bucket]
	n := r.Bytes / size
	for e := range n {
		of := always
		if e%markEvery == 0 || e == n-1 {
			of = iteration
		}
		if err := c.check(memory, r.Offset+e*size, bucket, e, of, iteration); err != nil {
			return err
		}
	}
	return nil
}

func (c *content) check(memory []byte, at int64, bucket int, element int64, of, iteration int) error {
	want, size := c.sum(bucket, element, of), c.size[bucket]
	if got := memory[at : at+size]; !bytes.Equal(got, want) {
		return fmt.Errorf("a wrong sum: element %d of bucket %d of iteration %d is % x in memory, not % x", element, bucket, iteration, got, want)
	}
	return nil
}
