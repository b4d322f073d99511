package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
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

// measuring is the first channel of what measures the rails: none of a link is so high.
const measuring = linkChannel + maxLinks

// beside is an endpoint whose messages do not meet others of the agent.
type beside struct{ transport.Endpoint }

func (b beside) Send(ctx context.Context, to int, tag transport.Tag, data []byte) error {
	tag.Channel += measuring
	return b.Endpoint.Send(ctx, to, tag, data)
}

func (b beside) Recv(ctx context.Context, from int, tag transport.Tag, dst []byte) error {
	tag.Channel += measuring
	return b.Endpoint.Recv(ctx, from, tag, dst)
}

// aside are endpoints to measure with.
func aside(rails []transport.Endpoint) []transport.Endpoint {
	out := make([]transport.Endpoint, len(rails))
	for r, e := range rails {
		out[r] = beside{e}
	}
	return out
}

const (
	newsBytes = 4 << 10
	newsTime  = 2 * time.Second // how long the last word may take
	soon      = time.Second     // after which others are told what is waited for: they may wait for this host
)

// assumed is the link between hosts where nobody says what it is: how buckets travel
// depends on it, what comes out does not.
var assumed = cluster.Link{Name: "net", Latency: 25, Bandwidth: 10e9}

// alone reports whether this host has all workers.
func (a *Agent) alone() bool { return a.Meet == nil }

// meet connects to the other hosts, unless training ends first.
func (a *Agent) meet() {
	rails, hosts, err := a.Meet(a.meeting)
	a.mu.Lock()
	defer a.mu.Unlock()
	defer close(a.hasMet)
	if a.rails, a.hosts = rails, hosts; len(rails) > 0 {
		a.net = rails[0]
	}
	a.peers = make([]peer, len(hosts))
	var told *protocol.Failed
	var ended *rendezvous.Ended
	switch {
	case err == nil && a.ended: // meanwhile
		a.tellHosts()
	case err == nil:
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

// callBytes is how much a worker's calls under way may carry together.
func (a *Agent) callBytes() int64 {
	if a.alone() {
		return callBytes(len(a.Ranks))
	}
	return callBytes(slices.Max(a.hosts))
}

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

// news is what one host tells another beside the work: one of these.
type news struct {
	Ended *protocol.Failed `json:"ended,omitzero"` // with an empty message: in order. The last
	Waits *waits           `json:"waits,omitzero"`
	Late  *protocol.Failed `json:"late,omitzero"` // answers Waits; with an empty message: nobody here
}

// waits is what a host waits for.
type waits struct {
	Long      bool    `json:"long"`               // for so long as Patience says, and users are to know
	Agreement *uint64 `json:"agreement,omitzero"` // or else a transfer
	// What all are to do there, and its phase.
	What     string       `json:"what,omitzero"`
	Phase    engine.Phase `json:"phase,omitzero"`
	Session  uint64       `json:"session"`
	Declared int          `json:"declared"` // generations that all its workers have declared
	Link     int          `json:"link"`
	Instance int          `json:"instance"`
}

// listen hears what another host has to tell, until it ends.
func (a *Agent) listen(host int) {
	b := make([]byte, newsBytes)
	for op := uint64(0); ; op++ {
		err := a.net.Recv(a.ctx, host, transport.Tag{Channel: newsChannel, Op: op}, b)
		var n news
		if err == nil {
			err = protocol.Decode(bytes.TrimRight(b, "\x00"), &n)
		}
		if !a.hear(host, n, err) {
			return
		}
	}
}

// hear takes one, and reports whether more may come.
func (a *Agent) hear(host int, n news, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil:
		a.lostHost(host, err)
	case n.Ended != nil && n.Ended.Message != "":
		a.fail(heard(n.Ended))
	case n.Ended != nil:
		a.peers[host].parted = true
		if a.peers[host].wanted {
			a.lostHost(host, transport.ErrLeft)
		}
	case n.Waits != nil && !a.ended:
		a.peers[host].waits = n.Waits
		a.cross()
		var late protocol.Failed
		if f := a.behind(n.Waits); f != nil {
			late = describe(f)
			if n.Waits.Long {
				a.warn(f)
			}
		}
		if !a.ended {
			a.tellHost(host, news{Late: &late})
		}
		return true
	case n.Late != nil:
		x := &a.peers[host]
		x.owes, x.since = x.owes-1, a.now()
		if x.late = nil; n.Late.Message != "" {
			x.late = n.Late
			if a.long {
				a.warn(heard(n.Late))
			}
		}
		return true
	}
	return false
}

// tellHost tells a host something, if it listens soon.
func (a *Agent) tellHost(host int, n news) {
	words := make([]byte, newsBytes)
	if b, err := protocol.Encode(n); err == nil && len(b) <= newsBytes {
		copy(words, b)
	} else {
		copy(words, `{"ended": {"message": "another host has failed"}}`)
	}
	tag := transport.Tag{Channel: newsChannel, Op: a.peers[host].news}
	a.peers[host].news++
	a.lastWords.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), newsTime)
		defer cancel()
		a.net.Send(ctx, host, tag, words) // who does not hear it will see
	})
}

