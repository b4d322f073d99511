package study

import (
	"slices"

	"weft/cluster"
	"weft/policy"
	"weft/zoo"
)

// The networks that studies assume where the paper's abstract names a bandwidth
// and no more. Steps take as long as in the start-ups that MG-WFBP's code has for
// a ring of 16 workers: 9.08e-4 s / 30 on 10 Gbit/s Ethernet, 2.36e-4 s / 30 on
// InfiniBand.
var (
	ethernet   = cluster.Link{Name: "net", Bandwidth: 10e9, Latency: 30}
	infiniband = cluster.Link{Name: "net", Bandwidth: 100e9, Latency: 8}
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
				Jobs: []Source{{Model: m, Device: device, Options: zoo.Options{}}}, Cluster: s.cluster,
			})
		}
	}
	return out
}

// workers is a cluster of workers with a port each.
func workers(n int, links ...cluster.Link) cluster.Cluster {
	return cluster.Cluster{Nodes: n, PerNode: 1, Links: links, Scale: 1}
}

// networks are both, between so many workers.
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

// published is 10 Gbit/s Ethernet between n workers, at the start-up in
// microseconds and the time in nanoseconds a byte that MG-WFBP's code holds.
func published(n int, alpha, beta float64) cluster.Cluster {
	const large = 1 << 30
	line := func(bytes int64) cluster.Point {
		return cluster.Point{Kind: cluster.AllReduce, Bytes: bytes, Time: alpha + beta*float64(bytes)/1000}
	}
	return workers(n, cluster.Link{Name: "net", Bandwidth: ethernet.Bandwidth, Curve: []cluster.Point{line(1), line(large)}})
}

// serial lets one partition travel at a time, each a try.
var serial = func() (out []policy.Options) {
	for elements := int64(1 << 17); elements <= 32<<20; elements *= 2 {
		out = append(out, policy.Options{Partition: elements, Credit: 1})
	}
	return out
}()

// policies are schedules by the policies' own names, with their defaults.
func policies(names ...string) []Schedule {
	out := make([]Schedule, len(names))
	for i, n := range names {
		out[i] = Schedule{Name: n, Policy: n}
	}
	return out
}

// What several studies assume.
const (
	byDevice  = "times of ops follow from layer shapes and the device's data sheet, in the zoo's default batch and sequence, with no host in the way; the paper's were measured"
	v100      = "the abstract names no device: an NVIDIA V100 a worker, in fp32"
	twoLinks  = "10 Gbit/s Ethernet at 30 us a step of a ring, 100 Gbit/s InfiniBand at 8 us: those of the start-ups that MG-WFBP's code holds for 16 workers"
	ringPorts = "rings over all workers, a port each; nothing else on the network, equal workers, no slowdown of computation beside communication"
	compiled  = "what decides at run time is compiled to what it would do on the profile: it negotiates nothing and is tuned in advance"
	twoStacks = "bytescheduler lets transfers overlap their start-ups within its credit; bytescheduler, serial sends one partition at a time, as a library does that runs one collective after another; of both the best partition counts"
)

