package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Of 4 MiB, each of two workers sends 4 MiB, each of four 6 MiB, at 125 MB/s of which
// 1448 bytes of 1514 are payload: 119.55 MB/s.
func TestBound(t *testing.T) {
	s := setting{rate: 1e9}
	for world, want := range map[int]time.Duration{2: 35084 * time.Microsecond, 4: 52626 * time.Microsecond} {
		if got := bound(s, world, 4<<20); got.Round(time.Microsecond) != want {
			t.Errorf("%d workers: %v, want %v", world, got, want)
		}
	}
}

func TestTables(t *testing.T) {
	ms := func(all ...int) *result {
		x := new(result)
		for _, n := range all {
			x.times = append(x.times, time.Duration(n)*time.Millisecond)
			x.cpu = append(x.cpu, float64(n))
		}
		return x
	}
	var b strings.Builder
	writeTables(&b, options{systems: []string{"engine", "gloo"}, sizes: []int64{4 << 20}}, setting{name: "Here"}, 4, map[int64]map[string]*result{
		4 << 20: {"gloo": ms(9, 2, 4), "engine": ms(3, 1, 4)},
	})
	// Turn by turn the ratios are 3, 2, 1; a ring sends 6 MiB in 3 ms.
	want := `
### Here, 4 workers

| size | Gloo, ms | engine, ms | Gloo / engine | engine, GB/s |
|---|---|---|---|---|
| 4 MiB | 4 | 3 | **2.00** (1.00 to 3.00) | 2.10 |

Processor time, s/GB:

| size | Gloo | engine |
|---|---|---|
| 4 MiB | 4.00 | 3.00 |
`
	if b.String() != want {
		t.Errorf("%s\nwant:\n%s", b.String(), want)
	}
}

func TestAround(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	for _, x := range []struct{ before, after string }{
		{"a\n" + begin + end + "b\n", "a\n" + begin + "new\n" + end + "b\n"},
		{"a\n" + begin + "old\n" + end + "b\n", "a\n" + begin + "new\n" + end + "b\n"},
		{"no place\n", ""},
		{begin, ""},
	} {
		if err := os.WriteFile(page, []byte(x.before), 0o600); err != nil {
			t.Fatal(err)
		}
		head, tail, err := around(page)
		got := head + "new\n" + tail
		if (err != nil) != (x.after == "") || err == nil && got != x.after {
			t.Errorf("%q: %q (%v), want %q", x.before, got, err, x.after)
		}
	}
}
