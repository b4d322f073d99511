package kineto

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/gzip"
	"pgregory.net/rapid"
)

func read(text string) (*Trace, error) {
	return Read(context.Background(), strings.NewReader(text), ReadOptions{Name: "t.json"})
}

func compress(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// small has one of everything: events out of order, equal starts, threads
// written as negative number and as string, times that floating point rounds.
const small = `{
  "schemaVersion": 1,
  "traceEvents": [
  {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "pid": 0, "tid": 7, "ts": 1711964646123470.001, "dur": 2.5,
   "args": {"device": 0, "stream": 7, "correlation": 9, "Collective name": "allreduce", "In msg nelems": 100,
            "Out msg nelems": 100, "Group size": 2, "dtype": "Float", "Process Group Ranks": "[0, 1]"}},
  {"ph": "X", "cat": "cpu_op", "name": "inner", "pid": 10, "tid": "main", "ts": 1711964646123456.789, "dur": 1},
  {"ph": "X", "cat": "cpu_op", "name": "outer", "pid": 10, "tid": "main", "ts": 1711964646123456.789, "dur": 3.25,
   "args": {"Sequence number": 4, "Fwd thread id": 0, "Input Dims": [[2, 3], [], [[5], [6, 7]]],
            "Input type": ["float", "Scalar", "TensorList"]}},
  {"ph": "X", "cat": "cpu_op", "name": "inner", "pid": 10, "tid": "main", "ts": 1711964646123456.789, "dur": 1,
   "args": {"External id": 3, "Fwd thread id": 0}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 10, "tid": -5, "ts": 1711964646123470, "dur": 1,
   "args": {"cbid": 211, "correlation": 9}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "pid": 0, "tid": 7, "ts": 1711964646123480, "dur": 0,
   "args": {"bytes": 4096, "correlation": 11}},
  {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 7, "ts": 1711964646123481, "dur": 1,
   "args": {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 12, "wait_on_cuda_event_id": 3, "correlation": 13}},
  {"ph": "X", "cat": "python_function", "name": "train.py: step", "pid": 10, "tid": "main", "ts": 0, "dur": -1},
  {"ph": "f", "cat": "fwdbwd", "id": 2, "pid": 10, "tid": -5, "ts": 1711964646123459, "bp": "e"},
  {"ph": "s", "cat": "fwdbwd", "id": 2, "pid": 10, "tid": "main", "ts": 1711964646123457},
  {"ph": "f", "cat": "fwdbwd", "id": 3, "pid": 10, "tid": -5, "ts": 1711964646123459},
  {"ph": "s", "cat": "ac2g", "id": 9, "pid": 10, "tid": -5, "ts": 1711964646123470},
  {"ph": "M", "name": "process_name", "pid": 10, "args": {"name": "python"}},
  {"ph": "i", "name": "Iteration Start", "pid": "Traces", "tid": "Trace", "ts": 1, "s": "g"},
  {"ph": "X", "cat": "cpu_op", "name": "cut off", "pid": 10, "tid": "main", "ts": 1711964646123456}
  ],
  "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": [{"ranks": [0, 1]}]}
}`

func TestRead(t *testing.T) {
	const at = 1711964646123456_789 // ns
	want := &Trace{
		Name: "t.json", Kineto: true, Backend: "nccl", Rank: 1, World: 2,
		Events: []Event{
			{Start: at, Dur: 3250, Name: 2, Seq: 4, Extra: 1, Row: 1, Cat: CPUOp, order: 2},
			{Start: at, Dur: 1000, Name: 1, Seq: -1, Extra: -1, Row: 1, Cat: CPUOp, order: 1},
			{Start: at, Dur: 1000, Name: 1, Seq: -1, Extra: -1, Row: 1, Cat: CPUOp, order: 3},
			{Start: at + 13_211, Dur: 1000, Name: 3, Corr: 9, Seq: -1, Extra: -1, Row: 2, Cat: Runtime, order: 4},
			{Start: at + 13_212, Dur: 2500, Name: 0, Corr: 9, Seq: -1, Extra: 0, Row: 0, Cat: Kernel, order: 0},
			{Start: at + 23_211, Dur: 0, Name: 4, Corr: 11, Seq: -1, Extra: 2, Row: 0, Cat: Memcpy, order: 5},
			{Start: at + 24_211, Dur: 1000, Name: 5, Corr: 13, Seq: -1, Extra: 3, Row: 0, Cat: Sync, order: 6},
		},
		Rows:  []Row{{"0", "7", true}, {"10", "main", false}, {"10", "-5", false}},
		Names: []string{"ncclKernel_AllReduce", "inner", "outer", "cudaLaunchKernel", "Memcpy", "Stream Wait Event"},
		Extras: []Extra{
			{Collective: "allreduce", Elements: 100, Group: 2, DType: "Float", Stream: -1},
			{Dims: [][]int64{{2, 3}, nil, {5}, {6, 7}}, Types: []string{"float", "Scalar", "TensorList", "TensorList"}, Stream: -1},
			{Bytes: 4096, Stream: -1},
			{Stream: 20, Waits: 12},
		},
		Dropped: map[string]int{
			"python_function": 1, "fwdbwd flow": 3, "ac2g flow": 1, "metadata": 1, "instant": 1, "incomplete": 1,
		},
	}
	// The members of the object may come in any order, and the text in any portions.
	info := small[strings.Index(small, `"distributedInfo"`):strings.LastIndex(small, "}")]
	first := strings.Replace(small, `"schemaVersion": 1`, info, 1)
	first = first[:strings.LastIndex(first, `"distributedInfo"`)]
	first = first[:strings.LastIndex(first, ",")] + "}"
	for name, r := range map[string]io.Reader{
		"plain":      strings.NewReader(small),
		"gzip":       bytes.NewReader(compress(t, small)),
		"info first": strings.NewReader(first),
		"by bytes":   iotest.OneByteReader(strings.NewReader(small)),
		"gzip by bytes, in two members": iotest.OneByteReader(io.MultiReader(
			bytes.NewReader(compress(t, small[:999])), bytes.NewReader(compress(t, small[999:])))),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Read(context.Background(), r, ReadOptions{Name: "t.json"})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, got, want)
		})
	}
}

