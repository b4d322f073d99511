package plan

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"weft/cluster"
	"weft/job"
)

// everything is a plan that uses every member of the format.
func everything() *Plan {
	return &Plan{
		Policy: "all \"of\" it", Tensors: "t", Ops: "o", Period: 3,
		Generations: []Generation{{0, 1}, {1, 2}},
		Order:       [][]job.OpID{nil, {2, 0, 1}, {}},
		Copies:      true,
		Buckets:     []Bucket{{[]Slice{{0, 0, 7}, {3, 5, 1}}}, {[]Slice{{1, 0, 1 << 40}}}},
		Programs: []Program{
			{Link: "eth0", Window: Window{Transfers: 2}, Transfers: []Transfer{
				{Kind: cluster.Broadcast, Bucket: -1, Collective: 4, Iteration: -1, Gates: []Gate{{Kind: Boundary}}},
				{Kind: cluster.ReduceScatter, Bucket: 1, Generation: -2, Gates: []Gate{{Kind: GradientReady}, {Kind: OpDone, Op: 0, Iteration: 2}}},
			}},
			{Link: "c10d", Window: Window{Bytes: 1 << 20}, Transfers: []Transfer{
				{Kind: cluster.AllGather, Bucket: 1, Gates: []Gate{{Kind: TransferDone, Link: 0, Transfer: 1}, {Kind: NotBefore, Time: 0.25}}},
				{Kind: cluster.Pull, Bucket: 0, Generation: 1},
			}},
			{Link: "idle"},
		},
		Updates: []Update{{Generation: 1, Tensors: []job.TensorID{0, 2}, At: AtRead, Iteration: 4}, {}},
		Buffers: 2, MaxDelay: 2, MaxStaleness: 3, UpdateRate: 2.0 / 3,
		Notes: []string{"one", "two"},
	}
}

func TestRoundTrip(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, p *Plan) {
		var b bytes.Buffer
		if err := Write(&b, p); err != nil {
			t.Fatalf("%v", err)
		}
		q, err := Read(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		if !reflect.DeepEqual(p, q) {
			t.Fatalf("wrote %+v\nread  %+v\n%s", p, q, b.String())
		}
		if err := Same(p, q); err != nil || p.Digest() != q.Digest() {
			t.Fatalf("the digest changed: %v", err)
		}
	}
	check(t, everything())
	rapid.Check(t, func(rt *rapid.T) {
		d := draw{rt}
		j := d.job()
		if err := j.Validate(); err != nil {
			rt.Fatal(err)
		}
		check(rt, d.plan(j))
	})
}

// TestLayout: a transfer, a bucket, a generation and an update take one line each.
func TestLayout(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, everything()); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`        {"kind":"reduce-scatter","bucket":1,"generation":-2,"gates":[{"kind":"gradient"},{"kind":"op","op":0,"iteration":2}]}`,
		`        {"kind":"all-gather","bucket":1,"generation":0,"gates":[{"kind":"transfer","link":0,"transfer":1},{"kind":"not-before","time":0.25}]},`,
		`        {"kind":"broadcast","collective":4,"iteration":-1,"gates":[{"kind":"boundary","iteration":0}]},`,
		`    {"slices":[{"tensor":0,"offset":0,"length":7},{"tensor":3,"offset":5,"length":1}]},`,
		`    {"first":1,"length":2}`,
		`    {"generation":1,"at":"read","iteration":4,"tensors":[0,2]},`,
		`    null,`,
		`      "window": {"transfers":2},`,
	} {
		if !strings.Contains(b.String(), "\n"+line+"\n") {
			t.Errorf("no line\n%s\nin\n%s", line, b.String())
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	p := everything()
	p.Programs[1].Transfers[0].Bucket = 9
	var b bytes.Buffer
	if err := Write(&b, p); err == nil || b.Len() > 0 {
		t.Errorf("wrote %d bytes, error %v", b.Len(), err)
	}
	if p.Digest() != "" {
		t.Error("a plan that cannot be written has a digest")
	}
}

// TestDigest: the layout of a file does not count, every value does.
func TestDigest(t *testing.T) {
	const a = `{"version":1,"policy":"p","tensors_fingerprint":"f","period":1,"buffers":1,"max_delay":0,"max_staleness":0,"update_rate":1,
		"generations":[{"first":0,"length":1}],"updates":[{"generation":0,"at":"step","iteration":0}],"buckets":[],"programs":[]}`
	const b = `{"programs":[],"buckets":[],"generations":[ {"length":1, "first":0} ],
		"updates":[{"iteration":0,"at":"step","generation":0}],"update_rate":1.0,"max_staleness":0,
		"max_delay":0,"buffers":1,"period":1,"policy":"\u0070","tensors_fingerprint":"f","version":1}`
	p, q := mustRead(t, a), mustRead(t, b)
	if p.Digest() != q.Digest() {
		t.Errorf("%s and %s", p.Digest(), q.Digest())
	}
	q.Buffers = 2
	if p.Digest() == q.Digest() {
		t.Error("a changed plan has the same digest")
	}
	want := "first difference in line 6:\n  first:  \"buffers\": 1,\n  second: \"buffers\": 2,"
	if err := Same(p, q); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	q = mustRead(t, a)
	q.Programs = []Program{{Link: "eth0"}}
	want = "first difference in line 17:\n  first:  \"programs\": []\n  second: \"programs\": ["
	if err := Same(p, q); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func mustRead(t testing.TB, s string) *Plan {
	t.Helper()
	p, err := Read(strings.NewReader(s))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestReadErrors runs testdata/read.txt: each case edits a good file.
func TestReadErrors(t *testing.T) {
	var good string
	datadriven.RunTest(t, "testdata/read.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "file":
			good = d.Input
		case "edit":
			good := edit(good, d.Input)
			if _, err := Read(strings.NewReader(good)); err != nil {
				return err.Error() + "\n"
			}
			return "ok\n"
		case "cut":
			var at int
			d.ScanArgs(t, "at", &at)
			_, err := Read(strings.NewReader(good[:at]))
			return fmt.Sprintln(err)
		}
		return fmt.Sprintln(mustRead(t, good).Policy)
	})
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	if err := Write(&b, everything()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	j := parseJob("tensor a 100\ntensor b 50\nlane main\nop f reads=a,b\nop b makes=a,b\nop u writes=a,b\n")
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := Write(&b, p); err != nil {
			t.Fatalf("read, but not written: %v", err)
		}
		q, err := Read(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatalf("written, but not read: %v\n%s", err, b.Bytes())
		}
		if err := Same(p, q); err != nil {
			t.Fatal(err)
		}
		if p.Period*len(p.Generations) < 1<<10 {
			p.Tensors, p.Ops = j.TensorsFingerprint(), ""
			_ = Check(p, j.Job, DefaultLimits).String()
		}
	})
}

