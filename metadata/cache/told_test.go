package cache

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/store"
)

// faultyStore is a Memory some of whose engines cannot be read, or whose list, or whose announcements cannot be heard.
type faultyStore struct {
	*store.Memory

	mu     sync.Mutex
	broken map[string]error // by engine; "" is the list
	cut    context.CancelCauseFunc
}

func (s *faultyStore) breaks(engine string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken[engine] = err
}

func (s *faultyStore) fault(engine string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken[engine]
}

func (s *faultyStore) Engine(ctx context.Context, engine string) ([]metadata.Record, error) {
	if err := s.fault(engine); err != nil {
		return nil, err
	}
	return s.Memory.Engine(ctx, engine)
}

func (s *faultyStore) List(ctx context.Context) ([]string, error) {
	if err := s.fault(""); err != nil {
		return nil, err
	}
	return s.Memory.List(ctx)
}

func (s *faultyStore) Watch(ctx context.Context, changed func(metadata.Change)) error {
	watching, cut := context.WithCancelCause(ctx)
	s.mu.Lock()
	s.cut = cut
	s.mu.Unlock()
	_ = s.Memory.Watch(watching, changed)
	return context.Cause(watching)
}

func newFaultyStore() *faultyStore {
	return &faultyStore{Memory: store.NewMemory(), broken: map[string]error{}}
}

// subscribed returns what a subscriber of c was told since the last call.
func subscribed(c *Cache) func() []string {
	var mu sync.Mutex
	var told []string
	c.Subscribe(func(engine string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, engine)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { told = nil }()
		return told
	}
}

// Subscribers are told of all that changes, once, and of no renewal.
func TestCacheSubscribersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		c := newCache(t, s, Config{})
		told := subscribed(c)
		other := subscribed(c)
		cancel := c.Subscribe(func(string) { t.Error("told after it was cancelled") })
		cancel()
		metadatatest.Background(t, c.Run)
		a, b := metadatatest.Record("prefill-0", 7, 2, 0), metadatatest.Record("prefill-0", 7, 2, 1)
		b.Expires = b.Published.Add(30 * time.Second)
		for _, step := range []struct {
			what string
			do   func()
			want []string
		}{
			{"whole for the first time", func() {}, []string{""}},
			{"an engine appears", func() { metadatatest.Put(t, s, a, nil) }, []string{"prefill-0"}},
			{"a rank is added", func() { metadatatest.Put(t, s, b, nil) }, []string{"prefill-0"}},
			{"a renewal", func() { metadatatest.Put(t, s, metadatatest.Later(a, time.Second), nil) }, nil},
			{"other content", func() { metadatatest.Put(t, s, metadatatest.Anew(a, 2*time.Second), nil) }, []string{"prefill-0"}},
			{"a lease ends", func() { time.Sleep(30 * time.Second) }, []string{"prefill-0"}},
			{"withdrawn", func() { _ = s.Delete(t.Context(), a.Incarnation, a.Rank) }, []string{"prefill-0"}},
			{"a new run", func() { metadatatest.Put(t, s, metadatatest.Record("prefill-0", 8, 1, 0), nil) }, []string{"prefill-0"}},
			{"out of touch, and whole again", func() { s.cut(errors.New("cut")); time.Sleep(time.Second) }, []string{""}},
			{"cannot be read", func() { s.breaks("", errors.New("down")); time.Sleep(time.Minute / 2) }, nil},
			{"can be read again", func() { s.breaks("", nil); time.Sleep(10 * time.Second) }, []string{""}},
		} {
			step.do()
			time.Sleep(10 * time.Millisecond)
			if diff := cmp.Diff(step.want, told()); diff != "" {
				t.Errorf("%s: told (-want +got):\n%s", step.what, diff)
			}
			if diff := cmp.Diff(step.want, other()); diff != "" {
				t.Errorf("%s: another was told (-want +got):\n%s", step.what, diff)
			}
		}
	})
}

