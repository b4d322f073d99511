package transport

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

var secret = []byte("a secret of this test")

// listenAll opens a listener for each rank.
func listenAll(t testing.TB, host string, world int) (ls []*Listener, addrs []string) {
	t.Helper()
	for range world {
		l, err := Listen(t.Context(), net.JoinHostPort(host, "0"))
		if err != nil {
			t.Skipf("no such address here: %v", err)
		}
		t.Cleanup(func() { l.Close() })
		ls = append(ls, l)
		addrs = append(addrs, l.Addr().String())
	}
	return ls, addrs
}

// connectAll connects a world of TCP endpoints on one host.
func connectAll(t testing.TB, host string, world int, o TCPOptions) []Endpoint {
	t.Helper()
	ls, addrs := listenAll(t, host, world)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	es := make([]Endpoint, world)
	var wg sync.WaitGroup
	for rank, l := range ls {
		wg.Go(func() {
			o := o
			o.Rank, o.Addrs, o.Secret = rank, addrs, secret
			e, err := l.Connect(ctx, o)
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
				return
			}
			es[rank] = e
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return es
}
