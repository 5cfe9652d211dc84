//go:build cgo

package main

import (
	"errors"
	"sync"

	"pdrouter/kvplane/embed"
)

// handle is what both kinds have.
type handle interface {
	FD() int
	Poll(buf []byte, used *int) (int, error)
	Status() ([]byte, error)
	Close() error
}

var (
	errHandle = errors.New("no open handle of this kind has this number")

	// opened is the one table that C's numbers need: nothing else knows where a call belongs.
	opened = table{open: map[int64]*entry{}}
)

// maxHandles bounds what one process has open.
const maxHandles = 1024

// table gives numbers to handles, each once.
type table struct {
	mu   sync.Mutex
	next int64
	open map[int64]*entry
}

// entry is one handle and the calls that are in it.
type entry struct {
	handle
	calls sync.WaitGroup
}

func (t *table) add(h handle) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	t.open[t.next] = &entry{handle: h}
	return t.next, nil
}

func (t *table) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open) >= maxHandles
}

// use returns the handle, and what ends its use.
func (t *table) use(n int64) (handle, func(), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.open[n]
	if e == nil {
		return nil, nil, errHandle
	}
	e.calls.Add(1)
	return e.handle, e.calls.Done, nil
}

// close takes the handle away, waits for calls that are in it, and closes it.
func (t *table) close(n int64) error {
	t.mu.Lock()
	e := t.open[n]
	delete(t.open, n)
	t.mu.Unlock()
	if e == nil {
		return errHandle
	}
	e.calls.Wait()
	return e.Close()
}

// open makes a handle from a configuration.
func open(config []byte) (handle, error) {
	c, err := embed.ParseConfig(config)
	if err != nil {
		return nil, err
	}
	if c.Kind == embed.KindScheduler {
		return embed.OpenScheduler(c)
	}
	return embed.OpenRank(c)
}
