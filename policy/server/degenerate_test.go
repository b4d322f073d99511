package server

import (
	"testing"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// Every policy has a legal plan for one layer, for times and costs of nothing, and
// for many layers, if dynacomm does not refuse these.
func TestDegenerate(t *testing.T) {
	many := maxLayers + 1
	for _, x := range []struct {
		name     string
		fwd, bwd []float64
		bytes    []int64
		workers  int
	}{
		{"one layer", []float64{1}, []float64{1}, []int64{4}, 4},
		{"one worker", []float64{1, 1}, []float64{1, 1}, []int64{4, 4}, 1},
		{"no time", make([]float64, 3), make([]float64, 3), []int64{4, 4, 4}, 4},
		{"many layers", make([]float64, many), make([]float64, many), sizesOf(many), 4},
	} {
		j := job.Chain(x.name, x.fwd, x.bwd, x.bytes)
		c := cluster.Uniform(x.workers, 1, cluster.Link{Name: "net", Latency: 5, Bandwidth: 1e9}).WithServers()
		for _, pol := range []policy.Policy{PS, TIC, TAC, DynaComm} {
			p, err := pol.Build(t.Context(), j, c, policy.Options{})
			if pol.Name == "dynacomm" && len(x.fwd) > maxLayers {
				if err == nil {
					t.Errorf("%s: %s plans more layers than it says", x.name, pol.Name)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s: %s: %v", x.name, pol.Name, err)
			}
			if r := plan.Check(p, j, plan.DefaultLimits); !r.OK() {
				t.Errorf("%s: %s: %v", x.name, pol.Name, r)
			}
		}
	}
}

func sizesOf(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(4 * (1 + i*7919%1000))
	}
	return out
}

func TestNoServers(t *testing.T) {
	j := job.Chain("chain", []float64{1}, []float64{1}, []int64{4})
	c := cluster.Uniform(4, 1, cluster.Link{Name: "net", Bandwidth: 1e9})
	for _, pol := range []policy.Policy{PS, TIC, TAC, DynaComm} {
		if _, err := pol.Build(t.Context(), j, c, policy.Options{}); err == nil {
			t.Errorf("%s plans without servers", pol.Name)
		}
	}
}
