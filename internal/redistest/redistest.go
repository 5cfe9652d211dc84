// Package redistest starts real Redis servers for tests: to be killed, stopped, restarted, and failed over.
package redistest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Server is a real server that a test can kill and start again at the same address.
type Server struct {
	t    *testing.T
	path string
	dir  string
	args []string
	cmd  *exec.Cmd
}

// Start starts a server on a socket in a folder of its own; the test is skipped if there is none to start.
func Start(t *testing.T, args ...string) *Server {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed")
	}
	dir, err := os.MkdirTemp("", "pdr") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, path: path, dir: dir, args: args}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(s.Kill)
	s.Start()
	return s
}

// Address returns the server's address as redisdb.Config takes it.
func (s *Server) Address() string { return "unix://" + filepath.Join(s.dir, "s") }

// Start starts the server again after Kill.
func (s *Server) Start() {
	s.t.Helper()
	socket := filepath.Join(s.dir, "s")
	s.cmd = exec.Command(s.path, append([]string{"--port", "0", "--unixsocket", socket, "--dir", s.dir, "--save", "", "--appendonly", "no"}, s.args...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "redis answers", func() bool {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
	os.Remove(filepath.Join(s.dir, "s"))
}

// eventually waits long for what must come; it is for what real processes do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within 30 s", what)
}

// Pause stops the server's process, or lets it go on.
func (s *Server) Pause(stop bool) {
	s.t.Helper()
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}
