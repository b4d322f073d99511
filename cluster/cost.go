package cluster

import (
	"fmt"
	"math/bits"
)

// Cost is the price of one transfer of kind k and the given bytes on
// c.Links[link], all workers taking part. It is zero for no bytes, and for one
// worker. The formulas, and how each follows from the steps of its algorithm,
// are in docs/cluster.md. c must be valid. It is an error to ask for a link
// that does not exist, for Push or Pull without servers, for negative bytes, or,
// an [*UnpricedError], for a kind that a measured link has no curve for and no
// bandwidth either.
func (c *Cluster) Cost(link int, k Kind, bytes int64) (Cost, error) {
	switch {
	case link < 0 || link >= len(c.Links):
		return Cost{}, fmt.Errorf("cluster: there is no link %d; there are %d, from 0", link, len(c.Links))
	case int(k) >= len(kindNames):
		return Cost{}, fmt.Errorf("cluster: unknown kind %d", k)
	case bytes < 0:
		return Cost{}, fmt.Errorf("cluster: %v of %d bytes", k, bytes)
	case (k == Push || k == Pull) && c.Servers == nil:
		return Cost{}, fmt.Errorf("cluster: %v needs parameter servers; the cluster has none (servers: {count: %d})", k, c.Nodes)
	case bytes == 0 || c.World() == 1:
		return Cost{}, nil
	}
	l := &c.Links[link]
	if points := curve(l.Curve, k); len(points) > 0 {
		return price(points, bytes), nil
	}
	if l.Bandwidth == 0 {
		return Cost{}, &UnpricedError{l.Name, k}
	}
	if k == Push || k == Pull {
		return c.served(l, k, float64(bytes)), nil
	}
	return c.collective(l, k, float64(bytes)), nil
}

// UnpricedError is that a link was measured, but not for this kind of transfer.
type UnpricedError struct {
	Link string
	Kind Kind
}

func (e *UnpricedError) Error() string {
	return fmt.Sprintf("cluster: link %q has neither a measured curve for %v nor a bandwidth", e.Link, e.Kind)
}

// collective prices a collective of the workers among themselves: l's algorithm
// between the nodes, and inside each node rings around it. Only a ring is laid
// flat over all workers, node by node, so that one message a round goes through
// a port each way, and the slower kind of hop sets the pace.
func (c *Cluster) collective(l *Link, k Kind, bytes float64) Cost {
	if c.PerNode == 1 || c.Inside == nil {
		return l.cost(roundsOf(l.Algorithm, k, c.World()), bytes)
	}
	if l.Algorithm == Ring && c.Nodes > 1 {
		flat := roundsOf(Ring, k, c.World())
		between, inside := l.cost(flat, bytes), c.Inside.cost(flat, bytes)
		return Cost{max(between.Alpha, inside.Alpha), max(between.Wire, inside.Wire)}
	}
	inside := c.Inside.cost(roundsOf(Ring, k, c.PerNode), bytes)
	between := l.cost(roundsOf(l.Algorithm, k, c.Nodes), bytes)
	return Cost{inside.Alpha + between.Alpha, inside.Wire + between.Wire}
}

// cost is the price of rounds over one link.
func (l *Link) cost(r rounds, bytes float64) Cost {
	return Cost{r.Steps * l.Latency, r.Share * bytes * 8 / l.Bandwidth * 1e6}
}

// rounds is what a collective asks of the busiest port: how many latency steps
// follow each other, and how many times the collective's bytes go through it.
type rounds struct{ Steps, Share float64 }

// roundsOf is the table of algorithms for m ports.
func roundsOf(a Algorithm, k Kind, m int) rounds {
	if m == 1 {
		return rounds{}
	}
	n := float64(m)
	switch {
	case a == HalvingDoubling:
		return halvingDoubling(k, m)
	case a == Tree && k == AllReduce: // two trees, each with half the bytes, up and down
		return rounds{2 * ceilLog2(m), min(2, n/2)}
	case a == Tree && k == Broadcast:
		return rounds{ceilLog2(m), 1}
	case k == AllReduce:
		return rounds{2 * (n - 1), 2 * (n - 1) / n}
	case k == Broadcast: // a pipeline of small pieces along the ring
		return rounds{n - 1, 1}
	}
	return rounds{n - 1, (n - 1) / n} // ReduceScatter, AllGather
}

// halvingDoubling runs between core ports, the largest power of two; each port
// beyond has a partner among them that it hands its data before and gets the
// result from after.
func halvingDoubling(k Kind, m int) rounds {
	log := bits.Len(uint(m)) - 1
	core := float64(int(1) << log)
	half := rounds{float64(log), (core - 1) / core} // one pass: halving or doubling
	var r, extra rounds
	switch k {
	case AllReduce:
		r, extra = rounds{2 * half.Steps, 2 * half.Share}, rounds{2, 2}
	case Broadcast: // scatter by halving, all-gather by doubling; the root is a core port
		r, extra = rounds{2 * half.Steps, 2 * half.Share}, rounds{1, 1}
	default:
		r, extra = half, rounds{2, 1 + 1/float64(m)}
	}
	if int(core) < m {
		r.Steps += extra.Steps
		r.Share += extra.Share
	}
	return r
}

func ceilLog2(m int) float64 { return float64(bits.Len(uint(m - 1))) }

// served prices one direction between workers and parameter servers: one
// latency, and the busiest port or the busiest server, whichever takes longer,
// because merging goes on while data arrives. Each server holds an equal share.
func (c *Cluster) served(l *Link, k Kind, bytes float64) Cost {
	var (
		servers = float64(c.Servers.Count)
		workers = float64(c.World())
		local   = float64(c.PerNode) // workers behind one port
		node    = local              // through a worker node's port, in units of bytes
		server  = workers / servers  // through a server's port
	)
	if c.Servers.Colocated {
		// Servers are spread evenly over the nodes. The share that a node's own
		// servers hold stays on the node.
		fewest, most := c.Servers.Count/c.Nodes, (c.Servers.Count+c.Nodes-1)/c.Nodes
		node = local * (1 - float64(fewest)/servers)
		server = (workers - local) * float64(most) / servers
	}
	wire := max(node, server) * bytes * 8 / l.Bandwidth * 1e6
	if k == Push && c.Servers.MergeRate > 0 {
		wire = max(wire, workers*bytes/servers/c.Servers.MergeRate*1e6)
	}
	return Cost{l.Latency, wire}
}
