package job

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := genJob(t, false)
		var b bytes.Buffer
		if err := Write(&b, j); err != nil {
			t.Fatal(err)
		}
		got, err := Read(iotest.OneByteReader(bytes.NewReader(b.Bytes())))
		if err != nil {
			t.Fatalf("%v\n%s", err, &b)
		}
		if !reflect.DeepEqual(got, j) {
			t.Fatalf("got  %+v\nwant %+v\n%s", got, j, &b)
		}
	})
}

// The file that docs/job.md shows.
const example = `{
"version":1,
"name":"tiny",
"lanes":[
{"id":0,"name":"main","kind":"host"}
],
"ops":[
{"id":0,"name":"forward","lane":0,"phase":"forward","time":2},
{"id":1,"name":"backward","lane":0,"phase":"backward","time":4.5,"deps":[0]},
{"id":2,"name":"step","lane":0,"phase":"update","time":1,"deps":[1]}
],
"tensors":[
{"id":0,"name":"weight","elements":1000,"param":"float32","readers":[0],"producers":[1],"updaters":[2]}
]
}
`

func TestReadExample(t *testing.T) {
	got, err := Read(strings.NewReader(example))
	if err != nil {
		t.Fatal(err)
	}
	want := &Job{
		Name:  "tiny",
		Lanes: []Lane{{"main", Host}},
		Ops: []Op{
			{Name: "forward", Phase: Forward, Tensor: -1, Time: 2},
			{Name: "backward", Phase: Backward, Tensor: -1, Time: 4.5, Deps: []OpID{0}},
			{Name: "step", Phase: Update, Tensor: -1, Time: 1, Deps: []OpID{1}},
		},
		Tensors: []Tensor{{Name: "weight", Elements: 1000, Readers: []OpID{0}, Producers: []OpID{1}, Updaters: []OpID{2}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	doc, err := os.ReadFile("../docs/job.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), example) {
		t.Error("docs/job.md does not show the example of this test")
	}
}

func TestReadErrors(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{ // example with the first old replaced by new
		{`{`, ``, "job: line 2: an object expected, not a string"},
		{`"version":1,`, `"version":1;`, "job: line 2: invalid JSON at byte 13: invalid character ';' after object value (expecting ',' or '}')"},
		{example, ``, "job: line 1: empty file"},
		{example, `[]`, "job: line 1: an object expected, not a ["},
		{`"version":1`, `"version":2`, "job: line 2: version: 2; this program reads version 1"},
		{`"version":1,`, ``, `job: line 1: "version" is missing`},
		{`"name":"tiny"`, `"nam":"tiny"`, `job: line 3: nam: unknown field; did you mean "name"?`},
		{`"name":"tiny"`, `"n\u0061m":"tiny"`, `job: line 3: nam: unknown field; did you mean "name"?`},
		{`"name":"tiny"`, `"n\u0061me":3`, "job: line 3: name: a string expected, not a number"},
		{`"name":"tiny"`, `"name":3`, "job: line 3: name: a string expected, not a number"},
		{`"name":"tiny"`, `"world":-2`, "job: line 3: world: negative number of workers -2"},
		{`"name":"tiny",`, "\n\"barrier\":\n[0,\n9]\n,", "job: line 5: barrier[1]: there is no op 9; there are 3, from 0"},
		{`"name":"tiny"`, `"mode":"globl"`, `job: line 3: mode: unknown update mode "globl"; did you mean "global"?`},
		{`"name":"tiny"`, `"name":"a","name":"b"`, "job: line 3: name: given twice"},
		{`"time":2`, `"time":-2`, "job: line 8: ops[0].time: negative time -2 us"},
		{`"time":2`, `"time":NaN`, "job: line 8: ops[0].time: invalid JSON at byte 147: invalid character 'N' at start of value"},
		{`"time":2`, `"time":1e999`, "job: line 8: ops[0].time: 1e999 is too large"},
		{`"time":2`, `"time":1e13`, "job: line 8: ops[0].time: 1e+13 us is more than 1e+12 us"},
		{`"time":2`, `"time":"2"`, "job: line 8: ops[0].time: a number expected, not a string"},
		{`"time":2`, `"tiem":2`, `job: line 8: ops[0].tiem: unknown field; did you mean "time"?`},
		{`,"time":2`, ``, `job: line 8: ops[0]: "time" is missing`},
		{`"time":4.5`, `"time":4.5,"time":1`, "job: line 9: ops[1].time: given twice"},
		{`{"id":1`, `{"id":0`, "job: line 9: ops[1].id: duplicate id 0; this is element 1, and an id is the position in the list"},
		{`{"id":1`, `{"id":7`, "job: line 9: ops[1].id: id 7; this is element 1, and an id is the position in the list"},
		{`"lane":0,"phase":"forward"`, `"lane":1,"phase":"forward"`, "job: line 8: ops[0].lane: there is no lane 1; there are 1, from 0"},
		{`"lane":0,"phase":"forward"`, `"lane":0.5,"phase":"forward"`, "job: line 8: ops[0].lane: 0.5 is not a whole number in range"},
		{`"lane":0,"phase":"forward"`, `"lane":4294967296,"phase":"forward"`, "job: line 8: ops[0].lane: 4294967296 is not a whole number in range"},
		{`"phase":"forward"`, `"phase":"foward"`, `job: line 8: ops[0].phase: unknown phase "foward"; did you mean "forward"?`},
		{`"deps":[1]`, `"deps":[1,3]`, "job: line 10: ops[2].deps[1]: there is no op 3; there are 3, from 0"},
		{`"deps":[1]`, `"deps":[1,"x"]`, "job: line 10: ops[2].deps[1]: a whole number expected, not a string"},
		{`"deps":[1]`, `"deps":[2]`, `job: line 10: ops[2].deps[0]: op 2 "step" depends on itself`},
		{`"time":2}`, `"time":2,"deps":[1]}`, `job: line 8: ops[0]: cycle: op 0 "forward" -> (dep) op 1 "backward" -> (dep) op 0 "forward"`},
		{`"elements":1000`, `"elements":0`, `job: line 13: tensors[0].elements: "weight" has 0 elements; a tensor has at least one`},
		{`"param":"float32"`, `"param":"flaot32"`, `job: line 13: tensors[0].param: unknown element type "flaot32"; did you mean "float32"?`},
		{"\n]\n}\n", "\n]\n", "job: line 15: the file ends at byte 419, in the middle"},
		{"\n]\n}\n", "\n]\n}\n{}", "job: line 16: more text after the end of the job"},
	} {
		text := strings.Replace(example, c.old, c.new, 1)
		_, err := Read(strings.NewReader(text))
		if err == nil || err.Error() != c.want {
			t.Errorf("%q -> %q:\n got %v\nwant %v", c.old, c.new, err, c.want)
		}
	}
}

func TestReadPassesReadErrorsOn(t *testing.T) {
	_, err := Read(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(example))))
	if err == nil || !strings.Contains(err.Error(), iotest.ErrTimeout.Error()) {
		t.Errorf("got %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(example))
	f.Fuzz(func(t *testing.T, text []byte) {
		j, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		if _, _, err := j.Schedule(); err != nil {
			t.Fatalf("Schedule of a job that was read: %v", err)
		}
		for _, copies := range []bool{false, true} {
			s, _ := j.Strip(copies)
			if err := s.Validate(); err != nil {
				t.Fatalf("Strip(%v) of a job that was read: %v", copies, err)
			}
		}
		var b bytes.Buffer
		if err := Write(&b, j); err != nil {
			t.Fatal(err)
		}
		again, err := Read(&b)
		if err != nil {
			t.Fatal(err)
		}
		if again.OpsFingerprint() != j.OpsFingerprint() || again.TensorsFingerprint() != j.TensorsFingerprint() {
			t.Fatal("another job after writing and reading it")
		}
	})
}

// large is a job of about n ops on four lanes with two dependencies each, a
// third of them reading, producing and updating tensors.
func large(n int) *Job {
	n /= 3
	ones := make([]float64, n)
	bytes := make([]int64, n)
	for i := range n {
		ones[i], bytes[i] = 1.5, 4
	}
	j := Chain("large", ones, ones, bytes)
	j.Lanes = []Lane{{"a", Device}, {"b", Device}, {"c", Host}, {"d", Host}}
	for i := range j.Ops {
		o := &j.Ops[i]
		o.Lane = LaneID(i % 4)
		if i > 10 {
			o.Deps = append(o.Deps, OpID(i-10))
		}
	}
	return j
}

func BenchmarkMillionOps(b *testing.B) {
	j := large(1e6)
	var text bytes.Buffer
	if err := Write(&text, j); err != nil {
		b.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"Validate":    j.Validate,
		"Schedule":    func() error { _, _, err := j.Schedule(); return err },
		"Strip":       func() error { j.Strip(true); return nil },
		"Fingerprint": func() error { _ = j.OpsFingerprint(); return nil },
		"Write":       func() error { return Write(io.Discard, j) },
		"Read":        func() error { _, err := Read(bytes.NewReader(text.Bytes())); return err },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			if name == "Read" || name == "Write" {
				b.SetBytes(int64(text.Len()))
			}
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func ExampleWrite() {
	j := Chain("two layers", []float64{1, 2}, []float64{2, 4}, []int64{400, 401})
	var b strings.Builder
	if err := Write(&b, j); err != nil {
		fmt.Println(err)
	}
	fmt.Print(b.String())
	// Output:
	// {
	// "version":1,
	// "name":"two layers",
	// "mode":"per-tensor",
	// "lanes":[
	// {"id":0,"name":"compute","kind":"device"}
	// ],
	// "ops":[
	// {"id":0,"name":"f1","lane":0,"phase":"forward","time":1},
	// {"id":1,"name":"f2","lane":0,"phase":"forward","time":2,"deps":[0]},
	// {"id":2,"name":"b2","lane":0,"phase":"backward","time":4,"deps":[1]},
	// {"id":3,"name":"b1","lane":0,"phase":"backward","time":2,"deps":[2]},
	// {"id":4,"name":"u1","lane":0,"phase":"update","time":0,"deps":[3]},
	// {"id":5,"name":"u2","lane":0,"phase":"update","time":0,"deps":[2]}
	// ],
	// "tensors":[
	// {"id":0,"name":"t1","elements":100,"param":"float32","readers":[0],"producers":[3],"updaters":[4]},
	// {"id":1,"name":"t2","elements":401,"param":"uint8","readers":[1],"producers":[2],"updaters":[5]}
	// ]
	// }
}
