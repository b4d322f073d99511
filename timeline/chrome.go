package timeline

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weft/internal/near"
	"weft/job"
)

// The Chrome trace form of a timeline; docs/timeline.md describes it field by
// field. Viewers require that spans of one thread nest, and draw them wrong
// otherwise. Transfers in flight together therefore go to tracks of their own,
// and the queue of a link, where any number wait together, is a track of
// asynchronous events.

// Format is what a timeline's file says that it is, in otherData.format.
const Format = "weft timeline"

const chromeVersion = 1

// header is the otherData of the file: all that its events refer to.
type header struct {
	Format  string       `json:"format"`
	Version int          `json:"version"`
	Name    string       `json:"name"`
	Ranks   []headerRank `json:"ranks"`
	Lanes   []headerLane `json:"lanes"`
}

type headerRank struct {
	Rank   int   `json:"rank"`
	Stands []int `json:"stands,omitempty"`
}

type headerLane struct {
	Name string   `json:"name"`
	Kind LaneKind `json:"kind"`
	// TIDs are the threads that show the lane: one, and more where transfers
	// overlap. The same on every rank.
	TIDs []int64 `json:"tids"`
}

// WriteChrome writes t in Chrome's Trace Event Format, which Perfetto and
// chrome://tracing open: a process a rank, a thread a lane, times in
// microseconds to the nanosecond. Bytes of names that are not UTF-8 are
// replaced. It fails if t is not valid or w fails.
func WriteChrome(w io.Writer, t *Timeline) error {
	if err := t.Validate(); err != nil {
		return err
	}
	track, count := t.pack(func(s *Span) bool { return s.Kind != Queued })
	h := header{Format: Format, Version: chromeVersion, Name: t.Name,
		Ranks: make([]headerRank, len(t.Ranks)), Lanes: make([]headerLane, len(t.Lanes))}
	// Threads are numbered from beyond the last rank: viewers take a thread with
	// the number of its process for the main one and show it first.
	tid := int64(0)
	for i, r := range t.Ranks {
		h.Ranks[i] = headerRank(r)
		tid = max(tid, int64(r.Rank)+1)
	}
	iterations := tid
	for i, l := range t.Lanes {
		h.Lanes[i] = headerLane{Name: l.Name, Kind: l.Kind}
		tracks := 1
		for row := i; row < len(count); row += len(t.Lanes) {
			tracks = max(tracks, count[row])
		}
		for range tracks {
			tid++
			h.Lanes[i].TIDs = append(h.Lanes[i].TIDs, tid)
		}
	}
	head, err := json.Marshal(h, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return fmt.Errorf("timeline: header: %w", err)
	}
	c := chromeWriter{w: bufio.NewWriterSize(w, 1<<16)}
	c.w.WriteString(`{"displayTimeUnit":"ms","otherData":`)
	c.w.Write(head)
	c.w.WriteString(`,"traceEvents":[`)
	c.metadata(t, &h, iterations, count)
	for i := 1; i < len(t.Iterations); i++ {
		c.begin("X", t.Ranks[0].Rank, iterations, t.Iterations[i-1])
		c.duration(t.Iterations[i-1], t.Iterations[i])
		c.name("iteration "+strconv.Itoa(i-1), "iteration")
		c.end()
	}
	c.spans(t, &h, track)
	c.w.WriteString("\n]}\n")
	return c.w.Flush()
}

// chromeWriter appends events; an error of w stays until Flush reports it.
type chromeWriter struct {
	w     *bufio.Writer
	b     []byte // the event being built
	comma bool
}

func (c *chromeWriter) metadata(t *Timeline, h *header, iterations int64, count []int) {
	meta := func(what string, rank int, tid int64, key string, value any) {
		c.head("M", rank, tid)
		c.string(`,"name":`, what)
		c.string(`,"args":{`, key)
		c.b = append(c.b, ':')
		switch v := value.(type) {
		case string:
			c.string("", v)
		case int64:
			c.b = strconv.AppendInt(c.b, v, 10)
		}
		c.b = append(c.b, '}')
		c.end()
	}
	thread := func(rank int, tid int64, name string) {
		meta("thread_name", rank, tid, "name", name)
		meta("thread_sort_index", rank, tid, "sort_index", tid)
	}
	for i, r := range t.Ranks {
		meta("process_name", r.Rank, iterations, "name", r.title())
		meta("process_sort_index", r.Rank, iterations, "sort_index", int64(r.Rank))
		if i == 0 && len(t.Iterations) > 0 {
			thread(r.Rank, iterations, "iterations")
		}
		for j, l := range h.Lanes {
			for k := range max(1, count[i*len(h.Lanes)+j]) {
				name := l.Name
				if k > 0 {
					name += " (" + strconv.Itoa(k+1) + ")"
				}
				thread(r.Rank, l.TIDs[k], name)
			}
		}
	}
}

