package near

import "testing"

func TestOf(t *testing.T) {
	known := []string{"bandwidth", "latency", "name", "nodes"}
	for _, c := range []struct{ word, want string }{
		{"bandwith", "bandwidth"}, // one deleted
		{"latnecy", "latency"},    // two neighbours swapped
		{"nbme", "name"},          // one changed
		{"LATENCY", "latency"},    // case
		{"node", "nodes"},
		{"x", ""},
		{"", ""},
		{"throughput", ""},
	} {
		if got := Of(c.word, known); got != c.want {
			t.Errorf("Of(%q) = %q, want %q", c.word, got, c.want)
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
