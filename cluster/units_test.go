package cluster

import (
	"testing"

	"pgregory.net/rapid"
)

func TestParseQuantities(t *testing.T) {
	bandwidth := func(s string) (any, error) { return ParseBandwidth(s) }
	latency := func(s string) (any, error) { return ParseLatency(s) }
	size := func(s string) (any, error) { return ParseSize(s) }
	for _, c := range []struct {
		parse func(string) (any, error)
		text  string
		want  any // a value, or the error's text
	}{
		{bandwidth, "10Gbit", 10e9},
		{bandwidth, "10 Gbit/s", 10e9},
		{bandwidth, "2.5Mbit", 2.5e6},
		{bandwidth, "1kbit", 1e3},
		{bandwidth, "7bit", 7.0},
		{bandwidth, "1GB/s", 8e9},
		{bandwidth, "1.5GiB/s", 1.5 * 8 * 1024 * 1024 * 1024},
		{bandwidth, "1e3kbit", 1e6},
		{bandwidth, "10", `bandwidth "10": no unit; known: [Tbit Gbit Mbit kbit bit TB GB MB kB B TiB GiB MiB KiB]`},
		{bandwidth, "10gbit", `bandwidth "10gbit": unknown unit "gbit"; did you mean "Gbit"?`},
		{bandwidth, "10G", `bandwidth "10G": unknown unit "G"; did you mean "Gbit"?`},
		{bandwidth, "Gbit", `bandwidth "Gbit": "" is not a number`},
		{bandwidth, "-1Gbit", `bandwidth "-1Gbit": negative`},
		{bandwidth, "1e999bit", `bandwidth "1e999bit": "1e999" is not a number`},
		{bandwidth, "", `bandwidth "": no unit; known: [Tbit Gbit Mbit kbit bit TB GB MB kB B TiB GiB MiB KiB]`},
		{latency, "25us", 25.0},
		{latency, "25µs", 25.0},
		{latency, "1.5ms", 1500.0},
		{latency, "2s", 2e6},
		{latency, "500ns", 0.5},
		{latency, "25usec", `time "25usec": unknown unit "usec"; known: [s ms us ns µs]`},
		{size, "4096", int64(4096)},
		{size, "64KiB", int64(65536)},
		{size, "0.5KiB", int64(512)},
		{size, "1MB", int64(1000000)},
		{size, "67.4GB", int64(67_400_000_000)}, // 67.4 and 1e9 as doubles make 67400000000.00001
		{size, "1.001kB", int64(1001)},
		{size, "1.0005kB", `size "1.0005kB": not a whole number of bytes up to 8 PiB`},
		{size, "0.5B", `size "0.5B": not a whole number of bytes up to 8 PiB`},
		{size, "16384TiB", `size "16384TiB": not a whole number of bytes up to 8 PiB`},
		{size, "NaN", `size "NaN": unknown unit "NaN"; known: [GiB MiB KiB B TB GB MB kB TiB]`},
	} {
		got, err := c.parse(c.text)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: got %v, want %v", c.text, got, c.want)
		}
	}
}

