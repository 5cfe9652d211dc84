package metadata

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
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

// store returns a store over a real server.
func store(t testing.TB, s *redistest.Server, v Voucher, prefix string) *redisUnderTest {
	t.Helper()
	db, err := redisdb.Open(redisdb.Config{Address: s.Address()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return newRedis(db, prefix, v)
}

// eventually waits long for what must come; it is for what real processes do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within two minutes", what)
}

// running runs f until the test ends, and waits for it.
func running(t *testing.T, f func(ctx context.Context) error) (stop func()) {
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

func writeTemp(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// RedisStore is what these tests ask of the store over Redis.
type RedisStore interface {
	Store
	BulkReader
	Quarantined() uint64
}

// OpenRedis opens a store over Redis. TestMain sets it, outside of this package: redisstore imports this one.
var OpenRedis func(db redis.UniversalClient, prefix string, v Voucher, log *slog.Logger) RedisStore

// redisUnderTest is a store over a real server, with what lies in it.
type redisUnderTest struct {
	RedisStore
	db     redis.UniversalClient
	prefix string
}

func newRedis(db redis.UniversalClient, prefix string, v Voucher) *redisUnderTest {
	return &redisUnderTest{OpenRedis(db, prefix, v, quiet()), db, prefix}
}

func (s *redisUnderTest) indexKey() string               { return s.prefix + ":engines" }
func (s *redisUnderTest) engineKey(engine string) string { return s.prefix + ":{" + engine + "}" }
func (s *redisUnderTest) rankKey(inc Incarnation, rank string) string {
	return fmt.Sprintf("%s:%020d:%s", s.engineKey(inc.Engine), inc.Generation, rank)
}

// parallel calls do for 0 to n-1 on a few goroutines and returns when all are done.
func parallel(n int, do func(i int)) {
	var workers sync.WaitGroup
	for w := range min(n, 8) {
		workers.Go(func() {
			for i := w; i < n; i += 8 {
				do(i)
			}
		})
	}
	workers.Wait()
}
