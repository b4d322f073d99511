package acceptance

import (
	"errors"
	"testing"

	"weft/cluster"
	"weft/compare"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/zoo"
)

// Every job of the zoo runs through every policy, on one link and on two: each
// plan is legal, none beats its bound, and nothing refuses but for a reason of
// kind.
func TestZoo(t *testing.T) {
	for _, m := range zoo.Models() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			j, err := zoo.Job(m.Name, "a100", zoo.Options{})
			if err != nil {
				t.Fatal(err)
			}
			c := cluster.Uniform(16, 1, cluster.Link{Name: "net", Latency: 25, Bandwidth: 40e9})
			x, err := compare.Run(t.Context(), j, c, compare.Options{Policies: all.Policies(), Policy: policy.Options{Limits: plan.DelayLimits(1)}})
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range x.Blocks {
				for _, r := range b.Rows {
					switch {
					case r.Refusal != nil && !errors.Is(r.Refusal, policy.ErrUnsuitable):
						t.Errorf("%s: %v", r.Policy.Name, r.Refusal)
					case r.Refusal == nil && r.Gap < -1e-5: // the simulator rounds each op to a nanosecond
						t.Errorf("%s takes %g us, below its bound by %g", r.Policy.Name, r.Time, -r.Gap)
					case r.Refusal == nil:
						t.Logf("%-14s %8.2f ms, gap %5.1f %%", r.Policy.Name, r.Time/1000, 100*r.Gap)
					}
				}
			}
		})
	}
}
