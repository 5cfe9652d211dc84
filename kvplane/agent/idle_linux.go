package agent

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// yield lets other processes run on this processor.
func yield() {
	_, _, _ = syscall.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // it cannot fail
}

// shortSleep sleeps for about 0.1 ms, which Go's timers cannot do: where nothing else runs they round up to a whole one.
func shortSleep() {
	at := unix.NsecToTimespec(shortest.Nanoseconds())
	_ = unix.Nanosleep(&at, nil) // a signal may cut it short
}
