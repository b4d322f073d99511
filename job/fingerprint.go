package job

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// TensorsFingerprint identifies the tensors of the job: their names, elements
// and gradient types, in order. Jobs with equal fingerprints have the same
// gradients, so a plan of buckets for one fits the other.
//
// It is the first 16 bytes, in hexadecimal, of the SHA-256 of the tensors one
// after another: name (its length first), elements, name of the gradient's
// type. Numbers are 8 bytes, little endian.
func (j *Job) TensorsFingerprint() string {
	h := newHasher()
	for i := range j.Tensors {
		t := &j.Tensors[i]
		h.string(t.Name)
		h.int(t.Elements)
		h.string(t.Grad.String())
	}
	return h.sum()
}

// OpsFingerprint identifies the ops of the job: everything about them except
// their times. Jobs with equal fingerprints have the same graph, so a plan that
// refers to ops of one fits the other.
//
// It is the first 16 bytes, in hexadecimal, of the SHA-256 of the number of
// lanes, then of each lane its name and kind, then of each op its name, lane,
// phase, role, micro-batch, tensor, number of dependencies and dependencies.
// Strings have their length first; numbers are 8 bytes, little endian.
func (j *Job) OpsFingerprint() string {
	h := newHasher()
	h.int(int64(len(j.Lanes)))
	for _, l := range j.Lanes {
		h.string(l.Name)
		h.string(l.Kind.String())
	}
	for i := range j.Ops {
		o := &j.Ops[i]
		h.string(o.Name)
		h.int(int64(o.Lane))
		h.string(o.Phase.String())
		h.string(o.Role.String())
		h.int(int64(o.Micro))
		h.int(int64(o.Tensor))
		h.int(int64(len(o.Deps)))
		for _, d := range o.Deps {
			h.int(int64(d))
		}
	}
	return h.sum()
}

// hasher is SHA-256 behind a buffer: one call to it a field would be slow.
type hasher struct {
	sha hash.Hash
	buf *bufio.Writer
}

func newHasher() hasher {
	sha := sha256.New()
	return hasher{sha, bufio.NewWriter(sha)}
}

// Writes to a hash do not fail.
func (h hasher) int(v int64) {
	h.buf.Write(binary.LittleEndian.AppendUint64(h.buf.AvailableBuffer(), uint64(v)))
}

func (h hasher) string(s string) {
	h.int(int64(len(s)))
	h.buf.WriteString(s)
}

func (h hasher) sum() string {
	h.buf.Flush()
	return hex.EncodeToString(h.sha.Sum(nil)[:16])
}
