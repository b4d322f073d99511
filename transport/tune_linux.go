package transport

import (
	"net"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not have.
const tcpUserTimeout = 18

// tune makes a connection fail when what it sends is not acknowledged.
func tune(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(silence.Milliseconds()))
	})
}

// wake makes the system wake the reader of a connection less often.
type wake struct {
	raw syscall.RawConn
	set func(fd uintptr) // sets SO_RCVLOWAT to n; made once, to allocate nothing
	n   int
}

// maxWake is the most bytes that a reader lets come before it looks.
const maxWake = 128 << 10

func newWake(c net.Conn) *wake {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	w := &wake{raw: raw, n: 1}
	w.set = func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, w.n) }
	return w
}

// at wakes the reader when that many bytes are there, of which maxWake are
// enough. No more than that may be asked for than will come.
func (w *wake) at(n int) {
	if w == nil {
		return
	}
	if n = min(n, maxWake); n != w.n {
		w.n = n
		w.raw.Control(w.set)
	}
}

// attempt writes to a connection without waiting.
type attempt struct {
	raw syscall.RawConn
	do  func(fd uintptr) bool // writes buf; made once, to allocate nothing
	buf []byte
	n   int
}

func newAttempt(c net.Conn) *attempt {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	a := &attempt{raw: raw}
	a.do = func(fd uintptr) bool {
		a.n, _ = syscall.Write(int(fd), a.buf)
		return true
	}
	return a
}

// write is how many of the bytes the system has taken; 0 after an error too.
func (a *attempt) write(b []byte) int {
	a.buf, a.n = b, 0
	if a.raw.Write(a.do) != nil {
		return 0
	}
	return max(a.n, 0)
}
