package metadata

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fakeVoucher signs with one key and trusts that key alone.
type fakeVoucher struct {
	id      string
	private ed25519.PrivateKey
}

func newFakeVoucher(id string) *fakeVoucher {
	return &fakeVoucher{id: id, private: ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%-32.32s", id)))}
}

func (v *fakeVoucher) Sign(payload []byte) (string, []byte, error) {
	return v.id, ed25519.Sign(v.private, payload), nil
}

func (v *fakeVoucher) Verify(keyID string, payload, signature []byte) error {
	if keyID != v.id || !ed25519.Verify(v.private.Public().(ed25519.PublicKey), payload, signature) {
		return errors.New("signature is not of key " + v.id)
	}
	return nil
}

// fakeStore is a Memory that can be made to fail, as a store that cannot be reached.
type fakeStore struct {
	*Memory

	mu   sync.Mutex
	down error
	gone bool // reads find nothing, as after a failover that lost its writes
}

func (s *fakeStore) set(down error, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.gone = down, gone
}

func (s *fakeStore) Engine(ctx context.Context, engine string) ([]Record, error) {
	s.mu.Lock()
	down, gone := s.down, s.gone
	s.mu.Unlock()
	switch {
	case down != nil:
		return nil, down
	case gone:
		return nil, ErrNotFound
	}
	return s.Memory.Engine(ctx, engine)
}

func (s *fakeStore) List(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	down, gone := s.down, s.gone
	s.mu.Unlock()
	if down != nil || gone {
		return nil, down
	}
	return s.Memory.List(ctx)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// record returns a valid record of one rank of an engine with tp ranks, published now for a minute.
func record(engine string, generation uint64, tp, rank int) Record {
	role := Prefill
	if engine[0] == 'd' {
		role = Decode
	}
	inc := Incarnation{Engine: engine, Generation: generation}
	now := time.Now().UTC().Round(0)
	return Record{
		Version: RecordVersion, Incarnation: inc, Role: role, Rank: Rank{TP: rank}, Size: Rank{DP: 1, PP: 1, TP: tp},
		Connector: "kvplane", Compatibility: "digest", Agent: inc.ID() + "/" + Rank{TP: rank}.String(), Transport: "tcp",
		Blob: []byte{1, 2, 3}, EngineID: inc.ID(), HTTP: "http://127.0.0.1:1", Published: now, Expires: now.Add(time.Minute),
		Layout: Layout{
			BlockTokens: 4, Physical: 1, Heads: 4, HeadBytes: 8, Order: HeadsFirst, DType: "u64",
			Regions: []Region{region(0), region(1)},
		},
	}
}

func region(layer int) Region {
	return Region{Layer: layer, Planes: 2, Base: 1 << 40, Length: 1 << 16, Blocks: 16, BlockStride: 1 << 12, PlaneStride: 1 << 11, HeadStride: 32, TokenStride: 8}
}

// later returns the record as published again after d.
func later(rec Record, d time.Duration) Record {
	rec.Published, rec.Expires = rec.Published.Add(d), rec.Expires.Add(d)
	return rec
}

// redisServer is a real server that a test can kill and start again at the same address.
type redisServer struct {
	t    *testing.T
	path string
	dir  string
	args []string
	cmd  *exec.Cmd
}

// startRedis starts a server on a socket in a folder of its own; the test is skipped if there is none to start.
func startRedis(t *testing.T, args ...string) *redisServer {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed: the Redis store is not tested")
	}
	dir, err := os.MkdirTemp("", "pdr") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s := &redisServer{t: t, path: path, dir: dir, args: args}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(s.kill)
	s.start()
	return s
}

func (s *redisServer) address() string { return "unix://" + filepath.Join(s.dir, "s") }

func (s *redisServer) start() {
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

// kill ends the server as kill -9 does.
func (s *redisServer) kill() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
	os.Remove(filepath.Join(s.dir, "s"))
}

// store returns a store over the server.
func (s *redisServer) store(v Voucher) *Redis {
	s.t.Helper()
	r, err := NewRedis(RedisConfig{Address: s.address()}, v, quiet())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { r.Close() })
	return r
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

// background runs f until the test ends, and waits for it.
func background(t *testing.T, f func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v; want context.Canceled", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// pause stops the server's process, or lets it go on.
func (s *redisServer) pause(stop bool) {
	s.t.Helper()
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}

func writeTemp(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
