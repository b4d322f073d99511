package study

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"weft/cluster"
	"weft/job"
	"weft/pair"
	"weft/plan"
	"weft/policy"
	"weft/policy/deft"
)

// The networks that studies assume where the paper's abstract names a bandwidth
// and no more, or not even that. A step takes as long as in the start-ups that
// MG-WFBP's code holds for a ring of 16 workers: 9.08e-4 s / 30 on 10 Gbit/s
// Ethernet, 2.36e-4 s / 30 on InfiniBand. At 40 Gbit/s it is the 25 us of DeFT's
// illustration (section 13.7 of the algorithms).
var (
	ethernet   = cluster.Link{Name: "net", Bandwidth: 10e9, Latency: 30}
	infiniband = cluster.Link{Name: "net", Bandwidth: 100e9, Latency: 8}
	ethernet40 = cluster.Link{Name: "net", Bandwidth: 40e9, Latency: 25}
	ethernet20 = cluster.Link{Name: "slow", Bandwidth: 20e9, Latency: 25}
)

// setting is a cluster with its name in tables, and as a number.
type setting struct {
	name    string
	x       float64
	cluster cluster.Cluster
}

// grid is every model in every setting, with the zoo's default batch.
func grid(device string, models []string, settings []setting) []Case {
	var out []Case
	for _, m := range models {
		for _, s := range settings {
			out = append(out, Case{
				Model: m, Setting: s.name, X: s.x,
				Jobs: []Source{{Model: m, Device: device}}, Cluster: s.cluster,
			})
		}
	}
	return out
}

// coverages is every model at every coverage rate, to which the cluster's first
// link is throttled.
func coverages(device string, models []string, c cluster.Cluster, rates ...float64) []Case {
	var settings []setting
	for _, r := range rates {
		settings = append(settings, setting{fmt.Sprint(r), r, c})
	}
	out := grid(device, models, settings)
	for i := range out {
		out[i].Coverage = out[i].X
	}
	return out
}

// without leaves parts of caramel out.
func without(parts ...string) []policy.Options { return []policy.Options{{Without: parts}} }

// workers is a cluster of hosts with a worker each.
func workers(n int, links ...cluster.Link) cluster.Cluster {
	return cluster.Cluster{Nodes: n, PerNode: 1, Links: links, Scale: 1}
}

// hosts is a cluster of hosts with several workers each, joined as NVLink joins
// them.
func hosts(n, each int, links ...cluster.Link) cluster.Cluster {
	c := workers(n, slices.Clone(links)...)
	c.PerNode, c.Inside = each, &cluster.Link{Bandwidth: 2400e9, Latency: 3}
	for l := range c.Links {
		c.Links[l].Algorithm = cluster.Hierarchical
	}
	return c
}

// networks are Ethernet and InfiniBand between so many workers.
func networks(n int) []setting {
	return []setting{
		{"10 Gbit", 10, workers(n, ethernet)},
		{"100 Gbit", 100, workers(n, infiniband)},
	}
}

// named puts a name in front of those of settings.
func named(name string, all []setting) []setting {
	out := slices.Clone(all)
	for i := range out {
		out[i].name = name + ", " + out[i].name
	}
	return out
}

// published is 10 Gbit/s Ethernet between n workers, at a start-up in
// microseconds and a time in nanoseconds a byte.
func published(n int, alpha, beta float64) cluster.Cluster {
	line := func(bytes int64) cluster.Point {
		return cluster.Point{Kind: cluster.AllReduce, Bytes: bytes, Time: alpha + beta*float64(bytes)/1000}
	}
	return workers(n, cluster.Link{Name: "net", Bandwidth: ethernet.Bandwidth, Curve: []cluster.Point{line(1), line(1 << 30)}})
}

// slowed is 16 workers whose computation transfers slow.
func slowed(by float64) cluster.Cluster {
	c := workers(16, ethernet40)
	c.Overlap = by
	return c
}

// served is workers with parameter servers, on hosts of their own unless each
// worker's host has one.
func served(n, servers int, link cluster.Link) cluster.Cluster {
	c := workers(n, link)
	c.Servers = &cluster.Servers{Count: servers, Colocated: servers == n}
	return c
}

// edge is 8 workers that reach the servers of a cloud over a narrow link.
func edge(bandwidth, latency float64) cluster.Cluster {
	c := served(8, 8, cluster.Link{Name: "net", Bandwidth: bandwidth, Latency: latency})
	c.Servers.Colocated = false
	return c
}

// bandwidths are settings of so many Gbit/s.
func bandwidths(c cluster.Cluster, gbit ...float64) []setting {
	var out []setting
	for _, b := range gbit {
		on := c
		on.Links = slices.Clone(c.Links)
		on.Links[0].Bandwidth = b * 1e9
		out = append(out, setting{fmt.Sprint(b), b, on})
	}
	return out
}