// title names a rank for a reader: "rank 0 (and 15 alike)".
func (r Rank) title() string {
	s := "rank " + strconv.Itoa(r.Rank)
	if n := r.Weight(); n > 1 {
		s += " (and " + strconv.Itoa(n-1) + " alike)"
	}
	return s
}

func (c *chromeWriter) spans(t *Timeline, h *header, track []int32) {
	flows := make([]int32, len(t.Flows))
	for i := range flows {
		flows[i] = int32(i)
	}
	in, out := flows, slices.Clone(flows)
	slices.SortStableFunc(in, func(a, b int32) int { return cmp.Compare(t.Flows[a].To, t.Flows[b].To) })
	slices.SortStableFunc(out, func(a, b int32) int { return cmp.Compare(t.Flows[a].From, t.Flows[b].From) })
	for i := range t.Spans {
		s := &t.Spans[i]
		rank, tids := t.Ranks[s.Rank].Rank, h.Lanes[s.Lane].TIDs
		if s.Kind == Queued {
			for _, half := range []struct {
				ph string
				at float64
			}{{"b", s.Start}, {"e", s.End}} {
				c.begin(half.ph, rank, tids[0], half.at)
				c.id(i)
				c.name(h.Lanes[s.Lane].Name+" queue", "queued")
				if half.ph == "b" {
					c.args(s)
				}
				c.end()
			}
			continue
		}
		tid := tids[track[i]]
		c.begin("X", rank, tid, s.Start)
		c.duration(s.Start, s.End)
		c.name(s.Name, s.Kind.String())
		c.args(s)
		c.end()
		// The ends of arrows bind to the span before them in the file.
		for ; len(in) > 0 && int(t.Flows[in[0]].To) == i; in = in[1:] {
			c.flow("f", rank, tid, s, t, int(in[0]))
		}
		for ; len(out) > 0 && int(t.Flows[out[0]].From) == i; out = out[1:] {
			c.flow("s", rank, tid, s, t, int(out[0]))
		}
	}
}

func (c *chromeWriter) flow(ph string, rank int, tid int64, s *Span, t *Timeline, i int) {
	c.begin(ph, rank, tid, s.Start)
	c.id(i)
	name := "update"
	if t.Spans[t.Flows[i].To].Kind == Transfer {
		name = "gradient"
	}
	c.name(name, "flow")
	if ph == "f" {
		c.b = append(c.b, `,"bp":"e"`...)
	}
	c.end()
}

// head, begin and end frame an event. Its time comes before its name: some
// viewers look for it there and stop at escapes in names.
func (c *chromeWriter) head(ph string, pid int, tid int64) {
	if c.comma {
		c.b = append(c.b, ',')
	}
	c.comma = true
	c.b = append(c.b, "\n{\"ph\":\""...)
	c.b = append(c.b, ph...)
	c.b = append(c.b, `","pid":`...)
	c.b = strconv.AppendInt(c.b, int64(pid), 10)
	c.b = append(c.b, `,"tid":`...)
	c.b = strconv.AppendInt(c.b, tid, 10)
}

func (c *chromeWriter) begin(ph string, pid int, tid int64, at float64) {
	c.head(ph, pid, tid)
	c.b = append(c.b, `,"ts":`...)
	c.b = appendTicks(c.b, ticks(at))
}

func (c *chromeWriter) end() {
	c.b = append(c.b, '}')
	c.w.Write(c.b)
	c.b = c.b[:0]
}

func (c *chromeWriter) duration(start, end float64) {
	c.b = append(c.b, `,"dur":`...)
	c.b = appendTicks(c.b, ticks(end)-ticks(start))
}

func (c *chromeWriter) id(i int) {
	c.b = append(c.b, `,"id":"0x`...)
	c.b = strconv.AppendInt(c.b, int64(i), 16)
	c.b = append(c.b, '"')
}

