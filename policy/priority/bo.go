package priority

import (
	"context"
	"fmt"

	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
)

// ByteSchedulerBO is [ByteScheduler] with partition and credit tuned as its
// authors do, by Bayesian optimisation in their ranges (section 7.1), here of the
// time that the profile predicts.
var ByteSchedulerBO = policy.Policy{
	Name:  "bytescheduler-bo",
	Title: "ByteScheduler, tuned by Bayesian optimisation as published",
	Paper: "A Generic Communication Scheduler (SOSP 2019)",
	Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
		x, err := optimise(j, c, o)
		if err != nil {
			return nil, err
		}
		p, err := x.plan("bytescheduler-bo", o)
		if err != nil {
			return nil, err
		}
		p.Notes = append(p.Notes, fmt.Sprintf("the best of %d points: partitions of %d elements, a credit of %d bytes", boSteps, x.partition, x.credit))
		return p, nil
	},
}

// The authors' search for all-reduce, in elements.
const (
	minPartition, maxPartition = 2e6, 32e6
	minCredit, maxCredit       = 4e6, 64e6
)

// optimise is the best of the points that the search tries; the first of several.
func optimise(j *job.Job, c *cluster.Cluster, o policy.Options) (best tuning, err error) {
	var elements int64
	for k := range j.Tensors {
		elements += j.Tensors[k].Elements
	}
	var search bayes
	for range boSteps {
		at := search.next()
		partition := int64(minPartition + at[0]*(maxPartition-minPartition))
		// Credit counts elements there and bytes here: of the job's mean size.
		credit := (minCredit + at[1]*(maxCredit-minCredit)) * float64(j.Bytes()) / float64(max(elements, 1))
		s, err := newSchedule(j, c, o, partition, cluster.AllReduce)
		if err != nil {
			return tuning{}, err
		}
		x := s.at(partition, int64(credit))
		search.tell(at, x.time)
		if best.schedule == nil || x.time < best.time {
			best = x
		}
	}
	return best, nil
}
