//go:build !linux

package agent

import (
	"runtime"
	"time"
)

// yield lets other goroutines run.
func yield() { runtime.Gosched() }

// doze sleeps for a moment.
func doze() { time.Sleep(nap) }
