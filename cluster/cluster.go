// Package cluster describes what a job runs on: workers, parameter servers and
// links, and what a collective of a given size costs on each link.
//
// Latencies are microseconds, bandwidths bits per second, sizes bytes.
package cluster

// Kind is what a transfer does.
type Kind uint8

const (
	AllReduce Kind = iota
	ReduceScatter
	AllGather
	Broadcast
	Push // gradients of all workers to the parameter servers, merged there
	Pull // merged gradients or new values from the parameter servers to all workers
)

// Sides of a port, which is full duplex: outgoing, incoming, or both.
type Sides uint8

const (
	Out Sides = 1 << iota
	In
	Both = Out | In
)

// Algorithm is how the workers carry a collective out. It fixes the number of
// latency steps and the bytes on the wire; see docs/cluster.md.
type Algorithm uint8

const (
	Ring Algorithm = iota
	HalvingDoubling
	Tree
	Hierarchical // inside each node on Cluster.Inside, then between nodes
)

// Cluster is what a job runs on.
type Cluster struct {
	Nodes   int // hosts
	PerNode int // workers a node
	// Links between nodes; each runs one program of a plan. At least one.
	Links []Link
	// Inside joins the workers of a node; used by Hierarchical when PerNode > 1.
	Inside *Link
	// Servers are the parameter servers; nil: none, Push and Pull are refused.
	Servers *Servers
	// Overlap slows computation while a transfer is active: rate 1/(1+Overlap),
	// on device lanes, and on every lane of a CPU job.
	Overlap float64
	// Scale multiplies the op times of every worker (1: as recorded).
	Scale float64
	// Jitter j multiplies each op time by 1 + j·u, u uniform in [-1, 1), a hash
	// of (Seed, worker, iteration, op).
	Jitter float64
	Seed   uint64
	// Workers lists the workers that differ from the rest, by ascending rank.
	Workers []Worker
}

// Worker overrides Cluster.Scale and Cluster.Jitter for one rank.
type Worker struct {
	Rank          int
	Scale, Jitter float64
}

// Link is one network path between the nodes, each with its own port, which the
// workers of the node share.
type Link struct {
	Name      string
	Latency   float64 // of one step between two workers, microseconds
	Bandwidth float64 // of one port, each way, bits per second
	Algorithm Algorithm
	// Curve, when not empty, is the measured cost by size and replaces Latency,
	// Bandwidth and Algorithm for the kinds it lists: the points of one kind
	// together, by ascending size.
	Curve []Point
	// Medium names what the link shares with other links of the same medium:
	// their wires together never exceed the largest bandwidth among them. Empty:
	// nothing.
	Medium string
	// InFlight is how many transfers the transport runs at once, whatever a
	// plan's window allows: 1 where they queue up behind each other, as NCCL's on
	// a stream do. 0: no limit.
	InFlight int
}

// Point is one measured cost: a collective of Kind over Bytes takes Time
// microseconds, all of the cluster's workers taking part.
type Point struct {
	Kind  Kind
	Bytes int64
	Time  float64
}

// Servers are the parameter servers of a cluster.
type Servers struct {
	Count     int
	Colocated bool    // on the workers' hosts, sharing their ports; else on hosts of their own
	MergeRate float64 // bytes a second at which one server sums gradients; 0: free
}

// Cost is the price of one transfer: it occupies the wire for Wire
// microseconds, and completes Alpha microseconds after its wire time ends
// (wire model, docs/cluster.md). A lone transfer takes Alpha + Wire.
type Cost struct{ Alpha, Wire float64 }

// Total is the time of a lone transfer.
func (c Cost) Total() float64 { return c.Alpha + c.Wire }

// Sides are those of the workers' ports that a transfer of kind k keeps busy.
// With servers on hosts of their own a push only leaves the workers and a pull
// only reaches them, so that the two pass each other. Servers on the workers'
// hosts share the ports, and each of their transfers goes both ways, as all
// others do.
func (c *Cluster) Sides(k Kind) Sides {
	if c.Servers != nil && !c.Servers.Colocated {
		switch k {
		case Push:
			return Out
		case Pull:
			return In
		}
	}
	return Both
}

// World is the number of workers.
func (c *Cluster) World() int { return c.Nodes * c.PerNode }

// Names of the enumerations, as in files and flags.
var (
	kindNames      = []string{"all-reduce", "reduce-scatter", "all-gather", "broadcast", "push", "pull"}
	algorithmNames = []string{"ring", "halving-doubling", "tree", "hierarchical"}
)

func (k Kind) String() string      { return kindNames[k] }
func (a Algorithm) String() string { return algorithmNames[a] }
