// Package crossover names the schedule that one job alone cannot have: see
// package pair.
package crossover

import (
	"context"
	"fmt"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// Crossover lets two jobs share the devices: one computes while the other's
// gradients travel (section 14). It has no plan for one job and refuses each.
var Crossover = policy.Policy{
	Name:  "crossover",
	Title: "CrossoverScheduler: another job computes while this one communicates",
	Paper: "CrossoverScheduler (arXiv 2103.07974)",
	Class: policy.Synchronous,
	Build: func(context.Context, *job.Job, *cluster.Cluster, policy.Options) (*plan.Plan, error) {
		return nil, fmt.Errorf("%w: crossover pairs two jobs: weft pair A B", policy.ErrUnsuitable)
	},
}
