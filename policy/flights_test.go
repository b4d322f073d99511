package policy

import (
	"testing"

	"weft/cluster"
	"weft/plan"
)

// By hand: three transfers of 10 bytes go as soon as they can from time 0 on, and
// are done at 5, 9 and 6 (the last overtakes); then the fourth may go.
func TestFlights(t *testing.T) {
	for _, x := range []struct {
		name   string
		window plan.Window
		link   int // in flight
		want   [4]float64
	}{
		{"any number", plan.Window{}, 0, [4]float64{0, 0, 0, 0}},
		{"two", plan.Window{Transfers: 2}, 0, [4]float64{0, 0, 5, 6}},
		{"two on the link", plan.Window{}, 2, [4]float64{0, 0, 5, 6}},
		{"one on the link", plan.Window{Transfers: 2}, 1, [4]float64{0, 5, 9, 9}},
		{"credit for 20 bytes", plan.Window{Bytes: 20}, 0, [4]float64{0, 0, 5, 6}},
		{"credit exceeded by one", plan.Window{Bytes: 21}, 0, [4]float64{0, 0, 0, 5}},
	} {
		f := NewFlights(x.window, &cluster.Link{InFlight: x.link})
		now := 0.0
		for i, done := range []float64{5, 9, 6, 12} {
			if now = f.Next(now); now != x.want[i] {
				t.Errorf("%s: transfer %d goes at %g, want %g", x.name, i, now, x.want[i])
			}
			f.Send(10, done)
		}
	}
}
