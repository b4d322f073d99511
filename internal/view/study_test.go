package view

import (
	"bytes"
	"strings"
	"testing"

	"weft/cluster"
	"weft/internal/cli"
	"weft/job"
	"weft/policy"
	"weft/study"
)

// example is a study of the running example of the policies' descriptions. Its
// times are known: sim/testdata/script/rx.txt has the arithmetic.
func example(t *testing.T) *study.Result {
	rx := job.Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
	global := *rx
	global.Mode = job.Global
	on := *cluster.Uniform(2, 1, cluster.Link{Name: "net", Latency: 1, Bandwidth: 8e6})
	r, err := study.Run(t.Context(), &study.Study{
		Name: "example", Title: "schedules of the running example", Paper: "none", Link: "none",
		Claims:      []study.Claim{{Text: "p3 is better", Of: "p3", Over: []string{"wfbp"}}},
		Assumptions: []string{"nothing"}, Differences: []string{"none"},
		Setting: "updates",
		Cases: []study.Case{
			{Model: "rx", Setting: "per tensor", X: 1, Jobs: []study.Source{{Job: rx}}, Cluster: on},
			{Model: "rx", Setting: "global", X: 2, Jobs: []study.Source{{Job: &global}}, Cluster: on},
		},
		Schedules: []study.Schedule{
			{Name: "p3", Policy: "p3", Tries: []policy.Options{{Slice: 1}}},
			{Name: "wfbp", Policy: "wfbp"},
		},
		Subject: "p3",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Slices of one element: P3 takes 30, the floor; WFBP 38. A global norm forbids P3, and
// the floor is then 31.
// The slices are 13 transfers; the wire takes 13 in all, and WFBP's four start-ups
// 8 more; E = (27 + 21 - 38)/21 and (27 + 15 - 30)/15, in which the last transfer
// is under way until 23, from 8.
func TestStudyCSV(t *testing.T) {
	var got bytes.Buffer
	if err := Study(example(t)).CSV(&got, StudyResults); err != nil {
		t.Fatal(err)
	}
	want := `model,setting,workers,bits_per_s,wire_coverage,schedule,time_us,least_us,most_us,gain,rank,computation_us,communication_us,exposed_us,efficiency,transfers,update_rate,max_delay,max_staleness,loss_ratio,bound_us,gap
rx,per tensor,2,8000000,0.481481,p3,30,30,30,0,1,27,15,3,0.8,13,1,0,0,,30,0
rx,per tensor,2,8000000,0.481481,wfbp,38,38,38,0.266667,2,27,21,11,0.47619,4,1,0,0,,30,0.266667
rx,global,2,8000000,0.481481,p3,,,,,,,,,,,,,,,,
rx,global,2,8000000,0.481481,wfbp,38,38,38,,1,27,21,11,0.47619,4,1,0,0,,31,0.225806
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}

func TestStudyText(t *testing.T) {
	var got bytes.Buffer
	c := cli.Console{Out: &got}
	if err := c.Print(Study(example(t)), false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"p3 is better      p3   26.7  26.7  rx, per tensor\n",
		"rx           0.48    0.48\n",
		"rx     wfbp            26.7       -\n",
	} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("no %q in\n%s", want, &got)
		}
	}
}

func TestStudyChart(t *testing.T) {
	r := example(t)
	for kind, want := range map[study.PlotKind][]string{
		study.GainBars:  {"over wfbp", "rx, per tensor", "gain of p3, %", ">26.7<"},
		study.TimeBars:  {">wfbp<", "time of an iteration, ms", "0.038"},
		study.GainLines: {"rx over wfbp", ">updates<", "gain of p3, %"},
		study.TimeLines: {">rx wfbp<", "time of an iteration, ms"},
	} {
		r.Study.Plot.Kind = kind
		var got bytes.Buffer
		if err := StudyChart(&got, r); err != nil {
			t.Fatal(err)
		}
		for _, s := range want {
			if !strings.Contains(got.String(), s) {
				t.Errorf("kind %d: no %q", kind, s)
			}
		}
	}
}
