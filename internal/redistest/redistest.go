// Package redistest starts real Redis servers for tests: to be killed, stopped, restarted, and failed over. Servers keep
// nothing on disk and end with the test. Where redis-server is not installed, tests are skipped.
package redistest

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Server is a real server that a test can kill and start again at the same address.
type Server struct {
	t       testing.TB
	path    string
	dir     string
	args    []string
	network string // "unix" or "tcp"
	at      string
	port    int
	cmd     *exec.Cmd
	log     *serverLog
	ended   chan struct{} // closed when cmd has been reaped
}

// Start starts a server on a socket in a folder of its own; the test is skipped if there is none to start.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t)
	s.network, s.at = "unix", filepath.Join(s.dir, "s")
	s.args = append([]string{"--port", "0", "--unixsocket", s.at}, args...)
	s.Start()
	return s
}

// StartTCP starts a server on a free port of loopback.
func StartTCP(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t)
	s.listen(freePorts(t, 1)[0])
	s.args = append(s.args, args...)
	s.Start()
	return s
}

// StartTLS starts a server on a free port of loopback that speaks TLS alone and asks its clients for certificates.
func StartTLS(t testing.TB, certs Certs, args ...string) *Server {
	t.Helper()
	s := newServer(t)
	s.listen(freePorts(t, 1)[0])
	s.args = append(certs.Args(s.port), args...)
	s.Start()
	return s
}

func newServer(t testing.TB) *Server {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("SKIPPED, not run with a real Redis: redis-server is not installed")
	}
	dir, err := os.MkdirTemp("", "pdr") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, path: path, dir: dir}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(s.Kill)
	return s
}

// serverLog is what a server prints.
type serverLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *serverLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all of it.
func (l *serverLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// listens reports whether the server has said that it has its address.
func (l *serverLog) listens() bool {
	text := l.String()
	return strings.Contains(text, "eady to accept connections") || strings.Contains(text, "Sentinel ID is")
}

// listen has the server listen on a port of loopback.
func (s *Server) listen(port int) {
	s.network, s.port, s.at = "tcp", port, loopback(port)
	s.args = []string{"--bind", "127.0.0.1", "--port", itoa(port)}
}

// Address returns the server's address as redisdb.Config takes it.
func (s *Server) Address() string {
	if s.network == "unix" {
		return "unix://" + s.at
	}
	return s.at
}

// Start starts the server again after Kill.
func (s *Server) Start() {
	s.t.Helper()
	s.run(append([]string{"--dir", s.dir, "--save", "", "--appendonly", "no"}, s.args...)...)
}

func (s *Server) run(args ...string) {
	s.t.Helper()
	s.log = &serverLog{}
	s.cmd = exec.Command(s.path, args...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	cmd := s.cmd
	go func() { _ = cmd.Wait(); close(ended) }()
	s.ended = ended
	eventually(s.t, "redis answers", func() bool {
		select {
		case <-ended:
			s.t.Fatalf("redis-server ended:\n%s", s.log)
		default:
		}
		if !s.log.listens() { // whoever else answers there is not this server
			return false
		}
		conn, err := net.Dial(s.network, s.at)
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
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.cmd = nil
	}
	if s.network == "unix" {
		os.Remove(s.at)
	}
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

// Do runs one command with redis-cli, as the default user and without TLS, and returns what it prints.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("redis-cli %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

func (s *Server) try(args ...string) (string, error) {
	where := []string{"-h", "127.0.0.1", "-p", itoa(s.port)}
	if s.network == "unix" {
		where = []string{"-s", s.at}
	}
	out, err := exec.Command("redis-cli", append(where, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// eventually waits long for what must come; it is for what real processes do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within two minutes", what)
}
