package agent

import (
	"strings"
	"testing"
)

// Shared memory that the system refuses: whose, how much, and what to do.
func TestRefusedMemory(t *testing.T) {
	_, err := newRegion("weft-input-3", 1<<50, 0)
	if err == nil || !strings.Contains(err.Error(), "shared memory weft-input-3 of 1125899906842624 bytes: ") || !strings.Contains(err.Error(), "fewer workers") {
		t.Error(err)
	}
}
