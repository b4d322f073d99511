package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"weft/agent/protocol"
	"weft/agent/rendezvous"
	"weft/cluster"
	"weft/collective"
	"weft/engine"
	"weft/job"
	"weft/transport"
)

// Channels of the messages between agents.
const (
	newsChannel  uint16 = iota // that a host has ended, and why
	agreeChannel               // whether all hosts want the same
	callChannel
	linkChannel // of the plan's first link; the others follow
)

const (
	newsBytes = 4 << 10
	newsTime  = 2 * time.Second // how long the last word may take
)

// assumed is the link between hosts, as long as nobody has measured it: how buckets
// travel depends on it, what comes out does not.
var assumed = cluster.Link{Name: "net", Latency: 25, Bandwidth: 10e9}

// alone reports whether this host has all workers.
func (a *Agent) alone() bool { return a.Meet == nil }

// meet connects to the other hosts, unless training ends first.
func (a *Agent) meet() {
	net, hosts, err := a.Meet(a.meeting)
	a.mu.Lock()
	defer a.mu.Unlock()
	defer close(a.hasMet)
	a.net, a.hosts = net, hosts
	var told *protocol.Failed
	var ended *rendezvous.Ended
	switch {
	case err == nil && a.ended: // meanwhile
		a.tellHosts()
	case err == nil:
		a.parted = make([]bool, len(hosts))
		for _, h := range a.others() {
			a.running.Go(func() { a.listen(h) })
		}
		a.gather(hellos)
	case errors.As(err, &told):
		a.fail(heard(told))
	case errors.As(err, &ended): // which matters only to who wants something
		a.absent = err
		a.gather(hellos)
	default:
		a.failf(-1, "%w", err)
	}
}

// heard is what another host has failed of.
func heard(f *protocol.Failed) *engine.Failure {
	rank := -1
	if f.Rank != nil {
		rank = *f.Rank
	}
	return &engine.Failure{Rank: rank, Bucket: -1, Tensor: f.Tensor, Phase: engine.Phase(f.Phase), Err: errors.New(f.Message)}
}

// host is the number of this host, first the first rank of one.
func (a *Agent) host() int { return a.net.Rank() }

func (a *Agent) first(host int) int { return a.hosts[:host].Workers() }

// hostOf is the host of a rank.
func (a *Agent) hostOf(rank int) int {
	host := 0
	for host+1 < len(a.hosts) && rank >= a.first(host+1) {
		host++
	}
	return host
}

// others are the other hosts.
func (a *Agent) others() (out []int) {
	for h := range a.hosts {
		if h != a.host() {
			out = append(out, h)
		}
	}
	return out
}

// listen hears how another host ends.
func (a *Agent) listen(host int) {
	news := make([]byte, newsBytes)
	err := a.net.Recv(a.ctx, host, transport.Tag{Channel: newsChannel}, news)
	var f protocol.Failed
	if err == nil {
		err = protocol.Decode(bytes.TrimRight(news, "\x00"), &f)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil:
		a.lostHost(host, err)
	case f.Message != "":
		a.fail(heard(&f))
	default:
		a.parted[host] = true
	}
}

// tellHosts tells the other hosts that this one has ended, and why.
func (a *Agent) tellHosts() {
	if a.net == nil {
		var cause error // in order
		if a.failure != nil {
			f := describe(a.failure)
			cause = &f
		}
		a.stopMeet(cause)
		return
	}
	news := make([]byte, newsBytes)
	var f protocol.Failed
	if a.failure != nil {
		f = describe(a.failure)
	}
	if b, err := protocol.Encode(f); err == nil && len(b) <= newsBytes {
		copy(news, b)
	} else {
		copy(news, `{"message": "another host has failed"}`)
	}
	for _, h := range a.others() {
		a.lastWords.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), newsTime)
			defer cancel()
			a.net.Send(ctx, h, transport.Tag{Channel: newsChannel}, news) // who does not hear it will see
		})
	}
}

