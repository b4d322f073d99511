package main

import (
	"bytes"
	"os"
	"testing"

	"weft/policy/all"
)

// TestPictures draws every policy's picture anew: each is committed, and none is older
// than what it shows.
func TestPictures(t *testing.T) {
	for _, p := range all.Policies() {
		want, err := os.ReadFile("../../docs/policies/" + p.Name + ".svg")
		if err != nil {
			t.Errorf("%v; make pictures", err)
			continue
		}
		got, err := draw(p)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("docs/policies/%s.svg is not what %s makes of the running example now: make pictures, and look at it", p.Name, p.Name)
		}
	}
}
