package transport

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
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
	w.set = func(fd uintptr) { // as direct's calls
		n := int32(w.n)
		syscall.RawSyscall6(unix.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, uintptr(unsafe.Pointer(&n)), unsafe.Sizeof(n), 0)
	}
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

// direct reads and writes by system calls that the Go scheduler is not told of. None of
// them waits. One that lasts for some 20 us, as copying 100 KB does, looks to the scheduler
// as if it did: it hands the processor to another thread, and wakes every 20 us to see
// what else there is to do, which took a sixth of an agent's processor time.
type direct struct {
	c                 *net.TCPConn
	raw               syscall.RawConn
	read, write, once move
}

// move is a system call, what it is to move, and what came of it.
type move struct {
	call  func(fd uintptr) bool // made once, to allocate nothing; false: it would have waited
	buf   []byte
	parts []unix.Iovec
	n     int
	errno syscall.Errno
}

func newStream(c net.Conn) stream {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return plain{c}
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return plain{c}
	}
	d := &direct{c: t, raw: raw}
	d.read.call = func(fd uintptr) bool {
		b := d.read.buf
		return d.read.try(syscall.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
	d.write.call = func(fd uintptr) bool {
		p := d.write.parts
		return d.write.try(syscall.SYS_WRITEV, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
	d.once.call = func(fd uintptr) bool {
		b := d.once.buf
		d.once.try(syscall.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(b)), len(b))
		return true
	}
	return d
}

// order tells the race detector, which does not see it otherwise, that what one end of a
// connection writes happens before the other end, in the same process, has read it.
var order atomic.Uint64

func (m *move) try(trap, fd uintptr, p unsafe.Pointer, length int) bool {
	order.Add(1)
	for {
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(p), uintptr(length))
		if errno == syscall.EINTR {
			continue
		}
		order.Load()
		if m.n, m.errno = int(n), errno; errno != 0 {
			m.n = 0
		}
		return errno != syscall.EAGAIN
	}
}

// failed is the error of a call, as package net has it.
func (d *direct) failed(op string, m *move) error {
	return &net.OpError{Op: op, Net: "tcp", Source: d.c.LocalAddr(), Addr: d.c.RemoteAddr(), Err: os.NewSyscallError(op, m.errno)}
}

func (d *direct) Read(b []byte) (int, error) {
	m := &d.read
	m.buf = b
	err := d.raw.Read(m.call)
	m.buf = nil
	switch {
	case err != nil:
		return 0, err
	case m.errno != 0:
		return 0, d.failed("read", m)
	case m.n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return m.n, nil
}

func (d *direct) writeAll(bufs [][]byte) error {
	m := &d.write
	m.parts = m.parts[:0]
	for _, b := range bufs {
		if len(b) > 0 {
			m.parts = append(m.parts, unix.Iovec{Base: &b[0]})
			m.parts[len(m.parts)-1].SetLen(len(b))
		}
	}
	all := m.parts
	defer clear(all)
	for len(m.parts) > 0 {
		if err := d.raw.Write(m.call); err != nil {
			return err
		}
		if m.errno != 0 {
			return d.failed("writev", m)
		}
		m.written()
	}
	m.parts = all[:0]
	return nil
}

// written leaves what a call has not written.
func (m *move) written() {
	n := m.n
	for len(m.parts) > 0 && n >= int(m.parts[0].Len) {
		n -= int(m.parts[0].Len)
		m.parts = m.parts[1:]
	}
	if n > 0 {
		p := &m.parts[0]
		p.Base = (*byte)(unsafe.Add(unsafe.Pointer(p.Base), n))
		p.SetLen(int(p.Len) - n)
	}
}

func (d *direct) tryWrite(b []byte) int {
	m := &d.once
	m.buf = b
	err := d.raw.Write(m.call)
	m.buf = nil
	if err != nil {
		return 0
	}
	return m.n
}
