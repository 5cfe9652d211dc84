package sim

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// waiter lets one goroutine wait for a time or for another goroutine. The runtime's own timers round a wait up to a
// millisecond when a process is idle, which a modelled schedule in shrunk time would show: select(2) does not.
type waiter struct {
	r, w *os.File
	fd   int
}

func newWaiter() (*waiter, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	wt := &waiter{r: r, w: w, fd: int(r.Fd())} // Fd makes it blocking
	if wt.fd >= 64 {
		return nil, fmt.Errorf("bench: file descriptor %d; want less than 64 for select", wt.fd)
	}
	return wt, nil
}

// wait returns after d, or when it is woken.
func (w *waiter) wait(d time.Duration) {
	var set syscall.FdSet
	set.Bits[0] = 1 << w.fd
	tv := syscall.NsecToTimeval(max(0, d.Nanoseconds()))
	if n, err := syscall.Select(w.fd+1, &set, nil, nil, &tv); err == nil && n > 0 {
		var b [64]byte
		_, _ = syscall.Read(w.fd, b[:]) // there is something: it does not block
	}
}

// wake ends a wait, or the next one.
func (w *waiter) wake() { _, _ = w.w.Write([]byte{1}) }

func (w *waiter) close() {
	_ = w.r.Close()
	_ = w.w.Close()
}
