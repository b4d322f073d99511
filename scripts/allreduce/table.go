package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

func size(n int64) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

func median[T float64 | time.Duration](x []T) T { return slices.Sorted(slices.Values(x))[len(x)/2] }

// column is one of a table: empty where a system is missing.
type column struct {
	head  string
	needs []string
	cell  func(bytes int64, x map[string]*result) string
}

func writeTables(w io.Writer, o options, s setting, world int, results map[int64]map[string]*result) {
	fmt.Fprintf(w, "\n### %s, %d workers\n\n", s.name, world)
	columns := []column{
		milliseconds("Gloo", "gloo"), milliseconds("weft", "weft"), ratio("Gloo / weft", "gloo", "weft"),
		milliseconds("Open MPI", "mpi"), milliseconds("engine", "engine"), ratio("Open MPI / engine", "mpi", "engine"), ratio("Gloo / engine", "gloo", "engine"),
		milliseconds("copies", "copies"), milliseconds("path", "path"), ratio("Gloo / path", "gloo", "path"),
		{"engine, GB/s", []string{"engine"}, func(bytes int64, x map[string]*result) string {
			return fmt.Sprintf("%.2f", 2*float64(world-1)/float64(world)*float64(bytes)/1e9/median(x["engine"].times).Seconds())
		}},
	}
	if s.rate > 0 {
		columns = append(columns, column{"of the bound", []string{"engine"}, func(bytes int64, x map[string]*result) string {
			return fmt.Sprintf("%.2f", bound(s, world, bytes).Seconds()/median(x["engine"].times).Seconds())
		}})
	}
	writeTable(w, o, "", columns, results)
	writeTable(w, o, "Processor time, s/GB:", each("%.2f", func(x *result) []float64 { return x.cpu }), results)
	if s.rate > 0 {
		writeTable(w, o, "Processor time that a computation beside lacks, s/GB:", each("%.2f", func(x *result) []float64 { return x.stolen }), results)
		writeTable(w, o, "How many times as long the computation takes:", each("%.2f", func(x *result) []float64 { return x.slowed }), results)
	}
}

// each is a column for each system.
func each(format string, of func(*result) []float64) (out []column) {
	for _, system := range names {
		out = append(out, column{titles[system], []string{system}, func(_ int64, x map[string]*result) string { return fmt.Sprintf(format, median(of(x[system]))) }})
	}
	return out
}

// titles of the systems in the tables.
var titles = map[string]string{"gloo": "Gloo", "weft": "weft", "copies": "copies", "mpi": "Open MPI", "engine": "engine", "path": "path"}

func writeTable(w io.Writer, o options, title string, columns []column, results map[int64]map[string]*result) {
	columns = slices.DeleteFunc(slices.Clone(columns), func(c column) bool {
		return slices.ContainsFunc(c.needs, func(s string) bool { return !slices.Contains(o.systems, s) })
	})
	if title != "" {
		fmt.Fprintf(w, "\n%s\n\n", title)
	}
	fmt.Fprint(w, "| size |")
	for _, c := range columns {
		fmt.Fprintf(w, " %s |", c.head)
	}
	fmt.Fprint(w, "\n|---|", strings.Repeat("---|", len(columns)), "\n")
	for _, bytes := range o.sizes {
		fmt.Fprintf(w, "| %s |", size(bytes))
		for _, c := range columns {
			fmt.Fprintf(w, " %s |", c.cell(bytes, results[bytes]))
		}
		fmt.Fprintln(w)
	}
}

func milliseconds(head, system string) column {
	return column{head + ", ms", []string{system}, func(_ int64, x map[string]*result) string {
		return fmt.Sprintf("%.3g", median(x[system].times).Seconds()*1e3)
	}}
}

// ratio compares turn by turn: the median, and the least and the most.
func ratio(head, a, b string) column {
	return column{head, []string{a, b}, func(_ int64, x map[string]*result) string {
		var all []float64
		for i, t := range x[a].times {
			all = append(all, t.Seconds()/x[b].times[i].Seconds())
		}
		return fmt.Sprintf("**%.2f** (%.2f to %.2f)", median(all), slices.Min(all), slices.Max(all))
	}}
}

// machine tells where this runs.
func machine() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	model := "a processor without a name"
	if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(info); m != nil {
		model = string(m[1])
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, %d cores, Linux %s", model, runtime.NumCPU(), bytes.TrimSpace(kernel))
}

// load is how many processes have wanted to run in the last minute, on average.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	average, _, _ := strings.Cut(string(text), " ")
	return average
}

const begin, end = "<!-- tables of scripts/allreduce -->\n", "<!-- end of tables -->\n"

// around is what a page has before and after the tables of the last run.
func around(page string) (before, after string, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", "", err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		return "", "", fmt.Errorf("%s has no place for tables: a line %q, later a line %q", page, begin, end)
	}
	return before + begin, end + after, nil
}
