package timeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func write(t interface{ Fatal(...any) }, tl *Timeline) string {
	var b bytes.Buffer
	if err := WriteChrome(&b, tl); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// viewable checks the rules of the Trace Event Format, and of the viewers that
// read it, that a trace must keep to be shown as it is meant.
func viewable(file string) error {
	type event struct {
		PH, Name, Cat, ID, BP string
		PID, TID              int64
		TS, Dur               *float64
		Args                  map[string]any
	}
	type thread struct{ pid, tid int64 }
	var trace struct{ TraceEvents []event }
	if err := json.Unmarshal([]byte(file), &trace); err != nil {
		return err
	}
	// Perfetto stops reading at a top-level name that it does not know, and wants
	// the unit first.
	if ok, _ := regexp.MatchString(`^\{"displayTimeUnit":"ms","otherData":\{.*\},"traceEvents":\[\n`, file); !ok {
		return fmt.Errorf("top level: %.200s", file)
	}
	for line := range strings.Lines(file) {
		if ts, name := strings.Index(line, `"ts":`), strings.Index(line, `"name":`); strings.HasPrefix(line, `{"ph":`) && ts > name {
			return fmt.Errorf("ts after the name: %s", line)
		}
	}
	ns := func(us *float64) int64 { return int64(math.Round(*us * 1000)) }
	slices := map[thread][]event{} // X events
	pairs := map[string][]event{}  // by cat and id
	named, sorted, shown := map[thread]bool{}, map[thread]bool{}, map[int64]bool{}
	index := map[int64]float64{} // by pid: last sort_index
	body := false
	for i, e := range trace.TraceEvents {
		at := thread{e.PID, e.TID}
		fail := func(what string) error { return fmt.Errorf("event %d (%+v): %s", i, e, what) }
		if e.PH != "M" && e.TS == nil {
			return fail("no ts")
		}
		if e.PH != "M" {
			body = true
		} else if body {
			return fail("metadata after the first event")
		}
		switch e.PH {
		case "M":
			switch e.Name {
			case "process_name":
				shown[e.PID] = e.Args["name"] != ""
			case "thread_name":
				if named[at] {
					return fail("named twice")
				}
				named[at] = true
			case "thread_sort_index":
				n := e.Args["sort_index"].(float64)
				if last, ok := index[e.PID]; ok && n <= last {
					return fail("sort index does not ascend")
				}
				index[e.PID] = n
				sorted[at] = true
			case "process_sort_index":
			default:
				return fail("unknown metadata")
			}
		case "X":
			if e.Dur == nil || *e.Dur < 0 {
				return fail("no duration")
			}
			slices[at] = append(slices[at], e)
		case "b", "e", "s", "f":
			if e.ID == "" || e.Name == "" {
				return fail("no id or name")
			}
			if _, err := strconv.ParseUint(e.ID, 0, 64); err != nil {
				return fail("id is not a number")
			}
			if e.PH == "f" && e.BP != "e" {
				return fail("an arrow that does not end at the span around it")
			}
			if last := slices[at]; e.PH == "s" || e.PH == "f" {
				if len(last) == 0 || ns(last[len(last)-1].TS) != ns(e.TS) {
					return fail("an arrow without a span")
				}
			}
			key := e.Cat + " " + e.ID
			pairs[key] = append(pairs[key], e)
		default:
			return fail("unexpected type")
		}
		if !shown[e.PID] && e.PH != "M" {
			return fail("process without name")
		}
	}
	for at, events := range slices {
		if !named[at] || !sorted[at] {
			return fmt.Errorf("thread %v has no name or sort index", at)
		}
		if at.pid == at.tid || shown[at.tid] {
			return fmt.Errorf("thread %v has the number of a process", at)
		}
		// Events are in order of ts; each ends before the next starts or contains it.
		var stack []int64
		last := int64(math.MinInt64)
		for _, e := range events {
			start, end := ns(e.TS), ns(e.TS)+ns(e.Dur)
			if start < last {
				return fmt.Errorf("thread %v: %+v is out of order", at, e)
			}
			last = start
			for len(stack) > 0 && stack[len(stack)-1] <= start {
				stack = stack[:len(stack)-1]
			}
			if len(stack) > 0 && stack[len(stack)-1] < end {
				return fmt.Errorf("thread %v: %+v does not nest", at, e)
			}
			stack = append(stack, end)
		}
	}
	for key, p := range pairs {
		if len(p) != 2 || p[0].Name != p[1].Name || p[0].PH+p[1].PH == p[1].PH+p[0].PH ||
			!strings.Contains("be sf fs", p[0].PH+p[1].PH) {
			return fmt.Errorf("pair %s: %+v", key, p)
		}
		if p[0].PH == "b" && *p[1].TS < *p[0].TS {
			return fmt.Errorf("pair %s ends before it begins: %+v", key, p)
		}
	}
	return nil
}

func TestChromeRX(t *testing.T) {
	file := write(t, rx(0, 1, 2, 3))
	if err := viewable(file); err != nil {
		t.Error(err)
	}
	for _, line := range []string{
		`{"ph":"M","pid":0,"tid":1,"name":"process_name","args":{"name":"rank 0 (and 3 alike)"}}`,
		`{"ph":"M","pid":0,"tid":2,"name":"thread_name","args":{"name":"gpu"}}`,
		`{"ph":"X","pid":0,"tid":1,"ts":0,"dur":38,"name":"iteration 0","cat":"iteration"}`,
		`{"ph":"X","pid":0,"tid":2,"ts":0,"dur":8,"name":"b4","cat":"compute","args":{"iteration":0,"phase":"backward"}}`,
		`{"ph":"X","pid":0,"tid":3,"ts":8,"dur":9,"name":"ar4","cat":"transfer","args":{"iteration":0,"bucket":0,"bytes":7}}`,
		`{"ph":"b","pid":0,"tid":3,"ts":10,"id":"0x4","name":"10Gbit queue","cat":"queued","args":{"iteration":0,"bucket":1,"bytes":3,"name":"ar3"}}`,
		`{"ph":"e","pid":0,"tid":3,"ts":17,"id":"0x4","name":"10Gbit queue","cat":"queued"}`,
		`{"ph":"f","pid":0,"tid":3,"ts":8,"id":"0x0","name":"gradient","cat":"flow","bp":"e"}`,
		`{"ph":"s","pid":0,"tid":3,"ts":26,"id":"0x4","name":"update","cat":"flow"}`,
	} {
		if !strings.Contains(file, "\n"+line) {
			t.Errorf("no line %s in\n%s", line, file)
		}
	}
	got, err := ReadChrome(iotest.OneByteReader(strings.NewReader(file)))
	if err != nil || !reflect.DeepEqual(got, rx(0, 1, 2, 3)) {
		t.Errorf("read back: %v\n got %+v\nwant %+v", err, got, rx(0, 1, 2, 3))
	}
}

// Two transfers in flight at once: the link has two threads.
func TestChromeInFlight(t *testing.T) {
	tl := rx()
	tl.Spans = slices.Insert(tl.Spans, 4, Span{Lane: 1, Kind: Transfer, Name: "ar9", Start: 10, End: 18, Bucket: 9})
	tl.Flows = nil
	file := write(t, tl)
	if err := viewable(file); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		`"tids":[3,4]`,
		`"tid":4,"name":"thread_name","args":{"name":"10Gbit (2)"}`,
		`"tid":4,"ts":10,"dur":8,"name":"ar9"`,
		`"tid":3,"ts":17,"dur":5,"name":"ar3"`, // the first thread is free again
	} {
		if !strings.Contains(file, want) {
			t.Errorf("no %s in\n%s", want, file)
		}
	}
}

