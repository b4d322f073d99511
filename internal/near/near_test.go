package near

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"bandwidth", "latency", "name", "nodes"}
	for _, c := range []struct{ word, want string }{
		{"bandwith", "bandwidth"}, // one deleted
		{"latnecy", "latency"},    // two neighbours swapped
		{"nbme", "name"},          // one changed
		{"LATENCY", "latency"},    // case
		{"node", "nodes"},
		{"Band", "bandwidth"}, // its beginning
		{"n", "name"},         // the first of those
		{"x", ""},
		{"", ""},
		{"throughput", ""},
	} {
		if got := Nearest(c.word, known); got != c.want {
			t.Errorf("Nearest(%q) = %q, want %q", c.word, got, c.want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0},
		{"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ab", "ba", 1},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	names := []string{"", "copy-in", "copy-out"}
	for i, name := range names {
		if got, err := Parse[uint8]("role", name, names); int(got) != i || err != nil {
			t.Errorf("%q: %d, %v", name, got, err)
		}
	}
	if _, err := Parse[uint8]("role", "copy-un", names); err == nil || err.Error() != `unknown role "copy-un"; did you mean "copy-in"?` {
		t.Error(err)
	}
}
