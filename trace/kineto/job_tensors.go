package kineto

import (
	"fmt"
	"slices"
	"strings"

	"weft/job"
)

// addTensors describes the parameters, in the order of their forward use.
func (d *deriver) addTensors() error {
	first := d.g.order
	for m := range d.g.runs {
		n := 0
		for k := range d.g.grads {
			if d.g.grads[k].micro == int32(m) {
				n++
			}
		}
		if n != len(first) {
			return d.v.t.fail("micro-batch %d hands %d gradients over, the last one %d: parameters that only some use cannot be told apart", m, n, len(first))
		}
	}
	d.job.Tensors = make([]job.Tensor, len(first))
	sizes, err := d.sizes()
	if err != nil {
		return err
	}
	for k := range d.job.Tensors {
		t := &d.job.Tensors[k]
		t.Elements = sizes[k]
		t.Grad = d.dtype(first[k])
		t.Param = t.Grad
	}
	d.nameTensors()
	d.addReaders()
	d.addUpdaters()
	d.joinStreams()
	return nil
}

// dtype of a gradient: of its bucket, or of its hand-over.
func (d *deriver) dtype(n int32) job.DType {
	g := &d.g.grads[n]
	if x := d.v.extra(g.handOver); len(x.Types) > 0 {
		if t, err := job.ParseDType(x.Types[0]); err == nil {
			return t
		}
	}
	if g.bucket >= 0 {
		return d.v.collectives[d.g.buckets[g.bucket].collective].dtype
	}
	return job.Float32
}

// sizes are the elements of each tensor, from the best source that the trace
// or the options have.
func (d *deriver) sizes() ([]int64, error) {
	for _, source := range []func() []int64{d.sizesFromShapes, d.sizesFromCopies, d.sizesFromFile} {
		if s := source(); s != nil {
			return s, nil
		}
	}
	return d.equalShares()
}

func (d *deriver) sizesFromShapes() []int64 {
	out := make([]int64, len(d.g.order))
	for k, n := range d.g.order {
		if d.g.grads[n].shape == nil {
			return nil
		}
		out[k] = volume(d.g.grads[n].shape)
		if out[k] == 0 {
			return nil
		}
	}
	return out
}

// sizesFromCopies takes the bytes of the copies out of the buckets. They must
// sum to the bucket.
func (d *deriver) sizesFromCopies() []int64 {
	n := 0
	for _, b := range d.g.buckets {
		n += len(b.grads)
	}
	if n != len(d.g.copies) || n != len(d.g.order) {
		return nil
	}
	bytes := d.v.copyBytes(d.g.copies)
	out := make([]int64, len(d.g.order))
	at := 0
	for _, b := range d.g.buckets {
		c := &d.v.collectives[b.collective]
		var sum int64
		for _, g := range b.grads {
			if bytes[at] <= 0 || bytes[at]%c.dtype.Bytes() != 0 {
				return nil
			}
			out[d.g.grads[g].tensor] = bytes[at] / c.dtype.Bytes()
			sum += bytes[at]
			at++
		}
		if sum != c.bytes() {
			return nil
		}
	}
	return out
}

// copyBytes is how much device memory each copy out of a bucket moved.
func (v *view) copyBytes(copies []int32) []int64 {
	out := make([]int64, len(copies))
	for k, i := range copies {
		e := v.event(i)
		for _, call := range v.within(v.threads[v.lane[e.Row]], e.Start, e.End()) {
			for _, c := range v.launched(call) {
				if v.event(c).Cat == Memcpy {
					out[k] += v.extra(c).Bytes
				}
			}
		}
	}
	return out
}

// sizesFromFile trusts that parameters are used in the order of the file; the
// sums of the buckets, where recorded, must agree.
func (d *deriver) sizesFromFile() []int64 {
	if len(d.o.Tensors) == 0 {
		return nil
	}
	if len(d.o.Tensors) != len(d.g.order) {
		d.note("the tensors file has %d parameters, the trace %d gradients: the file is not used", len(d.o.Tensors), len(d.g.order))
		return nil
	}
	out := make([]int64, len(d.g.order))
	for k := range out {
		out[k] = d.o.Tensors[k].Elements
	}
	for _, b := range d.g.buckets {
		var sum int64
		for _, g := range b.grads {
			sum += out[d.g.grads[g].tensor]
		}
		if n := d.v.collectives[b.collective].elements; n > 0 && n != sum {
			d.note("the tensors file does not give the recorded bucket sizes if parameters are used in its order: the file is not used")
			return nil
		}
	}
	d.note("sizes of single tensors come from the tensors file, on the assumption that parameters are used in its order")
	return out
}

