// Package server holds the policies for parameter servers that keep iterations
// apart: what a worker computes is pushed when it is ready, and once all is
// pushed the next iteration pulls all parameters, in an order that each policy
// chooses. (P3 and ByteScheduler, whose pulls follow their own pushes, are in
// package priority.)
package server

import (
	"cmp"
	"context"
	"slices"

	"weft/cluster"
	"weft/internal/splitmix"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// PS is what users of parameter servers had: each gradient is pushed when it is
// ready; at the start of an iteration all parameters are asked for, and arrive in
// an order that means nothing. The order is fixed, a hash of the tensor and the
// cluster's seed (what TicTac, section 8, is compared with).
var PS = policy.Policy{
	Name:  "ps",
	Title: "parameter servers, plain: push when ready, pull in an arbitrary fixed order",
	Paper: "Parameter Server (OSDI 2014), as in TensorFlow (OSDI 2016)",
	Class: policy.Servers,
	Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		if err := policy.NeedServers("ps", c); err != nil {
			return nil, err
		}
		p, err := policy.NewProfile(j, c, o.Copies)
		if err != nil {
			return nil, err
		}
		pulls := slices.Clone(p.Use)
		slices.SortFunc(pulls, func(a, b job.TensorID) int {
			return cmp.Or(cmp.Compare(hash(c.Seed, a), hash(c.Seed, b)), cmp.Compare(a, b))
		})
		out, err := policy.Start("ps", j, c, o)
		if err != nil {
			return nil, err
		}
		if policy.CanCross(j) == nil {
			out.Updates[0].At = plan.AtRead
		} else {
			out.Notes = append(out.Notes, "the next iteration waits for all pulls: the job's parameters cannot be updated when each is read")
		}
		return fill(out, j, alone(p.Order), alone(pulls), o)
	},
}

// hash is a number of a tensor, from a stream of its own for each seed.
func hash(seed uint64, k job.TensorID) uint64 {
	return splitmix.Mix(seed + (uint64(k)+1)*splitmix.Step)
}

// alone makes a group of each tensor.
func alone(order []job.TensorID) [][]job.TensorID {
	groups := make([][]job.TensorID, len(order))
	for i := range order {
		groups[i] = order[i : i+1]
	}
	return groups
}

// fill makes p push the groups in the given order, each when its gradients are
// ready, and behind the last push pull, in their order, the others, which hold the
// same tensors.
func fill(p *plan.Plan, j *job.Job, pushes, pulls [][]job.TensorID, o policy.Options) (*plan.Plan, error) {
	p.Programs[0].Window.Transfers = o.WithDefaults().InFlight
	pushed := make([]int, len(j.Tensors)) // position of the tensor's push
	for _, tensors := range pushes {
		at := p.Add(0, cluster.Push, p.AddBucket(plan.WholeTensors(j, tensors...)), plan.Gate{Kind: plan.GradientReady})
		for _, k := range tensors {
			pushed[k] = at
		}
	}
	for _, tensors := range pulls {
		behind := []int{len(pushes) - 1}
		for _, k := range tensors {
			behind = append(behind, pushed[k])
		}
		slices.Sort(behind)
		var gates []plan.Gate
		for _, at := range slices.Compact(behind) {
			gates = append(gates, plan.Gate{Kind: plan.TransferDone, Transfer: at})
		}
		b := pushed[tensors[0]] // buckets are numbered as the pushes are
		if !slices.Equal(pushes[b], tensors) {
			b = p.AddBucket(plan.WholeTensors(j, tensors...))
		}
		p.Add(0, cluster.Pull, b, gates...)
	}
	if p.Updates[0].At == plan.AtStep {
		return p, p.AddCollectives(j)
	}
	return p, p.AddCollectivesAmong(j, len(pushes))
}
