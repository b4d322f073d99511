package job

import "fmt"

// Chain is a job on one device lane whose n layers follow each other. Layer i,
// counted from 0 and named from 1, has a forward op "f<i+1>" of fwd[i]
// microseconds that reads tensor "t<i+1>", a backward op "b<i+1>" of bwd[i] that
// produces its gradient of bytes[i] bytes, and an update op "u<i+1>" of no
// time. They run f1..fn, bn..b1, u1..un. Elements are float32, or uint8 where
// the bytes are not divisible by four. The three slices have length n.
func Chain(name string, fwd, bwd []float64, bytes []int64) *Job {
	n := len(bytes)
	j := &Job{
		Name:    name,
		Lanes:   []Lane{{Name: "compute", Kind: Device}},
		Ops:     make([]Op, 3*n),
		Tensors: make([]Tensor, n),
	}
	for i := range n {
		f, b, u := OpID(i), OpID(2*n-1-i), OpID(2*n+i)
		j.Ops[f] = Op{Name: fmt.Sprint("f", i+1), Phase: Forward, Tensor: -1, Time: fwd[i]}
		j.Ops[b] = Op{Name: fmt.Sprint("b", i+1), Phase: Backward, Tensor: -1, Time: bwd[i], Deps: []OpID{b - 1}}
		j.Ops[u] = Op{Name: fmt.Sprint("u", i+1), Phase: Update, Tensor: -1, Deps: []OpID{b}}
		if i > 0 {
			j.Ops[f].Deps = []OpID{f - 1}
		}
		t := Tensor{
			Name: fmt.Sprint("t", i+1), Elements: bytes[i] / 4,
			Readers: []OpID{f}, Producers: []OpID{b}, Updaters: []OpID{u},
		}
		if bytes[i]%4 != 0 {
			t.Elements, t.Param, t.Grad = bytes[i], Uint8, Uint8
		}
		j.Tensors[i] = t
	}
	return j
}
