package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"conv1.weight":             "conv1.weight",
		`C:\traces "x"`:            `C:\traces "x"`,
		"größe ▸ 重み":               "größe ▸ 重み",
		"\x1b[2J\x1b]0;title\a":    `\x1b[2J\x1b]0;title\a`,
		"a\r\nb\tc\x00\x7f":        `a\r\nb\tc\x00\x7f`,
		"\u009b31m":                `\u009b31m`,
		"\u202egnp.exe\u2028":      `\u202egnp.exe\u2028`,
		"cut \xc3, raw \x9b, \xff": `cut \xc3, raw \x9b, \xff`,
		"\ufffd":                   "\ufffd",
	} {
		got := Printable(in)
		if got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
		if again := Printable(got); again != got {
			t.Errorf("%q: printed once %q, twice %q", in, got, again)
		}
	}
}

// Whatever names an input holds, nothing in a report but its own line breaks
// and colours is for the terminal, and JSON stays JSON.
func TestHostileReport(t *testing.T) {
	hostile := "evil\x1b[31m\r\nfake\u009b2J\xff"
	r := &Report{
		Facts: []Fact{{"job", "job", hostile}},
		Tables: []Table{{Key: "rows", Title: "Rows", Columns: []Column{{"name", "name"}, {"n", "n"}},
			Rows: []Row{{Cells: []any{hostile, 1}}, {Cells: []any{strings.Repeat(hostile+" ", 20), 2}}}}},
		Notes: []string{"about " + hostile},
	}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		if err := (&Console{Out: &out}).Print(r, asJSON); err != nil {
			t.Fatal(err)
		}
		clean(t, out.String(), asJSON)
	}
	var out bytes.Buffer
	err := (&Console{Out: &out}).Text(func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "plan %s\nlink\n", hostile)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	clean(t, out.String(), false)
	if !strings.HasSuffix(out.String(), "\nlink\n") {
		t.Errorf("lost line breaks: %q", &out)
	}
}

// clean fails if text holds what a terminal obeys. JSON may hold C1 characters
// of UTF-8 as they are, and ends no string at them.
func clean(t *testing.T, text string, isJSON bool) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("invalid UTF-8: %q", text)
	}
	for _, r := range text {
		if r < ' ' && r != '\n' || !isJSON && r >= 0x7f && r <= 0x9f {
			t.Errorf("%q in %q", r, text)
			return
		}
	}
}

func TestPrintableLines(t *testing.T) {
	if got := PrintableLines("a\x1b\nweft: b\n\n"); got != "a\\x1b\n  weft: b" {
		t.Errorf("%q", got)
	}
}
