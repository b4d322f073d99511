// Package near finds the known word that a misspelt one most likely meant.
package near

import (
	"fmt"
	"slices"
	"strings"

	"weft/internal/fault"
)

// Nearest is the word of known nearest to word, or "" if none is near: equal but
// for case; or else the first that begins with it; or else by edit distance, within
// a third of the longer word and at least one edit.
func Nearest(word string, known []string) string {
	if len(word) > 64 { // no known word is that long; keep the search bounded
		return ""
	}
	for _, k := range known {
		if strings.EqualFold(word, k) {
			return k
		}
	}
	for _, k := range known {
		if word != "" && len(word) < len(k) && strings.EqualFold(word, k[:len(word)]) {
			return k
		}
	}
	best, dist := "", 0
	for _, k := range known {
		d := distance(word, k)
		if d <= max(1, max(len(word), len(k))/3) && (best == "" || d < dist) {
			best, dist = k, d
		}
	}
	return best
}

// Hint ends a message about an unknown word: with the near one, or else with
// all known ones.
func Hint(word string, known []string) string {
	if k := Nearest(word, known); k != "" {
		return fmt.Sprintf("; did you mean %q?", k)
	}
	return fmt.Sprintf("; known: %v", known)
}

// Parse is the position of a name among those of an enumeration. what names the
// enumeration in the error, which ends with a [Hint].
func Parse[E ~uint8](what, name string, names []string) (E, error) {
	if i := slices.Index(names, name); i >= 0 {
		return E(i), nil
	}
	return 0, fmt.Errorf("unknown %s %q%s", what, fault.Short(name), Hint(name, names))
}

// distance is the number of inserted, deleted, changed or swapped neighbouring
// bytes that lead from a to b (optimal string alignment).
func distance(a, b string) int {
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for k := range row {
		row[k] = k
	}
	for i := range len(a) {
		next[0] = i + 1
		for k := range len(b) {
			changed := row[k]
			if a[i] != b[k] {
				changed++
			}
			next[k+1] = min(changed, row[k+1]+1, next[k]+1)
			if i > 0 && k > 0 && a[i] == b[k-1] && a[i-1] == b[k] {
				next[k+1] = min(next[k+1], before[k-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}
