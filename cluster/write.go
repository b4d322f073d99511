package cluster

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Write writes a valid cluster as a file that [Read] reads back equal.
func Write(w io.Writer, c *Cluster) error {
	if err := c.Validate(); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "version: %d\nnodes: %d\nper-node: %d\nlinks:\n", Version, c.Nodes, c.PerNode)
	for i := range c.Links {
		l := &c.Links[i]
		fmt.Fprintf(&b, "  - name: %s\n", quote(l.Name))
		if l.Bandwidth > 0 {
			fmt.Fprintf(&b, "    bandwidth: %s\n", formatBandwidth(l.Bandwidth))
		}
		fmt.Fprintf(&b, "    latency: %s\n    algorithm: %v\n", formatTime(l.Latency), l.Algorithm)
		if l.Medium != "" {
			fmt.Fprintf(&b, "    medium: %s\n", quote(l.Medium))
		}
		if l.InFlight > 0 {
			fmt.Fprintf(&b, "    in-flight: %d\n", l.InFlight)
		}
		if len(l.Curve) > 0 {
			b.WriteString("    curve:\n")
		}
		for _, p := range l.Curve {
			fmt.Fprintf(&b, "      - {kind: %v, bytes: %s, time: %s}\n", p.Kind, formatSize(p.Bytes), formatTime(p.Time))
		}
	}
	if l := c.Inside; l != nil {
		b.WriteString("inside:\n")
		if l.Name != "" {
			fmt.Fprintf(&b, "  name: %s\n", quote(l.Name))
		}
		fmt.Fprintf(&b, "  bandwidth: %s\n  latency: %s\n", formatBandwidth(l.Bandwidth), formatTime(l.Latency))
	}
	if s := c.Servers; s != nil {
		fmt.Fprintf(&b, "servers:\n  count: %d\n  colocated: %t\n", s.Count, s.Colocated)
		if s.MergeRate > 0 {
			fmt.Fprintf(&b, "  merge-rate: %s/s\n", formatRate(s.MergeRate))
		}
	}
	fmt.Fprintf(&b, "overlap: %s\nscale: %s\njitter: %s\nseed: %d\n", number(c.Overlap), number(c.Scale), number(c.Jitter), c.Seed)
	if len(c.Workers) > 0 {
		b.WriteString("workers:\n")
	}
	for _, x := range c.Workers {
		fmt.Fprintf(&b, "  - {rank: %d, scale: %s, jitter: %s}\n", x.Rank, number(x.Scale), number(x.Jitter))
	}
	if b.Len() > maxFile {
		return fmt.Errorf("cluster: the file would have %d bytes, more than the %d that Read takes", b.Len(), maxFile)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// quote writes a name so that it never looks like a merge key.
func quote(name string) string {
	return strings.ReplaceAll(strconv.Quote(name), "<<", `<\x3c`)
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