// While the store is down leases end, whoever listens is told, and looking up neither waits nor allocates.
func TestFault42LeasesEndWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &metadatatest.FailingStore{Memory: store.NewMemory()}
		for i := range 8 {
			rec := metadatatest.Record("prefill-0", 7, 8, i)
			if i == 0 {
				rec.Expires = rec.Published.Add(20 * time.Second)
			}
			metadatatest.Put(t, s, rec, nil)
		}
		c := newCache(t, s, Config{})
		told := subscribed(c)
		metadatatest.Background(t, c.Run)
		time.Sleep(time.Second)
		s.Set(errors.New("down"), false)
		if diff := cmp.Diff([]string{"prefill-0", ""}, told()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		time.Sleep(20 * time.Second)
		if recs, _ := c.Engine("prefill-0"); len(recs) != 7 {
			t.Errorf("%d ranks are left; want 7", len(recs))
		}
		if n := testing.AllocsPerRun(100, func() { c.Engine("prefill-0") }); n != 0 {
			t.Errorf("a lookup allocates %v times after a lease has ended; want 0", n)
		}
		if diff := cmp.Diff([]string{"prefill-0"}, told()); diff != "" {
			t.Errorf("after a lease has ended: told (-want +got):\n%s", diff)
		}
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"prefill-0"}, told()); diff != "" {
			t.Errorf("after all have ended: told (-want +got):\n%s", diff)
		}
		cached(t, c, "prefill-0")
	})
}

// A withdrawal that is heard counts while nothing can be read.
func TestFault42WithdrawalWhileReadsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &metadatatest.FailingStore{Memory: store.NewMemory()}
		rec := metadatatest.Record("prefill-0", 7, 1, 0)
		metadatatest.Put(t, s, rec, nil)
		c := newCache(t, s, Config{})
		metadatatest.Background(t, c.Run)
		time.Sleep(time.Second)
		cached(t, c, "prefill-0", rec)
		s.Set(errors.New("down"), false)
		if err := s.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
			t.Fatal(err)
		}
		cached(t, c, "prefill-0")
	})
}

// An engine that cannot be read, and a list that cannot, hold up nobody else.
func TestFault42BrokenEnginesWaitAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		c := newCache(t, s, Config{})
		metadatatest.Background(t, c.Run)
		broken, well := metadatatest.Record("prefill-0", 7, 1, 0), metadatatest.Record("decode-0", 7, 1, 0)
		metadatatest.Put(t, s, broken, nil)
		time.Sleep(time.Second)
		s.breaks("prefill-0", errors.New("broken"))
		s.breaks("", errors.New("broken"))
		metadatatest.Put(t, s, metadatatest.Anew(broken, time.Second), nil)
		for range 60 {
			time.Sleep(500 * time.Millisecond)
			well = metadatatest.Anew(well, time.Second)
			metadatatest.Put(t, s, well, nil)
			time.Sleep(6 * time.Millisecond)
			cached(t, c, "decode-0", well)
			cached(t, c, "prefill-0", broken)
		}
		if st := c.Stats(); !st.Behind || st.Failures < 5 || st.Failures > 50 {
			t.Errorf("stats are %+v; want a copy that is behind, and some failures", st)
		}
		s.breaks("prefill-0", nil)
		s.breaks("", nil)
		time.Sleep(5 * time.Second)
		cached(t, c, "prefill-0", metadatatest.Anew(broken, time.Second))
		if st := c.Stats(); st.Behind {
			t.Errorf("stats are %+v; want a copy that is not behind", st)
		}
	})
}

// lineCounter counts lines of a log by their levels.
type lineCounter struct {
	mu    sync.Mutex
	lines map[slog.Level]int
}

func (h *lineCounter) Enabled(context.Context, slog.Level) bool { return true }

func (h *lineCounter) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines[r.Level]++
	return nil
}

func (h *lineCounter) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *lineCounter) WithGroup(string) slog.Handler      { return h }

// An hour without the store is an hour's worth of summaries in the log, and one line when it is over.
func TestFault42OutageInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &metadatatest.FailingStore{Memory: store.NewMemory()}
		h := &lineCounter{lines: map[slog.Level]int{}}
		c, err := New(s, Config{}, slog.New(h))
		if err != nil {
			t.Fatal(err)
		}
		stop := metadatatest.Background(t, c.Run)
		time.Sleep(time.Second)
		s.Set(errors.New("down"), false)
		time.Sleep(time.Hour)
		s.Set(nil, false)
		time.Sleep(time.Minute)
		stop()
		if w, i := h.lines[slog.LevelWarn], h.lines[slog.LevelInfo]; w < 50 || w > 61 || i != 1 {
			t.Errorf("%d warnings and %d that it is over; want one each minute, and one", w, i)
		}
	})
}