var studies = []Study{
	{
		Name:  "us-byte",
		Title: "unequal blocks against equal ones and whole gradients",
		Paper: "US-Byte (IEEE TPDS, DOI 10.1109/TPDS.2023.3331372)",
		Link:  "https://doi.org/10.1109/TPDS.2023.3331372",
		Claims: []Claim{
			{Text: "up to 1.26x over ByteScheduler on two clusters of 8 nodes", Of: "us-byte", Over: []string{"bytescheduler, serial"}},
			{Text: "the same, were ByteScheduler's start-ups to overlap", Of: "us-byte", Over: []string{"bytescheduler"}},
			{Text: "up to 1.56x over WFBP on two clusters of 8 nodes", Of: "us-byte", Over: []string{"wfbp"}},
		},
		Assumptions: []string{byDevice, v100, "8 workers on two networks: " + twoLinks, ringPorts, compiled, twoStacks,
			"the abstract names no models: three of small, large and middling coverage"},
		Differences: []string{
			"us-byte is best where its model holds, on a serial link that is busy for about as long as the computation; where a start-up is hidden behind the wire time of another transfer, equal partitions lose nothing by being small, and its reason to exist is gone",
			"on 100 Gbit/s all gradients hide under the backward pass of these computed jobs, and nothing is left to win",
		},
		Setting:   "network",
		Cases:     grid("v100", []string{"resnet50", "vgg16", "bert-base"}, networks(8)),
		Schedules: append(policies("us-byte", "wfbp", "ddp", "bytescheduler"), Schedule{Name: "bytescheduler, serial", Policy: "bytescheduler", Tries: serial}),
		Subject:   "us-byte",
	},
	{
		Name:  "dear",
		Title: "an all-reduce in two halves against whole ones",
		Paper: "DeAR (ICDCS 2023, arXiv 2302.12445)",
		Link:  "https://arxiv.org/abs/2302.12445",
		Claims: []Claim{
			{Text: "up to 83 % over the state of the art, 64 GPUs, 10 Gbit/s Ethernet", Of: "dear", Over: []string{"wfbp", "ddp", "horovod", "mg-wfbp", "bytescheduler, serial"}, Setting: "10 Gbit"},
			{Text: "the same, over the fastest of the others", Of: "dear", Over: []string{"wfbp", "ddp", "horovod", "mg-wfbp", "bytescheduler, serial"}, Setting: "10 Gbit", Fastest: true},
			{Text: "up to 15 % over the state of the art, 64 GPUs, 100 Gbit/s InfiniBand", Of: "dear", Over: []string{"wfbp", "ddp", "horovod", "mg-wfbp", "bytescheduler, serial"}, Setting: "100 Gbit"},
			{Text: "the same, over the fastest of the others", Of: "dear", Over: []string{"wfbp", "ddp", "horovod", "mg-wfbp", "bytescheduler, serial"}, Setting: "100 Gbit", Fastest: true},
		},
		Assumptions: []string{byDevice, v100, "64 workers on two networks: " + twoLinks, ringPorts, compiled, twoStacks,
			"the abstract says five models and names none: these five are ours"},
		Differences: []string{
			"the largest gains are over wfbp, which pays 126 ring steps a tensor here; libraries switch to trees, whose start-up grows with the logarithm of the workers",
		},
		Setting:   "network",
		Cases:     grid("v100", []string{"resnet50", "resnet152", "inception-v3", "bert-base", "bert-large"}, networks(64)),
		Schedules: append(policies("dear", "wfbp", "ddp", "horovod", "mg-wfbp", "bytescheduler"), Schedule{Name: "bytescheduler, serial", Policy: "bytescheduler", Tries: serial}),
		Subject:   "dear",
	},
	{
		Name:  "bytescheduler",
		Title: "partitions by priority and credit against first in, first out",
		Paper: "ByteScheduler (SOSP 2019)",
		Link:  "https://doi.org/10.1145/3341301.3359642",
		Claims: []Claim{
			{Text: "up to 196 % (2.96x) over unmodified frameworks", Of: "bytescheduler", Over: []string{"wfbp", "ddp", "horovod"}},
			{Text: "the same, one partition at a time", Of: "bytescheduler, serial", Over: []string{"wfbp", "ddp", "horovod"}},
		},
		Assumptions: []string{byDevice, v100, "8 and 64 workers on two networks: " + twoLinks, ringPorts, compiled, twoStacks,
			"the frameworks that the paper modified are here wfbp (each gradient alone), ddp and horovod"},
		Differences: []string{
			"the paper's largest gains are over frameworks that send whole gradients through parameter servers; here all reduce among workers",
		},
		Setting:   "workers, network",
		Cases:     grid("v100", []string{"vgg16", "resnet50", "bert-base"}, slices.Concat(named("8", networks(8)), named("64", networks(64)))),
		Schedules: append(policies("bytescheduler", "wfbp", "ddp", "horovod"), Schedule{Name: "bytescheduler, serial", Policy: "bytescheduler", Tries: serial}),
		Subject:   "bytescheduler",
	},
	{
		Name:  "mg-wfbp",
		Title: "gradients merged where that saves a start-up",
		Paper: "MG-WFBP (INFOCOM 2019; IEEE TPDS 2021)",
		Link:  "https://scholars.hkbu.edu.hk/en/publications/mg-wfbp-efficient-data-communication-for-distributed-synchronous--2",
		Claims: []Claim{
			{Text: "much better scaling efficiency than WFBP (no figure in the abstract)", Of: "mg-wfbp", Over: []string{"wfbp"}},
			{Text: "much better scaling efficiency than SyncEASGD, one fused transfer", Of: "mg-wfbp", Over: []string{"one transfer"}},
			{Text: "how far exact merging is ahead of the published greedy one (ours)", Of: "mg-wfbp-exact", Over: []string{"mg-wfbp"}},
		},
		Assumptions: []string{byDevice, v100,
			"10 Gbit/s Ethernet at the start-up and the time a byte that MG-WFBP's code holds for 8 (523 us, 0.857 ns) and 16 workers (908 us, 0.740 ns); they are fixtures, not physics: 0.857 ns a byte is less than the 1.4 ns that a ring of 8 needs on one port",
			"for 32 and 64 workers, which the code does not hold, a ring's at the step and the port of the 16 (30.3 us, 0.395 ns)",
			"one transfer is all gradients after the backward pass",
			"one transfer at a time; equal workers; no slowdown of computation beside communication"},
		Differences: []string{
			"the abstract has no figure to differ from; the order is the paper's: merging is ahead of both, and further ahead of wfbp with every worker that makes a start-up longer",
			"the greedy rule is not optimal: exact merging, by dynamic programming over the same costs, is ahead of it",
		},
		Setting: "workers",
		Cases: grid("v100", []string{"resnet50", "vgg16", "inception-v3", "bert-base"}, []setting{
			{"8", 8, published(8, 523, 0.857)},
			{"16", 16, published(16, 908, 0.740)},
			{"32", 32, published(32, 62*30.3, 62./32*0.395)},
			{"64", 64, published(64, 126*30.3, 126./64*0.395)},
		}),
		Schedules: append(policies("mg-wfbp", "mg-wfbp-exact", "wfbp"), Schedule{Name: "one transfer", Policy: "ddp", Tries: sequential}),
		Subject:   "mg-wfbp",
	},
}

// sequential reduces all gradients at once, when the last is ready.
var sequential = []policy.Options{{FirstBucket: 1 << 50}}
