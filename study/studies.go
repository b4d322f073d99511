package study

import (
	"slices"

	"weft/pair"
	"weft/policy/fusion"
)

// What several studies assume.
const (
	byDevice  = "times of ops follow from layer shapes and the device's data sheet, in the zoo's default batch and sequence, with no host in the way; the paper's were measured"
	v100      = "the abstract names no device: an NVIDIA V100 a worker, in fp32"
	twoLinks  = "10 Gbit/s Ethernet at 30 us a step of a ring, 100 Gbit/s InfiniBand at 8 us: those of the start-ups that MG-WFBP's code holds for 16 workers"
	ringPorts = "rings over all workers, a port each; nothing else on the network, equal workers, no slowdown of computation beside communication"
	compiled  = "what decides at run time is compiled to what it would do on the profile: it negotiates nothing and is tuned in advance"
	twoStacks = "bytescheduler lets transfers overlap their start-ups within its credit; bytescheduler, serial sends one partition at a time, as a library does that runs one collective after another; of both the best partition counts"
	byServers = "every server holds an equal share of every tensor, and sums gradients in no time; a push or a pull has one latency of 30 us; equal workers, no slowdown of computation beside communication"
)

var studies = []Study{
	{
		Name:  "deft",
		Title: "late updates in knapsacks against synchronous orders",
		Paper: "DeFT (arXiv 2503.16815; Future Generation Computer Systems 175)",
		Link:  "https://arxiv.org/abs/2503.16815",
		Claims: []Claim{
			{Text: "29 % to 115 % over US-Byte and ByteScheduler, 16 A100s", Of: "deft", Over: []string{"us-byte", "bytescheduler, serial"}},
			{Text: "the same, eight GPUs in each of 2 hosts, one link", Of: "deft", Over: []string{"us-byte", "bytescheduler, serial"}, Where: "2 hosts, 1 link"},
			{Text: "the same, start-ups overlapping and both links for both", Of: "deft", Over: []string{"bytescheduler, spread"}},
			{Text: "no loss of accuracy: with the preserver", Of: "deft, preserved", Over: []string{"us-byte", "bytescheduler, serial"}},
		},
		Assumptions: []string{byDevice,
			"16 A100s, tf32, on 40 Gbit/s Ethernet at 25 us a step, as a GPU in each of 16 hosts (a ring) or eight in each of 2 (hierarchical; inside 300 GB/s, 3 us); the second link, 20 Gbit/s, has a port of its own",
			"VGG-19, ResNet-101 and GPT-2 small: that these are the paper's three is unverified",
			"nothing else on the network, equal workers, no slowdown of computation beside communication", compiled, twoStacks,
			"us-byte uses the first link alone, as do all but deft and bytescheduler, spread",
			"deft is our reconstruction from the abstract; its delay and staleness are whatever makes it fastest, and stand beside it",
			"loss ratio: the expected loss by the Gaussian walk with rebound, for a loss of 2 above its floor, learning rate 0.05, squared gradient 0.4, spread 2, 16 samples; deft, preserved keeps it within 1 % of that of synchronous training",
		},
		Differences: []string{
			"the baseline decides: with a GPU a host a ring takes 30 steps of 25 us before each transfer, us-byte and bytescheduler, serial pay them for every tensor, and the gain over them is far above the paper's; with eight GPUs a host it is within the paper's range or below",
			"no synchronous plan is faster than the row bound; what deft gains over that is bought with delay and, where the coverage rate is above 1, with fewer updates: much for vgg19, nothing for resnet101, which hides everything as it is; the paper says that no accuracy is lost, which no simulator can",
			"the statistics of training are assumed, and with these the preserver takes much of the gain back where updates were left out, all of it for vgg19 on one link; those of a real run may be kinder",
		},
		Setting: "hosts and links",
		Cases: grid("a100", []string{"vgg19", "resnet101", "gpt2-small"}, []setting{
			{"16 hosts, 1 link", 1, workers(16, ethernet40)},
			{"16 hosts, 2 links", 2, workers(16, ethernet40, ethernet20)},
			{"2 hosts, 1 link", 3, hosts(2, 8, ethernet40)},
			{"2 hosts, 2 links", 4, hosts(2, 8, ethernet40, ethernet20)},
		}),
		Schedules: append(policies("us-byte", "bytescheduler"), serialByteScheduler,
			Schedule{Name: "bytescheduler, spread", Policy: "bytescheduler", Spread: true},
			Schedule{Name: "deft", Policy: "deft", Tries: late},
			Schedule{Name: "deft, preserved", Custom: &preserved, Tries: late}),
		Subject:  "deft",
		Training: &training,
	},
	{
		Name:  "caramel",
		Title: "compute order, batching and crossing, one after another",
		Paper: "Caramel (arXiv 2004.14020)",
		Link:  "https://arxiv.org/abs/2004.14020",
		Claims: []Claim{
			{Text: "up to 3.62x (262 %) in a cloud environment: over the baseline of the ablation", Of: "caramel", Over: []string{"baseline"}},
			{Text: "the same, over the fastest of wfbp, ddp, horovod, mg-wfbp and dear", Of: "caramel", Over: caramelOver, Fastest: true},
			{Text: "ours: what compute order alone gains over the baseline", Of: "+ order", Over: []string{"baseline"}},
		},
		Assumptions: []string{byDevice, v100,
			"16 workers, a ring at 30 us a step, its bandwidth throttled so that the coverage rate is 0.1 to 10; equal workers, nothing else on the network, no slowdown of computation beside communication",
			"caramel is our reconstruction from the abstract; the baseline is it without any of its parts, and the rows below add them one after another: + order, + batching, + crossing, and with depth and slices all of caramel",
			compiled,
		},
		Differences: []string{
			"the gain has its peak where the coverage rate is 1; hiding all transfers can at most double the speed of a baseline that hides none, and what is beyond that is start-ups saved: a baseline that starts more transfers, or starts them later, than ours would show the paper's figure",
			"compute order gains nothing here for networks of images, and up to a tenth for bert-base, which goes below the bound of the recorded order: a zoo job runs on one lane in PyTorch's order, which is nearly the best; the paper's TensorFlow ran what was ready in any order, and on each worker in another",
			"batching is what gains most; crossing the barrier adds little below a coverage rate of 1 and most at it, 11 to 28 %; depth and slices take the last percents to the bound, 7 % at 1",
		},
		Setting: "coverage rate",
		Cases:   coverages("v100", []string{"inception-v3", "resnet50", "bert-base"}, workers(16, ethernet), 0.1, 0.25, 0.5, 1, 2, 5, 10),
		Schedules: append([]Schedule{
			{Name: "caramel", Policy: "caramel"},
			{Name: "baseline", Policy: "caramel", Tries: without("order", "batching", "crossing", "depth", "slices")},
			{Name: "+ order", Policy: "caramel", Tries: without("batching", "crossing", "depth", "slices")},
			{Name: "+ batching", Policy: "caramel", Tries: without("crossing", "depth", "slices")},
			{Name: "+ crossing", Policy: "caramel", Tries: without("depth", "slices")},
		}, policies(caramelOver...)...),
		Subject: "caramel",
		Plot:    Plot{Kind: GainLines, Models: []string{"inception-v3"}, Schedules: []string{"baseline", "+ batching", "+ crossing", "ddp", "dear"}, Log: true},
	},
	{
		Name:  "dear",
		Title: "an all-reduce in two halves against whole ones",
		Paper: "DeAR (ICDCS 2023, arXiv 2302.12445)",
		Link:  "https://arxiv.org/abs/2302.12445",
		Claims: []Claim{
			{Text: "up to 83 % over the state of the art, 64 GPUs, 10 Gbit/s Ethernet", Of: "dear", Over: dearOver, Where: "10 Gbit"},
			{Text: "the same, over the fastest of the others", Of: "dear", Over: dearOver, Where: "10 Gbit", Fastest: true},
			{Text: "up to 15 % over the state of the art, 64 GPUs, 100 Gbit/s InfiniBand", Of: "dear", Over: dearOver, Where: "100 Gbit"},
			{Text: "the same, over the fastest of the others", Of: "dear", Over: dearOver, Where: "100 Gbit", Fastest: true},
		},
		Assumptions: []string{byDevice, v100, "64 workers on two networks: " + twoLinks, ringPorts, compiled, twoStacks,
			"the abstract says five models and names none: these five are ours",
			"the claims are set beside the gain over all but bytescheduler, whose overlapping start-ups none of the others has"},
		Differences: []string{
			"over the fastest of the others dear gains less than the paper claims, over the slowest far more: wfbp pays 126 ring steps a tensor here, where libraries switch to trees, whose start-up grows with the logarithm of the workers",
			"on InfiniBand these computed jobs hide all but the last buckets under the backward pass, so that there is little left to gain; a measured job has launch gaps and waits for its host, which the zoo does not model",
			"were start-ups to overlap, bytescheduler would in no case be behind dear",
		},
		Setting:   "network",
		Cases:     grid("v100", []string{"resnet50", "resnet152", "inception-v3", "bert-base", "bert-large"}, networks(64)),
		Schedules: append(policies("dear", "wfbp", "ddp", "horovod", "mg-wfbp", "bytescheduler"), serialByteScheduler),
		Subject:   "dear",
	},
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
			"the abstract names no models: three of low, high and middling coverage"},
		Differences: []string{
			"most tensors of these models are too small for cutting to pay its start-ups, and uncut both schedules are one; where vgg16's layers are cut, equal partitions that are searched for lose almost nothing against unequal blocks; the paper's ByteScheduler tunes by Bayesian optimisation in the running job",
			"neither fuses: with 420 us before each transfer both pay for the many small tensors, and ddp, which crosses no barrier, is level with them but for vgg16, whose few large tensors have to be cut",
			"on InfiniBand all gradients of these computed jobs hide under the backward pass, and nothing is left to gain",
		},
		Setting:   "network",
		Cases:     grid("v100", []string{"resnet50", "vgg16", "bert-base"}, networks(8)),
		Schedules: append(policies("us-byte", "wfbp", "ddp", "bytescheduler"), serialByteScheduler),
		Subject:   "us-byte",
	},
	{
		Name:  "bytescheduler",
		Title: "partitions by priority and credit against first in, first out",
		Paper: "ByteScheduler (SOSP 2019)",
		Link:  "https://doi.org/10.1145/3341301.3359642",
		Claims: []Claim{
			{Text: "up to 196 % (2.96x) over unmodified frameworks", Of: "bytescheduler", Over: []string{"wfbp", "ddp", "horovod"}},
			{Text: "the same, one partition at a time", Of: "bytescheduler, serial", Over: []string{"wfbp", "ddp", "horovod"}},
			{Text: "the same, over the fastest of the frameworks", Of: "bytescheduler", Over: []string{"wfbp", "ddp", "horovod"}, Fastest: true},
			{Text: "ours: exact search of partition and credit over the published tuning", Of: "bytescheduler", Over: []string{"bytescheduler-bo"}},
		},
		Assumptions: []string{byDevice, v100, "8 and 64 workers on two networks: " + twoLinks, ringPorts, compiled, twoStacks,
			"the frameworks that the paper modified are here wfbp (each gradient alone), ddp and horovod"},
		Differences: []string{
			"the largest gain depends on the slowest framework: the paper's are those of 2019, among them parameter servers that send whole gradients; here all reduce among workers, and the slowest, wfbp, has the start-up of a ring of 64",
			"with one partition at a time no tensor can be fused with another, and every start-up is paid: ddp's buckets are then faster wherever start-ups are long",
		},
		Setting:   "workers and network",
		Cases:     grid("v100", []string{"vgg16", "resnet50", "bert-base"}, slices.Concat(named("8 workers", networks(8)), named("64 workers", networks(64)))),
		Schedules: append(policies("bytescheduler", "bytescheduler-bo", "wfbp", "ddp", "horovod"), serialByteScheduler),
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
			{Text: "ours: exact merging over the published greedy rule", Of: "mg-wfbp-exact", Over: []string{"mg-wfbp"}},
		},
		Assumptions: []string{byDevice, v100,
			"10 Gbit/s Ethernet at the start-up and the time a byte that MG-WFBP's code holds for 8 (523 us, 0.857 ns) and 16 workers (908 us, 0.740 ns); they are fixtures, not physics: a ring of 8 needs 1.4 ns a byte on one port",
			"for 32 and 64 workers, which the code does not hold, a ring's at the step and the port of the 16 (30.3 us, 0.395 ns)",
			"one transfer at a time; equal workers; no slowdown of computation beside communication"},
		Differences: []string{
			"the abstract has no figure to differ from; the order is the paper's: merging is ahead of both, and the further ahead of wfbp the longer a start-up is",
			"at 64 workers the greedy rule merges all gradients of resnet50 and nearly all of bert-base into one transfer, and so gains nothing over that; the best merging, by dynamic programming over the same costs, does not",
		},
		Setting: "workers",
		Cases: grid("v100", []string{"resnet50", "vgg16", "inception-v3", "bert-base"}, []setting{
			{"8", 8, published(8, 523, 0.857)},
			{"16", 16, published(16, 908, 0.740)},
			{"32", 32, published(32, 62*30.3, 62./32*0.395)},
			{"64", 64, published(64, 126*30.3, 126./64*0.395)},
		}),
		Schedules: append(policies("mg-wfbp", "mg-wfbp-exact", "wfbp"), oneTransfer),
		Subject:   "mg-wfbp",
		Plot:      Plot{Kind: GainLines, Schedules: []string{"wfbp"}, Log: true},
	},
	{
		Name:  "p3",
		Title: "slices by priority through parameter servers against whole gradients",
		Paper: "P3: Priority-based Parameter Propagation (MLSys 2019, arXiv 1905.03960)",
		Link:  "https://arxiv.org/abs/1905.03960",
		Claims: []Claim{
			{Text: "ResNet-50: up to 25 %", Of: "p3-ps", Over: []string{"ps"}, Where: "resnet50"},
			{Text: "VGG-19: up to 66 %", Of: "p3-ps", Over: []string{"ps"}, Where: "vgg19"},
			{Text: "Sockeye: up to 38 % (not in the zoo: gpt2-small in its place)", Of: "p3-ps", Over: []string{"ps"}, Where: "gpt2-small"},
			{Text: "ours: what slices gain over whole tensors by priority", Of: "p3-ps", Over: []string{"p3-ps, whole tensors"}},
		},
		Assumptions: []string{byDevice, v100,
			"4 workers, a parameter server on each of their hosts, sharing its port; the abstract says that bandwidth is limited, not to what: 1 to 50 Gbit/s", byServers,
			"ps pushes each gradient when it is ready, and pulls in an arbitrary fixed order when all are pushed; the paper's baseline, MXNet's, pulls a parameter as soon as it is merged"},
		Differences: []string{
			"ps is a slower baseline than the paper's: it pulls only when all is pushed, in an order that means nothing; most of what p3-ps gains here is that its pulls follow their own pushes in the order of need, little is from slices",
			"the gain has its peak where the coverage rate is about 1, and falls on both sides: at which bandwidth that is depends on the device",
			"a server here takes an equal share of every tensor; P3's first gain is over whole tensors on one server each, which this cluster has not",
		},
		Setting:   "Gbit/s",
		Cases:     grid("v100", []string{"resnet50", "vgg19", "gpt2-small"}, bandwidths(served(4, 4, ethernet), 1, 2.5, 5, 10, 25, 50)),
		Schedules: append(policies("p3-ps", "ps"), Schedule{Name: "p3-ps, whole tensors", Policy: "p3-ps", Tries: wholeTensors}),
		Subject:   "p3-ps",
		Plot:      Plot{Kind: GainLines, Schedules: []string{"ps"}, Log: true},
	},
	{
		Name:  "tictac",
		Title: "an order of pulls against arbitrary ones",
		Paper: "TicTac (MLSys 2019, arXiv 1803.03288)",
		Link:  "https://arxiv.org/abs/1803.03288",
		Claims: []Claim{
			{Text: "inference: up to 37.7 % more throughput", Of: "tictac-tac", Over: []string{"arbitrary"}, Where: "inference"},
			{Text: "the same with TIC", Of: "tictac-tic", Over: []string{"arbitrary"}, Where: "inference"},
			{Text: "training: up to 19.2 % more throughput", Of: "tictac-tac", Over: []string{"arbitrary"}, Where: "training"},
			{Text: "the same with TIC", Of: "tictac-tic", Over: []string{"arbitrary"}, Where: "training"},
			{Text: "stragglers down up to 2.3x; ours: spread of arbitrary orders over their mean", Of: "arbitrary"},
			{Text: "ours: spread of a fixed order", Of: "tictac-tac"},
		},
		Assumptions: []string{byDevice,
			"2 to 16 workers and 1 to 4 servers, on hosts of their own, 10 Gbit/s Ethernet: as in the paper, which is unverified; what counts is workers a server, here 1, 2 and 4", byServers,
			"a worker is one GPU of a K80, or a host of 32 cores of the zoo's CPU that scale perfectly",
			"inference is a forward pass that first pulls all parameters: backward pass, updates and pushes take no time",
			"arbitrary pulls in an order drawn by a seed, the same on all workers; 20 seeds, of which the time is the mean"},
		Differences: []string{
			"an order can hide at most the shorter of pulls and forward pass: most is gained where they are equal, and which of these cases is near that depends on the devices assumed; a measured worker also waits for what no order moves",
			"of hundreds of tensors in arbitrary order the one that is read first is seldom early: here that order hides almost nothing, which makes it an easier baseline than TensorFlow's",
			"workers that each draw an order of their own wait for the unluckiest of them; here they draw one together, and the spread between draws stands for it: a fixed order has none, which is all that any fixed order needs to have",
			"on one lane TIC and TAC both pull in the order of first use: they differ where branches run side by side",
		},
		Setting:   "device and workers/servers",
		Cases:     tictacCases([]string{"vgg16", "inception-v3", "resnet50"}, [2]int{4, 4}, [2]int{2, 1}, [2]int{16, 4}),
		Schedules: append(policies("tictac-tac", "tictac-tic"), Schedule{Name: "arbitrary", Policy: "ps", Seeds: 20}),
		Subject:   "tictac-tac",
		Plot:      Plot{Schedules: []string{"arbitrary"}},
	},
	{
		Name:  "dynacomm",
		Title: "pushes and pulls in the best segments against all or each alone",
		Paper: "DynaComm (arXiv 2101.07968)",
		Link:  "https://arxiv.org/abs/2101.07968",
		Claims: []Claim{
			{Text: "optimal for all cases compared to competing strategies: over sequential", Of: "dynacomm", Over: []string{"sequential"}},
			{Text: "the same, over layer by layer", Of: "dynacomm", Over: []string{"layer by layer"}},
			{Text: "ours: over P3, whose transfers overlap and cross", Of: "dynacomm", Over: []string{"p3-ps"}},
		},
		Assumptions: []string{byDevice,
			"8 workers at the edge, a K80 GPU each, a network of 1 Gbit/s or 100 Mbit/s and 1 or 10 ms to the cloud, where 8 servers have a port each",
			"sequential is one push and one pull of everything; layer by layer pushes each tensor alone when it is ready and pulls each in the order of first use (tictac-tac)",
			"servers sum in no time; equal workers; no slowdown of computation beside communication"},
		Differences: []string{
			"the abstract has no figure; dynacomm is ahead of both in every case, as it must be: both are among the segments that it chooses from",
			"the claim is about segments that follow each other, pulls behind all pushes; p3-ps is none of them: its pulls follow their own pushes, and pass later ones on ports that are full duplex, which halves the time where the network is all there is",
		},
		Setting: "bandwidth and latency",
		Cases: grid("k80", []string{"resnet50", "inception-v3", "alexnet"}, []setting{
			{"1 Gbit, 1 ms", 1, edge(1e9, 1000)},
			{"1 Gbit, 10 ms", 2, edge(1e9, 10000)},
			{"0.1 Gbit, 1 ms", 3, edge(0.1e9, 1000)},
			{"0.1 Gbit, 10 ms", 4, edge(0.1e9, 10000)},
		}),
		Schedules: []Schedule{
			{Name: "dynacomm", Policy: "dynacomm"},
			{Name: "sequential", Custom: &whole},
			{Name: "layer by layer", Policy: "tictac-tac"},
			{Name: "p3-ps", Policy: "p3-ps"},
		},
		Subject: "dynacomm",
		Plot:    Plot{Schedules: []string{"sequential", "layer by layer"}},
	},
	{
		Name:  "crossover",
		Title: "two jobs that share devices, one computing while the other communicates",
		Paper: "CrossoverScheduler (arXiv 2103.07974)",
		Link:  "https://arxiv.org/abs/2103.07974",
		Claims: []Claim{
			{Text: "20 % on ImageNet (printed as \"20% x\")", Of: "crossover", Over: []string{"in turn"}},
			{Text: "ours: with as many turns of one job as pay", Of: "crossover, several turns", Over: []string{"in turn"}},
		},
		Assumptions: []string{byDevice, v100, "8 workers on two networks: " + twoLinks, ringPorts,
			"each job plans as ddp does; the paper's prototype is built over Horovod, whose cycle has no place in a plan for two jobs; each has the devices by turns, for a whole iteration, and both jobs' memory is resident",
			"in turn: each job waits for its own transfers before the other begins; a time is that in which each job does the work of one of its iterations",
			"the abstract names no second job: pairs of one and of two models",
		},
		Differences: []string{
			"the gain is what a job waits for its transfers, as far as the other computes for as long: behind ddp's buckets on Ethernet that comes near the paper's figure, on InfiniBand these computed jobs wait for almost nothing",
			"two jobs that both wait longer than they compute share one wire, which is then the limit: they gain less",
		},
		Setting: "network",
		Cases:   pairs("v100", [][2]string{{"resnet50", "resnet50"}, {"resnet50", "resnet101"}, {"resnet50", "vgg16"}, {"bert-base", "bert-base"}}, networks(8)),
		Schedules: []Schedule{
			{Name: "crossover", Run: together(fusion.DDP, func(r *pair.Result) float64 { return r.Pairs[0].Even.Period })},
			{Name: "crossover, several turns", Run: together(fusion.DDP, func(r *pair.Result) float64 { return r.InTurn / r.Pairs[0].Best.Speedup() })},
			{Name: "in turn", Run: together(fusion.DDP, func(r *pair.Result) float64 { return r.InTurn })},
		},
		Subject: "crossover",
		Plot:    Plot{Schedules: []string{"in turn"}},
	},
	{
		Name:  "overlap",
		Title: "rankings when communication slows the computation beside it",
		Paper: "Characterizing compute-communication overlap (Lee et al., arXiv 2507.03114)",
		Link:  "https://arxiv.org/abs/2507.03114",
		Claims: []Claim{
			{Text: "sequential is 10.2 % slower than overlapped on average, 26.6 % at most; DDP's buckets at a slowdown of 0.19", Of: "ddp", Over: []string{"one transfer"}, Where: "0.19"},
			{Text: "the same at 0.40", Of: "ddp", Over: []string{"one transfer"}, Where: "0.40"},
			{Text: "the same at 0.19, across the barrier", Of: "bytescheduler", Over: []string{"one transfer"}, Where: "0.19"},
		},
		Assumptions: []string{byDevice,
			"16 A100s, a worker each, tf32; 40 Gbit/s Ethernet at 25 us a step of a ring",
			"while a transfer is active computation runs at 1/(1+x): x = 0 none, 0.19 what the paper measured on average (18.9 %), 0.40 at most; every transfer slows every op alike",
			"plans are built for a profile without slowdown, and run at each; only caramel and deft choose among some by simulation, which knows it",
			"sequential is one transfer of all gradients after the backward pass",
			"late updates are allowed to deft alone",
		},
		Differences: []string{
			"how much slower sequential execution is depends on how much there is to hide: the abstract does not say how much that was, here it is 0.8 to 3.2 times the computation",
			"the ranking moves where a schedule has hidden all that it could: what transfers at all times is slowed at all times, and few large buckets then beat many slices that hide as much",
		},
		Setting: "slowdown",
		Cases: grid("a100", []string{"resnet50", "vgg19", "gpt2-small"}, []setting{
			{"0", 0, slowed(0)}, {"0.19", 0.19, slowed(0.19)}, {"0.40", 0.40, slowed(0.40)},
		}),
		Schedules: append(policies("wfbp", "ddp", "horovod", "mg-wfbp", "mg-wfbp-exact", "asc-wfbp", "p3", "bytescheduler", "us-byte", "dear", "caramel"),
			Schedule{Name: "deft", Policy: "deft", Tries: late}, oneTransfer),
		Ranked: true,
		Plot:   Plot{Kind: TimeLines, Models: []string{"resnet50"}, Schedules: []string{"ddp", "mg-wfbp-exact", "asc-wfbp", "p3", "bytescheduler", "dear", "caramel", "deft"}},
	},
}

// caramelOver is what Caramel is compared with, beside its own parts.
var caramelOver = []string{"wfbp", "ddp", "horovod", "mg-wfbp", "dear"}

// dearOver is what DeAR's gains are measured over.
var dearOver = []string{"wfbp", "ddp", "horovod", "mg-wfbp", "bytescheduler, serial"}
