package lab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"weft/launch"

	"golang.org/x/sys/unix"
)

// wholeMachine is the mapping of users of a process in no user namespace of its own.
const wholeMachine = "0 0 4294967295"

// asRoot runs this program again in a user namespace, in which the user may do what a
// lab needs. Where that cannot help, the error is denied, as it came.
func asRoot(ctx context.Context, c *RunConfig, signals <-chan os.Signal, denied error) error {
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || !slices.Equal(strings.Fields(string(users)), strings.Fields(wholeMachine)) {
		return denied
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	again := exec.Command(self, c.Again...)
	again.Stdout, again.Stderr = c.Out, c.Err
	again.SysProcAttr = launch.Bound()
	again.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
	again.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
	again.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	again.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := again.Start(); err != nil {
		return denied
	}
	ended := make(chan error, 1)
	go func() { ended <- again.Wait() }()
	for {
		select {
		case s := <-signals:
			again.Process.Signal(s)
		case err := <-ended:
			var exit *exec.ExitError
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.As(err, &exit):
				return &launch.Failed{Code: exit.ExitCode()} // it has said why
			}
			return err
		}
	}
}
