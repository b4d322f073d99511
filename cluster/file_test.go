package cluster

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// genCluster draws valid clusters.
func genCluster(t *rapid.T) *Cluster {
	c := &Cluster{
		Nodes:   rapid.IntRange(1, 40).Draw(t, "nodes"),
		PerNode: rapid.IntRange(1, 8).Draw(t, "per-node"),
		Overlap: rapid.Float64Range(0, 2).Draw(t, "overlap"),
		Scale:   rapid.Float64Range(0.01, 100).Draw(t, "scale"),
		Jitter:  rapid.Float64Range(0, 1).Draw(t, "jitter"),
		Seed:    rapid.Uint64().Draw(t, "seed"),
	}
	c.Inside = &Link{
		Name:      rapid.SampledFrom([]string{"", "nvlink"}).Draw(t, "inside"),
		Bandwidth: rapid.Float64Range(1e3, 1e13).Draw(t, "inside bandwidth"),
		Latency:   rapid.Float64Range(0, 1e4).Draw(t, "inside latency"),
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "links") {
		l := Link{
			Name:      string(rune('a'+i)) + rapid.StringMatching(`[ -~äß]{0,8}`).Draw(t, "name"),
			Bandwidth: rapid.Float64Range(1, 1e13).Draw(t, "bandwidth"),
			Latency:   rapid.Float64Range(0, 1e6).Draw(t, "latency"),
			Algorithm: rapid.SampledFrom([]Algorithm{Ring, HalvingDoubling, Tree, Hierarchical}).Draw(t, "algorithm"),
			Medium:    rapid.SampledFrom([]string{"", "nic"}).Draw(t, "medium"),
			InFlight:  rapid.IntRange(0, 2).Draw(t, "in flight"),
		}
		if rapid.Bool().Draw(t, "measured") {
			for _, k := range []Kind{AllReduce, Broadcast, Push} {
				p := Point{Kind: k}
				for range rapid.IntRange(0, 4).Draw(t, "points") {
					p.Bytes += rapid.Int64Range(1, 1<<40).Draw(t, "bytes")
					p.Time += rapid.Float64Range(0, 1e6).Draw(t, "time")
					l.Curve = append(l.Curve, p)
				}
			}
		}
		c.Links = append(c.Links, l)
	}
	if rapid.Bool().Draw(t, "servers") {
		c.Servers = &Servers{
			Count:     rapid.IntRange(1, 50).Draw(t, "count"),
			Colocated: rapid.Bool().Draw(t, "colocated"),
			MergeRate: rapid.SampledFrom([]float64{0, 1, 1e9, 1.5 * (1 << 30), 12345.678}).Draw(t, "merge rate"),
		}
	}
	for rank := range c.World() {
		if rapid.IntRange(0, 9).Draw(t, "differs") == 0 {
			c.Workers = append(c.Workers, Worker{rank, rapid.Float64Range(0.1, 10).Draw(t, "scale"), rapid.Float64Range(0, 1).Draw(t, "jitter")})
		}
	}
	return c
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genCluster(t)
		var b bytes.Buffer
		if err := Write(&b, c); err != nil {
			t.Fatal(err)
		}
		got, err := Read(bytes.NewReader(b.Bytes()), "c.yaml")
		if err != nil {
			t.Fatalf("%v\n%s", err, &b)
		}
		if !reflect.DeepEqual(got, c) {
			t.Fatalf("got  %+v\nwant %+v\n%s", got, c, &b)
		}
	})
}

