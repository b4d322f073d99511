package agent

import (
	"cmp"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outbox is what a worker is told. A worker that computes reads nothing, and a socket holds
// a few hundred messages, which plans of many small transfers exceed: what finds no room
// waits, and the agent goes on. It is no more than the worker has asked for.
type outbox struct {
	conn *net.UnixConn

	mu      sync.Mutex
	waiting []byte
	err     error          // of writing what waited
	writer  sync.WaitGroup // of one that writes what waits, if anything does
	busy    bool           // there is one
}

// put writes a message at once if there is room for it, or once there is.
// Descriptors travel with its first bytes, behind what waits.
func (o *outbox) put(b []byte, fds ...int) error {
	if len(fds) > 0 {
		return o.putWith(b, fds...)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	if !o.busy {
		n, err := o.try(b)
		if b = b[n:]; err != nil || len(b) == 0 {
			return err
		}
		o.busy = true
		o.writer.Go(o.write)
	}
	o.waiting = append(o.waiting, b...)
	return nil
}

// try writes what there is room for.
func (o *outbox) try(b []byte) (n int, err error) {
	raw, err := o.conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	ended := raw.Write(func(fd uintptr) bool {
		for {
			if n, err = unix.Write(int(fd), b); err != unix.EINTR {
				return true
			}
		}
	})
	if err == unix.EAGAIN {
		err = nil
	}
	return max(n, 0), cmp.Or(ended, err)
}

// write writes what waits, until nothing does.
func (o *outbox) write() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > 0 && o.err == nil {
		b := o.waiting
		o.waiting = nil
		o.mu.Unlock()
		_, err := o.conn.Write(b)
		o.mu.Lock()
		if o.err = err; err != nil {
			o.conn.Close()
		}
	}
	o.busy = false
}

// putWith writes a message with descriptors, which whoever calls may then close.
func (o *outbox) putWith(b []byte, fds ...int) error {
	o.hurry()
	defer o.conn.SetWriteDeadline(time.Time{})
	o.wait()
	n, _, err := o.conn.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	if b = b[n:]; err == nil && len(b) > 0 {
		_, err = o.conn.Write(b)
	}
	return err
}

// hurry gives up what waits, and the worker, if it does not read soon.
func (o *outbox) hurry() {
	if o != nil {
		o.conn.SetWriteDeadline(time.Now().Add(stuck))
	}
}

// wait returns once nothing waits.
func (o *outbox) wait() {
	if o != nil {
		o.writer.Wait()
	}
}
