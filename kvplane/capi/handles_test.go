//go:build cgo

package main

import (
	"errors"
	"sync"
	"testing"
)

// fakeHandle knows whether it is in use when it is closed.
type fakeHandle struct {
	mu     sync.Mutex
	uses   int
	closed int
	wrong  bool
}

func (h *fakeHandle) FD() int                        { return 0 }
func (h *fakeHandle) Poll([]byte, *int) (int, error) { return 0, nil }
func (h *fakeHandle) Status() ([]byte, error)        { return nil, nil }
func (h *fakeHandle) add(n int) {
	h.mu.Lock()
	h.uses += n
	h.wrong = h.wrong || h.closed > 0
	h.mu.Unlock()
}
func (h *fakeHandle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed++
	h.wrong = h.wrong || h.uses > 0
	return nil
}

// TestTable: a handle is closed once, when no call is in it, and its number is never given again.
func TestTable(t *testing.T) {
	tab := table{open: map[int64]*entry{}}
	seen := map[int64]bool{}
	for range 50 {
		h := &fakeHandle{}
		n, err := tab.add(h)
		if err != nil || seen[n] || n <= 0 {
			t.Fatalf("handle %d, %v", n, err)
		}
		seen[n] = true
		var all sync.WaitGroup
		closed := make(chan error, 4)
		for i := range 8 {
			all.Go(func() {
				if i%2 == 0 {
					closed <- tab.close(n)
					return
				}
				for range 100 {
					x, done, err := tab.use(n)
					if err != nil {
						return
					}
					x.(*fakeHandle).add(1)
					x.(*fakeHandle).add(-1)
					done()
				}
			})
		}
		all.Wait()
		close(closed)
		good := 0
		for err := range closed {
			switch {
			case err == nil:
				good++
			case !errors.Is(err, errHandle):
				t.Error(err)
			}
		}
		if good != 1 || h.closed != 1 || h.wrong {
			t.Fatalf("closed %d times, told %d times; in use: %v", h.closed, good, h.wrong)
		}
	}
	if _, _, err := tab.use(1); !errors.Is(err, errHandle) {
		t.Errorf("a closed handle: %v", err)
	}
}