func TestAwkwardNamesReadBack(t *testing.T) {
	for _, name := range []string{"a<<b", "<<", "<<<", `"`, `\`, "#", "- x", "true", "~", "é: 1", " "} {
		want := Uniform(2, 1, Link{Name: name, Bandwidth: 1e9, Medium: name})
		var b bytes.Buffer
		if err := Write(&b, want); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(&b, "c.yaml"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
}

func TestReadErrors(t *testing.T) {
	manyKeys := "version: 1\n"
	for i := range 1000 {
		manyKeys += fmt.Sprintf("k%d: 1\n", i)
	}
	const ok = "version: 1\nnodes: 2\nlinks:\n  - name: a\n    bandwidth: 1Gbit\n"
	if _, err := Read(strings.NewReader(ok), "c.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, want string }{
		{"", "c.yaml: empty; a cluster file starts with version: 1"},
		{"# nothing\n", "c.yaml: empty; a cluster file starts with version: 1"},
		{"hello\n", `c.yaml:1:1: keys and values expected, not "hello"`},
		{"nodes: 2\n", "c.yaml:1:1: version: missing"},
		{"version: 2\n", `c.yaml:1:10: version: "2"; this program reads version 1`},
		{"version: 1\nnode: 2\n", `c.yaml:2:1: unknown key "node"; did you mean "nodes"?`},
		{ok + "    bandwith: 1Gbit\n", `c.yaml:6:5: unknown key "links[0].bandwith"; did you mean "bandwidth"?`},
		{ok + "    latency: 25\n", `c.yaml:6:14: links[0].latency: time "25": no unit; known: [s ms us ns µs]`},
		{ok + "    latency: -25us\n", `c.yaml:6:14: links[0].latency: time "-25us": negative`},
		{ok + "    latency: .nan\n", `c.yaml:6:14: links[0].latency: time ".nan": unknown unit "nan"; known: [s ms us ns µs]`},
		{ok + "    algorithm: rign\n", `c.yaml:6:16: links[0].algorithm: unknown algorithm "rign"; did you mean "ring"?`},
		{ok + "    bandwidth: 2Gbit\n", `c.yaml:6:5: mapping key "bandwidth" already defined at [5:5]`},
		{ok + "  - name: a\n    bandwidth: 1Gbit\n", `c.yaml:6:5: links[1].name: "a" is already the name of links[0]`},
		{ok + "nodes: 3\n", `c.yaml:6:1: mapping key "nodes" already defined at [2:1]`},
		{ok + "per-node: 0\n", "c.yaml:6:1: per-node: 0; a node has at least one worker"},
		{ok + "per-node: two\n", `c.yaml:6:11: per-node: "two" is not a whole number`},
		{ok + "per-node:\n", "c.yaml:6:11: per-node: a value expected"},
		{ok + "per-node: [1]\n", "c.yaml:6:11: per-node: a value expected"},
		{ok + "    curve: fast\n", "c.yaml:6:12: links[0].curve: a list expected (- ...)"},
		{ok + "    curve:\n      - {kind: all-reduce, bytes: 1KiB, time: 3us}\n      - {kind: all-reduce, bytes: 2KiB, time: 2us}\n",
			"c.yaml:8:41: links[0].curve[1].time: all-reduce of 2048 bytes takes 2 us, less than 3 us for 1024 bytes; measure again, or leave the point out that is off"},
		{ok + "    curve:\n      - {kind: all-reduce, bytes: 1KiB}\n", "c.yaml:7:9: links[0].curve[0].time: missing"},
		{ok + "    algorithm: tree\nper-node: 2\n", "c.yaml:6:5: links[0].algorithm: tree with 2 workers a node runs inside the nodes too, and the cluster has no link inside"},
		{ok + "workers:\n  - {rank: 2}\n", "c.yaml:7:6: workers[0].rank: there is no rank 2; there are 2, from 0"},
		{ok + "workers:\n  - {rank: 0}\n  - {rank: 0}\n", "c.yaml:8:6: workers[1].rank: rank 0 is listed twice"},
		{ok + "  - bandwidth: 1Gbit\n", "c.yaml:6:5: links[1].name: missing"},
		{ok + "servers: {count: 0}\n", "c.yaml:6:18: servers.count: 0; at least 1"},
		{ok + "servers: {count: 2, merge-rate: 1GiB/s, colocated: yes}\n", `c.yaml:6:52: servers.colocated: "yes" is neither true nor false`},
		{ok + "overlap: 1e300\n", `c.yaml:6:1: overlap: 1e+300; it is from 0 to 1000000`},
		{ok + "scale: 1e300\n", `c.yaml:6:1: scale: 1e+300; it is more than 0, at most 1000000, and 1 means as recorded`},
		{ok + "overlap: .inf\n", `c.yaml:6:10: overlap: ".inf" is not a number`},
		{ok + "jitter: 1.5\n", "c.yaml:6:1: jitter: 1.5; it is from 0 to 1"},
		{ok + "---\nversion: 1\n", "c.yaml:7:8: a second document; a cluster file has one"},
		{ok + "seed: &x 3\n", `c.yaml:6:7: "&": Anchor is not part of a cluster file`},
		{"a:\n  <<: b\n", "c.yaml:2: merge keys (<<) are not part of a cluster file"},
		{"[[[[[[[[", "c.yaml:1:5: nested too deep for a cluster file"},
		{"- - - - - a", "c.yaml:1:9: nested too deep for a cluster file"},
		{"a: b: c: d: e: f", "c.yaml:1:14: nested too deep for a cluster file"},
		{manyKeys, "c.yaml:102:1: \"k100\": too many unknown keys for a cluster file"},
		{"version: 1\n  nodes: 2\n", "c.yaml:1:10: mapping value is not allowed in this context"},
		{strings.Repeat("#", maxFile+1), "c.yaml: larger than 1048576 bytes, the most that a cluster file may have"},
	} {
		_, err := Read(strings.NewReader(c.text), "c.yaml")
		if err == nil || err.Error() != c.want {
			t.Errorf("%.80q:\n got %v\nwant %v", c.text, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Read(bytes.NewReader(text), "c.yaml")
		if err != nil {
			return
		}
		for link := range c.Links {
			for k := range kindNames {
				for _, size := range []int64{0, 1, 1e9, math.MaxInt64} {
					if cost, err := c.Cost(link, Kind(k), size); err == nil && !(cost.Alpha >= 0 && cost.Wire >= 0) {
						t.Fatalf("%v of %d bytes costs %v", Kind(k), size, cost)
					}
				}
			}
		}
		var b bytes.Buffer
		if err := Write(&b, c); err != nil {
			if b.Len() > 0 {
				t.Fatal("a file in part")
			}
			return
		}
		again, err := Read(&b, "again.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(again, c) {
			t.Fatalf("got  %+v\nwant %+v", again, c)
		}
	})
}

// Every YAML example of docs/cluster.md is valid.
func TestDocumentedExamples(t *testing.T) {
	doc, err := os.ReadFile("../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(examples) == 0 {
		t.Fatal("no example")
	}
	for _, e := range examples {
		if _, err := Read(strings.NewReader(e[1]), "example"); err != nil {
			t.Errorf("%v\n%s", err, e[1])
		}
	}
}

func TestDefaults(t *testing.T) {
	got, err := Read(strings.NewReader(`
version: 1
nodes: 3
links: [{name: a, bandwidth: 1Gbit}]
servers: {}
scale: 2
jitter: 0.5
workers: [{rank: 1}, {rank: 2, scale: 3, jitter: 0}]
`), "c.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := &Cluster{
		Nodes: 3, PerNode: 1, Scale: 2, Jitter: 0.5,
		Links:   []Link{{Name: "a", Bandwidth: 1e9}},
		Servers: &Servers{Count: 3, Colocated: true},
		Workers: []Worker{{1, 2, 0.5}, {2, 3, 0}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for rank, want := range [][2]float64{{2, 0.5}, {2, 0.5}, {3, 0}} {
		if scale, jitter := got.WorkerFactor(rank); scale != want[0] || jitter != want[1] {
			t.Errorf("rank %d: scale %v, jitter %v, want %v", rank, scale, jitter, want)
		}
	}
}

// Messages do not quote at length what a file holds.
func TestReadErrorsAreShort(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for _, text := range []string{
		long,
		"version: " + long,
		"version: 1\n" + long + ": 2\n",
		"version: 1\nnodes: " + long + "\n",
		"version: 1\nnodes: 1\nlinks:\n  - {name: net, bandwidth: " + long + "}\n",
		"version: 1\nnodes: 1\nlinks:\n  - {name: net, bandwidth: 1" + long + "}\n",
		"version: 1\nnodes: 1\nlinks:\n  - {name: net, bandwidth: 1Gbit, algorithm: " + long + "}\n",
		"version: 1\nnodes: 1\nlinks:\n  - {name: " + long + ", bandwidth: 1Gbit}\n",
		"version: 1\nnodes: 1\nlinks: " + long + "\n",
		"version: &" + long + " 1\n",
		"version: 1\n\"" + long + "\n",
	} {
		if _, err := Read(strings.NewReader(text), "c.yaml"); err == nil || len(err.Error()) > 500 {
			t.Errorf("%.60q: %.600v", text, err)
		}
	}
	for _, spec := range []string{long, long + ",1Gbit", long + "=1,1Gbit", "1" + long, "name=" + long + ",1Gbit"} {
		if _, err := ParseLink(spec); err == nil || len(err.Error()) > 500 {
			t.Errorf("%.60q: %.600v", spec, err)
		}
	}
}
