package cluster

import "slices"

// Uniform is a cluster of equal workers at recorded speed, joined by one link.
func Uniform(nodes, perNode int, link Link) *Cluster {
	return &Cluster{Nodes: nodes, PerNode: perNode, Links: []Link{link}, Scale: 1}
}

// WorkerFactor is by what the op times of one rank are multiplied, and their
// relative jitter.
func (c *Cluster) WorkerFactor(rank int) (scale, jitter float64) {
	byRank := func(w Worker, rank int) int { return w.Rank - rank }
	if i, found := slices.BinarySearchFunc(c.Workers, rank, byRank); found {
		return c.Workers[i].Scale, c.Workers[i].Jitter
	}
	return c.Scale, c.Jitter
}

// WithServers is the cluster if it has parameter servers, or else the same with
// one server a node, on the workers' hosts: what no extra machine is needed for.
func (c *Cluster) WithServers() *Cluster {
	if c.Servers != nil {
		return c
	}
	with := *c
	with.Servers = &Servers{Count: c.Nodes, Colocated: true}
	return &with
}
