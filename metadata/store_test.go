package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// conformance is what every Store must do.
func conformance(t *testing.T, open func(t *testing.T) Store) {
	tests := map[string]func(*testing.T, Store){
		"put and read":                   putAndRead,
		"fault 39 and 44: fencing":       fencing,
		"generations next to each other": neighbours,
		"the lease ends":                 leaseEnds,
		"delete by incarnation":          deleteByIncarnation,
		"changes are announced":          announced,
		"racing writers":                 racing,
		"no set is ever torn":            untorn,
		"many engines":                   many,
		"nonsense is refused":            nonsense,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func TestMemoryConformance(t *testing.T) {
	conformance(t, func(*testing.T) Store { return NewMemory() })
}

// signing signs what is put, as the handler does.
type signing struct {
	*redisUnderTest
	v Voucher
}

func (s signing) Put(ctx context.Context, rec Record) error {
	rec, err := rec.Sign(s.v)
	if err != nil {
		return err
	}
	return s.redisUnderTest.Put(ctx, rec)
}

func put(t *testing.T, s Store, rec Record, want error) {
	t.Helper()
	if err := s.Put(t.Context(), rec); !errors.Is(err, want) {
		t.Fatalf("put %s rank %v: got %v; want %v", rec.ID(), rec.Rank, err, want)
	}
}

// held fails the test unless the store holds exactly these records, their signatures aside.
func held(t *testing.T, s Store, engine string, want ...Record) {
	t.Helper()
	got, err := s.Engine(t.Context(), engine)
	if len(want) == 0 {
		if !errors.Is(err, ErrNotFound) {
			t.Fatalf("engine %s: got %d records, %v; want ErrNotFound", engine, len(got), err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].KeyID, got[i].Signature = "", nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("engine %s (-want +got):\n%s", engine, diff)
	}
}

func putAndRead(t *testing.T, s Store) {
	a0, a1, b0 := record("prefill-0", 7, 2, 0), record("prefill-0", 7, 2, 1), record("decode-0", 9, 1, 0)
	held(t, s, "prefill-0")
	put(t, s, a1, nil)
	put(t, s, a0, nil)
	put(t, s, b0, nil)
	held(t, s, "prefill-0", a0, a1)
	held(t, s, "decode-0", b0)
	held(t, s, "prefill")
	held(t, s, "no such engine")
	names, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"decode-0", "prefill-0"}, names); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func fencing(t *testing.T, s Store) {
	old0, old1 := record("prefill-0", 7, 2, 0), record("prefill-0", 7, 2, 1)
	put(t, s, old0, nil)
	put(t, s, old1, nil)
	put(t, s, old0, ErrStale)                      // the same again
	put(t, s, later(old0, -time.Second), ErrStale) // published before
	renewed := later(old0, time.Nanosecond)        // published after
	put(t, s, renewed, nil)
	held(t, s, "prefill-0", renewed, old1)
	next := later(record("prefill-0", 8, 2, 1), -time.Hour) // a new generation, however its clock goes
	next.Expires = next.Published.Add(time.Minute)
	put(t, s, next, nil)
	held(t, s, "prefill-0", next) // the old generation is void, also its rank 0
	put(t, s, later(renewed, time.Minute), ErrStale)
	put(t, s, later(old1, time.Minute), ErrStale)
	held(t, s, "prefill-0", next)
	if err := s.Delete(t.Context(), old1.Incarnation, old1.Rank); !errors.Is(err, ErrStale) {
		t.Errorf("delete of an old generation: got %v; want ErrStale", err)
	}
	held(t, s, "prefill-0", next)
}

// Generations are nanoseconds and do not fit into a float.
func neighbours(t *testing.T, s Store) {
	const g = 1<<63 + 1
	newer := record("prefill-0", g, 1, 0)
	put(t, s, newer, nil)
	put(t, s, later(record("prefill-0", g-1, 1, 0), time.Second), ErrStale)
	held(t, s, "prefill-0", newer)
	next := record("prefill-0", g+1, 1, 0)
	put(t, s, next, nil)
	held(t, s, "prefill-0", next)
}

func leaseEnds(t *testing.T, s Store) {
	short, long := record("prefill-0", 7, 2, 0), record("prefill-0", 7, 2, 1)
	short.Expires = short.Published.Add(20 * time.Millisecond)
	put(t, s, long, nil)
	put(t, s, short, nil)
	eventually(t, "the short lease ends", func() bool {
		recs, err := s.Engine(t.Context(), "prefill-0")
		return err == nil && len(recs) == 1
	})
	held(t, s, "prefill-0", long)
	put(t, s, short, ErrStale) // a replay of what has expired
	put(t, s, later(short, time.Second), nil)
	only := record("decode-0", 7, 1, 0)
	only.Expires = only.Published.Add(20 * time.Millisecond)
	put(t, s, only, nil)
	eventually(t, "the engine is gone", func() bool {
		names, err := s.List(t.Context())
		return err == nil && len(names) == 1
	})
	held(t, s, "decode-0")
	put(t, s, later(record("decode-0", 6, 1, 0), time.Hour), ErrStale) // the fence outlives the lease
}

func deleteByIncarnation(t *testing.T, s Store) {
	a0, a1 := record("prefill-0", 7, 2, 0), record("prefill-0", 7, 2, 1)
	put(t, s, a0, nil)
	put(t, s, a1, nil)
	for _, c := range []struct {
		inc  Incarnation
		rank Rank
		want error
	}{
		{Incarnation{"prefill-0", 6}, Rank{}, ErrStale},
		{Incarnation{"prefill-0", 8}, Rank{}, ErrNotFound},
		{Incarnation{"prefill-1", 7}, Rank{}, ErrNotFound},
		{a0.Incarnation, Rank{TP: 2}, ErrNotFound},
		{a0.Incarnation, a0.Rank, nil},
		{a0.Incarnation, a0.Rank, ErrNotFound},
	} {
		if err := s.Delete(t.Context(), c.inc, c.rank); !errors.Is(err, c.want) {
			t.Errorf("delete %s rank %v: got %v; want %v", c.inc.ID(), c.rank, err, c.want)
		}
	}
	held(t, s, "prefill-0", a1)
	put(t, s, a0, ErrStale) // a replay does not bring it back
	put(t, s, later(a0, time.Nanosecond), nil)
	held(t, s, "prefill-0", later(a0, time.Nanosecond), a1)
}

func announced(t *testing.T, s Store) {
	var mu sync.Mutex
	var seen []Change
	got := func() []Change {
		mu.Lock()
		defer mu.Unlock()
		return append([]Change(nil), seen...)
	}
	running(t, func(ctx context.Context) error {
		return s.Watch(ctx, func(c Change) {
			mu.Lock()
			defer mu.Unlock()
			c.Content = "" // a store may tell
			seen = append(seen, c)
		})
	})
	eventually(t, "the watch begins with a change of everything", func() bool { return len(got()) == 1 })
	rec := record("prefill-0", 7, 2, 1)
	put(t, s, rec, nil)
	put(t, s, rec, ErrStale) // changes nothing
	if err := s.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both changes arrive", func() bool { return len(got()) == 3 })
	want := []Change{{}, {Incarnation: rec.Incarnation, Rank: rec.Rank, Published: rec.Published},
		{Incarnation: rec.Incarnation, Rank: rec.Rank, Published: rec.Published, Deleted: true}}
	if diff := cmp.Diff(want, got()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// Of many writers of many generations the newest wins, whatever the order.
func racing(t *testing.T, s Store) {
	var writers sync.WaitGroup
	for g := range uint64(16) {
		writers.Go(func() {
			for i := range 4 {
				err := s.Put(t.Context(), later(record("prefill-0", 100+g, 1, 0), time.Duration(i)*time.Second))
				if err != nil && !errors.Is(err, ErrStale) {
					t.Errorf("generation %d: %v", g, err)
				}
			}
		})
	}
	writers.Wait()
	recs, err := s.Engine(t.Context(), "prefill-0")
	if err != nil || len(recs) != 1 || recs[0].Generation != 115 {
		t.Errorf("got %+v, %v; want generation 115", recs, err)
	}
}

// While runs of an engine replace each other, whoever reads sees ranks of one run alone, and never an older run than
// before.
func untorn(t *testing.T, s Store) {
	const runs, ranks = 12, 4
	var writers sync.WaitGroup
	for rank := range ranks {
		writers.Go(func() {
			for g := range uint64(runs) {
				if err := s.Put(t.Context(), record("prefill-0", 100+g, ranks, rank)); err != nil && !errors.Is(err, ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	defer writers.Wait()
	written := make(chan struct{})
	go func() { writers.Wait(); close(written) }()
	newest := uint64(0)
	for done := false; !done; {
		select {
		case <-written:
			done = true
		default:
		}
		recs, err := s.Engine(t.Context(), "prefill-0")
		if err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		for _, r := range recs {
			if r.Generation != recs[0].Generation || r.Generation < newest {
				t.Fatalf("read generation %d beside %d after %d", r.Generation, recs[0].Generation, newest)
			}
			newest = r.Generation
		}
	}
	if recs, err := s.Engine(t.Context(), "prefill-0"); err != nil || len(recs) != ranks || recs[0].Generation != 100+runs-1 {
		t.Errorf("got %d ranks of generation %d, %v; want %d of %d", len(recs), recs[0].Generation, err, ranks, 100+runs-1)
	}
}

// More engines than are read at once.
func many(t *testing.T, s Store) {
	const engines = 300
	parallel(engines, func(i int) {
		if err := s.Put(t.Context(), record(fmt.Sprintf("prefill-%03d", i), 7, 1, 0)); err != nil {
			t.Error(err)
		}
	})
	names, err := s.List(t.Context())
	if err != nil || len(names) != engines || names[engines-1] != fmt.Sprintf("prefill-%03d", engines-1) {
		t.Fatalf("%d engines, %v; want %d", len(names), err, engines)
	}
	c := newCache(t, s, CacheConfig{Read: time.Minute}, nil)
	c.note(Change{})
	if err := c.follow(t.Context()); err != nil || len(c.Engines()) != engines {
		t.Errorf("the local copy has %d engines, %v; want %d", len(c.Engines()), err, engines)
	}
}

func nonsense(t *testing.T, s Store) {
	for name, change := range map[string]func(*Record){
		"no times":       func(r *Record) { r.Published, r.Expires = time.Time{}, time.Time{} },
		"no lifetime":    func(r *Record) { r.Expires = r.Published },
		"a day and more": func(r *Record) { r.Expires = r.Published.Add(24*time.Hour + time.Second) },
		"bad name":       func(r *Record) { r.Engine = "a b" },
		"other version":  func(r *Record) { r.Version = 2 },
	} {
		rec := record("prefill-0", 7, 1, 0)
		change(&rec)
		if err := s.Put(t.Context(), rec); err == nil || errors.Is(err, ErrStale) {
			t.Errorf("%s: got %v; want another error", name, err)
		}
	}
	held(t, s, "prefill-0")
}
