package kineto

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"testing"
)

// generator writes a trace of one rank as Kineto does, the same every time,
// without holding it. An op, its launch and its kernel are a millisecond of the
// trace; a hundred ops are a step. Every op has shapes.
type generator struct {
	limit   func(g *generator) bool // true: end here
	compact bool                    // short ops only, to have many events
	bytes   int64
	events  int
	ops     int
	rest    []byte
	done    bool
	sample  func()
}

func (g *generator) Read(p []byte) (int, error) {
	for len(g.rest) == 0 {
		if g.done {
			return 0, io.EOF
		}
		g.rest = g.next(g.rest[:0])
		if g.sample != nil && g.ops%4096 == 0 {
			g.sample()
		}
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	g.bytes += int64(n)
	return n, nil
}

func (g *generator) next(b []byte) []byte {
	ts := 1711964646000000 + int64(g.ops)*1000
	i := g.ops
	g.ops++
	switch {
	case i == 0:
		return append(b, `{
  "schemaVersion": 1,
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
  "traceEvents": [
  {"name": "process_name", "ph": "M", "pid": 1000, "tid": 0, "args": {"name": "python"}}`...)
	case g.limit(g):
		g.done = true
		return append(b, "\n  ],\n  \"traceName\": \"big.json\"\n}\n"...)
	case g.compact:
		g.events++
		b = append(b, ",\n  {\"ph\": \"X\", \"cat\": \"cpu_op\", \"pid\": 1000, \"tid\": 1000, \"name\": \"aten::op"...)
		b = strconv.AppendInt(b, int64(i%200), 10)
		b = append(b, "\", \"dur\": 1.5, \"ts\": "...)
		b = strconv.AppendInt(b, ts, 10)
		b = append(b, ".25, \"args\": {\"External id\": "...)
		b = strconv.AppendInt(b, int64(i), 10)
		return append(b, "}}"...)
	}
	if i%100 == 1 {
		g.events++
		b = fmt.Appendf(b, `,
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": 1000, "tid": 1000,
    "ts": %d.000, "dur": 99999.000,
    "args": {
      "External id": %d,"Record function id": 0, "Ev Idx": %d
    }
  }`, i/100, ts, i, i)
	}
	g.events += 3
	return fmt.Appendf(b, `,
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::op%[1]d", "pid": 1000, "tid": 1000,
    "ts": %[2]d.%03[3]d, "dur": 350.250,
    "args": {
      "External id": %[4]d,"Sequence number": %[4]d, "Fwd thread id": %[5]d, "Record function id": 0, "Concrete Inputs": ["", "", "-1", "False"], "Input type": ["float", "float", "Scalar", "Scalar"], "Input Strides": [[262144, 65536, 256, 1], [384, 1], [], []], "Input Dims": [[2, 4, 256, %[1]d], [96, 384], [], []], "Ev Idx": %[4]d
    }
  },
  {
    "ph": "s", "id": %[4]d, "pid": 1000, "tid": 1000, "ts": %[2]d.%03[3]d,
    "cat": "fwdbwd", "name": "fwdbwd"
  },
  {
    "ph": "f", "id": %[4]d, "pid": 1000, "tid": 1001, "ts": %[2]d.%03[3]d,
    "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1000, "tid": 1000,
    "ts": %[2]d.%03[3]d, "dur": 8.125,
    "args": {
      "External id": %[4]d, "cbid": 211, "correlation": %[4]d
    }
  },
  {
    "ph": "s", "id": %[4]d, "pid": 1000, "tid": 1000, "ts": %[2]d.%03[3]d,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::functor%[1]d<float>, std::array<char*, 3ul> >(int, at::native::functor%[1]d<float>, std::array<char*, 3ul>)", "pid": 0, "tid": 7,
    "ts": %[2]d.%03[3]d, "dur": 41.407,
    "args": {
      "External id": %[4]d, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": %[4]d, "registers per thread": 40, "shared memory": 0, "blocks per SM": 4.740741, "warps per SM": 75.851852, "grid": [512, 1, 1], "block": [512, 1, 1], "est. achieved occupancy %%": 75
    }
  }`, i%200, ts, i%1000, i, i%2)
}

// BenchmarkRead reports the text read in a second and the most memory that the
// program held meanwhile. Set WEFT_BENCH_BIG for a gigabyte of text and for ten
// million events.
func BenchmarkRead(b *testing.B) {
	bytes := func(n int64) func(*generator) bool { return func(g *generator) bool { return g.bytes >= n } }
	events := func(n int) func(*generator) bool { return func(g *generator) bool { return g.events >= n } }
	cases := []struct {
		name string
		new  func() *generator
	}{
		{"64MB", func() *generator { return &generator{limit: bytes(64e6)} }},
	}
	if os.Getenv("WEFT_BENCH_BIG") != "" {
		cases = append(cases, cases[0], cases[0])
		cases[1].name, cases[1].new = "1GB", func() *generator { return &generator{limit: bytes(1e9)} }
		cases[2].name, cases[2].new = "10Mevents", func() *generator { return &generator{limit: events(10e6), compact: true} }
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			held := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
			var peak uint64
			sample := func() {
				metrics.Read(held)
				peak = max(peak, held[0].Value.Uint64()-held[1].Value.Uint64())
			}
			for b.Loop() {
				g := c.new()
				g.sample = sample
				t, err := Read(context.Background(), g, ReadOptions{Name: c.name})
				if err != nil {
					b.Fatal(err)
				}
				sample()
				if len(t.Events) != g.events {
					b.Fatalf("%d events of %d", len(t.Events), g.events)
				}
				b.SetBytes(g.bytes)
				b.ReportMetric(float64(g.events)/1e6, "Mevents")
				runtime.KeepAlive(t)
			}
			b.ReportMetric(float64(peak)/1e6, "peak-MB")
		})
	}
}

// The generator writes what the benchmark says it does.
func TestGenerator(t *testing.T) {
	data, err := io.ReadAll(&generator{limit: func(g *generator) bool { return g.events >= 1000 }})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, data)
	tr, err := read(string(data))
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Events) != 1000 || tr.Dropped["fwdbwd flow"] != 664 { // 332 ops of 3 events and 2 flows, and 4 marks
		t.Errorf("%d events, dropped %v", len(tr.Events), tr.Dropped)
	}
}
