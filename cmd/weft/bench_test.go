package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"weft/internal/cli"
)

// The command starts itself as its workers, and one of them prints.
func TestBenchAllReduce(t *testing.T) {
	t.Setenv(asProgram, "1")
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var out bytes.Buffer
	code := run(t.Context(), &cli.Console{Out: &out, Err: &out}, []string{"bench", "allreduce", "-n", "3", "--sizes", "16MiB,4B", "--json"})
	var got struct {
		Workers int
		Sizes   []struct {
			Bytes, Elements, Iterations, Wrong int
			Time                               float64 `json:"time_us"`
			Algorithm                          float64 `json:"algorithm_bytes_per_us"`
			Bus                                float64 `json:"bus_bytes_per_us"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || code != cli.OK || got.Workers != 3 || len(got.Sizes) != 2 {
		t.Fatalf("exit code %d, %v:\n%s", code, err, out.String())
	}
	for i, want := range []struct{ bytes, iterations int }{{16 << 20, 16}, {4, 1000}} {
		x := got.Sizes[i]
		if x.Bytes != want.bytes || x.Elements != want.bytes/4 || x.Iterations != want.iterations || x.Wrong != 0 || x.Time <= 0 || x.Bus < 1.32*x.Algorithm || x.Bus > 1.34*x.Algorithm {
			t.Errorf("%+v", x)
		}
	}
	empty(t, tmp)
}

func TestParseSizes(t *testing.T) {
	for s, want := range map[string][]int64{
		"4KiB":         {4096},
		"8, 1MiB":      {8, 1 << 20},
		"4KiB..16KiB":  {4096, 8192, 16384},
		"4KiB..15KiB":  {4096, 8192},
		"512B..512B":   {512},
		"3":            nil,
		"0":            nil,
		"2GiB":         nil,
		"8..4":         nil,
		"4..":          nil,
		"":             nil,
		"4..8..16":     nil,
		"4KiB,nothing": nil,
	} {
		got, err := parseSizes(s)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
}
