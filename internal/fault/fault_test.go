package fault

import (
	"errors"
	"strings"
	"testing"
)

func TestLocate(t *testing.T) {
	at := map[string]string{"ops[3]": "line 7", "ops": "line 2"}
	position := func(path string) (string, bool) { s, ok := at[path]; return s, ok }
	for _, c := range []struct{ path, want string }{
		{"ops[3]", "line 7: ops[3]: bad"},
		{"ops[3].deps[1]", "line 7: ops[3].deps[1]: bad"},
		{"ops[4].time", "line 2: ops[4].time: bad"},
		{"name", "job: name: bad"},
		{"", "job: bad"},
	} {
		if got := Locate(New("job", c.path, "bad"), position); got.Error() != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	at[""] = "file"
	if got := Locate(New("job", "name", "bad"), position); got.Error() != "file: name: bad" {
		t.Errorf("got %q", got)
	}
	other := errors.New("other")
	if got := Locate(other, position); got != other {
		t.Errorf("got %q", got)
	}
}

func TestShort(t *testing.T) {
	eighty := strings.Repeat("ü", 80)
	for _, s := range []string{"", "w", eighty} {
		if got := Short(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := Short(eighty + "w"); got != eighty+"..." {
		t.Errorf("81 characters became %q", got)
	}
}
