// Package alarm wakes goroutines at a time, some tens of microseconds late. Timers
// of Go may be a millisecond late where the process is otherwise idle, because they
// then hang on epoll_wait, which counts milliseconds: too much for whoever plays
// computation and links in real time.
package alarm

import (
	"sync"
	"time"

	"weft/internal/heap"
)

// Clock wakes sleepers. Its methods may be called from several goroutines at once.
type Clock struct {
	mu     sync.Mutex
	queue  *heap.Heap[sleeper]
	closed bool
	bell   bell
	ended  chan struct{}
}

type sleeper struct {
	until time.Time
	wake  chan struct{}
}

// New starts a clock, which has a thread of its own until Close.
func New() (*Clock, error) {
	b, err := newBell()
	if err != nil {
		return nil, err
	}
	c := &Clock{
		queue: heap.New(func(a, b sleeper) bool { return a.until.Before(b.until) }),
		bell:  b, ended: make(chan struct{}),
	}
	go c.run()
	return c, nil
}

// At returns a channel that gets a value at a time, unless the clock is closed.
func (c *Clock) At(until time.Time) <-chan struct{} {
	s := sleeper{until, make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return s.wake
	}
	first := c.queue.Len() == 0 || until.Before(c.queue.First().until)
	c.queue.Push(s)
	if first {
		c.bell.ring()
	}
	return s.wake
}

// Close ends the clock.
func (c *Clock) Close() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.bell.ring()
	}
	c.mu.Unlock()
	<-c.ended
}

func (c *Clock) run() {
	defer close(c.ended)
	defer c.bell.attend()()
	for {
		c.mu.Lock()
		now := time.Now()
		for c.queue.Len() > 0 && !c.queue.First().until.After(now) {
			c.queue.Pop().wake <- struct{}{}
		}
		wait := time.Hour
		if c.queue.Len() > 0 {
			wait = c.queue.First().until.Sub(now)
		}
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return
		}
		c.bell.wait(wait)
	}
}
