//go:build !linux

package agent

import (
	"runtime"
	"time"
)

// yield lets other goroutines run.
func yield() { runtime.Gosched() }

// shortSleep sleeps for a moment.
func shortSleep() { time.Sleep(shortest) }