func (c *chromeWriter) name(name, category string) {
	c.string(`,"name":`, name)
	c.b = append(c.b, `,"cat":"`...)
	c.b = append(c.b, category...)
	c.b = append(c.b, '"')
}

func (c *chromeWriter) args(s *Span) {
	c.b = append(c.b, `,"args":{"iteration":`...)
	c.b = strconv.AppendInt(c.b, int64(s.Iteration), 10)
	switch s.Kind {
	case Compute:
		c.b = append(c.b, `,"phase":"`...)
		c.b = append(c.b, job.Phase(s.Phase).String()...)
		c.b = append(c.b, '"')
	case Transfer, Queued:
		c.b = append(c.b, `,"bucket":`...)
		c.b = strconv.AppendInt(c.b, int64(s.Bucket), 10)
		c.b = append(c.b, `,"bytes":`...)
		c.b = strconv.AppendInt(c.b, s.Bytes, 10)
		if s.Tensors != "" {
			c.string(`,"tensors":`, s.Tensors)
		}
	}
	if s.Kind == Queued {
		c.string(`,"name":`, s.Name)
	}
	c.b = append(c.b, '}')
}

func (c *chromeWriter) string(before, s string) {
	c.b = append(c.b, before...)
	c.b, _ = jsontext.AppendQuote(c.b, s) // the error only tells that bytes were replaced
}

// appendTicks writes nanoseconds as microseconds, without rounding.
func appendTicks(b []byte, ns int64) []byte {
	if ns < 0 {
		b, ns = append(b, '-'), -ns
	}
	b = strconv.AppendInt(b, ns/1000, 10)
	if ns%1000 == 0 {
		return b
	}
	b = append(b, '.', byte('0'+ns/100%10), byte('0'+ns/10%10), byte('0'+ns%10))
	for b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	return b
}

// ReadChrome reads what [WriteChrome] wrote; decompression is the caller's.
// Errors name the byte where they were found. Memory is proportional to the
// size of the input.
func ReadChrome(r io.Reader) (*Timeline, error) {
	c := chromeReader{d: jsontext.NewDecoder(r), t: &Timeline{}}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c.t, nil
}

type chromeReader struct {
	d     *jsontext.Decoder
	t     *Timeline
	known bool            // the header was read
	ranks map[int64]int32 // by pid: position in Ranks
	lanes map[int64]int32 // by tid: position in Lanes

	last     event // the event of the last span that arrows can end at
	lastSpan int32
	flows    map[string]half // by id: flows of which one end was read
	queued   map[string]half // by id: spans whose end was not read
}

// half is the first of two events that belong together.
type half struct {
	span int32
	ph   string
	at   int64
}

type event struct {
	PH   string  `json:"ph"`
	PID  int64   `json:"pid"`
	TID  int64   `json:"tid"`
	TS   float64 `json:"ts"`
	Dur  float64 `json:"dur"`
	Name string  `json:"name"`
	Cat  string  `json:"cat"`
	ID   string  `json:"id"`
	Args struct {
		Iteration int32     `json:"iteration"`
		Phase     job.Phase `json:"phase"`
		Bucket    int32     `json:"bucket"`
		Bytes     int64     `json:"bytes"`
		Name      string    `json:"name"`
		Tensors   string    `json:"tensors"`
	} `json:"args"`
}

func (c *chromeReader) read() error {
	if c.d.PeekKind() != '{' {
		if _, err := c.d.ReadToken(); err != nil {
			return c.syntax(err)
		}
		return c.fail(0, "not a weft timeline: it is not a JSON object")
	}
	c.d.ReadToken()
	events := false
	for c.d.PeekKind() == '"' {
		key, err := c.d.ReadToken()
		if err != nil {
			return c.syntax(err)
		}
		name, at := key.String(), c.d.InputOffset()
		switch {
		case name == "otherData":
			err = c.header(at)
		case name == "traceEvents" && !c.known:
			return c.fail(at, "not a weft timeline: no otherData before traceEvents")
		case name == "traceEvents":
			events = true
			err = c.events(at)
		default:
			err = c.syntax(c.d.SkipValue())
		}
		if err != nil {
			return err
		}
	}
	if _, err := c.d.ReadToken(); err != nil { // }
		return c.syntax(err)
	}
	at := c.d.InputOffset()
	if _, err := c.d.ReadToken(); err == nil {
		return c.fail(at, "more data after the end of the timeline")
	} else if err != io.EOF {
		return c.syntax(err)
	}
	if !events {
		return c.fail(at, "not a weft timeline: no traceEvents")
	}
	c.t.Sort()
	return c.t.Validate()
}