// policies are schedules by the policies' own names, with their defaults.
func policies(names ...string) []Schedule {
	out := make([]Schedule, len(names))
	for i, n := range names {
		out[i] = Schedule{Name: n, Policy: n}
	}
	return out
}

// Schedules beside the policies' defaults.
var (
	// serialByteScheduler lets one partition travel at a time.
	serialByteScheduler = Schedule{Name: "bytescheduler, serial", Policy: "bytescheduler", Tries: serial}
	// oneTransfer reduces all gradients at once, when the last is ready.
	oneTransfer = Schedule{Name: "one transfer", Policy: "ddp", Tries: []policy.Options{{FirstBucket: 1 << 50}}}

	serial = func() (out []policy.Options) {
		for elements := int64(1 << 17); elements <= 32<<20; elements *= 2 {
			out = append(out, policy.Options{Partition: elements, Credit: 1})
		}
		return out
	}()
	// wholeTensors is P3 without its slices.
	wholeTensors = []policy.Options{{Slice: 1 << 50}}
	// late allows any delay.
	late = []policy.Options{{Limits: plan.AnyLimits}}
	// training is what is assumed of it: an example of the preserver's description.
	training = deft.Statistics{Loss: 2, Rate: 0.05, Drift: 0.4, Spread: 2, Samples: 16}
	// preserved is DeFT with its preserver.
	preserved = deft.New(deft.Options{Statistics: &training})
	// whole pushes all gradients at once, and then pulls all parameters.
	whole = policy.Policy{
		Name: "sequential", Class: policy.Servers,
		Build: func(_ context.Context, j *job.Job, c *cluster.Cluster, o policy.Options) (*plan.Plan, error) {
			p, err := policy.Crossing("sequential", j, c, o)
			if err != nil {
				return nil, err
			}
			tensors := make([]job.TensorID, len(j.Tensors))
			for k := range tensors {
				tensors[k] = job.TensorID(k)
			}
			b := p.AddBucket(plan.WholeTensors(j, tensors...))
			push := p.Add(0, cluster.Push, b, plan.Gate{Kind: plan.GradientReady})
			p.Add(0, cluster.Pull, b, plan.Gate{Kind: plan.TransferDone, Transfer: push})
			return p, p.AddCollectivesAmong(j, 1)
		},
	}
)

// pairs is every two models in every setting.
func pairs(device string, models [][2]string, settings []setting) []Case {
	var out []Case
	for _, m := range models {
		for _, s := range settings {
			out = append(out, Case{
				Model: m[0] + " + " + m[1], Setting: s.name, X: s.x,
				Jobs: []Source{{Model: m[0], Device: device}, {Model: m[1], Device: device}}, Cluster: s.cluster,
			})
		}
	}
	return out
}

// together runs two jobs that plan by the same policy, and takes from what that
// comes to the time in which each does the work of one of its iterations.
func together(p policy.Policy, time func(*pair.Result) float64) Runner {
	return func(ctx context.Context, jobs []*job.Job, c *cluster.Cluster) (Outcome, error) {
		r, err := pair.Run(ctx, jobs, c, pair.Options{Policy: p})
		if errors.Is(err, policy.ErrUnsuitable) {
			return Outcome{Refusal: err.Error()}, nil
		}
		if err != nil {
			return Outcome{}, err
		}
		t := time(r)
		return Outcome{Time: t, Least: t, Most: t, Rate: 1}, nil
	}
}

// tictacCases are models on K80s and on hosts of 32 cores, for inference and for
// training, with workers and servers in so many numbers.
func tictacCases(models []string, numbers ...[2]int) []Case {
	devices := []struct {
		zoo, name string
		scale     float64
	}{{"k80", "k80", 1}, {"cpu-core", "cpu", 1. / 32}}
	var out []Case
	for _, inference := range []bool{true, false} {
		for _, m := range models {
			for _, device := range devices {
				for _, n := range numbers {
					c := Case{
						Model: m + " training", X: float64(n[0]),
						Setting: fmt.Sprintf("%s, %d/%d", device.name, n[0], n[1]),
						Jobs:    []Source{{Model: m, Device: device.zoo, Inference: inference}},
						Cluster: served(n[0], n[1], ethernet),
					}
					c.Cluster.Scale, c.Cluster.Servers.Colocated = device.scale, false
					if inference {
						c.Model = m + " inference"
						c.Cluster.Links[0].Curve = []cluster.Point{{Kind: cluster.Push, Bytes: 1}}
					}
					out = append(out, c)
				}
			}
		}
	}
	return out
}