// Until half of the lease is over a renewal that says nothing new is known, and lengthens nothing.
func TestCacheRenewalsWaitForHalfOfTheLease(t *testing.T) {
	now := time.Now()
	rec := metadatatest.Record("prefill-0", 7, 1, 0) // for a minute
	content := rec.Content()
	e := merge(nil, foundAt(now, rec), nil, now)
	next := rec.Published.Add(20 * time.Second)
	for _, c := range []struct {
		what       string
		generation uint64
		published  time.Time
		content    string
		after      time.Duration
		want       bool
	}{
		{"the same record, late", 7, rec.Published, content, 59 * time.Second, true},
		{"a renewal", 7, next, content, 29 * time.Second, true},
		{"a renewal, half over", 7, next, content, 31 * time.Second, false},
		{"other content", 7, next, strings.Repeat("x", metadata.ContentLen), 0, false},
		{"content not told", 7, next, "", 0, false},
		{"a new run", 8, next, content, 0, false},
		{"an old run", 6, next, "", 59 * time.Second, true},
	} {
		if got := e.Knows(c.generation, rec.Rank, c.published, c.content, now.Add(c.after)); got != c.want {
			t.Errorf("%s: known: %t; want %t", c.what, got, c.want)
		}
	}
	if renewed := metadatatest.Later(rec, time.Second); renewed.Content() != content || metadatatest.Anew(rec, 0).Content() == content {
		t.Error("the content is that of more than what is said, or of less")
	}
}

// A withdrawal counts for what was published before it, also for renewals that were not read; whatever nobody signed does
// not count for what comes after the lease.
func TestCacheWithdrawalsInTheirOrder(t *testing.T) {
	now := time.Now()
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	e := merge(nil, foundAt(now, rec), nil, now)
	gone := func(by time.Duration) []metadata.Change {
		return []metadata.Change{{Incarnation: rec.Incarnation, Rank: rec.Rank, Deleted: true, Published: rec.Published.Add(by)}}
	}
	if got := merge(e, nil, gone(-time.Second), now).live(now); len(got) != 1 {
		t.Error("a late withdrawal of an earlier record took it away")
	}
	renewed := foundAt(now, metadatatest.Later(rec, 20*time.Second)) // and never read
	if got := merge(merge(e, nil, gone(20*time.Second), now), renewed, nil, now).live(now); len(got) != 0 {
		t.Error("a renewal that was withdrawn came back")
	}
	if got := merge(merge(e, nil, gone(30*24*time.Hour), now), renewed, nil, now).live(now); len(got) != 1 {
		t.Error("a withdrawal in the far future keeps away what is published now")
	}
}

// slowStore is a Memory that takes a second to tell what it has read.
type slowStore struct{ *store.Memory }

func (s slowStore) Engine(ctx context.Context, engine string) ([]metadata.Record, error) {
	recs, err := s.Memory.Engine(ctx, engine)
	time.Sleep(time.Second)
	return recs, err
}

// A record that is withdrawn while it is read for the first time is not known afterwards.
func TestCacheWithdrawnWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowStore{store.NewMemory()}
		c := newCache(t, s, Config{})
		metadatatest.Background(t, c.Run)
		time.Sleep(time.Minute)
		old, rec := metadatatest.Record("prefill-0", 7, 1, 0), metadatatest.Record("prefill-0", 8, 1, 0)
		stays := metadatatest.Record("decode-0", 7, 1, 0)
		metadatatest.Put(t, s, old, nil)
		time.Sleep(5 * time.Second)
		cached(t, c, "prefill-0", old)
		metadatatest.Put(t, s, rec, nil)
		metadatatest.Put(t, s, stays, nil)
		time.Sleep(3 * time.Second / 2) // decode-0 is read first
		if err := s.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		cached(t, c, "prefill-0")
		cached(t, c, "decode-0", stays)
	})
}
