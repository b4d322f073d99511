package policies

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"weft/policy/all"
)

// TestPages holds every page to its form, and every policy to a page.
func TestPages(t *testing.T) {
	names := Names()
	index, err := os.ReadFile("../policies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Policies() {
		if !slices.Contains(names, p.Name) {
			t.Errorf("policy %s has no page docs/policies/%s.md", p.Name, p.Name)
		}
	}
	for _, name := range names {
		if !strings.Contains(string(index), "(policies/"+name+".md)") {
			t.Errorf("docs/policies.md does not lead to policies/%s.md", name)
		}
		page, err := Page(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(page, "# "+name+"\n\n") {
			t.Errorf("%s.md does not begin with its title, # %s", name, name)
		}
		var headings []string
		for i, s := range Sections(page) {
			if i > 0 {
				headings = append(headings, s.Heading)
			}
			if len(s.Paragraphs) == 0 {
				t.Errorf("%s.md says nothing under %q", name, s.Heading)
			}
			for _, p := range s.Paragraphs {
				if strings.ContainsAny(p, "`#|") || strings.Contains(p, "](") {
					t.Errorf("%s.md, %q: marks are left in %q", name, s.Heading, p)
				}
			}
		}
		if !slices.Equal(headings, Headings) {
			t.Errorf("%s.md has the headings %q, want %q", name, headings, Headings)
		}
		_, err = os.Stat(name + ".svg")
		if shown := strings.Contains(page, "]("+name+".svg)"); shown != (err == nil) {
			t.Errorf("%s.md shows its picture: %t, and there is one: %t; make pictures", name, shown, err == nil)
		}
	}
}

func TestSections(t *testing.T) {
	got := Sections(`# title

![picture](title.svg)

What it does,
in **two** lines.

## From

A [paper](https://example.org/a_b), see [p3](p3.md) and ` + "`a*b*c [x](y)`" + `.

- one *item*
  goes on
- 2 * 3 [not a link

## Options
`)
	want := []Section{
		{Paragraphs: []string{"What it does, in two lines."}},
		{Heading: "From", Paragraphs: []string{
			"A paper (https://example.org/a_b), see p3 and a*b*c [x](y).",
			"- one item goes on", "- 2 * 3 [not a link",
		}},
		{Heading: "Options"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestNoPage(t *testing.T) {
	for _, name := range []string{"", "nope", "../policies", "p3.md"} {
		if page, err := Page(name); err == nil {
			t.Errorf("%q has a page: %.40q", name, page)
		}
	}
}