// tellHosts tells the other hosts that this one has ended, and why.
func (a *Agent) tellHosts() {
	var f protocol.Failed
	if a.failure != nil {
		f = describe(a.failure)
	}
	switch {
	case a.net != nil:
		for _, h := range a.others() {
			a.tellHost(h, news{Ended: &f})
		}
		if a.failure == nil { // so that none waits for this host in vain, what it has sent apart
			a.running.Go(func() {
				a.lastWords.Wait()
				a.leaveHosts()
			})
		}
	case a.failure != nil:
		a.stopMeet(&f)
	default:
		a.stopMeet(nil)
	}
}

// leaveHosts ends the connections to the other hosts, once what was sent is read.
func (a *Agent) leaveHosts() {
	var all sync.WaitGroup
	for _, rail := range a.rails {
		all.Go(func() { rail.Close() })
	}
	all.Wait()
}

// behind is the worker of this host that has yet to do what another host waits for;
// nil: none.
func (a *Agent) behind(w *waits) *engine.Failure {
	if w.Agreement != nil {
		for i := range a.workers {
			if x := &a.workers[i]; *w.Agreement >= a.agreements && !hellos.here(x) && !calls.here(x) {
				return &engine.Failure{Rank: a.Ranks[i], Bucket: -1, Err: fmt.Errorf("rank %d is too slow: other hosts wait for its hello or its next call", a.Ranks[i])}
			}
		}
		return nil
	}
	if a.session == nil || a.session.epoch != w.Session {
		return nil
	}
	return a.session.engine.Behind(w.Link, w.Instance)
}

// askHosts tells the others what this host waits for, once for each thing, and asks whom
// if it has waited long. It ends training when they have not agreed in time; the engine
// does that for transfers.
func (a *Agent) askHosts() {
	if a.net == nil || a.ended {
		return
	}
	w := waits{}
	if len(a.asking) > 0 {
		op, x := a.oldest()
		waited := a.now() - x.since
		if a.Timeout > 0 && waited > a.Timeout {
			err := fmt.Errorf("rank %d has waited %v for other hosts to say hello, or make a call, as it did", a.Ranks[0], waited.Round(time.Millisecond))
			a.fail(a.blame(&engine.Failure{Rank: -1, Bucket: -1, Elapsed: waited, Err: err}))
			return
		}
		if waited <= soon && waited <= a.Patience {
			return
		}
		w.Agreement, w.What, w.Phase, w.Long = &op, x.what, x.phase, waited > a.Patience
		if a.session != nil {
			w.Session, w.Declared = a.session.epoch, a.session.engine.Declared(0)
			for i := range a.workers {
				w.Declared = min(w.Declared, a.session.engine.Declared(i))
			}
		}
	} else if a.session != nil {
		than := a.Patience
		if a.Timeout > 0 {
			than = min(than, a.Timeout/2)
		}
		link, instance, ok := a.session.engine.LateTransfer(a.now(), than)
		if !ok {
			return
		}
		_, _, long := a.session.engine.LateTransfer(a.now(), a.Patience)
		w = waits{Long: long, Session: a.session.epoch, Link: link, Instance: instance}
	}
	b, err := protocol.Encode(w)
	if err != nil || string(b) == a.asked || w == (waits{}) {
		return
	}
	a.asked, a.long = string(b), w.Long
	for _, h := range a.others() {
		x := &a.peers[h]
		if x.owes == 0 {
			x.since = a.now()
		}
		x.owes, x.late = x.owes+1, nil
		a.tellHost(h, news{Waits: &w})
	}
}

