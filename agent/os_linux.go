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
		return nil, os.NewSyscallError("memfd_create", err)
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
		return nil, fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	return r, nil
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
