package kineto

import (
	"math"
	"testing"
)

func TestInspectShared(t *testing.T) {
	x, err := load(t, resnet50(t)).Inspect()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", *x.HTA)
	for _, s := range x.Steps {
		t.Logf("%+v", s)
	}
	for _, b := range x.Buckets {
		t.Logf("%+v", b)
	}
}

func TestInspectRecorded(t *testing.T) {
	for _, c := range recorded(t) {
		x, err := load(t, c.path).Inspect()
		if err != nil {
			t.Fatal(err)
		}
		t.Log(c.name)
		for _, s := range x.Steps {
			if sum := s.Computation + s.Copies + s.Exposed + s.HostBound + s.Idle; math.Abs(sum-s.Time) > 1 {
				t.Errorf("step %d: parts sum to %.1f us of %.1f", s.Step, sum, s.Time)
			}
		}
		t.Logf("%+v", x.Median)
		for _, b := range x.Buckets {
			t.Logf("%+v", b)
		}
	}
}

func TestM(t *testing.T) {
	rs := recorded(t)
	for i := 0; i < len(rs); i += 2 {
		m, err := Match(load(t, rs[i].path), load(t, rs[i+1].path))
		if err != nil {
			t.Fatal(err)
		}
		t.Log(rs[i].name)
		for _, r := range m.Ranks {
			t.Logf("%+v", r)
		}
		for _, c := range m.Collectives[:6] {
			t.Logf("%+v", c)
		}
	}
}
