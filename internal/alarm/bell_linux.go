package alarm

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// bell is what a thread waits for, for a time that counts nanoseconds.
type bell struct{ fd int }

func newBell() (bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return bell{fd}, os.NewSyscallError("eventfd", err)
}

func (b bell) ring() { unix.Write(b.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// attend makes the calling goroutine the one that waits, until the function that it
// returns is called.
func (b bell) attend() func() {
	runtime.LockOSThread() // and never unlocks it: the thread ends with its goroutine
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	return func() { unix.Close(b.fd) }
}

func (b bell) wait(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	fds := []unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}}
	if n, _ := unix.Ppoll(fds, &t, nil); n > 0 {
		var count [8]byte
		unix.Read(b.fd, count[:])
	}
}
