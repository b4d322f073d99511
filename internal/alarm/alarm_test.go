package alarm

import (
	"slices"
	"testing"
	"time"
)

// Sleepers wake in the order of their times, none too early, whoever came first.
func TestOrder(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := time.Now()
	until := func(i int) time.Time { return start.Add(time.Duration(i) * 20 * time.Millisecond) }
	wake := make([]<-chan struct{}, 4)
	for _, i := range []int{3, 1, 2, 0} {
		wake[i] = c.At(until(i))
	}
	<-wake[3]
	if time.Now().Before(until(3)) {
		t.Error("woken too early")
	}
	for i, w := range wake[:3] {
		select {
		case <-w:
		default:
			t.Errorf("the last was woken before number %d", i)
		}
	}
}

// A closed clock wakes nobody, and may be closed again.
func TestClosed(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	before := c.At(time.Now().Add(time.Millisecond))
	c.Close()
	c.Close()
	select {
	case <-before:
	case <-c.At(time.Now()):
		t.Error("woken by a clock that has ended")
	case <-time.After(5 * time.Millisecond):
	}
}

// BenchmarkLate reports how late sleepers wake.
func BenchmarkLate(b *testing.B) {
	c, err := New()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var late []time.Duration
	for b.Loop() {
		until := time.Now().Add(700 * time.Microsecond)
		<-c.At(until)
		late = append(late, time.Since(until))
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Nanoseconds())/1e3, "us-median")
	b.ReportMetric(float64(late[len(late)*99/100].Nanoseconds())/1e3, "us-p99")
}
