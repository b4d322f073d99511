package walls

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestThisModule is the check itself: make lint runs it.
func TestThisModule(t *testing.T) {
	breaches, err := Check(os.DirFS("../.."), Default)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range breaches {
		t.Error(b)
	}
}

// A small module of one pure package "sim" for each way through the wall.
func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string // beside go.mod
		want  []string
	}{{
		name:  "what is allowed",
		files: map[string]string{"sim/a.go": `import ("io"; "time"; "m/job"); var _ time.Duration; var _ io.Reader; var _ job.Job`, "job/a.go": `type Job struct{}`},
	}, {
		name:  "import",
		files: map[string]string{"sim/a.go": `import "os"; var _ = os.Args`},
		want:  []string{"sim/a.go:1:19: sim imports os"},
	}, {
		name:  "package below a forbidden one",
		files: map[string]string{"sim/a.go": `import _ "net/http"; import _ "math/rand/v2"`},
		want:  []string{"sim/a.go:1:19: sim imports net/http", "sim/a.go:1:40: sim imports math/rand/v2"},
	}, {
		name:  "package below a pure one",
		files: map[string]string{"sim/deep/a.go": `import _ "os"`},
		want:  []string{"sim/deep/a.go:1:19: sim/deep imports os"},
	}, {
		name:  "package outside the wall",
		files: map[string]string{"sim/a.go": `import _ "m/trace/kineto"`, "trace/kineto/a.go": `import _ "os"`},
		want:  []string{"sim/a.go:1:19: sim imports trace/kineto"},
	}, {
		name: "through other packages, each named",
		files: map[string]string{
			"sim/a.go":        `import _ "m/internal/x"`,
			"internal/x/a.go": `import _ "m/internal/y"`,
			"internal/y/a.go": `import _ "os"`,
		},
		want: []string{"internal/y/a.go:1:19: sim -> internal/x -> internal/y imports os"},
	}, {
		name:  "clock",
		files: map[string]string{"sim/a.go": `import "time"; var a = time.Now()`},
		want:  []string{"sim/a.go:1:35: sim uses time.Now"},
	}, {
		name:  "clock under another name",
		files: map[string]string{"sim/a.go": `import clock "time"; var a = clock.Since`},
		want:  []string{"sim/a.go:1:41: sim uses time.Since"},
	}, {
		name:  "clock without a name",
		files: map[string]string{"sim/a.go": `import . "time"; var a = Now()`},
		want:  []string{"sim/a.go:1:19: sim imports time into its own scope"},
	}, {
		name:  "Now of something else",
		files: map[string]string{"sim/a.go": `import "time"; var _ time.Duration; var sim struct{ Now int }; var _ = sim.Now`},
	}, {
		name: "not held to the wall: tests, testdata, nested modules, packages in front",
		files: map[string]string{
			"sim/a.go":          ``,
			"sim/a_test.go":     `import _ "os"`,
			"sim/testdata/a.go": `import _ "os"`,
			"sim/tools/go.mod":  "",
			"sim/tools/a.go":    `import _ "os"`,
			"simulator/a.go":    `import _ "os"`,
			"cmd/a.go":          `import _ "os"`,
		},
	}} {
		t.Run(tc.name, func(t *testing.T) {
			fsys := fstest.MapFS{"go.mod": {Data: []byte("module m\n\ngo 1.26\n")}}
			for name, src := range tc.files {
				if strings.HasSuffix(name, ".go") {
					src = "package p; " + src
				}
				fsys[name] = &fstest.MapFile{Data: []byte(src)}
			}
			breaches, err := Check(fsys, Default)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, b := range breaches {
				got = append(got, b.String())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestCheckErrors(t *testing.T) {
	for name, files := range map[string]fstest.MapFS{
		"no go.mod":      {},
		"no module line": {"go.mod": {Data: []byte("go 1.26\n")}},
		"not Go":         {"go.mod": {Data: []byte("module m\n")}, "sim/a.go": {Data: []byte("pakage sim")}},
	} {
		if _, err := Check(files, Default); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
