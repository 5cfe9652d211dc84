package overhead

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

// calls is what a process has asked of the kernel.
type calls struct {
	byName map[string]int
	bytes  int64 // that it has read and written
}

// moving are the calls that copy bytes between a process and the kernel. Each counts, whether it moved any or was told to wait.
var moving = map[string]bool{
	"read": true, "readv": true, "recvfrom": true, "recvmsg": true, "write": true, "writev": true, "sendto": true, "sendmsg": true,
}

// all is the number of calls.
func (c calls) all() (n int) {
	for _, k := range c.byName {
		n += k
	}
	return n
}

// moves is the number of those that copy bytes.
func (c calls) moves() (n int) {
	for name, k := range c.byName {
		if moving[name] {
			n += k
		}
	}
	return n
}

// add counts in what another round has seen.
func (c *calls) add(o calls) {
	if c.byName == nil {
		c.byName = map[string]int{}
	}
	for name, k := range o.byName {
		c.byName[name] += k
	}
	c.bytes += o.bytes
}

// often lists the calls of a request by name, the most frequent first, without those that are less than one in twenty requests.
func (c calls) often(requests int) string {
	names := slices.SortedFunc(maps.Keys(c.byName), func(a, b string) int {
		return cmp.Or(c.byName[b]-c.byName[a], strings.Compare(a, b))
	})
	var each []string
	for _, name := range names {
		if n := float64(c.byName[name]) / float64(requests); n >= 0.05 {
			each = append(each, fmt.Sprintf("%s %.1f", name, n))
		}
	}
	return strings.Join(each, ", ")
}

// parseTrace reads what strace -f -e raw=all has written: a line a call, or two where another thread's came between. A call counts
// where it begins, its bytes where it ends.
func parseTrace(in io.Reader) (calls, error) {
	c := calls{byName: map[string]int{}}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		_, line, _ := strings.Cut(lines.Text(), " ") // the thread
		line = strings.TrimLeft(line, " ")
		name, _, begins := strings.Cut(line, "(")
		if rest, ok := strings.CutPrefix(line, "<... "); ok {
			name, _, ok = strings.Cut(rest, " resumed>")
			if begins = false; !ok {
				return c, fmt.Errorf("bench: strace wrote %q", line)
			}
		} else if strings.HasPrefix(line, "+++ ") || strings.HasPrefix(line, "--- ") || !begins {
			continue // a thread has ended, or a signal has come
		}
		if begins {
			c.byName[name]++
		}
		at := strings.LastIndex(line, " = ")
		if at < 0 || !moving[name] {
			continue
		}
		value, _, _ := strings.Cut(line[at+3:], " ")
		n, err := strconv.ParseInt(value, 0, 64)
		if err != nil && value != "?" { // of a call that never returned
			return c, fmt.Errorf("bench: strace wrote %q", line)
		}
		c.bytes += max(0, n)
	}
	return c, lines.Err()
}

// tracer is strace attached to a process and all of its threads.
type tracer struct {
	*harness.Child
	file string
}

// errNoTrace is why nothing can be traced here.
var errNoTrace = errors.New("system calls cannot be counted")

// attach has a process traced. It returns when each of its threads is.
func attach(ctx context.Context, pid int, cpus string) (*tracer, error) {
	if _, err := exec.LookPath("strace"); err != nil {
		return nil, fmt.Errorf("%w: strace is not installed", errNoTrace)
	}
	dir, err := os.MkdirTemp("", "pdrouter-bench-strace-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "trace")
	c, err := harness.Spawn(ctx, "strace", cpus, false, false, "strace", "-f", "-q", "-e", "raw=all", "-e", "signal=none", "-o", file, "-p", strconv.Itoa(pid))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c.Files = []string{dir}
	for end := time.Now().Add(10 * time.Second); !isTraced("/proc", pid); time.Sleep(time.Millisecond) {
		err := c.Alive()
		if err == nil && time.Now().After(end) {
			err = errors.New("it is not attached after 10 s")
		}
		if err != nil || ctx.Err() != nil {
			c.Stop()
			return nil, errors.Join(ctx.Err(), fmt.Errorf("%w: %w", errNoTrace, err))
		}
	}
	return &tracer{c, file}, nil
}

// isTraced reports whether each thread of a process is traced.
func isTraced(proc string, pid int) bool {
	files, err := filepath.Glob(filepath.Join(proc, strconv.Itoa(pid), "task", "*", "status"))
	if err != nil || len(files) == 0 {
		return false
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, os.ErrNotExist) || err == nil && report.Field(string(b), "TracerPid") == "0" {
			return false
		}
	}
	return true
}

// end detaches and returns what was seen.
func (t *tracer) end() (calls, error) {
	defer t.Stop()
	_ = t.Process.Cmd.Process.Signal(syscall.SIGTERM) // it writes its last lines and ends
	select {
	case <-t.Process.Done:
	case <-time.After(10 * time.Second):
		return calls{}, errors.New("bench: strace does not end")
	}
	f, err := os.Open(t.file)
	if err != nil {
		return calls{}, fmt.Errorf("bench: %w", err)
	}
	defer f.Close()
	return parseTrace(f)
}
