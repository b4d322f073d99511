package cluster

import (
	"fmt"
	"slices"

	"weft/internal/near"
)

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

// Slowest is by what the op times of the slowest worker are multiplied.
func (c *Cluster) Slowest() float64 {
	slowest := 0.0
	for r := range c.World() {
		scale, _ := c.WorkerFactor(r)
		slowest = max(slowest, scale)
	}
	return slowest
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

// Only is the cluster with the named links alone, in the order of the names.
func (c *Cluster) Only(names ...string) (*Cluster, error) {
	var all []string
	for _, l := range c.Links {
		all = append(all, l.Name)
	}
	out := *c
	out.Links = nil
	for _, n := range names {
		at := slices.Index(all, n)
		switch {
		case at < 0:
			return nil, fmt.Errorf("there is no link %q%s", n, near.Hint(n, all))
		case slices.ContainsFunc(out.Links, func(l Link) bool { return l.Name == n }):
			return nil, fmt.Errorf("link %q is named twice", n)
		}
		out.Links = append(out.Links, c.Links[at])
	}
	return &out, nil
}
