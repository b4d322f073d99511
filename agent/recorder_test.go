package agent

import (
	"slices"
	"testing"
	"time"

	"weft/job"
	"weft/plan"
)

// An iteration ends when its last step has returned, or where none is told; those after the last step are not over yet.
func TestEnded(t *testing.T) {
	for _, x := range []struct {
		name string
		ends []ending
		want []time.Duration
	}{
		{"no step is told", []ending{{10, 0}, {20, 0}}, []time.Duration{10, 20}},
		{"each", []ending{{6, 10}, {16, 20}}, []time.Duration{10, 20}},
		{"not of one, nor yet of the last", []ending{{6, 0}, {16, 20}, {26, 0}}, []time.Duration{6, 20}},
	} {
		w := witness{ends: ring[ending]{most: 9}}
		for _, e := range x.ends {
			w.ends.add(e)
		}
		if got := w.ended(); !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
	}
}

// What is kept has bounds, and an iteration of which something is not kept any more is not shown.
func TestRecorderBounded(t *testing.T) {
	j := job.Chain("j", []float64{0}, []float64{0}, []int64{4})
	r := &recorder{layout: &layout{job: j, plan: plan.New(j, "p", "net")}, ranks: []int{0}, flights: ring[flown]{most: 10}}
	r.workers = []witness{{ring[ending]{most: 8}, ring[doing]{most: 5}}}
	for i := range time.Duration(100) {
		for k := range time.Duration(3) {
			r.flights.add(flown{period: period{10*i + k, 10*i + k + 1}})
		}
		r.workers[0].told.add(doing{period: period{10 * i, 10*i + 1}, waits: true})
		r.workers[0].ends.add(ending{told: 10*i + 9})
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
