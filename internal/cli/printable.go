package cli

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Printable makes a text safe to print. A name in a trace or a job may hold
// whatever its author likes; what a terminal would obey, and what is no text
// (control characters, the bytes of escape sequences, invalid UTF-8, marks that
// change the direction of writing) is spelled out as Go does: \x1b, \u202e.
func Printable(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case strconv.IsGraphic(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		s = s[n:]
	}
	return b.String()
}

// PrintableLines makes a text of several lines safe to print. Those after the first are indented:
// none of them passes for a message of its own.
func PrintableLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i, line := range lines {
		lines[i] = Printable(line)
	}
	return strings.Join(lines, "\n  ")
}

// Text prints what write writes, each line printable.
func (c *Console) Text(write func(io.Writer) error) error {
	var text bytes.Buffer
	if err := write(&text); err != nil {
		return err
	}
	var out strings.Builder
	for line := range strings.Lines(text.String()) {
		body, ended := strings.CutSuffix(line, "\n")
		out.WriteString(Printable(body))
		if ended {
			out.WriteByte('\n')
		}
	}
	_, err := io.WriteString(c.Out, out.String())
	return err
}