// header reads otherData and checks it by itself.
func (c *chromeReader) header(at int64) error {
	var h header
	if err := json.UnmarshalDecode(c.d, &h); err != nil {
		return c.syntax(err)
	}
	if h.Format != Format {
		return c.fail(at, "not a weft timeline: otherData.format is %q, not %q", h.Format, Format)
	}
	if h.Version != chromeVersion {
		return c.fail(at, "version %d of the format; this program reads version %d", h.Version, chromeVersion)
	}
	c.known = true
	c.t.Name = h.Name
	c.ranks, c.lanes = map[int64]int32{}, map[int64]int32{}
	c.flows, c.queued = map[string]half{}, map[string]half{}
	for i, r := range h.Ranks {
		c.t.Ranks = append(c.t.Ranks, Rank(r))
		c.ranks[int64(r.Rank)] = int32(i)
	}
	for i, l := range h.Lanes {
		c.t.Lanes = append(c.t.Lanes, Lane{l.Name, l.Kind})
		for _, tid := range l.TIDs {
			if _, ok := c.lanes[tid]; ok {
				return c.fail(at, "thread %d shows two lanes, the second is %d (%q)", tid, i, l.Name)
			}
			c.lanes[tid] = int32(i)
		}
	}
	if err := c.t.Validate(); err != nil {
		return c.fail(at, "%w", err)
	}
	return nil
}

func (c *chromeReader) events(at int64) error {
	if c.d.PeekKind() != '[' {
		if err := c.d.SkipValue(); err != nil {
			return c.syntax(err)
		}
		return c.fail(at, "traceEvents is not an array")
	}
	c.d.ReadToken()
	for {
		switch c.d.PeekKind() {
		case ']':
			c.d.ReadToken()
			return c.ends()
		case 0:
			_, err := c.d.ReadToken()
			return c.syntax(err)
		}
		e := event{TS: math.NaN(), Dur: math.NaN()}
		e.Args.Bucket = -1
		at := c.d.InputOffset()
		if err := json.UnmarshalDecode(c.d, &e); err != nil {
			return c.syntax(err)
		}
		if err := c.event(&e, at); err != nil {
			return err
		}
	}
}

func (c *chromeReader) event(e *event, at int64) error {
	if e.PH != "M" && !(math.Abs(e.TS) <= MaxTime) {
		return c.fail(at, "event %q has no ts within %g us of 0", e.Name, float64(MaxTime))
	}
	switch {
	case e.PH == "X" && e.Cat == "iteration":
		return c.iteration(e, at)
	case e.PH == "X":
		return c.span(e, at)
	case e.PH == "b":
		if _, ok := c.queued[e.ID]; ok {
			return c.fail(at, "queued event with id %q begins twice", e.ID)
		}
		c.queued[e.ID] = half{int32(len(c.t.Spans)), e.PH, at}
		e.Name, e.Dur = e.Args.Name, 0
		return c.span(e, at)
	case e.PH == "e":
		b, ok := c.queued[e.ID]
		if !ok {
			return c.fail(at, "queued event with id %q ends and never began", e.ID)
		}
		delete(c.queued, e.ID)
		c.t.Spans[b.span].End = micros(ticks(e.TS))
		return c.check(b.span, at)
	case e.PH == "s", e.PH == "f":
		return c.flow(e, at)
	}
	return nil // metadata and what others added is for viewers
}

func (c *chromeReader) iteration(e *event, at int64) error {
	start, end := micros(ticks(e.TS)), micros(ticks(e.TS)+ticks(e.Dur))
	if n := len(c.t.Iterations); n == 0 {
		c.t.Iterations = append(c.t.Iterations, start)
	} else if start != c.t.Iterations[n-1] {
		return c.fail(at, "%q starts at %v us, but its predecessor ends at %v us", e.Name, start, c.t.Iterations[n-1])
	}
	if !(e.Dur >= 0 && end <= MaxTime) {
		return c.fail(at, "%q has no dur that ends it within %g us of 0", e.Name, float64(MaxTime))
	}
	c.t.Iterations = append(c.t.Iterations, end)
	return nil
}

