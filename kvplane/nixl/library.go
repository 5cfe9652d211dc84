package nixl

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ebitengine/purego"
)

// Library is an open libnixl_capi. It is safe for concurrent use; what it makes is not, unless it says so.
type Library struct {
	path   string
	handle uintptr
	c      capi
	free   uintptr // void free(void *ptr), of the C library: for what NIXL allocates and gives away
	agents atomic.Int64
	closed atomic.Bool
}

// Environment that Open sets if it is unset, before the library is loaded: UCX otherwise installs handlers for fatal
// signals, which Go's runtime owns, and takes SIGHUP, by which it begins to log everything and whoever else waits for that
// signal never sees it; NIXL otherwise logs to standard error. UCX otherwise makes a TCP connection in one blocking call: a
// host that is gone stops the caller for minutes; and if the peer dies between that call and the first bytes sent on the
// connection, UCX (1.22) destroys an endpoint that it has just given out as good, which ends the process in an assertion
// (stubs.c:107) or leaves its memory in use. A connection that is made in the background fails as one that was lost. UCX otherwise
// copies between two processes in pieces of 512 KiB, a call each; one of 4 MiB keeps its caller for a third of a millisecond, and blocks
// that lie together are there in 0.85 to 0.95 of the time.
const (
	ucxHandleErrors = "UCX_HANDLE_ERRORS" // set to "none"
	ucxDebugSignal  = "UCX_DEBUG_SIGNO"   // set to "0"
	ucxConnectLater = "UCX_TCP_CONN_NB"   // set to "y"
	ucxCopySize     = "UCX_CMA_SEG_SIZE"  // set to "4m"
	nixlLogLevel    = "NIXL_LOG_LEVEL"    // set to "FATAL"
)

// unlessSet is what Open sets.
var unlessSet = map[string]string{ucxHandleErrors: "none", ucxDebugSignal: "0", ucxConnectLater: "y", ucxCopySize: "4m", nixlLogLevel: "FATAL"}

// Variables names what this package reads of the environment.
func Variables() []string { return append(slices.Collect(maps.Keys(unlessSet)), LibraryVariable) }

// Open loads the library and resolves every function; what is missing is listed in one error. An empty path means the
// one that Find finds. Open changes the process's environment as documented above and starts nothing.
func Open(path string) (*Library, error) {
	if path == "" {
		var err error
		if path, err = Find(); err != nil {
			return nil, err
		}
	}
	for name, value := range unlessSet {
		if _, set := os.LookupEnv(name); !set {
			if err := os.Setenv(name, value); err != nil {
				return nil, fmt.Errorf("nixl: %s: %w", name, err)
			}
		}
	}
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("nixl: %s: %w", path, err)
	}
	l := &Library{path: path, handle: handle}
	var missing []string
	for _, s := range append(l.c.symbols(), symbol{"free", &l.free}) {
		if *s.at, err = purego.Dlsym(handle, s.name); err != nil {
			missing = append(missing, s.name)
		}
	}
	if len(missing) > 0 {
		err := fmt.Errorf("nixl: %s: %d functions are missing: %s", path, len(missing), strings.Join(missing, ", "))
		return nil, errors.Join(err, purego.Dlclose(handle))
	}
	return l, nil
}

// Path returns the file that was opened.
func (l *Library) Path() string { return l.path }

// Close ends the use of the library; it refuses while agents are open and may be called twice. The code stays mapped:
// NIXL and UCX leave thread-local state behind whose destructors run later.
func (l *Library) Close() error {
	if n := l.agents.Load(); n > 0 {
		return fmt.Errorf("nixl: %s: %d agents are open", l.path, n)
	}
	l.closed.Store(true)
	return nil
}

// call calls a function that returns a status. Pointers given as uintptr(unsafe.Pointer(p)) in its argument list stay
// valid during the call.
//
//go:uintptrescapes
func (l *Library) call(function uintptr, args ...uintptr) Status {
	r, _, _ := purego.SyscallN(function, args...)
	return Status(int32(r))
}

// caller has room for the arguments of calls that follow one another, so that none is made for each. What an argument
// points to must be on the heap or outside Go's memory, and stay. Its arguments are at most as many as it has room for.
type caller struct {
	l    *Library
	args [3]uintptr
}

func (c *caller) call(function uintptr, args ...uintptr) Status {
	return c.l.call(function, c.args[:copy(c.args[:], args)]...)
}