// The checks of viewable find what they look for.
func TestViewable(t *testing.T) {
	file := write(t, rx())
	for _, c := range []struct{ old, new, want string }{
		{`"ts":33,"dur":1`, `"ts":32,"dur":2`, "does not nest"}, // f2 runs from 31 to 33
		{`"ts":26,"id":"0x4","name":"update"`, `"ts":26,"id":"0x5","name":"update"`, "pair flow"},
		{`"ts":8,"id":"0x0","name":"gradient","cat":"flow","bp":"e"`, `"ts":8,"id":"0x0","name":"gradient","cat":"flow"`, "does not end at"},
		{`"sort_index":3`, `"sort_index":1`, "does not ascend"},
		{`"tid":2,"name":"thread_name"`, `"tid":9,"name":"thread_name"`, "no name"},
		{`"ts":17,"id":"0x4"`, `"ts":9,"id":"0x4"`, "ends before"},
		{`"otherData"`, `"other"`, "top level"},
	} {
		if err := viewable(strings.Replace(file, c.old, c.new, 1)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s instead of %s: got error %v, want %q", c.new, c.old, err, c.want)
		}
	}
}

func TestChromeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := timelines().Draw(t, "timeline")
		file := write(t, tl)
		if err := viewable(file); err != nil {
			t.Fatalf("%v in\n%s", err, file)
		}
		got, err := ReadChrome(strings.NewReader(file))
		if err != nil {
			t.Fatalf("%v in\n%s", err, file)
		}
		if len(got.Spans) == 0 {
			got.Spans = tl.Spans // nil and empty are the same
		}
		if !reflect.DeepEqual(got, tl) {
			t.Fatalf("\n got %+v\nwant %+v", got, tl)
		}
	})
}

