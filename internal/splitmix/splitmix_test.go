package splitmix

import "testing"

// The first numbers from state 0, as the reference implementation prints them
// (prng.di.unimi.it/splitmix64.c).
func TestReference(t *testing.T) {
	state := uint64(0)
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		state += Step
		if got := Mix(state); got != want {
			t.Errorf("number %d is %#x, want %#x", i, got, want)
		}
	}
	if low, high := Float(0), Float(1<<64-1); low != 0 || high >= 1 {
		t.Errorf("from %g to %g", low, high)
	}
}
