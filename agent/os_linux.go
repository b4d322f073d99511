package agent

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// unsupported is why no agent can run on this system.
var unsupported error

func newRegion(name string, size int64, access int) (*region, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, noMemory(name, size, err)
	}
	r := &region{fd: fd}
	if err = unix.Ftruncate(fd, size); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		r.bytes, err = unix.Mmap(fd, 0, int(size), access, unix.MAP_SHARED)
	}
	if err != nil {
		r.close()
		return nil, noMemory(name, size, err)
	}
	return r, nil
}

// remedies are what to do where the system refuses shared memory.
var remedies = map[error]string{
	unix.EMFILE: ": raise the limit of open files (ulimit -n)",
	unix.ENFILE: ": raise the system's limit of open files (sysctl fs.file-max)",
	unix.ENOMEM: ": start fewer workers on this host, or raise the limit of memory (ulimit -v), if there is one",
}

func noMemory(name string, size int64, err error) error {
	return fmt.Errorf("shared memory %s of %d bytes: %w%s", name, size, err, remedies[err])
}

// sameUser refuses a peer that runs as another user.
func sameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	if e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return e
	}
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("a process of user %d", peer.Uid)
	}
	return nil
}
