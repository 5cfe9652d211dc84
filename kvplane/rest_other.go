//go:build !linux

package kvplane

import (
	"runtime"
	"time"
)

// yield lets other goroutines run.
func yield(bool) { runtime.Gosched() }

// doze sleeps for a moment.
func doze() { time.Sleep(50 * time.Microsecond) }