func (c *chromeReader) span(e *event, at int64) error {
	rank, ok := c.ranks[e.PID]
	if !ok {
		return c.fail(at, "event %q is of process %d, and no rank has that number", e.Name, e.PID)
	}
	lane, ok := c.lanes[e.TID]
	if !ok {
		return c.fail(at, "event %q is on thread %d, and no lane is shown there", e.Name, e.TID)
	}
	kind := slices.Index(spanNames, e.Cat)
	if kind < 0 || (kind == int(Queued)) != (e.PH == "b") {
		return c.fail(at, "event %q of type %q has category %q; known: %v, queued of type b and the others of type X", e.Name, e.PH, e.Cat, spanNames)
	}
	if !(e.Dur >= 0 && e.Dur <= 2*MaxTime) {
		return c.fail(at, "event %q has no dur from 0 to %g us", e.Name, 2*float64(MaxTime))
	}
	s := Span{Rank: rank, Lane: lane, Kind: SpanKind(kind), Name: e.Name, Iteration: e.Args.Iteration, Bucket: -1,
		Start: micros(ticks(e.TS)), End: micros(ticks(e.TS) + ticks(e.Dur))}
	switch s.Kind {
	case Compute:
		s.Phase = uint8(e.Args.Phase)
	case Transfer, Queued:
		s.Bucket, s.Bytes, s.Tensors = e.Args.Bucket, e.Args.Bytes, e.Args.Tensors
	}
	if s.Kind != Queued {
		c.last, c.lastSpan = *e, int32(len(c.t.Spans))
	}
	c.t.Spans = append(c.t.Spans, s)
	return c.check(int32(len(c.t.Spans)-1), at)
}

func (c *chromeReader) check(span int32, at int64) error {
	if why := c.t.span(int(span)); why != "" {
		return c.fail(at, "event %q: %s", c.t.Spans[span].Name, why)
	}
	return nil
}

func (c *chromeReader) flow(e *event, at int64) error {
	if c.last.PH == "" || c.last.PID != e.PID || c.last.TID != e.TID || c.last.TS != e.TS {
		return c.fail(at, "flow event with id %q does not follow the event that it belongs to", e.ID)
	}
	first, ok := c.flows[e.ID]
	switch {
	case !ok:
		c.flows[e.ID] = half{c.lastSpan, e.PH, at}
		return nil
	case first.ph == e.PH:
		return c.fail(at, "flow with id %q has two events of type %q", e.ID, e.PH)
	case e.PH == "f":
		c.t.Flows = append(c.t.Flows, Flow{first.span, c.lastSpan})
	default:
		c.t.Flows = append(c.t.Flows, Flow{c.lastSpan, first.span})
	}
	delete(c.flows, e.ID)
	return nil
}

// ends checks that nothing is left half read.
func (c *chromeReader) ends() error {
	return cmp.Or(c.unpaired("flow", c.flows), c.unpaired("queued event", c.queued))
}

func (c *chromeReader) unpaired(what string, halves map[string]half) error {
	if len(halves) == 0 {
		return nil
	}
	id := slices.MinFunc(slices.Collect(maps.Keys(halves)), func(a, b string) int {
		return cmp.Compare(halves[a].at, halves[b].at)
	})
	return c.fail(halves[id].at, "%s with id %q has no other end", what, id)
}

// micros is the inverse of ticks.
func micros(ns int64) float64 { return float64(ns) / 1000 }

func (c *chromeReader) fail(at int64, format string, args ...any) error {
	return fmt.Errorf("timeline: byte %d: "+format, append([]any{at}, args...)...)
}

// syntax gives an error of the decoder the form of fail.
func (c *chromeReader) syntax(err error) error {
	if err == nil {
		return nil
	}
	at := c.d.InputOffset()
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		at = e.ByteOffset
	} else if e, ok := errors.AsType[*json.SemanticError](err); ok {
		at = e.ByteOffset
	}
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return c.fail(at, "the JSON ends here, too early: the file is truncated; copy or record it again")
	}
	return c.fail(at, "%w", err)
}

// MarshalText and UnmarshalText spell a lane kind as files do.
func (k LaneKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func (k *LaneKind) UnmarshalText(b []byte) (err error) {
	*k, err = near.Parse[LaneKind]("lane kind", string(b), laneNames)
	return err
}
