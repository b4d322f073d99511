// Package policies holds the pages on the policies, one a policy, for weft
// explain.
package policies

import (
	"embed"
	"fmt"
	"regexp"
	"strings"
)

//go:embed *.md
var pages embed.FS

// Headings are those of every page, in order, below its title and a paragraph
// that says what the policy does.
var Headings = []string{"From", "Exact", "Ours", "When it helps", "When it hurts", "Options"}

// Names lists the policies that have a page, in alphabetical order.
func Names() []string {
	entries, _ := pages.ReadDir(".") // of the program itself: cannot fail
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), ".md")
	}
	return names
}

// Page is the page on a policy, in Markdown.
func Page(name string) (string, error) {
	b, err := pages.ReadFile(name + ".md")
	if err != nil {
		return "", fmt.Errorf("there is no page on a policy %q", name)
	}
	return string(b), nil
}

// Section is a part of a page, in plain text.
type Section struct {
	Heading    string   // "" for what stands below the title
	Paragraphs []string // a line each; those of a list begin with "- "
}

// Sections parses a page: headings, paragraphs and lists, code, links and
// emphasis. Pictures are left out.
func Sections(page string) []Section {
	sections := []Section{{}}
	open := false // the last paragraph goes on
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		last := &sections[len(sections)-1]
		heading, isHeading := strings.CutPrefix(line, "## ")
		switch {
		case isHeading:
			sections, open = append(sections, Section{Heading: heading}), false
		case line == "", strings.HasPrefix(line, "# "), strings.HasPrefix(line, "!["):
			open = false
		case open && !strings.HasPrefix(line, "- "):
			last.Paragraphs[len(last.Paragraphs)-1] += " " + line
		default:
			last.Paragraphs, open = append(last.Paragraphs, line), true
		}
	}
	for _, s := range sections {
		for i, p := range s.Paragraphs {
			s.Paragraphs[i] = plain(p)
		}
	}
	return sections
}

// mark is code, a link or emphasis, whichever begins first.
var mark = regexp.MustCompile("`([^`]*)`" + `|\[([^]]*)\]\(([^)]*)\)|\*\*?([^*\s](?:[^*]*[^*\s])?)\*\*?`)

// plain takes the marks out of a paragraph. A link keeps its address if it leads
// out of the pages.
func plain(s string) string {
	return mark.ReplaceAllStringFunc(s, func(found string) string {
		m := mark.FindStringSubmatch(found)
		text := m[1] + m[2] + m[4] // of which two are empty
		if strings.Contains(m[3], "://") {
			text += " (" + m[3] + ")"
		}
		return text
	})
}
