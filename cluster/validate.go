package cluster

import (
	"fmt"
	"math"
	"unicode"
	"unicode/utf8"

	"weft/internal/fault"
)

// Limits of a cluster.
const (
	MaxWorkers = 1 << 20
	MaxLinks   = 1 << 8
	MaxLatency = 1e9       // microseconds: about 17 minutes
	MaxTime    = 1e12      // microseconds, of one measured point: 11 days
	MaxFactor  = 1_000_000 // by what workers are slower, or slow down
	MaxBytes   = 1 << 53
)

func faultf(path, format string, args ...any) error {
	return fault.New("cluster", path, format, args...)
}

// Validate reports the first thing that is wrong with the cluster, or nil. A
// valid cluster prices every transfer that [Cluster.Cost] has a formula or a
// curve for.
func (c *Cluster) Validate() error {
	switch {
	case c.Nodes < 1:
		return faultf("nodes", "%d; a cluster has at least one", c.Nodes)
	case c.PerNode < 1:
		return faultf("per-node", "%d; a node has at least one worker", c.PerNode)
	case c.Nodes > MaxWorkers || c.PerNode > MaxWorkers || c.World() > MaxWorkers:
		return faultf("nodes", "more than %d workers", MaxWorkers)
	case len(c.Links) == 0:
		return faultf("links", "none; a cluster has at least one")
	case len(c.Links) > MaxLinks:
		return faultf("links", "%d, more than %d", len(c.Links), MaxLinks)
	}
	seen := map[string]int{}
	for i := range c.Links {
		l, path := &c.Links[i], fmt.Sprintf("links[%d]", i)
		if err := l.check(path); err != nil {
			return err
		}
		if first, dup := seen[l.Name]; dup {
			return faultf(path+".name", "%q is already the name of links[%d]", l.Name, first)
		}
		seen[l.Name] = i
		if l.Algorithm != Ring && l.Bandwidth > 0 && c.PerNode > 1 && c.Inside == nil {
			return faultf(path+".algorithm", "%v with %d workers a node runs inside the nodes too, and the cluster has no link inside", l.Algorithm, c.PerNode)
		}
	}
	if c.Inside != nil {
		if err := c.Inside.check("inside"); err != nil {
			return err
		}
		switch {
		case c.Inside.Bandwidth == 0:
			return faultf("inside.bandwidth", "missing")
		case c.Inside.Algorithm != Ring || len(c.Inside.Curve) > 0 || c.Inside.Medium != "" || c.Inside.InFlight != 0:
			return faultf("inside", "has only a name, a latency and a bandwidth; its workers form a ring")
		}
	}
	if s := c.Servers; s != nil {
		if s.Count < 1 || s.Count > MaxWorkers {
			return faultf("servers.count", "%d; from 1 to %d, or leave servers out", s.Count, MaxWorkers)
		}
		if !finite(s.MergeRate) || s.MergeRate < 0 {
			return faultf("servers.merge-rate", "%v is not a rate", s.MergeRate)
		}
	}
	if !(c.Overlap >= 0 && c.Overlap <= MaxFactor) {
		return faultf("overlap", "%v; it is from 0 to %d", c.Overlap, MaxFactor)
	}
	if err := checkFactor("", c.Scale, c.Jitter); err != nil {
		return err
	}
	for i, w := range c.Workers {
		path := fmt.Sprintf("workers[%d].", i)
		switch {
		case w.Rank < 0 || w.Rank >= c.World():
			return faultf(path+"rank", "there is no rank %d; there are %d, from 0", w.Rank, c.World())
		case i > 0 && w.Rank == c.Workers[i-1].Rank:
			return faultf(path+"rank", "rank %d is listed twice", w.Rank)
		case i > 0 && w.Rank < c.Workers[i-1].Rank:
			return faultf(path+"rank", "rank %d after rank %d; list ranks in ascending order", w.Rank, c.Workers[i-1].Rank)
		}
		if err := checkFactor(path, w.Scale, w.Jitter); err != nil {
			return err
		}
	}
	return nil
}

func checkFactor(path string, scale, jitter float64) error {
	if !(scale > 0 && scale <= MaxFactor) {
		return faultf(path+"scale", "%v; it is more than 0, at most %d, and 1 means as recorded", scale, MaxFactor)
	}
	if !(jitter >= 0 && jitter <= 1) {
		return faultf(path+"jitter", "%v; it is from 0 to 1", jitter)
	}
	return nil
}

func (l *Link) check(path string) error {
	switch {
	case l.Name == "" && path != "inside":
		return faultf(path+".name", "missing")
	case !printable(l.Name):
		return faultf(path+".name", "%q is not a name: up to 100 printable characters", fault.Short(l.Name))
	case !printable(l.Medium):
		return faultf(path+".medium", "%q is not a name: up to 100 printable characters", fault.Short(l.Medium))
	case l.InFlight < 0:
		return faultf(path+".in-flight", "%d; it is at least 1, or left out", l.InFlight)
	case int(l.Algorithm) >= len(algorithmNames):
		return faultf(path+".algorithm", "unknown algorithm %d", l.Algorithm)
	case !finite(l.Latency) || l.Latency < 0 || l.Latency > MaxLatency:
		return faultf(path+".latency", "%v us; it is from 0 to %g us", l.Latency, MaxLatency)
	case l.Bandwidth == 0 && len(l.Curve) == 0:
		return faultf(path+".bandwidth", "missing, and there is no curve either")
	case l.Bandwidth != 0 && !(l.Bandwidth >= 1 && finite(l.Bandwidth)):
		return faultf(path+".bandwidth", "%v bit/s; it is at least 1 bit/s", l.Bandwidth)
	case l.Bandwidth == 0 && l.Medium != "":
		return faultf(path+".bandwidth", "missing: a link that shares the medium %q states it, beside its curve", l.Medium)
	}
	done := map[Kind]bool{}
	for i, p := range l.Curve {
		at := fmt.Sprintf("%s.curve[%d].", path, i)
		switch {
		case int(p.Kind) >= len(kindNames):
			return faultf(at+"kind", "unknown kind %d", p.Kind)
		case p.Bytes < 1 || p.Bytes > MaxBytes:
			return faultf(at+"bytes", "%d; it is from 1 to %d", p.Bytes, int64(MaxBytes))
		case !finite(p.Time) || p.Time < 0 || p.Time > MaxTime:
			return faultf(at+"time", "%v us; it is from 0 to %g us", p.Time, MaxTime)
		}
		if i == 0 || p.Kind != l.Curve[i-1].Kind {
			if done[p.Kind] {
				return faultf(at+"kind", "the points of %v do not stand together", p.Kind)
			}
			done[p.Kind] = true
			continue
		}
		switch before := l.Curve[i-1]; {
		case p.Bytes == before.Bytes:
			return faultf(at+"bytes", "%v of %d bytes is listed twice", p.Kind, p.Bytes)
		case p.Bytes < before.Bytes:
			return faultf(at+"bytes", "%d after %d; list the points of a kind by ascending size", p.Bytes, before.Bytes)
		case p.Time < before.Time:
			return faultf(at+"time", "%v of %d bytes takes %v us, less than %v us for %d bytes; measure again, or leave the point out that is off",
				p.Kind, p.Bytes, p.Time, before.Time, before.Bytes)
		}
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// printable keeps tables, file names and messages in one piece.
func printable(name string) bool {
	if utf8.RuneCountInString(name) > 100 {
		return false
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return false
		}
	}
	return true
}
