//go:build !linux

package agent

import (
	"errors"
	"net"
)

// unsupported is why no agent can run on this system.
var unsupported = errors.New("an agent shares sealed memory with its workers, which needs Linux; what plans and simulates runs here too")

func newRegion(string, int64, int) (*region, error) { return nil, unsupported }

func sameUser(*net.UnixConn) error { return unsupported }
