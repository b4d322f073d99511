package launch

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unsupported is why nothing can be launched on this system.
var unsupported error

// Bound is what makes a process lead a group of its own, so that a terminal's signals reach it
// through this one alone, and get SIGTERM when the thread that starts it ends, which the
// caller locks until then.
func Bound() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// leader is what makes a process lead a group of its own, which is killed if this
// process is.
func leader() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// hasEnded waits for a process to end, and leaves its number to it.
func hasEnded(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
