package agent

import (
	"slices"
	"testing"
	"time"

	"weft/job"
	"weft/plan"
)

// A step that the end of its iteration was told before is found behind it; the last one may not be told yet.
func TestSteps(t *testing.T) {
	const wait = job.Runtime // stands for it
	type did struct {
		phase      job.Phase
		start, end time.Duration
	}
	for _, x := range []struct {
		name string
		ends []time.Duration
		told []did
		want []time.Duration
	}{
		{"nothing is told", []time.Duration{10, 20}, nil, []time.Duration{10, 20}},
		{"with the step", []time.Duration{10, 20}, []did{{job.Backward, 1, 8}, {job.Update, 8, 10}, {job.Forward, 10, 12}, {job.Backward, 12, 18}, {job.Update, 18, 20}}, []time.Duration{10, 20}},
		{
			"before it", []time.Duration{6, 16, 26},
			[]did{{job.Backward, 1, 6}, {wait, 6, 7}, {job.Update, 8, 10}, {job.Forward, 10, 12}, {job.Backward, 12, 16}, {job.Update, 17, 19}, {job.Backward, 20, 26}},
			[]time.Duration{10, 19},
		},
		{"without a step", []time.Duration{6, 16}, []did{{job.Backward, 1, 6}, {job.Forward, 8, 10}, {job.Backward, 10, 16}, {job.Update, 17, 18}}, []time.Duration{6, 18}},
	} {
		w := witness{ring[time.Duration]{most: 9}, ring[doing]{most: 9}}
		for _, at := range x.ends {
			w.ends.add(at)
		}
		for _, d := range x.told {
			w.told.add(doing{period{d.start, d.end}, d.phase, d.phase == wait})
		}
		if got := w.steps(); !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
	}
}

// What is kept has bounds, and an iteration of which something is not kept any more is not shown.
func TestRecorderBounded(t *testing.T) {
	j := job.Chain("j", []float64{0}, []float64{0}, []int64{4})
	r := &recorder{layout: &layout{job: j, plan: plan.New(j, "p", "net")}, ranks: []int{0}, flights: ring[flown]{most: 10}}
	r.workers = []witness{{ring[time.Duration]{most: 8}, ring[doing]{most: 5}}}
	for i := range time.Duration(100) {
		for k := range time.Duration(3) {
			r.flights.add(flown{period: period{10*i + k, 10*i + k + 1}})
		}
		r.workers[0].told.add(doing{period: period{10 * i, 10*i + 1}, waits: true})
		r.workers[0].ends.add(10*i + 9)
	}
	if n := len(r.flights.kept); n != 10 {
		t.Errorf("%d transfers are kept", n)
	}
	// Ten transfers are those of three iterations, and one of another: the last that is whole begins at the end of 96.
	if first, ends := r.window(); first != 96 || !slices.Equal(ends, []time.Duration{969, 979, 989, 999}) {
		t.Errorf("iterations from the end of %d on, with ends %v", first, ends)
	}
	r.flights = ring[flown]{most: 10}
	if first, ends := r.window(); first != 95 || len(ends) != 5 { // 95 to 99 are told
		t.Errorf("iterations from the end of %d on, with ends %v", first, ends)
	}
}