// equal compares traces field by field, so that a failure shows only the difference.
func equal(t *testing.T, got, want *Trace) {
	t.Helper()
	g, w := reflect.ValueOf(*got), reflect.ValueOf(*want)
	for i := range g.NumField() {
		if !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", g.Type().Field(i).Name, g.Field(i), w.Field(i))
		}
	}
}

func TestReadArray(t *testing.T) {
	got, err := read(`[{"name": "ProfilerStep#2", "ph": "X", "ts": 406, "dur": 539877, "tid": 1, "pid": "CPU functions", "args": {}},
		{"name": "aten::\u00e9\"\\", "ph": "X", "ts": 238, "dur": 140.5, "tid": 1, "pid": "CPU functions", "args": {}}, ]`)
	if err == nil {
		t.Fatalf("a comma before the end is not JSON, but was read: %+v", got)
	}
	got, err = read(`[{"name": "ProfilerStep#2", "ph": "X", "ts": 406, "dur": 539877, "tid": 1, "pid": "CPU functions", "args": {}},
		{"name": "aten::\u00e9\"\\", "ph": "X", "ts": 238, "dur": 140.5, "tid": 1, "pid": "CPU functions", "args": {}}]`)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, &Trace{
		Name: "t.json", Rank: -1, Dropped: map[string]int{},
		Events: []Event{
			{Start: 238_000, Dur: 140_500, Name: 1, Seq: -1, Extra: -1, order: 1},
			{Start: 406_000, Dur: 539_877_000, Name: 0, Seq: -1, Extra: -1, order: 0},
		},
		Rows:  []Row{{Pid: "CPU functions", Tid: "1"}},
		Names: []string{"ProfilerStep#2", `aten::é"\`},
	})

	got, err = read(`[{"name": "a", "cat": "cpu_op", "ph": "X", "ts": 1, "dur": 1, "tid": 1, "pid": 2}]`)
	if err != nil || !got.Kineto {
		t.Errorf("array with categories: %+v, %v", got, err)
	}
}

// x makes one complete event.
func x(cat, name string, pid, tid int, ts, dur string, args string) string {
	return fmt.Sprintf(`{"ph":"X","cat":%q,"name":%q,"pid":%d,"tid":%d,"ts":%s,"dur":%s,"args":{%s}}`, cat, name, pid, tid, ts, dur, args)
}

func TestReadErrors(t *testing.T) {
	op := x("cpu_op", "aten::add", 1, 1, "5", "1", "")
	step := func(n, pid int, ts string) string {
		return x("cpu_op", "aten::add", pid, pid, ts, "1", "") + "," +
			x("user_annotation", fmt.Sprintf("ProfilerStep#%d", n), pid, pid, ts, "100", "")
	}
	launch := x("cuda_runtime", "cudaLaunchKernel", 1, 1, "1000", "5", `"correlation":7`)
	zipped := string(compress(t, small))
	corrupt := []byte(zipped)
	corrupt[len(corrupt)-6] ^= 1 // of the checksum

	for _, c := range []struct {
		name, text string
		offset     int64 // -1: not one place
		msg        string
	}{
		{"empty file", "", 0, "not a profiler trace"},
		{"another format", "PK\x03\x04", 0, "not a profiler trace"},
		{"a number", "17", 0, "not a profiler trace"},
		{"no events member", `{"a":1}`, 0, "no traceEvents"},
		{"events not an array", `{"traceEvents":{}}`, 14, "traceEvents is not an array"},
		{"event not an object", `[` + op + `,3]`, int64(len(op)) + 2, "traceEvents[1] is not an object"},
		{"no events", `{"traceEvents":[]}`, -1, "no events: record the trace again"},
		{"no events to use", `[{"ph":"M","name":"x"}]`, -1, "no events to use (dropped: metadata 1)"},

		{"gzip header", "\x1f\x8b\x08\x00", 0, "gzip data ends here, too early"},
		{"truncated gzip", zipped[:len(zipped)/2], 0, "gzip data ends here, too early"},
		{"gzip without its end", zipped[:len(zipped)-4], int64(len(small)), "gzip data ends here, too early"},
		{"a byte after gzip", zipped + "\x00", int64(len(small)), "more bytes after the end of the gzip data"},
		{"text after gzip", zipped + "and so on, for long", int64(len(small)), "more bytes after the end of the gzip data"},
		{"gzip and half of another", zipped + zipped[:5], int64(len(small)), "gzip data ends here, too early"},
		{"damaged gzip", string(corrupt), int64(len(small)), "damaged gzip data"},

		{"truncated JSON", `[` + op + `,{"ph":"X"`, int64(len(op)) + 11, "JSON ends here, too early"},
		{"JSON without its end", `[` + op, int64(len(op)) + 1, "JSON ends here, too early"},
		{"truncated object", `{"a":1`, 6, "JSON ends here, too early"},
		{"invalid JSON", `[` + op + `,{"ph":tru}]`, int64(len(op)) + 11, `invalid JSON at "/1/ph"`},
		{"two traces", `[` + op + `][` + op + `]`, int64(len(op)) + 2, "more text after the end"},
		{"two traceEvents", `{"traceEvents":[` + op + `],"traceEvents":[]}`, int64(len(op)) + 31, "a second traceEvents"},
		{"text after the end", `[` + op + `]}`, int64(len(op)) + 2, "more text after the end"},

		{"negative duration", `[` + op + `,` + x("kernel", "gemm", 0, 7, "5", "-0.5", "") + `]`, int64(len(op)) + 2, `event "gemm": negative duration -0.5`},
		{"NaN duration", `[` + x("kernel", "gemm", 0, 7, "5", "NaN", "") + `]`, 69, `event "gemm": dur is not a finite number`},
		{"infinite start", `{"traceEvents":[` + x("kernel", "gemm", 0, 7, "Infinity", "1", "") + `]}`, 76, `event "gemm": ts is not a finite number`},
		{"-Infinity", `[` + x("kernel", "gemm", 0, 7, "5", "-Infinity", "") + `]`, 70, `event "gemm": dur is not a finite number`},
		{"NaN as text", `[` + x("kernel", "gemm", 0, 7, "5", `"NaN"`, "") + `]`, 1, `event "gemm": dur "NaN" is not a number`},
		{"absurd start", `[` + x("kernel", "gemm", 0, 7, "1e300", "5", "") + `]`, 1, `event "gemm": ts 1e300 is more than`},
		{"absurd duration", `[` + x("kernel", "gemm", 0, 7, "5", "18446744073709551.615", "") + `]`, 1, `event "gemm": dur 18446744073709551.615 is more than`},

		{"distributedInfo of other types", `{"distributedInfo":{"rank":"zero"},"traceEvents":[` + op + `]}`, 19, "distributedInfo"},
		{"two ranks", `{"distributedInfo":{"rank":0},"traceEvents":[` + op + `],"distributedInfo":{"rank":1}}`, int64(len(op)) + 65, "ranks 0 and 1 in one file"},
		{"steps of two processes", `[` + step(3, 1, "1000") + `,` + step(4, 2, "2000") + `]`, -1,
			`several ranks in one file: traceEvents[1] ("ProfilerStep#3", process "1") and traceEvents[3] ("ProfilerStep#4", process "2")`},
		{"steps that overlap", `[` + step(3, 1, "1000") + `,` + step(3, 1, "1089") + `]`, -1, "several ranks in one file"},

		{"device op before its launch", `[` + launch + `,` + x("kernel", "gemm", 0, 7, "899.999", "1", `"correlation":7`) + `]`, -1,
			`traceEvents[1] ("gemm") starts 100.001 us before its launch (correlation 7)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := read(c.text)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("want a kineto.Error, got %v", err)
			}
			if !strings.HasPrefix(err.Error(), "t.json: ") || !strings.Contains(err.Error(), c.msg) {
				t.Errorf("got  %v\nwant %s", err, c.msg)
			}
			if e.Offset != c.offset && c.name != "truncated gzip" { // how much text half of it holds is the compressor's affair
				t.Errorf("%v: at byte %d, want %d", err, e.Offset, c.offset)
			}
		})
	}
}

// Of what they quote, messages show the beginning.
func TestReadErrorsAreShort(t *testing.T) {
	long := strings.Repeat("0", 10_000)
	for _, text := range []string{
		`{"a":{"` + long + `":tru}}`,
		`[{"` + long + `":NaN}]`,
		`[` + x("kernel", long, 0, 7, "5", "-1", "") + `]`,
		`[` + x("kernel", "gemm", 0, 7, "5", "1e"+long+"99", "") + `]`,
		`[{"ph":"` + long + `"}]`,
	} {
		if _, err := read(text); err == nil || len(err.Error()) > 300 {
			t.Errorf("%.40s: got %.500v", text, err)
		}
	}
	for _, line := range []string{"w " + long + " int8", "w 1 " + long, long + " 1 int8\n" + long + " 1 int8"} {
		if _, err := ReadTensors(strings.NewReader(line), "f"); err == nil || len(err.Error()) > 300 {
			t.Errorf("%.40s: got %.500v", line, err)
		}
	}
}

// What looks like the errors above and is in order.
func TestReadAccepts(t *testing.T) {
	op := x("cpu_op", "aten::add", 1, 1, "5", "1", "")
	launch := x("cuda_runtime", "cudaLaunchKernel", 1, 1, "1000", "5", `"correlation":7`)
	mark := func(n, pid, tid int, ts string) string {
		return x("user_annotation", fmt.Sprintf("ProfilerStep#%d", n), pid, tid, ts, "100", "")
	}
	for _, c := range []struct{ name, text string }{
		{"ops of a forked worker", `[` + op + `,` + x("cpu_op", "aten::stack", 2, 2, "5", "1", "") + `,` + mark(1, 1, 1, "4") + `]`},
		{"marks on a row without ops", `[` + op + `,` + mark(1, 1, 1, "4") + `,` + mark(1, 0, 7, "6") + `]`},
		{"steps that touch", `[` + op + `,` + mark(1, 1, 1, "4") + `,` + mark(2, 1, 1, "103") + `]`},
		{"the same rank twice", `{"distributedInfo":{"rank":1},"traceEvents":[` + op + `],"distributedInfo":{"rank":1}}`},
		{"clock skew", `[` + launch + `,` + x("kernel", "gemm", 0, 7, "900", "1", `"correlation":7`) + `]`},
		{"launch unknown", `[` + launch + `,` + x("kernel", "gemm", 0, 7, "1", "1", `"correlation":8`) + `]`},
		{"white space at the end", `[` + op + "]\n \n"},
		{"duplicate names", `[` + strings.Replace(op, `"dur"`, `"dur":-9,"dur"`, 1) + `]`},
		{"invalid UTF-8", `[` + strings.Replace(op, "aten", "\xff", 1) + `]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := read(c.text)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range tr.Names {
				if !utf8.ValidString(name) {
					t.Errorf("name %q is not UTF-8", name)
				}
			}
		})
	}
}

// Failures that are not the file's keep their identity.
func TestReadOtherErrors(t *testing.T) {
	broken := errors.New("disk on fire")
	_, err := Read(context.Background(), io.MultiReader(strings.NewReader(small[:500]), iotest.ErrReader(broken)), ReadOptions{Name: "t.json"})
	var e *Error
	if !errors.Is(err, broken) || errors.As(err, &e) {
		t.Errorf("reader's error: got %v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, strings.NewReader(small), ReadOptions{}); !errors.Is(err, context.Canceled) || errors.As(err, &e) {
		t.Errorf("canceled context: got %v", err)
	}
}

// Arrows count if no event has a sequence number: 9 begins before 4. The others
// lack an end, share their id, or begin at no time.
func TestReadFlows(t *testing.T) {
	op := func(name string, ts int) string {
		return fmt.Sprintf(`{"ph":"X","cat":"cpu_op","name":%q,"pid":1,"tid":1,"ts":%d,"dur":5},`, name, ts)
	}
	end := func(ph string, id int, ts string) string {
		return fmt.Sprintf(`{"ph":%q,"cat":"fwdbwd","id":%d,"pid":1,"tid":1,"ts":%s},`, ph, id, ts)
	}
	text := op("aten::mm", 10) + op("aten::add", 20) + op("aten::sum", 30) + op(evalMark+"AddBackward0", 40) + op("AddBackward0", 41) +
		op(evalMark+"MmBackward0", 50) + op("MmBackward0", 51) +
		end("f", 4, "41") + end("s", 4, "20") + end("s", 9, "10") + end("f", 9, "51") +
		end("s", 5, "30") + end("f", 6, "51") + end("s", 7, "30") + end("f", 7, "41") + end("f", 7, "51") + end("s", 8, "null")
	for _, c := range []struct {
		last    string
		want    []int32
		dropped int
	}{
		{`{}`, []int32{0, 1, -1, 1, 1, 0, 0}, 6},
		{`{"ph":"X","cat":"cpu_op","name":"x","pid":1,"tid":1,"ts":99,"dur":1,"args":{"Sequence number":3}}`, []int32{-1, -1, -1, -1, -1, -1, -1, 3}, 10},
	} {
		tr, err := read("[" + text + c.last + "]")
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for _, e := range tr.Events {
			got = append(got, e.Seq)
		}
		if !slices.Equal(got, c.want) || tr.Dropped["fwdbwd flow"] != c.dropped {
			t.Errorf("sequence numbers %v, want %v; dropped %v, want %d flows", got, c.want, tr.Dropped, c.dropped)
		}
	}
}

// Equal times keep the order of the file, also among so many that the sort
// would mix them.
func TestReadOrder(t *testing.T) {
	events := make([]string, 1000)
	for i := range events {
		events[i] = x("cpu_op", "aten::add", 1, 1, fmt.Sprint(i*7%10), "1", "")
	}
	tr, err := read("[" + strings.Join(events, ",") + "]")
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range tr.Events[1:] {
		if last := tr.Events[i]; last.Start == e.Start && last.order > e.order {
			t.Fatalf("event %d of the file comes after event %d", e.order, last.order)
		}
	}
}

// A value that never ends is refused before it fills the memory.
func TestReadBounded(t *testing.T) {
	for _, start := range []string{`[{"ph":"X","name":"`, `{"deviceProperties":["`, `"`, `["`} {
		endless := io.MultiReader(strings.NewReader(start), endless('x'))
		_, err := Read(context.Background(), endless, ReadOptions{Name: "t.json"})
		if err == nil || !strings.Contains(err.Error(), "longer than 16 MiB") {
			t.Errorf("%s...: got %v", start, err)
		}
	}
}

// The bound is one value's, not the file's.
func TestReadLong(t *testing.T) {
	long := strings.Repeat("1,", maxValue)
	op := x("cpu_op", "aten::add", 1, 1, "5", "1", "")
	if _, err := read(`{"stackFrames":[` + long + `1],"traceEvents":[` + op + `]}`); err != nil {
		t.Error(err)
	}
}

type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func TestReadProgress(t *testing.T) {
	zipped := compress(t, small)
	var last int64
	_, err := Read(context.Background(), bytes.NewReader(zipped), ReadOptions{Progress: func(n int64) {
		if n < last {
			t.Errorf("%d after %d", n, last)
		}
		last = n
	}})
	if err != nil || last != int64(len(zipped)) {
		t.Errorf("progress ends at %d of %d bytes, %v", last, len(zipped), err)
	}
}

func TestNanoseconds(t *testing.T) {
	for _, c := range []struct {
		text string
		ns   int64
	}{
		{"0", 0}, {"-0.0", 0}, {"1", 1000}, {"-2.5", -2500}, {"0.0005", 1}, {"0.00049999999999999999999", 0}, {"-0.0005", -1},
		{"1711964646123456.789", 1711964646123456789}, {"1.711964646123456789e15", 1711964646123456789},
		{"1711964646123456.7894999999999999999999999", 1711964646123456789},
		{"4611686018427387.903", maxTime}, {"12345678901234567890123e-20", 123457}, {"1e-400", 0}, {"0e99999999999", 0},
	} {
		if ns, err := nanoseconds([]byte(c.text)); err != nil || ns != c.ns {
			t.Errorf("%s us: got %d ns, %v; want %d", c.text, ns, err, c.ns)
		}
	}
	for _, text := range []string{"4611686018427387.904", "-4611686018427387.904", "1e16", "123456789012345678901", "1e99999999999"} {
		if ns, err := nanoseconds([]byte(text)); err != errAbsurd {
			t.Errorf("%s us: got %d ns, %v; want %v", text, ns, err, errAbsurd)
		}
	}
	for _, text := range []string{"null", `"5"`, "true", "[]", "-"} {
		if ns, err := nanoseconds([]byte(text)); err != errNotNumber {
			t.Errorf("%s us: got %d ns, %v; want %v", text, ns, err, errNotNumber)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "number")
		got, err := nanoseconds([]byte(text))
		want, ok := rational(text)
		if ok != (err == nil) || got != want {
			t.Fatalf("%s us: got %d ns, %v; want %d, in range: %v", text, got, err, want, ok)
		}
	})
}

// rational is nanoseconds by exact arithmetic.
func rational(text string) (int64, bool) {
	us, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, false
	}
	ns := us.Mul(us, big.NewRat(1000, 1))
	half := big.NewRat(int64(ns.Sign()), 2)
	ns.Add(ns, half)
	whole := new(big.Int).Quo(ns.Num(), ns.Denom())
	if !whole.IsInt64() || whole.CmpAbs(big.NewInt(maxTime)) > 0 {
		return 0, false
	}
	return whole.Int64(), true
}

// plain is an event as the standard library's decoder sees it.
type plain struct {
	order      int
	start, dur int64
	cat        Category
	name       string
	row        Row
	corr, seq  int64
	bytes      int64
	dims       string
}

// naive reads the complete events with encoding/json: slow, and obvious. It
// gives false where Read must give an error.
func naive(data []byte) ([]plain, bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, false
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, false
	}
	if o, ok := doc.(map[string]any); ok {
		doc = o["traceEvents"]
	}
	list, ok := doc.([]any)
	if !ok {
		return nil, false
	}
	var events []plain
	for i, v := range list {
		o, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		cat, known := categories[label(o["cat"])]
		if o["ph"] != "X" || !known && label(o["cat"]) != "" || !has(o, "ts") || !has(o, "dur") {
			continue
		}
		start, ok1 := micros(o["ts"])
		dur, ok2 := micros(o["dur"])
		if !ok1 || !ok2 || dur < 0 {
			return nil, false
		}
		args, _ := o["args"].(map[string]any)
		e := plain{
			order: i, start: start, dur: dur, cat: cat, name: label(o["name"]),
			row:  Row{label(o["pid"]), label(o["tid"]), cat >= Kernel},
			corr: whole(args, "correlation", 0, 1, 1<<32-1), seq: whole(args, "Sequence number", -1, 0, 1<<31-1),
			bytes: whole(args, "bytes", 0, 0, 1<<63-1),
		}
		if dims, ok := args["Input Dims"].([]any); ok {
			e.dims = shapes(dims)
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b plain) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.dur, a.dur))
	})
	return events, true
}

func has(o map[string]any, name string) bool { _, ok := o[name]; return ok }

func label(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

func micros(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	return rational(n.String())
}

func whole(args map[string]any, name string, none, low, high int64) int64 {
	n, ok := new(big.Int).SetString(label(args[name]), 10)
	if !ok || !n.IsInt64() || n.Int64() < low || n.Int64() > high {
		return none
	}
	return n.Int64()
}

// shapes lists an op's shapes as inputs does.
func shapes(dims []any) string {
	var b strings.Builder
	one := func(v any) {
		shape := ""
		list, _ := v.([]any)
		for _, n := range list {
			if _, err := strconv.ParseInt(label(n), 10, 64); err != nil {
				shape = ""
				break
			}
			shape += label(n) + " "
		}
		b.WriteString("[" + shape + "]")
	}
	for _, v := range dims {
		list, _ := v.([]any)
		if len(list) > 0 {
			if _, nested := list[0].([]any); nested {
				for _, tensor := range list {
					one(tensor)
				}
				continue
			}
		}
		one(v)
	}
	return b.String()
}

// plainly gives a trace's events as naive does.
func plainly(t *Trace) []plain {
	var events []plain
	for _, e := range t.Events {
		p := plain{
			order: int(e.order), start: e.Start, dur: e.Dur, cat: e.Cat, name: t.Names[e.Name], row: t.Rows[e.Row],
			corr: int64(e.Corr), seq: int64(e.Seq),
		}
		if e.Extra >= 0 {
			p.bytes = t.Extras[e.Extra].Bytes
			for _, dims := range t.Extras[e.Extra].Dims {
				p.dims += "["
				for _, n := range dims {
					p.dims += fmt.Sprint(n, " ")
				}
				p.dims += "]"
			}
		}
		events = append(events, p)
	}
	return events
}

// failer is what [testing.T] and [rapid.T] share.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// compare fails unless Read saw in data what the standard library's decoder sees.
func compare(t failer, data []byte) {
	t.Helper()
	got, err := Read(context.Background(), bytes.NewReader(data), ReadOptions{Name: "t.json"})
	want, ok := naive(data)
	if err != nil {
		if _, syntax := errors.AsType[*jsontext.SyntacticError](err); syntax && ok {
			t.Fatalf("%v, but encoding/json reads it: %.500q", err, data)
		}
		return
	}
	if !ok {
		t.Fatalf("read what encoding/json refuses: %.500q", data)
	}
	events := plainly(got)
	if !slices.ContainsFunc(want, func(e plain) bool { return e.seq >= 0 }) {
		for i := range events {
			events[i].seq = -1 // from flows
		}
	}
	if len(events) != len(want) {
		t.Fatalf("%d events, encoding/json finds %d", len(events), len(want))
	}
	for i := range want {
		if events[i] != want[i] {
			t.Fatalf("event %d:\ngot  %+v\nwant %+v", i, events[i], want[i])
		}
	}
}

// traces are the recorded traces that come with the project, and the shared one
// where it is.
func traces(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../testdata/traces/*/rank0.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	if file := shared(); file != "" {
		files = append(files, file)
	}
	return files
}

// shared is the path of the shared trace, "" where it is absent.
func shared() string {
	dir := os.Getenv("WEFT_SHARED")
	if dir == "" {
		dir = "../../../shared"
	}
	file := filepath.Join(dir, "data/kineto/resnet50-ddp-2xa100.json.gz")
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

// unzipped reads a gzip file: as it is stored, and what it holds.
func unzipped(t *testing.T, path string) (stored, data []byte) {
	t.Helper()
	stored, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(stored))
	if err != nil {
		t.Fatal(err)
	}
	if data, err = io.ReadAll(r); err != nil {
		t.Fatal(err)
	}
	return stored, data
}

func TestReadRecorded(t *testing.T) {
	files := traces(t)
	if len(files) == 0 {
		t.Fatal("no recorded traces in testdata/traces")
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file), func(t *testing.T) {
			z, data := unzipped(t, file)
			if _, err := Read(context.Background(), bytes.NewReader(z), ReadOptions{Name: file}); err != nil {
				t.Fatal(err)
			}
			compare(t, data)
		})
	}
}

// The counts were taken from the shared trace with ten lines of Python.
func TestReadShared(t *testing.T) {
	tr := load(t, resnet50(t))
	got := map[string]int{"names": len(tr.Names), "rows": len(tr.Rows)}
	for _, e := range tr.Events {
		got[fmt.Sprint("category ", e.Cat)]++
		if e.Extra >= 0 && tr.Extras[e.Extra].Collective == "allreduce" {
			got["allreduce"]++
		}
	}
	want := map[string]int{
		"category 0": 14346, "category 1": 42, "category 2": 8740, "category 3": 2700, "category 4": 960,
		"category 5": 114, "category 6": 30, "names": 189, "rows": 5, "allreduce": 30,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if want := map[string]int{"fwdbwd flow": 1086, "ac2g flow": 12514, "Trace": 1, "instant": 2, "metadata": 38}; !reflect.DeepEqual(tr.Dropped, want) {
		t.Errorf("dropped %v, want %v", tr.Dropped, want)
	}
	if tr.Backend != "nccl" || tr.Rank != 0 || tr.World != 2 || !tr.Kineto {
		t.Errorf("backend %s, rank %d of %d, Kineto %v", tr.Backend, tr.Rank, tr.World, tr.Kineto)
	}
	if e := tr.Events[0]; e.Start < 4458676388068_751 || !slices.IsSortedFunc(tr.Events, func(a, b Event) int { return cmp.Compare(a.Start, b.Start) }) {
		t.Errorf("not sorted, or starts before the profiler: %+v", e)
	}
	launched := map[uint32]int64{}
	least := int64(math.MaxInt64)
	for _, e := range tr.Events {
		if start, ok := launched[e.Corr]; ok && e.Cat >= Kernel && e.Cat <= Memset {
			least = min(least, e.Start-start)
		} else if e.Cat == Runtime && e.Corr != 0 {
			launched[e.Corr] = e.Start
		}
	}
	t.Logf("device ops start %.3f us after their launch or later", float64(least)/1000)
	if least < 7400 || least > 7600 { // by the same Python 7.495 us
		t.Errorf("a device op starts %d ns after its launch", least)
	}
}

// Any values may stand where Kineto writes numbers, strings and arrays.
func TestReadLikeEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space := rapid.SampledFrom([]string{"", " ", "\n  "})
		value := rapid.SampledFrom([]string{
			"null", "true", "0", "-1", "1.5", "7e2", "4294967295", "4294967297", "9223372036854775808", `""`, `"X"`, `"7"`, `"a\\"`, `"\u00e9\"]}"`,
			"[]", "[[]]", "[1,2]", "[[1,2],[],[[3],[4,5]]]", `[[1,"2"],"x",[null]]`, `["float",7]`, "{}", `{"ts":1,"a":[{}]}`,
		})
		number := rapid.Map(rapid.IntRange(0, 9999), func(n int) string { return fmt.Sprint(float64(n) / 8) })
		object := func(members map[string]*rapid.Generator[string]) string {
			var b strings.Builder
			b.WriteString("{")
			for i, name := range rapid.Permutation(slices.Sorted(maps.Keys(members))).Draw(t, "order") {
				if i > 0 {
					b.WriteString(",")
				}
				fmt.Fprintf(&b, "%s%q%s:%s%s%s", space.Draw(t, "space"), name, space.Draw(t, "space"), space.Draw(t, "space"), members[name].Draw(t, name), space.Draw(t, "space"))
			}
			b.WriteString("}")
			return b.String()
		}
		var events []string
		for range rapid.IntRange(1, 5).Draw(t, "events") {
			mostly := func(g *rapid.Generator[string]) *rapid.Generator[string] {
				return rapid.OneOf(g, g, g, g, g, g, g, g, g, value)
			}
			quoted := func(words ...string) *rapid.Generator[string] {
				return mostly(rapid.Map(rapid.SampledFrom(words), func(s string) string { return fmt.Sprintf("%q", s) }))
			}
			args := object(map[string]*rapid.Generator[string]{
				"correlation": value, "bytes": value, "Sequence number": value, "Input Dims": value, "Input type": value, "External id": value,
			})
			events = append(events, object(map[string]*rapid.Generator[string]{
				"ph": quoted("X", "X", "X", "M"), "cat": quoted("cpu_op", "gpu_memcpy", "overhead", ""), "name": quoted("a", "b\\"),
				"pid": value, "tid": value, "ts": mostly(number), "dur": mostly(number), "args": mostly(rapid.Just(args)),
			}))
		}
		text := "[" + strings.Join(events, ",") + "]"
		if rapid.Bool().Draw(t, "object") {
			text = `{"a":[[]],"traceEvents":` + text + `}`
		}
		compare(t, []byte(text))
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(`[{"ph":"X","name":"a","ts":1.5,"dur":2,"pid":"p","tid":1}]`))
	f.Add([]byte(`{"traceEvents":[{"ph":"X","cat":"kernel","name":"\u00e9","ts":1e3,"dur":2,"args":{"correlation":1,"Input Dims":[[1],[]]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if !utf8.Valid(data) { // the two decoders repair it differently
			_, _ = Read(context.Background(), bytes.NewReader(data), ReadOptions{})
			return
		}
		compare(t, data)
	})
}

func TestStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.Int64Range(-maxTime, maxTime)
		want := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Event {
			return Event{
				Start: ns.Draw(t, "start"), Dur: ns.Draw(t, "dur"), Name: rapid.Uint32().Draw(t, "name"), Corr: rapid.Uint32().Draw(t, "corr"),
				Seq: rapid.Int32().Draw(t, "seq"), Extra: rapid.Int32().Draw(t, "extra"), Row: rapid.Uint16().Draw(t, "row"),
				Cat: Category(rapid.Uint8().Draw(t, "cat")), order: rapid.Uint32().Draw(t, "order"),
			}
		})).Draw(t, "events")
		var s store
		for _, e := range want {
			s.add(e)
		}
		if got := s.take(); !slices.Equal(got, want) {
			t.Fatalf("got %v", got)
		}
	})
	var s store // over several blocks
	for i := range 100_000 {
		s.add(Event{Start: int64(i) * 1e12, order: uint32(i)})
	}
	for i, e := range s.take() {
		if e.order != uint32(i) || e.Start != int64(i)*1e12 {
			t.Fatalf("event %d: got %+v", i, e)
		}
	}
}
