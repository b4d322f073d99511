package transport

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// Before any frame, the two sides of a connection show each other that they
// know the job's secret, and that they agree on the job:
//
//	dialer                          acceptor
//	hello                        ->
//	                             <- hello
//	HMAC("dialer", both hellos)  ->
//	                             <- verdict, HMAC("acceptor", verdict, both hellos)
//
// All sizes are fixed. A hello has a fresh nonce and everything that the two
// must agree on, so that no proof is of use on another connection, in another
// epoch or the other way around. The dialer proves first: who has not the secret
// gets nothing from an acceptor to try secrets on.

const (
	helloSize   = 64
	macSize     = sha256.Size
	verdictSize = 1 + macSize

	// helloVersion is that of the handshake and of what agents say when they meet.
	helloVersion = 2

	// MinSecret is the least length of a job's secret, bytes.
	MinSecret = 16
)

// hello is what one side says of itself.
type hello struct {
	world    uint32
	from, to uint32
	conn     uint16   // which of the connections between the two
	conns    uint16   // of how many
	epoch    uint64   // of the job
	instance [16]byte // random, of this endpoint
	nonce    [16]byte // random, of this connection
}

func (h hello) encode() (b [helloSize]byte) {
	le := binary.LittleEndian
	copy(b[0:], magic[:])
	b[4] = helloVersion
	le.PutUint32(b[8:], h.world)
	le.PutUint32(b[12:], h.from)
	le.PutUint32(b[16:], h.to)
	le.PutUint16(b[20:], h.conn)
	le.PutUint16(b[22:], h.conns)
	le.PutUint64(b[24:], h.epoch)
	copy(b[32:], h.instance[:])
	copy(b[48:], h.nonce[:])
	return b
}

func (h *hello) decode(b *[helloSize]byte) error {
	le := binary.LittleEndian
	*h = hello{
		world: le.Uint32(b[8:]), from: le.Uint32(b[12:]), to: le.Uint32(b[16:]),
		conn: le.Uint16(b[20:]), conns: le.Uint16(b[22:]), epoch: le.Uint64(b[24:]),
		instance: [16]byte(b[32:]), nonce: [16]byte(b[48:]),
	}
	switch {
	case [4]byte(b[:4]) != magic:
		return &Refusal{Why: WrongProtocol, Msg: "it does not speak weft's protocol"}
	case b[4] != helloVersion:
		return &Refusal{Why: WrongProtocol, Msg: fmt.Sprintf("it speaks version %d of weft's protocol, this program version %d", b[4], helloVersion)}
	}
	return nil
}

// Secret is what the agents of a job know and nobody else does. It is never printed.
type Secret []byte

// Format writes that there is a secret, whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, "(secret)") }

// Refusal says why two agents of a job have not connected.
type Refusal struct {
	Why Reason
	Msg string

	temporary bool
}

func (e *Refusal) Error() string { return e.Msg }

// Reason is one of the reasons of a [Refusal].
type Reason uint8

const (
	accepted      Reason = iota
	WrongSecret          // one of the two has not the job's secret
	StaleEpoch           // one of the two is of an earlier epoch of the job
	WrongWorld           // they differ in the number of peers
	WrongRank            // one of the two is not who the other takes it for
	WrongConns           // they differ in the number of connections
	DuplicateRank        // another agent of the dialer's rank has connected before
	WrongProtocol        // the other is of another version, or no agent at all
)

// refuse puts a reason in words, as one side sees it.
func (w Reason) refuse(self, other, dialer *hello) error {
	return &Refusal{Why: w, Msg: "refused: " + w.text(self, other, dialer)}
}

func (w Reason) text(self, other, dialer *hello) string {
	switch w {
	case WrongSecret:
		return "it does not have the same secret"
	case StaleEpoch:
		return fmt.Sprintf("it is in epoch %d of the job, this is in epoch %d", other.epoch, self.epoch)
	case WrongWorld:
		return fmt.Sprintf("it is of a job of %d peers, this is of a job of %d", other.world, self.world)
	case WrongRank:
		return fmt.Sprintf("it is rank %d and looks for rank %d, this is rank %d and looks for rank %d", other.from, other.to, self.from, self.to)
	case WrongConns:
		return fmt.Sprintf("it has %d connections a peer, this has %d", other.conns, self.conns)
	case DuplicateRank:
		return fmt.Sprintf("another agent of rank %d has connected before", dialer.from)
	}
	return fmt.Sprintf("for reason %d, which this program does not know", uint8(w))
}

// prove is the proof of one side, which knows the secret.
func prove(secret []byte, side string, verdict Reason, dialer, acceptor *[helloSize]byte) []byte {
	m := hmac.New(sha256.New, secret)
	io.WriteString(m, "weft "+side)
	m.Write([]byte{byte(verdict)})
	m.Write(dialer[:])
	m.Write(acceptor[:])
	return m.Sum(nil)
}

// dialHandshake is the dialer's side. The caller sets deadlines.
func dialHandshake(c net.Conn, secret []byte, self hello) (other hello, err error) {
	rand.Read(self.nonce[:])
	mine := self.encode()
	if _, err := c.Write(mine[:]); err != nil {
		return other, err
	}
	var theirs [helloSize]byte
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return other, noAnswer(err)
	}
	if err := other.decode(&theirs); err != nil {
		return other, err
	}
	if _, err := c.Write(prove(secret, "dialer", accepted, &mine, &theirs)); err != nil {
		return other, err
	}
	var verdict [verdictSize]byte
	if _, err := io.ReadFull(c, verdict[:]); err != nil {
		return other, noAnswer(err)
	}
	why := Reason(verdict[0])
	if !hmac.Equal(verdict[1:], prove(secret, "acceptor", why, &mine, &theirs)) {
		why = WrongSecret
	}
	if why != accepted {
		return other, why.refuse(&self, &other, &self)
	}
	return other, nil
}

// acceptHandshake is the acceptor's side; judge decides about a dialer that has
// proved that it knows the secret. The caller sets deadlines.
func acceptHandshake(c net.Conn, secret []byte, self hello, judge func(other *hello) Reason) (other hello, err error) {
	var theirs [helloSize]byte
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return other, noAnswer(err)
	}
	bad := other.decode(&theirs)
	rand.Read(self.nonce[:])
	self.to, self.conn = other.from, other.conn
	mine := self.encode()
	if [4]byte(theirs[:4]) == magic { // another version sees ours and says so
		if _, err := c.Write(mine[:]); err != nil {
			return other, err
		}
	}
	if bad != nil {
		return other, bad
	}
	var proof [macSize]byte
	if _, err := io.ReadFull(c, proof[:]); err != nil {
		return other, noAnswer(err)
	}
	why := WrongSecret
	if hmac.Equal(proof[:], prove(secret, "dialer", accepted, &theirs, &mine)) {
		why = judge(&other)
	}
	verdict := append([]byte{byte(why)}, prove(secret, "acceptor", why, &theirs, &mine)...)
	if why == WrongSecret {
		clear(verdict[1:]) // no proof for who has given none
	}
	_, err = c.Write(verdict)
	if why != accepted {
		err = why.refuse(&self, &other, &other)
	}
	return other, err
}

func noAnswer(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errors.New("the other side hangs up")
	}
	return err
}
