//go:build !linux

package launch

import (
	"errors"
	"syscall"
)

// unsupported is why nothing can be launched on this system.
var unsupported = errors.New("workers that end with their launcher need Linux; what plans and simulates runs here too")

// Bound has no meaning where nothing can be launched.
func Bound() *syscall.SysProcAttr { return nil }

func leader() *syscall.SysProcAttr { return nil }

func hasEnded(int) {}
