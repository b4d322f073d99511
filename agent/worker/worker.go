// Package worker is a client of an agent, for programs that play a training
// process: tests, benchmarks, the replay of a job. See docs/formats/client.md.
package worker

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"weft/agent/protocol"
	"weft/profile"
)

// Worker is one rank's connection. It is not safe for
// concurrent use, but that one goroutine may wait in Done while another sends.
type Worker struct {
	Rank, World, LocalRank int
	Welcome                protocol.Welcome
	Input, Output          []byte // shared with the agent; see the rules of the protocol
	// Reduce reduces a bucket of the input, with all other workers, as torch.distributed does.
	// Whatever this worker waits for, it is called for each bucket that the agent starts.
	Reduce func(bucket, iteration int) error

	conn    *net.UnixConn
	reading sync.Mutex // of in, fds and early
	in      *protocol.Reader
	fds     []int                                // received, not yet used
	early   map[protocol.Kind][]protocol.Message // that came before what was waited for
	calls   int
}

// Error is why the agent says that training cannot go on.
type Error struct{ protocol.Failed }

func (e *Error) Error() string { return e.Message }

// Connect connects as the environment says that a launcher gives to its workers.
func Connect() (*Worker, error) {
	w := new(Worker)
	for name, to := range map[string]*int{"RANK": &w.Rank, "WORLD_SIZE": &w.World, "LOCAL_RANK": &w.LocalRank} {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			return nil, fmt.Errorf("%s is %q: start this with weft run", name, os.Getenv(name))
		}
		*to = n
	}
	return w, w.dial(os.Getenv("WEFT_SOCKET"))
}

// Dial connects to the agent at a socket.
func Dial(socket string, rank, world, localRank int) (*Worker, error) {
	w := &Worker{Rank: rank, World: world, LocalRank: localRank}
	return w, w.dial(socket)
}

func (w *Worker) dial(socket string) (err error) {
	w.conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	w.in = protocol.NewReader((*withDescriptors)(w))
	return err
}

// withDescriptors reads from the connection and keeps the descriptors that come.
type withDescriptors Worker

func (w *withDescriptors) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, _, _, err := w.conn.ReadMsgUnix(b, oob)
	if err != nil {
		return 0, err // n is -1 where the connection was reset
	}
	if n == 0 {
		return 0, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		fds, e := unix.ParseUnixRights(&m)
		w.fds, err = append(w.fds, fds...), cmp.Or(err, e)
	}
	return n, err
}

