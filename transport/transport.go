// Package transport carries messages between the agents of a job.
//
// An [Endpoint] is one peer's view of a network of peers, which are numbered
// from 0. A message has a [Tag], which its sender and its receiver both know
// beforehand, so that it goes straight into memory that the receiver provides.
// [Memory] is such a network inside one process, with faults on demand, for
// tests.
package transport

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Tag names a message among those from one peer to another. It may be used
// again once the message has been received.
type Tag struct {
	Channel uint16 // which of several independent streams of operations
	Op      uint64 // which operation of the channel
	Chunk   uint32 // which part of the operation
}

func (t Tag) String() string {
	return fmt.Sprintf("channel %d op %d chunk %d", t.Channel, t.Op, t.Chunk)
}

// What a network holds for a receiver that is not ready. A Send of at most
// Eager bytes does not wait for its Recv, as long as the messages from this
// endpoint that wait at that peer take no more than Window bytes; each counts
// for its length and Overhead. Every other Send waits for its Recv.
const (
	Eager    = 64 << 10
	Window   = 1 << 20
	Overhead = 64
)

// Endpoint is one peer's view of a network of peers. Its methods may be called
// from several goroutines at once.
//
// Every error is an [*Error]. A peer that is lost fails every pending and later
// call that names it, with a [*PeerLost] inside the Error; no call is lost
// itself. A call that its context ends may cost the connection to that peer,
// if a part of its message has already moved; after a call that ended in any
// error, what its buffer holds is undefined, but it is no longer in use.
type Endpoint interface {
	Rank() int  // this peer's number
	World() int // how many peers there are, this one included

	// Send sends data, which may be empty, and returns once data may be reused;
	// the receiver may not have it by then. Messages to one peer with different
	// tags may overtake each other.
	Send(ctx context.Context, to int, tag Tag, data []byte) error

	// Recv fills dst with the message of that tag from that peer. A message of
	// another length is an error, a [*LengthError].
	Recv(ctx context.Context, from int, tag Tag, dst []byte) error

	// Close ends pending calls with [ErrClosed], sees that what was sent reaches
	// the peers that still live, and leaves. To the others this peer is then lost
	// because of [ErrLeft], once they have received what it had sent. A second
	// Close does nothing.
	Close() error
}

// Phase is what a call was doing.
type Phase string

const (
	Connecting Phase = "connect"
	Sending    Phase = "send"
	Receiving  Phase = "receive"
	Closing    Phase = "close"
)

// Error says which call failed, and after what time.
type Error struct {
	Phase   Phase
	Peer    int
	Tag     Tag           // when Sending or Receiving
	Elapsed time.Duration // since the call began
	Err     error
}

func (e *Error) Error() string {
	what := fmt.Sprintf("%s, peer %d", e.Phase, e.Peer)
	if e.Phase == Sending || e.Phase == Receiving {
		what += ", " + e.Tag.String()
	}
	return fmt.Sprintf("%s, after %v: %v", what, e.Elapsed.Round(time.Microsecond), e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// PeerLost says that there is no more connection to a peer, and why.
type PeerLost struct {
	Rank  int
	Cause error
}

func (e *PeerLost) Error() string { return fmt.Sprintf("rank %d is lost: %v", e.Rank, e.Cause) }

func (e *PeerLost) Unwrap() error { return e.Cause }

// LengthError says that the two sides of a message differ in its length.
type LengthError struct {
	Sent, Expected uint64 // bytes
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("the sender has %d bytes, the receiver expects %d", e.Sent, e.Expected)
}

var (
	ErrClosed   = errors.New("endpoint is closed")
	ErrLeft     = errors.New("it has closed its endpoint")
	ErrChecksum = errors.New("checksum does not match: data was corrupted on the way")
	ErrTagInUse = errors.New("the tag is in use by an earlier message that has not been received")
	ErrNoPeer   = errors.New("no such peer")
)
