//go:build !linux

package alarm

import "time"

type bell chan struct{}

func newBell() (bell, error) { return make(bell, 1), nil }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

func (b bell) attend() func() { return func() {} }

func (b bell) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-b:
	case <-t.C:
	}
}
