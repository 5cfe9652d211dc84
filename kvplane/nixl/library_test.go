package nixl

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ebitengine/purego"
)

// library opens NIXL or skips the test.
func library(t testing.TB) *Library {
	t.Helper()
	l, err := Open("")
	if err != nil {
		t.Skip("SKIPPED, not run with real NIXL:", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestOpenAbsent(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "libnixl_capi.so")); err == nil || !strings.Contains(err.Error(), "libnixl_capi.so") {
		t.Errorf("got %v; want an error that names the file", err)
	}
}

// TestOpenListsWhatIsMissing: a library that is not NIXL gives one error with every function.
func TestOpenListsWhatIsMissing(t *testing.T) {
	_, err := Open("libc.so.6")
	if err == nil {
		t.Fatal("the C library was taken for NIXL")
	}
	var c capi
	for _, s := range c.symbols() {
		if !strings.Contains(err.Error(), s.name) {
			t.Errorf("%s is not named", s.name)
		}
	}
	if strings.Contains(err.Error(), "free") {
		t.Error("free is named, which the C library has")
	}
}

// TestOpenSetsEnvironment: C sees what Open sets, with cgo and without.
func TestOpenSetsEnvironment(t *testing.T) {
	l := library(t)
	getenv, err := purego.Dlsym(l.handle, "getenv")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"UCX_HANDLE_ERRORS": "none", "UCX_DEBUG_SIGNO": "0", "UCX_TCP_CONN_NB": "y", "UCX_CMA_SEG_SIZE": "4m", "NIXL_LOG_LEVEL": os.Getenv("NIXL_LOG_LEVEL")} {
		cname, err := cstring(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := gostring(callPointer(getenv, cname)); got != want || got == "" {
			t.Errorf("%s is %q in C; want %q", name, got, want)
		}
	}
}

// TestLibraryLeavesSignals: with an agent that runs, the signals by which a process is told to reload and to end still come
// to those of Go's who asked for them.
func TestLibraryLeavesSignals(t *testing.T) {
	signals := []os.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2}
	came := make(chan os.Signal, len(signals))
	signal.Notify(came, signals...)
	defer signal.Stop(came)
	l := library(t)
	a, err := l.NewAgent("signals@1", AgentConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.NewBackend("UCX", nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range signals {
		if err := syscall.Kill(os.Getpid(), want.(syscall.Signal)); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-came:
			if got != want {
				t.Errorf("got %v; want %v", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%v never came", want)
		}
	}
}

func TestLibraryWaitsForAgents(t *testing.T) {
	l := library(t)
	a, err := l.NewAgent("waits@1", AgentConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err == nil {
		t.Error("closed under an open agent")
	}
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.NewAgent("late@1", AgentConfig{}); err == nil {
		t.Error("a closed library made an agent")
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	wheel := filepath.Join(root, ".deps", "nixl", ".nixl_cu12.mesonpy.libs", "libnixl_capi.so")
	site := filepath.Join(root, "venv", "lib", "python3.12", "site-packages", ".nixl_cu13.mesonpy.libs", "libnixl_capi.so")
	below := filepath.Join(root, "a", "b")
	for _, dir := range []string{filepath.Dir(wheel), filepath.Dir(site), below} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{wheel, site} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		env, venv, cwd, want string
	}{
		"file named":         {env: site, cwd: below, want: site},
		"folder named":       {env: filepath.Join(root, ".deps", "nixl"), cwd: "/", want: wheel},
		"named and not here": {env: filepath.Join(root, "nowhere"), cwd: below},
		"upward":             {cwd: below, want: wheel},
		"virtual env":        {venv: filepath.Join(root, "venv"), cwd: "/", want: site},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(LibraryVariable, c.env)
			t.Setenv("VIRTUAL_ENV", c.venv)
			t.Chdir(c.cwd)
			got, err := Find()
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
			if err != nil && !errors.Is(err, ErrNotInstalled) {
				t.Errorf("got %v; want ErrNotInstalled", err)
			}
		})
	}
}