// Messages do not quote at length what a file, or the job, holds.
func TestMessagesAreShort(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for _, text := range []string{
		`{"` + long + `": 1}`, `{"period": ` + strings.Repeat("9", 1<<16) + `}`,
		`{"updates": [{"at": "` + long + `"}]}`,
		`{"programs": [{"transfers": [{"kind": "` + long + `"}]}]}`,
		`{"version": 1, "period": 1, "buffers": 1, "update_rate": 1, "generations": [{"first": 0, "length": 1}], "updates": [], "buckets": [],
		"programs": [{"link": "` + long + `", "transfers": []}, {"link": "` + long + `", "transfers": []}]}`,
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || len(err.Error()) > 500 {
			t.Errorf("%.60q: %.600v", text, err)
		}
	}

	j := parseJob("tensor w 8\nlane gpu\nop f reads=w\nop b makes=w after=f\nop u writes=w after=b")
	good := "period 1\ngeneration 0 1\nbucket w\nlink net\nall-reduce 0 gradient\nupdate gen=0 at=step iteration=0\nstates buffers=1 delay=0 staleness=0 rate=1"
	j.Name, j.Tensors[0].Name, j.Lanes[0].Name, j.Ops[0].Name, j.Ops[2].Name = long, long, long, long, long
	for i, damage := range []func(p *Plan){
		func(p *Plan) { p.Tensors = long },
		func(p *Plan) { p.Ops = long },
		func(p *Plan) { p.Buckets[0].Slices[0].Length = 9 },
		func(p *Plan) { p.Buckets[0].Slices[0].Length = 7 },
		func(p *Plan) { p.Programs[0].Transfers[0].Gates = nil },
		func(p *Plan) { p.Ops, p.Order = j.OpsFingerprint(), [][]job.OpID{{0, 0, 1}} },
		func(p *Plan) { p.Ops, p.Order = j.OpsFingerprint(), [][]job.OpID{{0, 1}} },
		func(p *Plan) { p.Updates = nil },
		func(p *Plan) {
			p.Programs[0].Link = long
			p.Programs[0].Transfers = append(p.Programs[0].Transfers, p.Programs[0].Transfers[0])
		},
		func(p *Plan) {
			p.Ops, p.Programs[0].Link = j.OpsFingerprint(), long
			p.Programs[0].Transfers[0].Gates = append(p.Programs[0].Transfers[0].Gates, Gate{Kind: OpDone, Op: 2})
		},
	} {
		p := j.parsePlan(good)
		if err := Check(p, j.Job, DefaultLimits).Err(); i == 0 && err != nil {
			t.Fatal(err)
		}
		damage(p)
		if err := Check(p, j.Job, DefaultLimits).Err(); err == nil || len(err.Error()) > 1000 {
			t.Errorf("case %d: %.1100v", i, err)
		}
	}
}