// equalShares shares each bucket out among its tensors.
func (d *deriver) equalShares() ([]int64, error) {
	out := make([]int64, len(d.g.order))
	for k := range d.g.buckets {
		b := &d.g.buckets[k]
		all, tensors := d.v.collectives[b.collective].elements, int64(len(b.grads))
		if all < tensors || tensors == 0 {
			return nil, d.noSizes()
		}
		for pos, g := range b.grads {
			n := all / tensors
			if int64(pos) < all%tensors {
				n++
			}
			out[d.g.grads[g].tensor] = n
		}
	}
	if k := slices.Index(out, 0); k >= 0 {
		return nil, d.v.t.fail("tensor %d is in no bucket and its size was not recorded: give --tensors FILE", k)
	}
	d.note("sizes of single tensors are unknown: each bucket is shared out equally; record with shapes or give --tensors FILE")
	return out, nil
}

func (d *deriver) noSizes() error {
	if n := len(d.o.Tensors); n > 0 && n != len(d.g.order) {
		return d.v.t.fail("no collective sizes in this trace, and the tensors file is of another model: it has %d parameters, the trace %d gradients", n, len(d.g.order))
	}
	return d.v.t.fail("no collective sizes in this trace: it was recorded without shapes, or by a PyTorch without Kineto; give --tensors FILE with a line \"name elements dtype\" for each of the %d parameters, in named_parameters() order", len(d.g.order))
}

// nameTensors takes names from the tensors file where it fits, and otherwise
// makes them from the op that reads the parameter.
func (d *deriver) nameTensors() {
	counts := map[string]int{}
	last, label, part := int32(-1), "", 0
	for k, n := range d.g.order {
		fwd := int32(-1)
		if g := &d.g.grads[n]; g.node >= 0 {
			fwd = d.g.nodes[g.node].fwd
		}
		if fwd < 0 || fwd != last {
			base := "parameter"
			if fwd >= 0 {
				base = strings.TrimPrefix(d.v.name(fwd), "aten::")
			}
			label, part = fmt.Sprintf("%s.%d", base, counts[base]), 0
			counts[base]++
		}
		last = fwd
		suffix := fmt.Sprintf("parameter%d", part)
		if parts := []string{"weight", "bias"}; part < len(parts) {
			suffix = parts[part]
		}
		part++
		d.job.Tensors[k].Name = label + "." + suffix
	}
	if len(d.o.Tensors) == 0 {
		return
	}
	at := d.inFile()
	if at == nil {
		d.note("the tensors file does not fit the recorded sizes: its names are not used")
		return
	}
	for k, n := range at {
		d.job.Tensors[k].Name = d.o.Tensors[n].Name
		d.job.Tensors[k].Param = d.o.Tensors[n].DType
	}
}

// inFile is the position in the tensors file of every tensor, by order and
// sizes; nil if the file does not fit or there is none.
func (d *deriver) inFile() []int {
	if len(d.o.Tensors) != len(d.job.Tensors) {
		return nil
	}
	file := make([]int64, len(d.o.Tensors))
	for k := range file {
		file[k] = d.o.Tensors[k].Elements
	}
	return matchSizes(d.elements(), file)
}

func (d *deriver) elements() []int64 {
	out := make([]int64, len(d.job.Tensors))
	for k := range out {
		out[k] = d.job.Tensors[k].Elements
	}
	return out
}

// maxAlign bounds the table of matchSizes.
const maxAlign = 1 << 12

