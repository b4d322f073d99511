package cluster

import (
	"math"
	"testing"
)

func TestCurveByHand(t *testing.T) {
	// First segment: 10 us more for 1000 bytes more, so it meets zero bytes at
	// 20 us. Last segment: 20 us for 1000 bytes.
	c := Uniform(4, 1, Link{Name: "net", Curve: []Point{
		{AllReduce, 1000, 30}, {AllReduce, 2000, 40}, {AllReduce, 3000, 60},
		{Broadcast, 1000, 1}, {Broadcast, 2000, 3}, // would meet zero at -1: starts at 0
		{AllGather, 500, 7},                              // one point: a line through it and nothing
		{ReduceScatter, 100, 5}, {ReduceScatter, 200, 5}, // flat
	}})
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		kind  Kind
		bytes int64
		want  Cost
	}{
		{AllReduce, 0, Cost{0, 0}},
		{AllReduce, 500, Cost{20, 5}},
		{AllReduce, 1000, Cost{20, 10}},
		{AllReduce, 1500, Cost{20, 15}},
		{AllReduce, 2000, Cost{20, 20}},
		{AllReduce, 2500, Cost{20, 30}},
		{AllReduce, 3000, Cost{20, 40}},
		{AllReduce, 5000, Cost{20, 80}},
		{Broadcast, 500, Cost{0, 0.5}},
		{Broadcast, 1500, Cost{0, 2}},
		{Broadcast, 3000, Cost{0, 5}},
		{AllGather, 250, Cost{0, 3.5}},
		{AllGather, 1000, Cost{0, 14}},
		{ReduceScatter, 50, Cost{5, 0}},
		{ReduceScatter, 500, Cost{5, 0}},
	} {
		if got, err := c.Cost(0, x.kind, x.bytes); err != nil || got != x.want {
			t.Errorf("%v of %d bytes: %v, %v; want %v", x.kind, x.bytes, got, err, x.want)
		}
	}
}

// Constants that MG-WFBP ships: papers/overlap-scheduling.md, section 4. Points
// on the line give the line back.
var mgwfbp = []struct {
	name        string
	alpha, beta float64 // s, s a byte
}{
	{"10GbE, 8 workers", 5.23e-4, 8.57e-10},
	{"10GbE, 16 workers", 9.08e-4, 7.40e-10},
	{"56G InfiniBand, 8 workers", 9.75e-5, 3.06e-10},
	{"56G InfiniBand, 16 workers", 2.36e-4, 4.06e-10},
}

func TestAlphaBetaOfCurve(t *testing.T) {
	for _, x := range mgwfbp {
		l := Link{Name: x.name}
		for elements := int64(8 << 10); elements <= 504<<10; elements += 62 << 10 {
			l.Curve = append(l.Curve, Point{AllReduce, 4 * elements, (x.alpha + x.beta*float64(4*elements)) * 1e6})
		}
		c := Uniform(8, 1, l)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		alpha, beta, err := c.AlphaBeta(0, AllReduce)
		if err != nil || math.Abs(alpha/1e6-x.alpha) > 1e-12 || math.Abs(beta/1e6-x.beta) > 1e-18 {
			t.Errorf("%s: alpha %v us, beta %v us a byte, %v", x.name, alpha, beta, err)
		}
	}
}

func TestFitLineByHand(t *testing.T) {
	for _, x := range []struct {
		points      []Point
		alpha, beta float64
	}{
		// Means 2 and 4; sum (x-2)(y-4) = 1·1 + 0·2 + 1·1 = 2 over (x-2)^2 = 2:
		// slope 1, at the mean 4, so 2 at zero.
		{[]Point{{Bytes: 1, Time: 3}, {Bytes: 2, Time: 4}, {Bytes: 3, Time: 5}}, 2, 1},
		// The best line, through (2, 2) with slope 2, would start at -2. Through
		// the origin: (1·0 + 2·2 + 3·4) / (1 + 4 + 9) = 16/14.
		{[]Point{{Bytes: 1, Time: 0}, {Bytes: 2, Time: 2}, {Bytes: 3, Time: 4}}, 0, 16. / 14},
		// The best slope is negative: no slope, and the mean of 5 and 3.
		{[]Point{{Bytes: 1, Time: 5}, {Bytes: 2, Time: 3}}, 4, 0},
		{[]Point{{Bytes: 10, Time: 5}}, 0, 0.5},
		{[]Point{{Bytes: 0, Time: 5}}, 5, 0},
	} {
		alpha, beta, err := fitLine(x.points)
		if err != nil || !alike(alpha, x.alpha) || !alike(beta, x.beta) {
			t.Errorf("%v: %v, %v, %v; want %v, %v", x.points, alpha, beta, err, x.alpha, x.beta)
		}
	}
	for _, bad := range [][]Point{nil, {{Bytes: -1}}, {{Time: math.NaN()}}, {{Time: -1}}} {
		if _, _, err := fitLine(bad); err == nil {
			t.Errorf("a line through %v", bad)
		}
	}
}
