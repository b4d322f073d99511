package transport

import (
	"fmt"
	"net"
)

// Agents that do not know each other's addresses yet meet at one of them. What
// they say there goes over a connection that has passed the same handshake as any
// other, between peers that have no connections yet.

// Introduce proves, on a connection that this side has dialed, that both sides have
// the job's secret. It says who this side is, which nobody has to believe. The caller
// sets deadlines. A [*Refusal] says that the other has not the secret, or is no agent.
func Introduce(c net.Conn, s Secret, rank int) error {
	if err := s.check(); err != nil {
		return err
	}
	_, err := dialHandshake(c, s, hello{from: uint32(rank)})
	return err
}

// Admit is the other side of [Introduce]. The rank is what the dialer says of itself,
// also where it is refused; -1: it has said nothing.
func Admit(c net.Conn, s Secret) (rank int, err error) {
	if err := s.check(); err != nil {
		return -1, err
	}
	other, err := acceptHandshake(c, s, hello{}, func(other *hello) Reason {
		if other.conns != 0 { // it takes this for a peer's listener
			return WrongConns
		}
		return accepted
	})
	if other.nonce == [16]byte{} {
		return -1, err
	}
	return int(other.from), err
}

// check refuses a secret that is none.
func (s Secret) check() error {
	if len(s) < MinSecret {
		return fmt.Errorf("the job's secret has %d bytes, it needs %d", len(s), MinSecret)
	}
	return nil
}
