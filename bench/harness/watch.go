package harness

import (
	"os"
	"syscall"
	"time"
)

// Use is CPU time of the whole machine and of the bench's own processes at one moment.
type Use struct {
	At      time.Time
	machine jiffies
	own     time.Duration
}

// useNow reads it; own is of this process, or of what counts as it.
func useNow(own func(proc string, pid int) (time.Duration, error)) (Use, error) {
	u := Use{At: time.Now()}
	var err error
	if u.machine, err = machineJiffies("/proc"); err != nil {
		return u, err
	}
	u.own, err = own("/proc", os.Getpid())
	return u, err
}

// watch reads it for rounds that know nothing of the bench's processes: they are all that this one has started.
func watch() (Use, error) {
	u, err := useNow(familyCPU)
	if err != nil {
		return u, err
	}
	ended, err := cpuUsed(syscall.RUSAGE_CHILDREN) // what those that have ended since the last reading had used was theirs too
	u.own += ended
	return u, err
}

// Since says what disturbed the time from an earlier reading until this one.
func (u Use) Since(was Use) Disturbance {
	return disturbed(was.machine, u.machine, u.own-was.own, u.At.Sub(was.At))
}

// OwnCPU is the CPU time that this process has used.
func OwnCPU() (time.Duration, error) { return cpuUsed(syscall.RUSAGE_SELF) }