// Times are kept to the nanosecond, however far from the origin.
func TestChromeResolution(t *testing.T) {
	for _, us := range []float64{0, 0.001, 0.1, 0.3, 1.0005, 12345.678, 999999999999.999, -0.001, -7.25, MaxTime, -MaxTime} {
		tl := &Timeline{Ranks: []Rank{{}}, Lanes: []Lane{{"gpu", Device}}, Spans: []Span{{Name: "op", Start: us, End: us, Bucket: -1}}}
		got, err := ReadChrome(strings.NewReader(write(t, tl)))
		if err != nil || math.Abs(got.Spans[0].Start-us) > 0.000_51 || got.Spans[0].End != got.Spans[0].Start {
			t.Errorf("%v us: read %+v, %v", us, got, err)
		}
	}
}

// Spans shorter than the resolution do not come to overlap by rounding.
func TestChromeShortSpans(t *testing.T) {
	tl := &Timeline{Ranks: []Rank{{}}, Lanes: []Lane{{"gpu", Device}}}
	for i := range 50 {
		tl.Spans = append(tl.Spans, Span{Name: "op", Start: float64(i) * 0.0006, End: float64(i+1) * 0.0006, Bucket: -1})
	}
	file := write(t, tl)
	if err := viewable(file); err != nil {
		t.Error(err)
	}
	if !strings.Contains(file, `"kind":"device","tids":[2]`) {
		t.Errorf("more than one thread in\n%s", file)
	}
	got, err := ReadChrome(strings.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(got.Spans); i++ {
		if a, b := got.Spans[i-1], got.Spans[i]; a.End > b.Start {
			t.Errorf("span %d ends at %v, after the next starts at %v", i-1, a.End, b.Start)
		}
	}
}

func TestReadChromeErrors(t *testing.T) {
	good := write(t, rx())
	for _, c := range []struct{ old, new, want string }{
		// The error names a byte on the line of new, or after it where the file is cut.
		{good, "", "ends here, too early"},
		{good, "[]", "not a weft timeline"},
		{good, `{"traceEvents":[]}`, "no otherData before traceEvents"},
		{`"traceEvents"`, `"events"`, "no traceEvents"},
		{`"weft timeline"`, `"other"`, `otherData.format is "other"`},
		{`"version":1`, `"version":7`, "version 7 of the format; this program reads version 1"},
		{`"rank":0`, `"rank":-3`, "rank -3 (position 0) is not within 0 to"},
		{`"rank":0`, `"rank":0,"stands":[1]`, "is not among the ranks [1]"},
		{`"kind":"device"`, `"kind":"gpu"`, `unknown lane kind "gpu"`},
		{`"tids":[3]`, `"tids":[2]`, "thread 2 shows two lanes"},
		{`"cat":"compute"`, `"cat":"magic"`, `category "magic"`},
		{`"phase":"backward"`, `"phase":"sideward"`, "sideward"},
		{`"ts":8,"dur":2`, `"ts":8,"dur":-2`, "no dur from 0"},
		{`"ts":8,"dur":2`, `"ts":8`, "no dur from 0"},
		{`"ts":8,"dur":2`, `"dur":2`, "no ts within"},
		{`"ts":8,"dur":2`, `"ts":1e13,"dur":2`, "no ts within"},
		{`"ts":8,"dur":2`, `"ts":8,"dur":1e12`, "lie within"},
		{`"ts":8,"dur":2`, `"ts":8,"ts":8,"dur":2`, "duplicate"},
		{`"ts":8,"dur":2`, `"ts":8,"dur":"2"`, "dur"},
		{`"pid":0,"tid":2,"ts":8`, `"pid":4,"tid":2,"ts":8`, "is of process 4, and no rank has that number"},
		{`"pid":0,"tid":2,"ts":8`, `"pid":0,"tid":9,"ts":8`, "is on thread 9, and no lane is shown there"},
		{`"pid":0,"tid":3,"ts":8,"dur":9`, `"pid":0,"tid":2,"ts":8,"dur":9`, "transfers belong on links"},
		{`"bucket":1,"bytes":3`, `"bucket":-2,"bytes":3`, "of bucket -2"},
		{`"iteration":0,"bucket":1`, `"iteration":3000000000,"bucket":1`, "iteration"},
		{`{"ph":"s","pid":0,"tid":2,"ts":8`, `{"ph":"s","pid":0,"tid":2,"ts":9`, "does not follow the event"},
		{`{"ph":"s","pid":0,"tid":2,"ts":8`, `{"ph":"t","pid":0,"tid":2,"ts":8`, `flow with id "0x1" has no other end`},
		{`"ts":8,"id":"0x1"`, `"ts":8,"id":"0x0"`, `flow with id "0x0" has two events of type "s"`},
		{`{"ph":"e","pid":0,"tid":3,"ts":17`, `{"ph":"n","pid":0,"tid":3,"ts":17`, `queued event with id "0x4" has no other end`},
		{`{"ph":"b","pid":0,"tid":3,"ts":10`, `{"ph":"n","pid":0,"tid":3,"ts":10`, "ends and never began"},
		{`"ts":17,"id":"0x4"`, `"ts":9,"id":"0x4"`, "must not end before it starts"},
		{"\n]}\n", "\n]}\n{}", "more data"},
		{"\n]}\n", "\n]", "ends here, too early"},
		{`"ts":8,"dur":2`, `"ts":08,"dur":2`, "invalid character"},
		{`"name":"b3"`, "\"name\":\"b3\x01\"", "invalid"},
	} {
		bad := strings.Replace(good, c.old, c.new, 1)
		_, err := ReadChrome(strings.NewReader(bad))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.50q instead of %.50q: got error %v, want %q", c.new, c.old, err, c.want)
			continue
		}
		var at int
		if _, err := fmt.Sscanf(err.Error(), "timeline: byte %d:", &at); err != nil || at > len(bad) {
			t.Errorf("%.50q: no byte within the file in %v", c.new, err)
		}
	}
	// Cut anywhere it fails, and says where.
	for n := range len(good) - 1 {
		if _, err := ReadChrome(strings.NewReader(good[:n])); err == nil || !strings.Contains(err.Error(), "the file is truncated") {
			t.Errorf("cut at byte %d: got error %v, want that it is truncated", n, err)
		}
	}
	broken := errors.New("disk on fire")
	if _, err := ReadChrome(io.MultiReader(strings.NewReader(good[:2000]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}

// An error names the event: byte offsets lie on its line or at the end of the
// line before.
func TestReadChromeErrorOffset(t *testing.T) {
	good := write(t, rx())
	bad := strings.Replace(good, `"name":"b2","cat":"compute"`, `"name":"b2","cat":"magic"`, 1)
	line := strings.LastIndex(bad[:strings.Index(bad, "magic")], "\n")
	_, err := ReadChrome(strings.NewReader(bad))
	var at int
	fmt.Sscanf(err.Error(), "timeline: byte %d:", &at)
	if at < line-1 || at > line+1 {
		t.Errorf("event at byte %d, got %v", line, err)
	}
}

func TestWriteChromeErrors(t *testing.T) {
	for _, c := range []struct {
		break_ func(*Timeline)
		want   string
	}{
		{func(t *Timeline) { t.Spans[3].Start = math.NaN() }, `span 3 ("b2"`},
		{func(t *Timeline) { t.Spans[3].End = math.Inf(1) }, "within 1e+12 us"},
		{func(t *Timeline) { t.Spans[3].End = 1 }, "must not end before it starts"},
		{func(t *Timeline) { t.Spans[3].Rank = 1 }, "no rank at position 1, there are 1"},
		{func(t *Timeline) { t.Spans[3].Lane = -1 }, "no lane -1, there are 2"},
		{func(t *Timeline) { t.Spans[3].Lane = 1 }, "a compute span on lane 1"},
		{func(t *Timeline) { t.Spans[3].Kind = 9 }, "unknown kind 9"},
		{func(t *Timeline) { t.Spans[3].Phase = 9 }, "unknown phase 9"},
		{func(t *Timeline) { t.Spans[2].Bytes = -1 }, "-1 bytes"},
		{func(t *Timeline) { t.Spans[3].Start = 1 }, "out of order"},
		{func(t *Timeline) { t.Flows[0].To = 99 }, "flow 0: no span 99, there are 16"},
		{func(t *Timeline) { t.Flows[0].To = 4 }, `span 4 ("ar3") is queued`},
		{func(t *Timeline) { t.Iterations[1] = -1 }, "boundary 1 of iterations is at -1 us"},
		{func(t *Timeline) { t.Iterations = t.Iterations[:1] }, "1 iteration boundaries"},
		{func(t *Timeline) { t.Ranks = append(t.Ranks, Rank{}) }, "rank 0 appears twice"},
		{func(t *Timeline) { t.Lanes[0].Kind = 7 }, "unknown kind 7"},
	} {
		tl := rx()
		c.break_(tl)
		var b bytes.Buffer
		if err := WriteChrome(&b, tl); err == nil || !strings.Contains(err.Error(), c.want) || b.Len() > 0 {
			t.Errorf("got error %v and %d bytes, want %q and none", err, b.Len(), c.want)
		}
	}
	if err := WriteChrome(brokenWriter{}, rx()); err == nil {
		t.Error("no error from a writer that fails")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// Names are made valid UTF-8, and nothing else changes.
func TestChromeInvalidUTF8(t *testing.T) {
	tl := rx()
	tl.Name, tl.Lanes[0].Name, tl.Spans[0].Name = "a\xff", "b\xff", "c\xff"
	got, err := ReadChrome(strings.NewReader(write(t, tl)))
	if err != nil || got.Name != "a\ufffd" || got.Lanes[0].Name != "b\ufffd" || got.Spans[0].Name != "c\ufffd" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzReadChrome(f *testing.F) {
	f.Add([]byte(write(f, rx(0, 1))))
	f.Add([]byte(write(f, rx().Expand())))
	f.Fuzz(func(t *testing.T, data []byte) {
		tl, err := ReadChrome(bytes.NewReader(data))
		if err != nil {
			return
		}
		file := write(t, tl)
		if err := viewable(file); err != nil {
			t.Fatalf("%v in\n%s", err, file)
		}
		again, err := ReadChrome(strings.NewReader(file))
		if err != nil || !reflect.DeepEqual(again, tl) {
			t.Fatalf("read, written and read: %v\n got %+v\nwant %+v", err, again, tl)
		}
		if err := Draw(io.Discard, tl, DrawOptions{Queued: true}); err != nil {
			t.Fatal(err)
		}
		tl.Metrics(0, 1)
	})
}

func BenchmarkWriteChrome(b *testing.B) {
	t := million()
	var n counter
	if err := WriteChrome(&n, t); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		if err := WriteChrome(io.Discard, t); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadChrome(b *testing.B) {
	file := write(b, million())
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadChrome(strings.NewReader(file)); err != nil {
			b.Fatal(err)
		}
	}
}

type counter int64

func (c *counter) Write(b []byte) (int, error) { *c += counter(len(b)); return len(b), nil }
