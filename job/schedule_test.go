package job

import (
	"slices"
	"testing"
)

// rx is the running example of papers/overlap-scheduling.md, section 0.5.
func rx() *Job {
	return Chain("rx", []float64{2, 2, 1, 4}, []float64{4, 4, 2, 8}, []int64{1, 2, 3, 7})
}

func TestChainSchedule(t *testing.T) {
	j := rx()
	if err := j.Validate(); err != nil {
		t.Fatal(err)
	}
	start, end, err := j.Schedule()
	if err != nil {
		t.Fatal(err)
	}
	// f1..f4 take 2 2 1 4; then b4..b1 take 8 2 4 4; then u1..u4 nothing.
	wantStart := []float64{0, 2, 4, 5, 9, 17, 19, 23, 27, 27, 27, 27}
	wantEnd := []float64{2, 4, 5, 9, 17, 19, 23, 27, 27, 27, 27, 27}
	if !slices.Equal(start, wantStart) || !slices.Equal(end, wantEnd) {
		t.Errorf("start %v\n end  %v\nwant start %v\n     end   %v", start, end, wantStart, wantEnd)
	}
	for i, want := range []int64{1, 2, 3, 7} {
		if got := j.Tensors[i].GradBytes(); got != want {
			t.Errorf("%s: %d bytes, want %d", j.Tensors[i].Name, got, want)
		}
	}
}
