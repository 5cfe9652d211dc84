// Package metadatatest makes records, keys and stores for the tests of metadata and the packages below it, and has the suite that
// every metadata.Store must pass. It is for tests alone.
//
// Read metadatatest.go, then redis.go and conformance.go.
package metadatatest

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
	"pdrouter/metadata/store"
)

// Voucher signs with one key and trusts that key alone.
type Voucher struct {
	id      string
	private ed25519.PrivateKey
}

// NewVoucher returns a Voucher whose key follows from its id.
func NewVoucher(id string) *Voucher {
	return &Voucher{id: id, private: ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%-32.32s", id)))}
}

// Sign implements metadata.Voucher.
func (v *Voucher) Sign(payload []byte) (string, []byte, error) {
	return v.id, ed25519.Sign(v.private, payload), nil
}

// Verify implements metadata.Voucher.
func (v *Voucher) Verify(keyID string, payload, signature []byte) error {
	if keyID != v.id || !ed25519.Verify(v.private.Public().(ed25519.PublicKey), payload, signature) {
		return errors.New("signature is not of key " + v.id)
	}
	return nil
}

// FailingStore is a Memory that can be made to fail, as a store that cannot be reached.
type FailingStore struct {
	*store.Memory

	mu   sync.Mutex
	Down error // what reads end with; set it with Set once the store is in use
	gone bool  // reads find nothing, as after a failover that lost its writes
}

// Set has reads fail, or find nothing.
func (s *FailingStore) Set(down error, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Down, s.gone = down, gone
}

// Engine implements metadata.Store.
func (s *FailingStore) Engine(ctx context.Context, engine string) ([]metadata.Record, error) {
	s.mu.Lock()
	down, gone := s.Down, s.gone
	s.mu.Unlock()
	switch {
	case down != nil:
		return nil, down
	case gone:
		return nil, metadata.ErrNotFound
	}
	return s.Memory.Engine(ctx, engine)
}

// List implements metadata.Store.
func (s *FailingStore) List(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	down, gone := s.Down, s.gone
	s.mu.Unlock()
	if down != nil || gone {
		return nil, down
	}
	return s.Memory.List(ctx)
}

// Quiet returns a log that is thrown away.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Record returns a valid record of one rank of an engine with tp ranks, published now for a minute.
func Record(engine string, generation uint64, tp, rank int) metadata.Record {
	role := metadata.Prefill
	if engine[0] == 'd' {
		role = metadata.Decode
	}
	inc := metadata.Incarnation{Engine: engine, Generation: generation}
	now := time.Now().UTC().Round(0)
	return metadata.Record{
		Version: metadata.RecordVersion, Incarnation: inc, Role: role, Rank: metadata.Rank{TP: rank}, Size: metadata.Rank{DP: 1, PP: 1, TP: tp},
		Connector: "kvplane", Compatibility: "digest", Agent: inc.ID() + "/" + metadata.Rank{TP: rank}.String(), Transport: "tcp",
		Blob: []byte{1, 2, 3}, EngineID: inc.ID(), HTTP: "http://127.0.0.1:1", Published: now, Expires: now.Add(time.Minute),
		Layout: metadata.Layout{
			BlockTokens: 4, Physical: 1, Heads: 4, HeadBytes: 8, Order: metadata.HeadsFirst, DType: "u64",
			Regions: []metadata.Region{Region(0), Region(1)},
		},
	}
}

// Region returns the memory of one layer.
func Region(layer int) metadata.Region {
	return metadata.Region{Layer: layer, Planes: 2, Base: 1 << 40, Length: 1 << 16, Blocks: 16, BlockStride: 1 << 12, PlaneStride: 1 << 11, HeadStride: 32, TokenStride: 8}
}

// Later returns the record as published again after d.
func Later(rec metadata.Record, d time.Duration) metadata.Record {
	rec.Published, rec.Expires = rec.Published.Add(d), rec.Expires.Add(d)
	return rec
}

// Eventually waits long for what must come; it is for what real processes do.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within two minutes", what)
}

