//go:build !linux

package lab

import (
	"context"
	"errors"
	"os"
)

// Lab is a cluster that has been built.
type Lab struct{ Config }

var errLinux = errors.New("a lab is made of Linux's network namespaces: run it on Linux")

// New fails.
func New(c Config) (*Lab, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return nil, errLinux
}

// Close does nothing.
func (l *Lab) Close() error { return nil }

// Enter fails.
func (l *Lab) Enter(int) error { return errLinux }

// Do fails.
func (l *Lab) Do(int, func() error) error { return errLinux }

func asRoot(_ context.Context, _ *RunConfig, _ <-chan os.Signal, denied error) error { return denied }
