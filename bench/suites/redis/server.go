package redis

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"pdrouter/internal/redisdb"
)

// redisServer is a Redis of the run's own, on a socket.
type redisServer struct {
	dir string
	cmd *exec.Cmd
}

// startRedis starts one and waits until it answers. It needs redis-server on the path.
func startRedis(ctx context.Context) (*redisServer, error) {
	dir, err := os.MkdirTemp("", "pdr") // a socket's path has at most 107 bytes
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	s := &redisServer{dir: dir}
	s.cmd = exec.CommandContext(ctx, "redis-server", "--port", "0", "--unixsocket", s.socket(), "--dir", dir, "--save", "", "--appendonly", "no")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("bench: redis-server: %w", err)
	}
	db, err := s.Open()
	if err != nil {
		s.Stop()
		return nil, err
	}
	defer db.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = db.Ping(ctx).Err(); err == nil {
			return s, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			s.Stop()
			return nil, fmt.Errorf("bench: redis-server does not answer: %w", err)
		}
	}
}

func (s *redisServer) socket() string { return filepath.Join(s.dir, "s") }

// Open returns a client of its own.
func (s *redisServer) Open() (redisdb.Client, error) {
	return redisdb.Open(redisdb.Config{Address: "unix://" + s.socket()})
}

// Stop ends the server.
func (s *redisServer) Stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // killed
	_ = os.RemoveAll(s.dir)
}
