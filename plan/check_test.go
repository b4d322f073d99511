package plan

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs the scripts of testdata. The commands: job and plan describe
// one, and check it; edit changes the last plan for one check, and prints the
// rules that break; limits sets what the user allows; explain prints the last
// plan, report all that the checker says of it.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/check", func(t *testing.T, path string) {
		var j *scriptJob
		var text string
		limits := DefaultLimits
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "job":
				j = parseJob(d.Input)
				return ""
			case "limits":
				var delay int
				d.ScanArgs(t, "delay", &delay)
				limits = DelayLimits(delay)
				if d.HasArg("staleness") {
					d.ScanArgs(t, "staleness", &limits.MaxStaleness)
				}
				if d.HasArg("rate") {
					var rate string
					d.ScanArgs(t, "rate", &rate)
					limits.MinUpdateRate, _ = strconv.ParseFloat(rate, 64)
				}
				return ""
			case "plan":
				text = d.Input
				return verdict(Check(j.parsePlan(text), j.Job, limits), d.HasArg("notes"))
			case "explain":
				var b strings.Builder
				named := j.Job
				if d.HasArg("without-job") {
					named = nil
				}
				if err := Explain(&b, j.parsePlan(text), named); err != nil {
					return err.Error() + "\n"
				}
				return masked(b.String())
			case "report":
				return masked(Check(j.parsePlan(edit(text, d.Input)), j.Job, limits).String())
			case "edit":
				return verdict(Check(j.parsePlan(edit(text, d.Input)), j.Job, limits), d.HasArg("notes"))
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

var fingerprint = regexp.MustCompile("[0-9a-f]{32,}")

// masked hides fingerprints and digests, which say nothing to a reader.
func masked(s string) string { return fingerprint.ReplaceAllString(s, "(digest)") }

// verdict lists the rules that break, with their witnesses, and notes if asked for.
func verdict(r Report, notes bool) string {
	var b strings.Builder
	for _, x := range r.Rules {
		if x.Witness != "" {
			fmt.Fprintf(&b, "rule %d: %s\n", x.Rule, x.Witness)
		}
	}
	if r.OK() {
		b.WriteString("ok\n")
	}
	for _, n := range r.Notes {
		if notes {
			fmt.Fprintf(&b, "note: %s\n", n)
		}
	}
	return b.String()
}
