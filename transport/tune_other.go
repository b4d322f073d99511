//go:build !linux

package transport

import "net"

// tune makes a connection fail when what it sends is not acknowledged; here the
// system's own limits hold.
func tune(*net.TCPConn) {}

// wake would make the system wake the reader of a connection less often.
type wake struct{}

func newWake(net.Conn) *wake { return nil }

func (*wake) at(int) {}

func newStream(c net.Conn) stream { return plain{c} }
