package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"weft/internal/cli"
	"weft/study"
)

// TestStudiesPage holds docs/studies.md to what the command prints, for the
// studies that take little time: make studies writes the page anew.
func TestStudiesPage(t *testing.T) {
	const docs = "../../docs"
	page, err := os.ReadFile(filepath.Join(docs, "studies.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, m := range regexp.MustCompile("(?ms)^\\$ weft study ([a-z0-9-]+)\n(.*?)^```$").FindAllSubmatch(page, -1) {
		shown[string(m[1])] = string(m[2])
	}
	for _, s := range study.All() {
		if shown[s.Name] == "" {
			t.Errorf("study %s is not on the page", s.Name)
		}
		for _, kind := range []string{"csv", "svg"} {
			name := fmt.Sprintf("studies/%s.%s", s.Name, kind)
			if _, err := os.Stat(filepath.Join(docs, name)); err != nil || !bytes.Contains(page, []byte("("+name+")")) {
				t.Errorf("%s: %v, or not on the page", name, err)
			}
		}
	}
	for _, name := range []string{"mg-wfbp", "us-byte"} {
		dir := t.TempDir()
		var out, problems bytes.Buffer
		if code := run(t.Context(), &cli.Console{Out: &out, Err: &problems}, []string{"study", name, "--out", dir}); code != cli.OK {
			t.Fatalf("%s: exit code %d: %s", name, code, &problems)
		}
		if out.String() != shown[name] {
			t.Errorf("weft study %s prints\n%s\nthe page shows\n%s", name, &out, shown[name])
		}
		for _, file := range []string{name + ".csv", name + ".svg"} {
			got, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(docs, "studies", file))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what weft study %s writes", file, name)
			}
		}
	}
}
