package parallel

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
)

func TestDo(t *testing.T) {
	const n = 100
	var did [n]int
	var told []int
	err := Do(t.Context(), n, func(done, total int) {
		if total != n {
			t.Errorf("told of %d pieces", total)
		}
		told = append(told, done)
	}, func(i int) error {
		did[i]++
		if i%30 == 20 { // 20, 50, 80
			return fmt.Errorf("piece %d", i)
		}
		return nil
	})
	if err == nil || err.Error() != "piece 20" {
		t.Errorf("error %v, want that of piece 20", err)
	}
	if slices.Min(did[:]) != 1 || slices.Max(did[:]) != 1 {
		t.Errorf("pieces were done so often: %v", did)
	}
	if len(told) != n || !slices.IsSorted(told) || told[n-1] != n {
		t.Errorf("progress %v", told)
	}
}

func TestNothing(t *testing.T) {
	if err := Do(t.Context(), 0, nil, nil); err != nil {
		t.Error(err)
	}
}

// Each piece ends the context: no worker begins a second one.
func TestCancelled(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var began atomic.Int32
	err := Do(ctx, 1e6, nil, func(int) error {
		began.Add(1)
		cancel(why)
		return errors.New("of a piece")
	})
	if !errors.Is(err, why) {
		t.Errorf("error %v, want the cause of the end", err)
	}
	if n, most := int(began.Load()), runtime.GOMAXPROCS(0); n < 1 || n > most {
		t.Errorf("%d pieces began, want 1 to %d", n, most)
	}
}