// Hello says what this worker has, and waits until all have and the memory is there.
func (w *Worker) Hello(h protocol.Hello) error {
	h.Version, h.Rank, h.World, h.LocalRank, h.Pid = protocol.Version, w.Rank, w.World, w.LocalRank, os.Getpid()
	m, err := protocol.Message{Kind: protocol.KindHello}.With(h)
	if err == nil {
		err = w.Send(m)
	}
	if err == nil {
		m, err = w.receive(protocol.KindWelcome)
	}
	if err == nil {
		w.Welcome = protocol.Welcome{} // a member that is left out is no member of the last one
		err = m.Decode(&w.Welcome)
	}
	if err != nil {
		return err
	}
	w.unmap()
	if len(w.fds) != 2 {
		return fmt.Errorf("%d descriptors came with welcome, want 2", len(w.fds))
	}
	if w.Input, err = unix.Mmap(w.fds[0], 0, int(w.Welcome.InputBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		w.Output, err = unix.Mmap(w.fds[1], 0, int(w.Welcome.OutputBytes), unix.PROT_READ, unix.MAP_SHARED)
	}
	w.closeDescriptors()
	return err
}

// Ready declares a bucket of the input complete.
func (w *Worker) Ready(bucket, iteration int) error {
	return w.Send(protocol.Message{Kind: protocol.KindReady, Index: bucket, Iteration: iteration})
}

// Boundary tells that an iteration has ended.
func (w *Worker) Boundary(iteration int) error {
	return w.Send(protocol.Message{Kind: protocol.KindBoundary, Iteration: iteration})
}

// OpDone tells that an op of Welcome.Ops has ended.
func (w *Worker) OpDone(op int32, iteration int) error {
	return w.Send(protocol.Message{Kind: protocol.KindOp, Index: int(op), Iteration: iteration})
}

// Moved tells that a bucket which was started lies, reduced, in the input.
func (w *Worker) Moved(bucket, iteration int) error {
	_, err := w.conn.Write(protocol.Message{Kind: protocol.KindMoved, Index: bucket, Iteration: iteration}.Append(nil))
	return err
}

// Done waits for a bucket that lies reduced in the output, or if it was started, in the input.
func (w *Worker) Done() (bucket, iteration int, err error) {
	m, err := w.receive(protocol.KindDone)
	return m.Index, m.Iteration, err
}

// Call makes a collective outside the plan and waits for it.
func (w *Worker) Call(c protocol.Call) error {
	made, err := w.Begin(c)
	if err != nil {
		return err
	}
	returned, err := w.Returned()
	if err == nil && returned != made {
		err = fmt.Errorf("call %d returned, this worker made %d", returned, made)
	}
	return err
}

// Begin makes a collective outside the plan, and says which call it is.
func (w *Worker) Begin(c protocol.Call) (call int, err error) {
	call = w.calls
	m, err := protocol.Message{Kind: protocol.KindCall, Index: call}.With(c)
	if err == nil {
		err = w.Send(m)
	}
	w.calls++
	return call, err
}

// Returned waits for a call that has returned. Calls may return in any order.
func (w *Worker) Returned() (call int, err error) {
	m, err := w.receive(protocol.KindReturned)
	return m.Index, err
}

// Review tells what this worker has measured, and returns what is decided.
func (w *Worker) Review(r *profile.Report) (d protocol.Decision, err error) {
	if _, err = w.Begin(protocol.Call{Kind: protocol.Review, Report: r}); err != nil {
		return d, err
	}
	m, err := w.receive(protocol.KindReturned)
	if err == nil {
		err = m.Decode(&d)
	}
	return d, err
}

// Region is a part of the input and the output.
func Region(memory []byte, r protocol.Region) []byte { return memory[r.Offset : r.Offset+r.Bytes] }

// Goodbye ends in order.
func (w *Worker) Goodbye() error {
	return cmp.Or(w.Send(protocol.Message{Kind: protocol.KindGoodbye}), w.Close())
}

// Close ends without a word: the agent counts this worker as lost.
func (w *Worker) Close() error {
	w.unmap()
	w.closeDescriptors()
	return w.conn.Close()
}

// Send sends any message.
func (w *Worker) Send(m protocol.Message) error {
	_, err := w.conn.Write(m.Append(nil))
	if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return err
	}
	for { // it said why before that, after what had been done
		if _, failed := w.receive(protocol.KindDone); failed != nil {
			return failed
		}
	}
}

// receive waits for a message of a kind. The agent's failure is an [*Error].
func (w *Worker) receive(kind protocol.Kind) (protocol.Message, error) {
	m, err := w.next(kind)
	switch {
	case err != nil:
		return m, fmt.Errorf("the agent ended without a message: %w", err)
	case m.Kind == protocol.KindFailed:
		f := new(Error)
		return m, cmp.Or[error](protocol.Decode(m.Payload, &f.Failed), f)
	case m.Kind != kind:
		return m, fmt.Errorf("the agent sent %v, expected %v", m.Kind, kind)
	}
	return m, nil
}

var ends = map[protocol.Kind]bool{protocol.KindDone: true, protocol.KindReturned: true}

// next reads a message. The ends of buckets and of calls come in any order.
func (w *Worker) next(kind protocol.Kind) (protocol.Message, error) {
	w.reading.Lock()
	defer w.reading.Unlock()
	if x := w.early[kind]; len(x) > 0 {
		w.early[kind] = x[1:]
		return x[0], nil
	}
	for {
		m, err := w.in.Next()
		switch {
		case err != nil || m.Kind == kind:
			return m, err
		case m.Kind == protocol.KindStart && w.Reduce != nil:
			if err := w.Reduce(m.Index, m.Iteration); err != nil {
				return m, err
			}
			w.Moved(m.Index, m.Iteration) // an agent that does not take it has said why
		case kind == protocol.KindFailed: // which comes last
		case ends[kind] && ends[m.Kind]:
			if w.early == nil {
				w.early = map[protocol.Kind][]protocol.Message{}
			}
			w.early[m.Kind] = append(w.early[m.Kind], m)
		default:
			return m, nil
		}
	}
}

func (w *Worker) unmap() {
	for _, b := range []*[]byte{&w.Input, &w.Output} {
		if *b != nil {
			unix.Munmap(*b)
			*b = nil
		}
	}
}

func (w *Worker) closeDescriptors() {
	for _, fd := range w.fds {
		unix.Close(fd)
	}
	w.fds = nil
}
