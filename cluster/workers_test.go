package cluster

import "testing"

func TestSlowest(t *testing.T) {
	c := Uniform(2, 2, Link{Name: "net"})
	c.Scale = 1.5
	c.Workers = []Worker{{Rank: 1, Scale: 0.5}}
	if got := c.Slowest(); got != 1.5 { // ranks 0, 2 and 3
		t.Errorf("one faster: %g", got)
	}
	c.Workers = append(c.Workers, Worker{Rank: 3, Scale: 4})
	if got := c.Slowest(); got != 4 {
		t.Errorf("the last slower: %g", got)
	}
}
