package report

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// Machine is the shape of the machine that measured. It names nobody's host.
type Machine struct {
	CPUs   int    `json:"cpus"` // that the bench may use
	Model  string `json:"model"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
}

// ReadMachine describes this machine; what /proc does not tell is left empty.
func ReadMachine(cpus int) Machine {
	info, _ := os.ReadFile("/proc/cpuinfo")
	memory, _ := os.ReadFile("/proc/meminfo")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m := Machine{CPUs: cpus, Model: Field(string(info), "model name"), Kernel: runtime.GOOS + " " + release(string(kernel)) + " " + runtime.GOARCH}
	if kb, err := strconv.ParseFloat(strings.TrimSuffix(Field(string(memory), "MemTotal"), " kB"), 64); err == nil {
		m.Memory = fmt.Sprintf("%.0f GiB", kb/(1<<20))
	}
	return m
}

// release is the number of a kernel's release, without what whoever built it has added.
func release(kernel string) string {
	number, _, _ := strings.Cut(strings.TrimSpace(kernel), "-")
	return number
}

// Field is the value of the first line "name : value".
func Field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// AllowedCPUs lists the CPUs this process might use when it was first asked: since then it may have bound itself to one.
var AllowedCPUs = sync.OnceValues(func() ([]int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return parseCPUs(Field(string(status), "Cpus_allowed_list"))
})

// parseCPUs reads a list such as 0-3,8.
func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for span := range strings.SplitSeq(list, ",") {
		from, to, ok := strings.Cut(span, "-")
		if !ok {
			to = from
		}
		first, err := strconv.Atoi(from)
		if err != nil {
			return nil, fmt.Errorf("bench: %q is no list of CPUs", list)
		}
		last, err := strconv.Atoi(to)
		if err != nil || last < first {
			return nil, fmt.Errorf("bench: %q is no list of CPUs", list)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
