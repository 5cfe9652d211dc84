package bench

import (
	"os"
	"syscall"
	"time"
)

// watched is the machine and the bench's own processes at one moment, for rounds that read nothing of the kind by themselves.
type watched struct {
	at      time.Time
	machine jiffies
	own     time.Duration
}

// watch reads both.
func watch() (w watched, err error) {
	w.at = time.Now()
	if w.machine, err = machineJiffies("/proc"); err != nil {
		return w, err
	}
	if w.own, err = familyCPU("/proc", os.Getpid()); err != nil {
		return w, err
	}
	ended, err := cpuUsed(syscall.RUSAGE_CHILDREN) // what those that have ended since the last reading had used was theirs too
	w.own += ended
	return w, err
}

// since is what disturbed the time from an earlier reading until this one. The machine tells its time in ticks: two of them are
// nobody's, and of less than ten nothing is known.
func (w watched) since(was watched) disturbance {
	if w.at.Sub(was.at) < 10*jiffy {
		return disturbance{}
	}
	return disturbed(was.machine, w.machine, w.own-was.own+2*jiffy, w.at.Sub(was.at))
}
