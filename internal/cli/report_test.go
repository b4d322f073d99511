package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
)

func sample() *Report {
	return &Report{
		Facts: []Fact{{"job", "job", "rx"}, {"workers", "workers", 16}, {"size", "size_bytes", Bytes(25_557_032)},
			{"about", "about", "a value that is longer than what remains of the line goes on in the next, under its start"}},
		Tables: []Table{{
			Title: "Schedules", Key: "schedules",
			Columns: []Column{{"schedule", "schedule"}, {"time\nms", "time_us"}, {"gap\n%", "gap"}},
			Rows: []Row{
				{Cells: []any{"mg-wfbp", Time(35000), Percent(0.1)}, Style: Best},
				{Cells: []any{"wfbp", Time(138000.5), Ratio(math.NaN())}},
				{Cells: []any{"rounded", Time(-6.5e-11), Ratio(2.0000000000000004)}},
				{Cells: []any{"bound", Time(-0.001), nil}, Key: "bound", Style: Faint},
			},
		}},
		Notes: []string{"sizes are equal shares of each bucket, because the trace has no shapes and no tensors file was given"},
	}
}

func TestReportText(t *testing.T) {
	var out bytes.Buffer
	c := &Console{Out: &out}
	if err := c.Print(sample(), false); err != nil {
		t.Fatal(err)
	}
	want := `job      rx
workers  16
size     25.56
about    a value that is longer than what remains of the line goes on in the
         next, under its start

Schedules
            time   gap
schedule      ms     %
──────────────────────
mg-wfbp    35.00  10.0
wfbp      138.00   NaN
rounded     0.00  2.00
bound       0.00     -

note: sizes are equal shares of each bucket, because the trace has no shapes and
      no tensors file was given
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

func TestReportColor(t *testing.T) {
	var plain, colored bytes.Buffer
	(&Console{Out: &plain}).Print(sample(), false)
	(&Console{Out: &colored, Color: true}).Print(sample(), false)
	if strings.Contains(plain.String(), "\x1b") {
		t.Error("colour without a terminal")
	}
	if !strings.Contains(colored.String(), "\x1b[1mmg-wfbp\x1b[0m") {
		t.Errorf("the best row is not bold: %q", &colored)
	}
}

func TestReportJSON(t *testing.T) {
	var out bytes.Buffer
	if err := (&Console{Out: &out}).Print(sample(), true); err != nil {
		t.Fatal(err)
	}
	want := `{
  "job": "rx",
  "workers": 16,
  "size_bytes": 25557032,
  "about": "a value that is longer than what remains of the line goes on in the next, under its start",
  "schedules": [
    {
      "schedule": "mg-wfbp",
      "time_us": 35000,
      "gap": 0.1
    },
    {
      "schedule": "wfbp",
      "time_us": 138000.5,
      "gap": null
    },
    {
      "schedule": "rounded",
      "time_us": 0,
      "gap": 2
    }
  ],
  "bound": {
    "time_us": -0.001
  },
  "notes": [
    "sizes are equal shares of each bucket, because the trace has no shapes and no tensors file was given"
  ]
}
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

func TestCode(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{fmt.Errorf("rule 2: %w", ErrNo), 1},
		{fmt.Errorf("compare: %w", Usagef("no link")), 2},
		{Usage(nil), 0},
		{io.ErrUnexpectedEOF, 3},
	} {
		if got := Code(tc.err); got != tc.code {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.code)
		}
	}
	if !errors.Is(Usage(io.EOF), io.EOF) {
		t.Error("Usage hides its cause")
	}
}

func TestWrap(t *testing.T) {
	for in, want := range map[string]string{
		"":                  "\n",
		"one two three":     "one two\n  three\n",
		"one two three fou": "one two\n  three fou\n",
		"longerthanten two": "longerthanten\n  two\n",
		"äää öööö ü":        "äää öööö ü\n",
		"1234567890 1":      "1234567890\n  1\n",
	} {
		if got := wrap(in, 10, "  "); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