// Background runs f until the test ends, and waits for it.
func Background(t *testing.T, f func(ctx context.Context) error) (stop func()) {
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

// WriteTemp writes a file and returns its path.
func WriteTemp(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Parallel calls do for 0 to n-1 on a few goroutines and returns when all are done.
func Parallel(n int, do func(i int)) {
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

// AgentKey returns the key of the agent of that name.
func AgentKey(name string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%-32.32s", "agent of "+name)))
}

// Public returns the public half of a key.
func Public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// KeyID returns the id by which a record names the key that its agent signed it with.
func KeyID(t testing.TB, key crypto.Signer) string {
	t.Helper()
	return SignAs(t, Record("prefill-0", 1, 1, 0), key).KeyID
}

// SignAs returns the record as its agent signs it.
func SignAs(t testing.TB, rec metadata.Record, key crypto.Signer) metadata.Record {
	t.Helper()
	rec, err := rec.SignAs(key)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// Bound returns the record as a gateway keeps it that has checked its agent's signature.
func Bound(t testing.TB, v metadata.Voucher, rec metadata.Record, key ed25519.PrivateKey) metadata.Record {
	t.Helper()
	rec, err := SignAs(t, rec, key).Bind(v, Public(key), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// Anew returns a record published later that says something else: one that says the same is a renewal, which need not be read.
func Anew(rec metadata.Record, by time.Duration) metadata.Record {
	rec = Later(rec, by)
	rec.Layout.Notes = rec.Published.String()
	return rec
}

// Marshal encodes a record.
func Marshal(t testing.TB, rec metadata.Record) []byte {
	t.Helper()
	b, err := metadata.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ProcessorTime returns the processor time that this process has used.
func ProcessorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // of oneself it never fails
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// wide returns the record of one of eight ranks of an engine with 32 layers.
func wide(engine string, rank int) metadata.Record {
	r := Record(engine, 7, 8, rank)
	r.Layout.Heads, r.Layout.Regions = 8, nil
	for layer := range 32 {
		r.Layout.Regions = append(r.Layout.Regions, Region(layer))
	}
	r.Expires = r.Published.Add(5 * time.Minute)
	return r
}

// Fleet puts engines of 8 ranks into a store, every second one a prefill engine.
func Fleet(t testing.TB, s metadata.Store, engines int) {
	t.Helper()
	for i := range engines {
		for rank := range 8 {
			if err := s.Put(t.Context(), wide(fmt.Sprint([]string{"prefill-", "decode-"}[i%2], i), rank)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Engine returns the records of all ranks of an engine, each with these changes.
func Engine(name string, tp int, change ...func(*metadata.Record)) []metadata.Record {
	var recs []metadata.Record
	for i := range tp {
		r := Record(name, 7, tp, i)
		for _, f := range change {
			f(&r)
		}
		recs = append(recs, r)
	}
	return recs
}

// Put puts a record and fails the test unless that ends with the error want.
func Put(t *testing.T, s metadata.Store, rec metadata.Record, want error) {
	t.Helper()
	if err := s.Put(t.Context(), rec); !errors.Is(err, want) {
		t.Fatalf("put %s rank %v: got %v; want %v", rec.ID(), rec.Rank, err, want)
	}
}

// Held fails the test unless the store holds exactly these records, their signatures aside.
func Held(t *testing.T, s metadata.Store, engine string, want ...metadata.Record) {
	t.Helper()
	got, err := s.Engine(t.Context(), engine)
	if len(want) == 0 {
		if !errors.Is(err, metadata.ErrNotFound) {
			t.Fatalf("engine %s: got %d records, %v; want ErrNotFound", engine, len(got), err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].KeyID, got[i].Signature, got[i].Payload = "", nil, nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("engine %s (-want +got):\n%s", engine, diff)
	}
}
