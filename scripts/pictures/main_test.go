package main

import (
	"bytes"
	"os"
	"testing"

	"weft/policy/all"
)

// TestPictures draws every picture that is committed anew: none is older than what
// it shows.
func TestPictures(t *testing.T) {
	for _, p := range all.Policies() {
		want, err := os.ReadFile("../../docs/policies/" + p.Name + ".svg")
		if os.IsNotExist(err) {
			continue // docs/policies tells of a page without its picture
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := draw(p)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("docs/policies/%s.svg is not what %s makes of the running example now: make pictures, and look at it", p.Name, p.Name)
		}
	}
}
