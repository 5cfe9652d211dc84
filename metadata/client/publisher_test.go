package client

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/store"
)

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// fakePutter is a store that can refuse puts, and counts them.
type fakePutter struct {
	*store.Memory

	mu   sync.Mutex
	down bool
	puts int
}

func (f *fakePutter) Put(ctx context.Context, rec metadata.Record) error {
	f.mu.Lock()
	f.puts++
	down := f.down
	f.mu.Unlock()
	if down {
		return errors.New("connection refused")
	}
	return f.Memory.Put(ctx, rec)
}

func (f *fakePutter) set(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *fakePutter) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.puts
}

func TestPublisherKeepsRecordsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakePutter{Memory: store.NewMemory(), down: true}
		p, err := NewPublisher(f, PublisherConfig{}, metadatatest.Quiet(), metadatatest.Record("prefill-0", 7, 2, 0), metadatatest.Record("prefill-0", 7, 2, 1))
		if err != nil {
			t.Fatal(err)
		}
		stop := metadatatest.Background(t, p.Run)
		time.Sleep(3050 * time.Millisecond) // tries after 0, 100, 300, 700, 1500 ms; the next at 3100
		if got := f.count(); got != 5 {
			t.Errorf("%d tries without a store; want 5", got)
		}
		select {
		case <-p.Ready():
			t.Error("ready without a store")
		default:
		}
		f.set(false)
		<-p.Ready()
		for range 20 { // ten minutes, far beyond the lease
			time.Sleep(30 * time.Second)
			if recs, err := f.Engine(t.Context(), "prefill-0"); err != nil || len(recs) != 2 {
				t.Fatalf("got %d records, %v; want 2", len(recs), err)
			}
		}
		if got, want := f.count(), 5+2*(1+60); got < want-2 || got > want+2 {
			t.Errorf("%d puts; want about %d: two each third of the lease", got, want)
		}
		stop()
		if _, err := f.Engine(t.Context(), "prefill-0"); !errors.Is(err, metadata.ErrNotFound) {
			t.Errorf("after the end: got %v; want the records withdrawn", err)
		}
	})
}

func TestPublisherEndsWhenSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		p, err := NewPublisher(s, PublisherConfig{}, metadatatest.Quiet(), metadatatest.Record("prefill-0", 7, 1, 0))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- p.Run(t.Context()) }()
		<-p.Ready()
		next := metadatatest.Record("prefill-0", 8, 1, 0)
		metadatatest.Put(t, s, next, nil)
		if err := <-ended; !errors.Is(err, metadata.ErrStale) {
			t.Errorf("got %v; want ErrStale", err)
		}
		metadatatest.Held(t, s, "prefill-0", next) // the newer one's record is not withdrawn
	})
}

func TestPublisherRefusesNonsense(t *testing.T) {
	bad := metadatatest.Record("prefill-0", 7, 1, 0)
	bad.Role = "x"
	for name, f := range map[string]func() (*Publisher, error){
		"bad record": func() (*Publisher, error) {
			return NewPublisher(store.NewMemory(), PublisherConfig{}, metadatatest.Quiet(), bad)
		},
		"bad timings": func() (*Publisher, error) {
			return NewPublisher(store.NewMemory(), PublisherConfig{TTL: -1}, metadatatest.Quiet())
		},
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
