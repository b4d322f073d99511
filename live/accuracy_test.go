package live

import (
	"math"
	"testing"
)

// Trainings whose last scores are 98 and 99 on average 98.5: what is at most 0.2 points less
// counts as good, and the time to it is that of the seeds' first good tests.
func TestTarget(t *testing.T) {
	tests := func(scores ...float64) (out []Test) {
		for i, s := range scores {
			out = append(out, Test{Time: float64(i + 1), Score: s})
		}
		return out
	}
	l := Learned{Goal: *LookupGoal("cnn"), Rows: []Trained{
		{Tests: [][]Test{tests(98.4, 97, 98), tests(97, 98.3, 99)}, weights: []string{"a", "b"}},
		{Tests: [][]Test{tests(97, 98.2, 98.4), tests(98.2, 98.2, 98.2)}, weights: []string{"a", "c"}},
	}}
	first, second := &l.Rows[0], &l.Rows[1]
	if got := l.Target(); math.Abs(got-98.3) > 1e-9 {
		t.Errorf("target %v, want 98.3", got)
	}
	if got := l.TimeTo(first); got != 1.5 { // 1 and 2
		t.Errorf("first after %v, want 1.5", got)
	}
	if got := l.TimeTo(second); !math.IsNaN(got) { // its second seed never
		t.Errorf("second after %v", got)
	}
	if got, _ := second.Score(); math.Abs(got-98.3) > 1e-9 {
		t.Errorf("second score %v, want 98.3", got)
	}
	if got := second.Same(first); got != 1 {
		t.Errorf("same weights %d times, want 1", got)
	}
	l.Goal = *LookupGoal("gpt") // less is better, by 1 %
	if got := l.Target(); math.Abs(got-98.5*1.01) > 1e-9 {
		t.Errorf("target %v", got)
	}
}
