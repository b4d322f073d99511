package cluster

// Uniform is a cluster of equal workers at recorded speed, joined by one link.
func Uniform(nodes, perNode int, link Link) *Cluster {
	return &Cluster{Nodes: nodes, PerNode: perNode, Links: []Link{link}, Scale: 1}
}

// WorkerFactor is by what the op times of one rank are multiplied, and their
// relative jitter.
func (c *Cluster) WorkerFactor(rank int) (scale, jitter float64) {
	for _, w := range c.Workers {
		if w.Rank == rank {
			return w.Scale, w.Jitter
		}
	}
	return c.Scale, c.Jitter
}
