package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"weft/docs/policies"
)

// TestExplained holds every page to the width of a terminal, words without a
// space excepted.
func TestExplained(t *testing.T) {
	for _, name := range policies.Names() {
		page, err := policies.Page(name)
		if err != nil {
			t.Fatal(err)
		}
		text := explained(name, policies.Sections(page))
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if utf8.RuneCountInString(line) > 80 && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: longer than 80: %s", name, line)
			}
		}
		for _, h := range policies.Headings {
			if !strings.Contains(text, "\n\n"+h+"\n  ") {
				t.Errorf("%s: no section %q", name, h)
			}
		}
	}
}
