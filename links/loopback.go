package links

import (
	"cmp"
	"context"
	"crypto/rand"
	"sync"

	"weft/transport"
)

// Loopback connects hosts that are all in this process, over the loopback interface.
func Loopback(ctx context.Context, hosts int) ([]transport.Endpoint, error) {
	o := transport.TCPOptions{Secret: make([]byte, 2*transport.MinSecret)}
	rand.Read(o.Secret)
	var listeners []*transport.Listener
	for range hosts {
		l, err := transport.Listen(ctx, "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		listeners = append(listeners, l)
		o.Addrs = append(o.Addrs, l.Addr().String())
	}
	out, errs := make([]transport.Endpoint, hosts), make([]error, hosts)
	Together(hosts, func(rank int) {
		o := o
		o.Rank = rank
		out[rank], errs[rank] = listeners[rank].Connect(ctx, o)
	})
	if err := cmp.Or(errs...); err != nil {
		Close(out)
		return nil, err
	}
	return out, nil
}

// Together runs f for all hosts at once.
func Together(hosts int, f func(rank int)) {
	var all sync.WaitGroup
	for rank := range hosts {
		all.Go(func() { f(rank) })
	}
	all.Wait()
}

// Close closes endpoints, which wait for each other.
func Close(es []transport.Endpoint) {
	Together(len(es), func(rank int) {
		if es[rank] != nil {
			es[rank].Close()
		}
	})
}
