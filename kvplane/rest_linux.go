package kvplane

import (
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// yield lets other processes run on this processor, and other goroutines too.
func yield(goroutines bool) {
	if goroutines {
		runtime.Gosched()
	}
	_, _, _ = syscall.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // it cannot fail
}

// doze sleeps for about 0.1 ms, which Go's timers cannot do: where nothing else runs they round up to a whole one.
func doze() {
	at := unix.NsecToTimespec((50 * time.Microsecond).Nanoseconds())
	_ = unix.Nanosleep(&at, nil) // a signal may cut it short
}