// matchSizes pairs two lists of the same sizes in nearly the same order: the
// longest common subsequence keeps its order, what is left is paired first to
// first by size. It returns the position in b of each of a; nil if the sizes
// differ.
func matchSizes(a, b []int64) []int {
	n := len(a)
	at := slices.Repeat([]int{-1}, n)
	used := make([]bool, len(b))
	if n == len(b) && n <= maxAlign {
		long := make([]int16, (n+1)*(n+1)) // of a[i:] and b[j:]
		for i := n - 1; i >= 0; i-- {
			for j := n - 1; j >= 0; j-- {
				if a[i] == b[j] {
					long[i*(n+1)+j] = long[(i+1)*(n+1)+j+1] + 1
				} else {
					long[i*(n+1)+j] = max(long[(i+1)*(n+1)+j], long[i*(n+1)+j+1])
				}
			}
		}
		for i, j := 0, 0; i < n && j < n; {
			switch {
			case a[i] == b[j]:
				at[i], used[j] = j, true
				i, j = i+1, j+1
			case long[(i+1)*(n+1)+j] >= long[i*(n+1)+j+1]:
				i++
			default:
				j++
			}
		}
	}
	free := map[int64][]int{}
	for j := range b {
		if !used[j] {
			free[b[j]] = append(free[b[j]], j)
		}
	}
	for i := range a {
		if at[i] >= 0 {
			continue
		}
		f := free[a[i]]
		if len(f) == 0 {
			return nil
		}
		at[i], free[a[i]] = f[0], f[1:]
	}
	return at
}

// readsNothing lists backward nodes that do not read the parameter whose
// gradient they produce: views and sums.
var readsNothing = []string{"T", "Transpose", "View", "UnsafeView", "ReshapeAlias", "Permute", "Expand", "Slice", "Select", "Embedding", "Add"}

// addReaders says which ops read each parameter and which contribute to its
// gradient.
func (d *deriver) addReaders() {
	siblings := map[int32][]int32{} // nodes by forward op
	for n := range d.g.nodes {
		if f := d.g.nodes[n].fwd; f >= 0 {
			siblings[f] = append(siblings[f], int32(n))
		}
	}
	for n := range d.g.grads {
		g := &d.g.grads[n]
		t := &d.job.Tensors[g.tensor]
		if h := d.g.handOver[n]; h >= 0 {
			t.Producers = append(t.Producers, h)
		}
		t.Producers = append(t.Producers, d.lastOp(d.g.span(g.handOver))...) // adds to the micro-batches before
		for _, k := range [2]int32{g.node, g.also} {
			if k >= 0 {
				d.addUse(t, &d.g.nodes[k], siblings)
			}
		}
	}
	unread := 0
	for k := range d.job.Tensors {
		t := &d.job.Tensors[k]
		t.Readers, t.Producers = ascending(t.Readers), ascending(t.Producers)
		if len(t.Readers) == 0 {
			unread++
		}
	}
	if unread > 0 {
		d.note("no op is known to read %d of %d parameters: plans treat them as read by the first op", unread, len(d.job.Tensors))
	}
}

// addUse adds what one use of a parameter reads and makes: the node that
// contributed to its gradient, the forward op of that, and the other nodes of
// the forward op.
func (d *deriver) addUse(t *job.Tensor, x *node, siblings map[int32][]int32) {
	made := d.lastOp(d.g.span(x.eval))
	if len(made) == 0 {
		made = d.streamBefore(d.g.span(x.eval))
	}
	t.Producers = append(t.Producers, made...)
	if x.fwd < 0 {
		return
	}
	t.Readers = append(t.Readers, d.readers(d.g.span(x.fwd))...)
	if x.first >= 0 && x.first != x.fwd {
		t.Readers = append(t.Readers, d.readers(d.g.span(x.first))...)
	}
	if own, _, _ := strings.Cut(x.kind, "Backward"); own == "Addmm" {
		return // its sum, which is the bias, is read in forward alone
	}
	for _, n := range siblings[x.fwd] {
		s := &d.g.nodes[n]
		if kind, _, _ := strings.Cut(s.kind, "Backward"); !slices.Contains(readsNothing, kind) {
			t.Readers = append(t.Readers, d.ops(d.g.span(s.eval), job.Backward)...)
		}
	}
}

// ops of a span in a phase.
func (d *deriver) ops(s *opSpan, phase job.Phase) (out []job.OpID) {
	if s == nil {
		return nil
	}
	for _, n := range s.ops {
		if d.job.Ops[n].Phase == phase {
			out = append(out, n)
		}
	}
	return out
}

// lastOp of a backward span, which on a stream is done after the others.
func (d *deriver) lastOp(s *opSpan) []job.OpID {
	ops := d.ops(s, job.Backward)
	return ops[max(len(ops)-1, 0):]
}

