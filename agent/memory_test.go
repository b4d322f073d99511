package agent

import (
	"math"
	"strings"
	"testing"

	"weft/agent/protocol"
)

// Sizes whose sums do not fit into a number are refused as other large ones are.
func TestHuge(t *testing.T) {
	for _, elements := range []int64{math.MaxInt64 / 4, regionBytes / 4} {
		h := &protocol.Hello{World: 2, Tensors: []protocol.Tensor{{Name: "w", Elements: elements, DType: "float32"}, {Name: "b", Elements: 1, DType: "float32"}}}
		if _, err := newLayout(h); err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%d elements: %v", elements, err)
		}
	}
	if _, ok := Available(); ok && enough(3, math.MaxInt64/2) == nil {
		t.Error("memory beyond what there is")
	}
}
