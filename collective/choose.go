package collective

import "weft/cluster"

// Rounds is what the algorithms ask of the busiest port: how many steps follow each
// other, and how many times the bucket's bytes leave through it, parts being equal. The
// table of docs/collectives.md; zero for what there is no program for, and for one host.
func (s Spec) Rounds() (steps, share float64) {
	n := float64(s.World)
	if s.World < 2 {
		return 0, 0
	}
	switch (pair{s.Algorithm, s.Kind}) {
	case pair{Ring, cluster.AllReduce}:
		return 2 * (n - 1), 2 * (n - 1) / n
	case pair{Ring, cluster.ReduceScatter}, pair{Ring, cluster.AllGather}:
		return n - 1, (n - 1) / n
	case pair{Ring, cluster.Broadcast}:
		return n - 1, 1
	case pair{Direct, cluster.AllReduce}:
		return 2, 2 * (n - 1) / n
	case pair{Direct, cluster.ReduceScatter}, pair{Direct, cluster.AllGather}:
		return 1, (n - 1) / n
	case pair{Exchange, cluster.AllReduce}, pair{Exchange, cluster.Broadcast}:
		return 1, n - 1
	}
	return 0, 0
}

// Cost is the price of a bucket of so many bytes on a link, by its latency and
// bandwidth; as [cluster.Cluster.Cost], which has it for rings.
func (s Spec) Cost(l cluster.Link, bytes int64) cluster.Cost {
	steps, share := s.Rounds()
	return cluster.Cost{Alpha: steps * l.Latency, Wire: share * float64(bytes) * 8 / l.Bandwidth * 1e6}
}

// A message of a chunk has at least the one and at most the other, in bytes: smaller
// ones cost more to send than to wait for, larger ones leave the cache.
const (
	leastChunk = 64 << 10
	mostChunk  = 256 << 10
)

// Choose returns s with the algorithm and chunk for a link, whose latency and bandwidth
// it needs; size is the bytes of an element. The cheapest algorithm is taken, and of more
// than two hosts the ring where it is within 5 % of that: in a ring every host has one
// sender, elsewhere many send to it at once, which switches with little memory do not
// bear. The choice never changes the bits of a result.
func (s Spec) Choose(l cluster.Link, size int64) Spec {
	bytes := Elements(s.Slices) * size
	s.Algorithm = Ring
	best, price := Ring, s.Cost(l, bytes).Total()
	if s.World > 2 {
		price /= 1.05
	}
	for _, s.Algorithm = range []Algorithm{Direct, Exchange} {
		if cost := s.Cost(l, bytes).Total(); builders[pair{s.Algorithm, s.Kind}] != nil && cost < price {
			best, price = s.Algorithm, cost
		}
	}
	s.Algorithm = best
	return s.cut(size)
}

// cut returns s with the chunk for its algorithm.
func (s Spec) cut(size int64) Spec {
	whole := Elements(s.Slices) * size // what is cut into chunks: enough of them to send one while adding another
	if s.Algorithm != Exchange && s.Kind != cluster.Broadcast {
		whole /= int64(max(1, s.World))
	}
	s.Chunk = max(1, min(max(whole/window, leastChunk), mostChunk)/size)
	return s
}