// streamBefore is the device op before a node that launches none: a view of
// what it computes.
func (d *deriver) streamBefore(s *opSpan) []job.OpID {
	if s == nil || !d.v.streams {
		return nil
	}
	for n := s.next - 1; n >= 0; n-- {
		if o := &d.job.Ops[n]; d.v.computes[o.Lane] && o.Phase == job.Backward {
			return []job.OpID{n}
		}
	}
	return nil
}

// readers are a forward op's own ops; of one that only makes a view, the next
// op that computes.
func (d *deriver) readers(s *opSpan) []job.OpID {
	ops := d.ops(s, job.Forward)
	if s == nil || len(ops) > 0 {
		return ops
	}
	for n := max(s.next, 0); int(n) < len(d.job.Ops); n++ {
		if o := &d.job.Ops[n]; d.v.computes[o.Lane] && (o.Phase == job.Forward || o.Phase == job.Backward) {
			return []job.OpID{n}
		}
	}
	return nil
}

// addUpdaters says which ops write each parameter: those on it alone if the
// optimizer goes parameter by parameter, else all of the optimizer's.
func (d *deriver) addUpdaters() {
	if d.addSingleUpdaters() {
		return
	}
	pick := func(optimizer bool) (all []job.OpID) {
		for n := range d.g.ops {
			o := &d.g.ops[n]
			if o.Phase == job.Update && d.v.computes[o.Lane] && (o.optimizer || !optimizer) {
				all = append(all, job.OpID(n))
			}
		}
		return all
	}
	all := pick(true)
	if len(all) == 0 {
		if all = pick(false); len(all) > 0 {
			d.note("no mark of the optimizer's step: all that follows the backward pass counts as update")
		}
	}
	for k := range d.job.Tensors {
		d.job.Tensors[k].Updaters = all
	}
}

func (d *deriver) addSingleUpdaters() bool {
	groups := d.v.updateGroups(&d.v.steps[d.g.step], len(d.g.order))
	if groups == nil {
		return false
	}
	sizes := make([]int64, len(groups))
	known := true
	for k := range groups {
		sizes[k] = groups[k].elements
		known = known && sizes[k] > 0
	}
	at := d.inFile()
	if known {
		at = matchSizes(d.elements(), sizes)
	}
	if at == nil {
		d.note("which of the optimizer's ops update which parameter is unknown: all count for each")
		return false
	}
	for k, n := range at {
		d.job.Tensors[k].Updaters = d.ops(d.g.span(groups[n].first), job.Update)
	}
	return true
}

// joinStreams orders the uses of parameters on different streams: the first
// update on a stream waits for what the others did before, and these end the
// step with a wait for the last. A program must see to that itself, but traces
// without synchronisation events do not say what waits for what, and the graph
// of one step has no waits for the step before.
func (d *deriver) joinStreams() {
	j := d.job
	uses, updates := make([][]job.OpID, len(j.Lanes)), make([][]job.OpID, len(j.Lanes))
	add := func(byStream [][]job.OpID, ops []job.OpID) {
		for _, n := range ops {
			if l := j.Ops[n].Lane; j.Lanes[l].Kind == job.Device {
				byStream[l] = append(byStream[l], n)
			}
		}
	}
	for k := range j.Tensors {
		t := &j.Tensors[k]
		add(uses, t.Readers)
		add(uses, t.Producers)
		add(updates, t.Updaters)
	}
	for l := range j.Lanes {
		uses[l], updates[l] = ascending(uses[l]), ascending(updates[l])
	}
	joined := false
	for l := range uses {
		end := job.Op{Name: "end of step", Lane: job.LaneID(l), Phase: job.Update, Micro: int32(len(d.g.runs) - 1), Tensor: -1}
		for u := range updates {
			if u == l || len(uses[l]) == 0 || len(updates[u]) == 0 {
				continue
			}
			first := &j.Ops[updates[u][0]]
			if n, _ := slices.BinarySearch(uses[l], updates[u][0]); n > 0 && !slices.Contains(first.Deps, uses[l][n-1]) {
				first.Deps = append(first.Deps, uses[l][n-1])
			}
			end.Deps = append(end.Deps, updates[u][len(updates[u])-1])
		}
		if len(end.Deps) > 0 {
			j.Ops = append(j.Ops, end)
			joined = true
		}
	}
	if joined {
		d.note("parameters are used on several streams: updates are assumed to wait for the uses in their step, and the next step for the updates")
	}
}