// lostHost ends training because of another host.
func (a *Agent) lostHost(host int, cause error) {
	if a.ended {
		return
	}
	rank := a.first(host)
	if a.parted[host] {
		a.failf(rank, "rank %d has ended its training and rank %d goes on: give every rank the same number of iterations", rank, a.Ranks[0])
		return
	}
	var lost *transport.PeerLost
	if errors.As(cause, &lost) {
		cause = lost.Cause
	}
	if a.session != nil {
		a.step(engine.Event{Kind: engine.PeerLost, Rank: rank, Err: cause})
		return
	}
	a.failf(rank, "host %d (rank %d) is lost: %w, before all workers had said hello", host, rank, cause)
}

// agree does then, under the lock, once all hosts have come with the same want.
// Otherwise it fails with what differ finds between this host's and another's, which
// may be of another form.
func (a *Agent) agree(want any, differ func(host int, other []byte) error, then func()) {
	if a.alone() {
		then()
		return
	}
	a.fly(nil, a.ask(want, differ), then)
}

// ask numbers a question, whether all hosts want the same, and returns how to put it.
func (a *Agent) ask(want any, differ func(host int, other []byte) error) func() error {
	op := a.agreements
	a.agreements++
	return func() error {
		mine, err := protocol.Encode(want)
		if err != nil {
			return err
		}
		others, err := a.exchange(op, mine)
		if err != nil {
			return err
		}
		for i, other := range others {
			if !bytes.Equal(mine, other) {
				return differ(a.others()[i], other)
			}
		}
		return nil
	}
}

// exchange returns what the other hosts have where this one has mine. Digests go
// first: mostly they are all alike.
func (a *Agent) exchange(op uint64, mine []byte) ([][]byte, error) {
	tag := func(chunk uint32) transport.Tag { return transport.Tag{Channel: agreeChannel, Op: op, Chunk: chunk} }
	sum := sha256.Sum256(mine)
	own := append(binary.LittleEndian.AppendUint64(nil, uint64(len(mine))), sum[:]...)
	heads, err := a.swap(tag(0), own, func(int) int { return len(own) })
	if err != nil {
		return nil, err
	}
	alike := !slices.ContainsFunc(heads, func(h []byte) bool { return !bytes.Equal(h, own) })
	if alike {
		return slices.Repeat([][]byte{mine}, len(heads)), nil
	}
	lengths := make([]int, len(heads))
	for i, h := range heads {
		n := binary.LittleEndian.Uint64(h)
		if n > protocol.MaxPayload {
			return nil, fmt.Errorf("host %d announces %d bytes", a.others()[i], n)
		}
		lengths[i] = int(n)
	}
	return a.swap(tag(1), mine, func(i int) int { return lengths[i] })
}

// swap sends a message to all other hosts and receives theirs.
func (a *Agent) swap(tag transport.Tag, mine []byte, length func(i int) int) ([][]byte, error) {
	others := a.others()
	got, errs := make([][]byte, len(others)), make([]error, 2*len(others))
	var all sync.WaitGroup
	for i, h := range others {
		got[i] = make([]byte, length(i))
		all.Go(func() { errs[2*i] = a.net.Send(a.ctx, h, tag, mine) })
		all.Go(func() { errs[2*i+1] = a.net.Recv(a.ctx, h, tag, got[i]) })
	}
	all.Wait()
	return got, errors.Join(errs...)
}

// program is what this host does in a collective of all hosts.
func (a *Agent) program(s collective.Spec, d job.DType) (*collective.Program, error) {
	s.World = len(a.hosts)
	return s.Choose(assumed, d.Bytes()).Program(a.host())
}

// reduce is the all-reduce of a part of the regions among all workers.
func (a *Agent) reduce(t *collective.Transfer, net transport.Endpoint, dst []byte, sources [][]byte) error {
	if a.alone() {
		return reduce(t.Reduction, dst, sources)
	}
	t.Result, t.Sources = dst, sources
	return t.Run(a.ctx, net)
}
