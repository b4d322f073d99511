package collective

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/transport"
)

// Bench is a measurement of all-reduces, the same on all hosts.
type Bench struct {
	Sizes []int64 // bytes, of float32
	// Spec makes the transfer of a bucket; Slices are set.
	Spec func(s Spec) Spec
	// Volume is the bytes, over all iterations, at each size; iterations are at
	// least 5 and at most 1000.
	Volume int64
}

// Measurement is a row of the table.
type Measurement struct {
	Bytes      int64
	Spec       Spec
	Iterations int
	Median     time.Duration // of an iteration, on this host, between barriers
	Wrong      int           // elements that are not the sum
}

// AlgBandwidth is bytes a second of the bucket.
func (m Measurement) AlgBandwidth() float64 { return float64(m.Bytes) / m.Median.Seconds() }

// BusBandwidth is what a ring's port would carry: comparable between numbers of hosts
// (nccl-tests, PERFORMANCE.md).
func (m Measurement) BusBandwidth() float64 {
	n := float64(m.Spec.World)
	return m.AlgBandwidth() * 2 * (n - 1) / n
}

// Run measures on one host; all of them run it at the same time.
func (b Bench) Run(ctx context.Context, ep transport.Endpoint) ([]Measurement, error) {
	barrier, err := Barrier(ep.Rank(), ep.World())
	if err != nil {
		return nil, err
	}
	op := uint64(0)
	run := func(t Transfer) error {
		op++
		t.Op = op
		return t.Run(ctx, ep)
	}
	var out []Measurement
	for _, bytes := range b.Sizes {
		spec := b.Spec(Spec{Kind: cluster.AllReduce, World: ep.World(), Slices: []plan.Slice{{Length: bytes / 4}}})
		program, err := spec.Program(ep.Rank())
		if err != nil {
			return nil, err
		}
		t := Transfer{Program: program, Reduction: Reduction{DType: job.Float32}, Result: make([]byte, bytes/4*4)}
		source := make([]byte, len(t.Result))
		t.Sources = [][]byte{source}
		for i := range len(source) / 4 {
			binary.NativeEndian.PutUint32(source[4*i:], math.Float32bits(float32(i%251+ep.Rank())))
		}
		m := Measurement{Bytes: bytes, Spec: spec, Iterations: int(min(max(b.Volume/max(1, bytes), 5), 1000))}
		times := make([]time.Duration, 0, m.Iterations)
		for i := range m.Iterations + 2 { // two to warm up
			if err := run(Transfer{Program: barrier}); err != nil {
				return nil, err
			}
			start := time.Now()
			if err := run(t); err != nil {
				return nil, err
			}
			if i >= 2 {
				times = append(times, time.Since(start))
			}
		}
		slices.Sort(times)
		m.Median = times[len(times)/2]
		n := ep.World()
		for i := range len(source) / 4 {
			if math.Float32frombits(binary.NativeEndian.Uint32(t.Result[4*i:])) != float32(n*(i%251)+n*(n-1)/2) {
				m.Wrong++
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// WriteTable prints measurements as nccl-tests does: bandwidths in 10^9 bytes a second.
func WriteTable(w io.Writer, rows []Measurement) error {
	const format = "%12v %12v %9v %10v %7v %12v %9v %9v %7v\n"
	if _, err := fmt.Fprintf(w, format, "size (B)", "elements", "type", "algorithm", "n", "time (us)", "algbw", "busbw", "#wrong"); err != nil {
		return err
	}
	for _, m := range rows {
		_, err := fmt.Fprintf(w, format, m.Bytes, m.Bytes/4, job.Float32, m.Spec.Algorithm, m.Iterations,
			fmt.Sprintf("%.1f", float64(m.Median.Nanoseconds())/1e3), fmt.Sprintf("%.2f", m.AlgBandwidth()/1e9), fmt.Sprintf("%.2f", m.BusBandwidth()/1e9), m.Wrong)
		if err != nil {
			return err
		}
	}
	return nil
}