func TestFormatReadsBack(t *testing.T) {
	for _, c := range []struct {
		bits float64
		want string
	}{
		{10e9, "10Gbit"}, {2.5e6, "2.5Mbit"}, {1e12, "1Tbit"}, {12, "12bit"}, {0.5, "0.5bit"}, {0, "0bit"}, {1e-30, "1e-30bit"},
	} {
		if got := formatBandwidth(c.bits); got != c.want {
			t.Errorf("%v: %s, want %s", c.bits, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(0, 1e15).Draw(t, "v")
		b := rapid.Int64Range(0, MaxBytes).Draw(t, "bytes")
		if got, err := ParseBandwidth(formatBandwidth(v)); got != v {
			t.Fatalf("%v: %s reads as %v, %v", v, formatBandwidth(v), got, err)
		}
		if got, err := parseRate(formatRate(v)); got != v {
			t.Fatalf("%v: %s reads as %v, %v", v, formatRate(v), got, err)
		}
		if got, err := ParseLatency(formatTime(v)); got != v {
			t.Fatalf("%v: %s reads as %v, %v", v, formatTime(v), got, err)
		}
		if got, err := ParseSize(formatSize(b)); got != b {
			t.Fatalf("%v: %s reads as %v, %v", b, formatSize(b), got, err)
		}
	})
}

func TestParseLink(t *testing.T) {
	for _, c := range []struct {
		text string
		want Link
		err  string
	}{
		{"10Gbit,25us", Link{Name: "net", Bandwidth: 10e9, Latency: 25}, ""},
		{"25us, 10Gbit", Link{Name: "net", Bandwidth: 10e9, Latency: 25}, ""},
		{"10Gbit", Link{Name: "net", Bandwidth: 10e9}, ""},
		{"name=eth0,10Gbit,25us,algorithm=tree,medium=nic", Link{Name: "eth0", Bandwidth: 10e9, Latency: 25, Algorithm: Tree, Medium: "nic"}, ""},
		{"10Gbit,in-flight=1", Link{Name: "net", Bandwidth: 10e9, InFlight: 1}, ""},
		{"10Gbit,in-flight=0", Link{}, `link "10Gbit,in-flight=0": 0; at least 1`},
		{"bandwidth=1GB/s,latency=1ms", Link{Name: "net", Bandwidth: 8e9, Latency: 1000}, ""},
		{"25us", Link{}, `link "25us": no bandwidth; write it as in 10Gbit,25us`},
		{"", Link{}, `link "": bandwidth "": no unit; known: [Tbit Gbit Mbit kbit bit TB GB MB kB B TiB GiB MiB KiB]`},
		{"10Gbit,20Gbit", Link{}, `link "10Gbit,20Gbit": bandwidth given twice`},
		{"10Gbit,25", Link{}, `link "10Gbit,25": "25" has no unit; write it as in 10Gbit,25us`},
		{"10Gbit,latncy=3us", Link{}, `link "10Gbit,latncy=3us": unknown key "latncy"; did you mean "latency"?`},
		{"10Gbit,algorithm=rings", Link{}, `link "10Gbit,algorithm=rings": unknown algorithm "rings"; did you mean "ring"?`},
		{"10Gbit,name=", Link{}, `link "10Gbit,name=": link.name: missing`},
		{"0Gbit", Link{}, `link "0Gbit": link.bandwidth: missing, and there is no curve either`},
		{"10Gbit,3000s", Link{}, `link "10Gbit,3000s": link.latency: 3e+09 us; it is from 0 to 1e+09 us`},
	} {
		got, err := ParseLink(c.text)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if message != c.err || message == "" && !same(got, c.want) {
			t.Errorf("%q:\n got %+v, %v\nwant %+v, %s", c.text, got, err, c.want, c.err)
		}
	}
}

// same compares links that have no curve.
func same(a, b Link) bool {
	return a.Name == b.Name && a.Bandwidth == b.Bandwidth && a.Latency == b.Latency && a.Algorithm == b.Algorithm && a.Medium == b.Medium
}

func TestNamesReadBack(t *testing.T) {
	for k := range kindNames {
		if got, err := ParseKind(Kind(k).String()); err != nil || got != Kind(k) {
			t.Errorf("%v: %v, %v", Kind(k), got, err)
		}
	}
	if _, err := ParseKind("allreduce"); err == nil || err.Error() != `unknown transfer kind "allreduce"; did you mean "all-reduce"?` {
		t.Error(err)
	}
}

func FuzzParseLink(f *testing.F) {
	f.Add("10Gbit,25us")
	f.Add("name=eth0,10Gbit,25us,algorithm=tree,medium=nic")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLink(s)
		if err != nil {
			return
		}
		if err := Uniform(2, 1, l).Validate(); err != nil {
			t.Fatal(err)
		}
	})
}