// blame names the host that keeps the others waiting, where something among hosts took too
// long: the one that waits for a worker of its own, or else one that does not even answer.
func (a *Agent) blame(f *engine.Failure) *engine.Failure {
	if f.Rank >= 0 || f.Elapsed == 0 {
		return f
	}
	for h := range a.peers {
		if late := a.peers[h].late; late != nil {
			out := heard(late)
			out.Err = fmt.Errorf("%w: rank %d has waited %v", out.Err, a.Ranks[0], f.Elapsed.Round(time.Millisecond))
			return out
		}
	}
	for h := range a.peers {
		if x := &a.peers[h]; x.owes > 0 && a.now()-x.since >= tick {
			out := *f
			out.Rank = a.first(h)
			out.Err = fmt.Errorf("host %d (rank %d) does not answer: %w", h, out.Rank, f.Err)
			return &out
		}
	}
	return f
}

// asked is an agreement that is under way, or what follows from one.
type asked struct {
	since time.Duration
	what  string // that all do
	phase engine.Phase
}

// oldest is the agreement that is under way, and its number: they are answered in order.
func (a *Agent) oldest() (uint64, asked) {
	op := slices.Min(slices.Collect(maps.Keys(a.asking)))
	return op, a.asking[op]
}

// missHost ends training because another host does not do its part, as err says. If
// it has left, it has said why before that, which is being heard.
func (a *Agent) missHost(host int, err error) {
	if errors.Is(err, transport.ErrLeft) && !a.peers[host].parted {
		a.peers[host].wanted = true
		return
	}
	a.lostHost(host, err)
}

// lostHost ends training because of another host.
func (a *Agent) lostHost(host int, cause error) {
	if a.ended {
		return
	}
	rank := a.first(host)
	if a.peers[host].parted {
		a.failf(rank, "rank %d has ended its training and rank %d goes on: give every rank the same number of iterations", rank, a.Ranks[0])
		return
	}
	var lost *transport.PeerLost
	if errors.As(cause, &lost) {
		cause = lost.Cause
	}
	switch {
	case a.session != nil && len(a.asking) > 0:
		_, x := a.oldest()
		a.lostDuring(x.phase, rank, cause, x.what)
		return
	case a.session != nil:
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
	x := asked{a.now(), saysHello, helloPhase}
	if n, ok := want.(numbered); ok {
		x.what, x.phase = (&call{Call: n.Call, index: n.Index}).makes()
	}
	x.what = fmt.Sprintf("rank %d %s", a.Ranks[0], x.what)
	a.asking[op] = x
	return func() error {
		defer a.answered(op)
		mine, err := protocol.Encode(want)
		if err != nil {
			return err
		}
		others, err := a.exchange(op, mine)
		if err != nil {
			return err
		}
		for i, other := range others {
			if bytes.Equal(mine, other) {
				continue
			}
			if err := differ(a.others()[i], other); err != nil {
				return err
			}
		}
		return nil
	}
}

func (a *Agent) answered(op uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asking, op)
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
	t.Result, t.Sources, t.Single = dst, sources, len(a.hosts) == a.World
	return t.Run(a.ctx, net)
}
