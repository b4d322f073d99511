package agent_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"weft/agent"
	"weft/plan"
)

// Files that no training is given: what is wrong is said before any worker starts.
func TestHostilePlans(t *testing.T) {
	const bucket = `{"slices": [{"tensor": 0, "offset": 0, "length": 100}]}`
	reduce := func(bucket int, gates string) string {
		return fmt.Sprintf(`{"kind": "all-reduce", "bucket": %d, "generation": 0, "gates": [{"kind": "gradient"}%s]}`, bucket, gates)
	}
	on := func(link string, transfers ...string) string {
		return fmt.Sprintf(`{"link": %q, "window": {}, "transfers": [%s]}`, link, strings.Join(transfers, ", "))
	}
	many := func(n int, each func(k int) string) string {
		var all []string
		for k := range n {
			all = append(all, each(k))
		}
		return strings.Join(all, ", ")
	}
	halves := bucket[:len(bucket)-len("100}]}")] + `50}]}, {"slices": [{"tensor": 0, "offset": 50, "length": 50}]}`
	for _, x := range []struct{ name, rate, at, buckets, programs, want string }{
		{name: "good", want: ""},
		{name: "nothing", buckets: " ", programs: on("a"), want: ""},
		{name: "many slices", buckets: `{"slices": [` + many(1e5, func(k int) string { return fmt.Sprintf(`{"tensor": 0, "offset": %d, "length": 1}`, k) }) + `]}`, want: ""},
		{name: "many links", programs: many(2000, func(k int) string { return on(fmt.Sprint(k)) }), want: "programs for 2000 links, and agents execute at most 1024"},
		{name: "waits for itself", programs: on("a", reduce(0, `, {"kind": "transfer", "link": 0, "transfer": 0}`)), want: "circular wait: transfer 0 of link a"},
		{name: "waits for the next", buckets: halves, programs: on("a", reduce(0, `, {"kind": "transfer", "link": 0, "transfer": 1}`), reduce(1, "")), want: "circular wait: "},
		{
			name: "links wait for each other", buckets: halves, want: "circular wait: ",
			programs: on("a", reduce(0, `, {"kind": "transfer", "link": 1, "transfer": 0}`)) + ", " + on("b", reduce(1, `, {"kind": "transfer", "link": 0, "transfer": 0}`)),
		},
		{name: "waits for the end of what it ends", programs: on("a", reduce(0, `, {"kind": "boundary", "iteration": 0}`)), want: "circular wait: "},
		{name: "twice", buckets: bucket + ", " + bucket, programs: on("a", reduce(0, ""), reduce(1, "")), want: "rule 1"},
		{name: "a part alone", buckets: strings.Replace(bucket, `"offset": 0`, `"offset": 7`, 1), want: "elements 0..6 of tensor 0 never reduced"},
		{name: "negative length", buckets: strings.Replace(bucket, "100", "-100", 1), want: "-100 elements from 0 of tensor 0"},
		{name: "negative offset", buckets: strings.Replace(bucket, `"offset": 0`, `"offset": -1`, 1), want: "100 elements from -1 of tensor 0"},
		{name: "past all memory", buckets: strings.Replace(bucket, "100", "9223372036854775807", 1), want: "exceed 9223372036854775807 bytes"},
		{name: "a tensor beyond", buckets: strings.Replace(bucket, `"tensor": 0`, `"tensor": 2000000000`, 1), want: "the plan moves 1 tensors, and not tensor 0"},
		{name: "not a number", rate: "NaN", want: "invalid JSON"},
		{name: "infinite", rate: "1e999", want: "1e999 is too large"},
		{name: "no rate", rate: "-0", want: "update_rate: -0"},
		{name: "applied before", at: "-1", want: "circular wait: "},
		{name: "applied too late", at: "1048576", want: "this takes 1048577 buffers"},
	} {
		text := strings.NewReplacer("RATE", cmp.Or(x.rate, "1"), "AT", cmp.Or(x.at, "0"), "BUCKETS", cmp.Or(x.buckets, bucket), "PROGRAMS", cmp.Or(x.programs, on("a", reduce(0, "")))).Replace(
			`{"version": 1, "policy": "p", "tensors_fingerprint": "41b340dfe48702c79fc790dbb0bef663", "period": 1, "buffers": 1, "update_rate": RATE,
"generations": [{"first": 0, "length": 1}], "updates": [{"generation": 0, "at": "step", "iteration": AT}], "buckets": [BUCKETS], "programs": [PROGRAMS]}`)
		p, err := plan.Read(strings.NewReader(text))
		if err == nil {
			err = (&agent.Schedule{Plan: p, Limits: plan.DefaultLimits}).Check()
		}
		if err != nil && x.want == "" || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
	}
}
