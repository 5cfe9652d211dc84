package procid

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pdrouter/metadata"
)

// Self names the calling process, or is zero where the kernel does not say enough.
func Self() metadata.Process {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return metadata.Process{}
	}
	var spaces []string
	for _, name := range [...]string{"pid", "time"} { // the start counts from the time namespace's boot
		link, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil && (name != "time" || !errors.Is(err, os.ErrNotExist)) { // kernels before 5.6 have one time
			return metadata.Process{}
		}
		spaces = append(spaces, link)
	}
	st, err := readStat("self")
	if err != nil || st.pid != os.Getpid() { // another namespace's /proc
		return metadata.Process{}
	}
	return metadata.Process{
		Boot: strings.TrimSpace(string(boot)), Namespaces: strings.Join(spaces, " "), PID: st.pid, Started: st.started,
	}
}

// Exited says that a process of this kernel and these namespaces has ended: its number is free, or another process
// has it, or it is a zombie without threads, which has no memory and no sockets any more. Whatever is odd is no proof.
func Exited(p metadata.Process) bool {
	// Not the absence from /proc, which may hide what belongs to others.
	if err := unix.Kill(p.PID, 0); errors.Is(err, unix.ESRCH) {
		return true
	}
	st, err := readStat(strconv.Itoa(p.PID))
	switch {
	case err != nil || st.pid != p.PID:
		return false
	case st.started != p.Started:
		return true
	}
	// The thread that began the process may be a zombie while others still run, or end.
	return st.state == "Z" && st.threads == 1
}

// stat is a part of /proc/PID/stat.
type stat struct {
	pid     int
	state   string
	threads int
	started uint64 // clock ticks since the boot
}

func readStat(pid string) (stat, error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return stat{}, err
	}
	// The command's name stands in brackets and may contain any byte, brackets too.
	first, last := bytes.IndexByte(b, ' '), bytes.LastIndexByte(b, ')')
	if first < 0 || last < 0 {
		return stat{}, fmt.Errorf("procid: /proc/%s/stat is %.40q", pid, b)
	}
	f := strings.Fields(string(b[last+1:]))
	if len(f) < 20 {
		return stat{}, fmt.Errorf("procid: /proc/%s/stat has %d fields; want at least 22", pid, len(f)+2)
	}
	st := stat{state: f[0]}
	var errs [3]error
	st.pid, errs[0] = strconv.Atoi(string(b[:first]))
	st.threads, errs[1] = strconv.Atoi(f[17])
	st.started, errs[2] = strconv.ParseUint(f[19], 10, 64)
	return st, errors.Join(errs[:]...)
}
