package metadatatest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
)

// StoreConformance is what every metadata.Store must do. open returns an empty one.
func StoreConformance(t *testing.T, open func(t *testing.T) metadata.Store) {
	tests := map[string]func(*testing.T, metadata.Store){
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

func putAndRead(t *testing.T, s metadata.Store) {
	a0, a1, b0 := Record("prefill-0", 7, 2, 0), Record("prefill-0", 7, 2, 1), Record("decode-0", 9, 1, 0)
	Held(t, s, "prefill-0")
	Put(t, s, a1, nil)
	Put(t, s, a0, nil)
	Put(t, s, b0, nil)
	Held(t, s, "prefill-0", a0, a1)
	Held(t, s, "decode-0", b0)
	Held(t, s, "prefill")
	Held(t, s, "no such engine")
	names, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"decode-0", "prefill-0"}, names); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func fencing(t *testing.T, s metadata.Store) {
	old0, old1 := Record("prefill-0", 7, 2, 0), Record("prefill-0", 7, 2, 1)
	Put(t, s, old0, nil)
	Put(t, s, old1, nil)
	Put(t, s, old0, metadata.ErrStale)                      // the same again
	Put(t, s, Later(old0, -time.Second), metadata.ErrStale) // published before
	renewed := Later(old0, time.Nanosecond)                 // published after
	Put(t, s, renewed, nil)
	Held(t, s, "prefill-0", renewed, old1)
	next := Later(Record("prefill-0", 8, 2, 1), -time.Hour) // a new generation, however its clock goes
	next.Expires = next.Published.Add(time.Minute)
	Put(t, s, next, nil)
	Held(t, s, "prefill-0", next) // the old generation is void, also its rank 0
	Put(t, s, Later(renewed, time.Minute), metadata.ErrStale)
	Put(t, s, Later(old1, time.Minute), metadata.ErrStale)
	Held(t, s, "prefill-0", next)
	if err := s.Delete(t.Context(), old1.Incarnation, old1.Rank); !errors.Is(err, metadata.ErrStale) {
		t.Errorf("delete of an old generation: got %v; want ErrStale", err)
	}
	Held(t, s, "prefill-0", next)
}

// Generations are nanoseconds and do not fit into a float.
func neighbours(t *testing.T, s metadata.Store) {
	const g = 1<<63 + 1
	newer := Record("prefill-0", g, 1, 0)
	Put(t, s, newer, nil)
	Put(t, s, Later(Record("prefill-0", g-1, 1, 0), time.Second), metadata.ErrStale)
	Held(t, s, "prefill-0", newer)
	next := Record("prefill-0", g+1, 1, 0)
	Put(t, s, next, nil)
	Held(t, s, "prefill-0", next)
}

func leaseEnds(t *testing.T, s metadata.Store) {
	short, long := Record("prefill-0", 7, 2, 0), Record("prefill-0", 7, 2, 1)
	short.Expires = short.Published.Add(20 * time.Millisecond)
	Put(t, s, long, nil)
	Put(t, s, short, nil)
	Eventually(t, "the short lease ends", func() bool {
		recs, err := s.Engine(t.Context(), "prefill-0")
		return err == nil && len(recs) == 1
	})
	Held(t, s, "prefill-0", long)
	Put(t, s, short, metadata.ErrStale) // a replay of what has expired
	Put(t, s, Later(short, time.Second), nil)
	only := Record("decode-0", 7, 1, 0)
	only.Expires = only.Published.Add(20 * time.Millisecond)
	Put(t, s, only, nil)
	Eventually(t, "the engine is gone", func() bool {
		names, err := s.List(t.Context())
		return err == nil && len(names) == 1
	})
	Held(t, s, "decode-0")
	Put(t, s, Later(Record("decode-0", 6, 1, 0), time.Hour), metadata.ErrStale) // the fence outlives the lease
}

func deleteByIncarnation(t *testing.T, s metadata.Store) {
	a0, a1 := Record("prefill-0", 7, 2, 0), Record("prefill-0", 7, 2, 1)
	Put(t, s, a0, nil)
	Put(t, s, a1, nil)
	for _, c := range []struct {
		inc  metadata.Incarnation
		rank metadata.Rank
		want error
	}{
		{metadata.Incarnation{Engine: "prefill-0", Generation: 6}, metadata.Rank{}, metadata.ErrStale},
		{metadata.Incarnation{Engine: "prefill-0", Generation: 8}, metadata.Rank{}, metadata.ErrNotFound},
		{metadata.Incarnation{Engine: "prefill-1", Generation: 7}, metadata.Rank{}, metadata.ErrNotFound},
		{a0.Incarnation, metadata.Rank{TP: 2}, metadata.ErrNotFound},
		{a0.Incarnation, a0.Rank, nil},
		{a0.Incarnation, a0.Rank, metadata.ErrNotFound},
	} {
		if err := s.Delete(t.Context(), c.inc, c.rank); !errors.Is(err, c.want) {
			t.Errorf("delete %s rank %v: got %v; want %v", c.inc.ID(), c.rank, err, c.want)
		}
	}
	Held(t, s, "prefill-0", a1)
	Put(t, s, a0, metadata.ErrStale) // a replay does not bring it back
	Put(t, s, Later(a0, time.Nanosecond), nil)
	Held(t, s, "prefill-0", Later(a0, time.Nanosecond), a1)
}

func announced(t *testing.T, s metadata.Store) {
	var mu sync.Mutex
	var seen []metadata.Change
	got := func() []metadata.Change {
		mu.Lock()
		defer mu.Unlock()
		return append([]metadata.Change(nil), seen...)
	}
	Background(t, func(ctx context.Context) error {
		return s.Watch(ctx, func(c metadata.Change) {
			mu.Lock()
			defer mu.Unlock()
			c.Content = "" // a store may tell
			seen = append(seen, c)
		})
	})
	Eventually(t, "the watch begins with a change of everything", func() bool { return len(got()) == 1 })
	rec := Record("prefill-0", 7, 2, 1)
	Put(t, s, rec, nil)
	Put(t, s, rec, metadata.ErrStale) // changes nothing
	if err := s.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "both changes arrive", func() bool { return len(got()) == 3 })
	want := []metadata.Change{{}, {Incarnation: rec.Incarnation, Rank: rec.Rank, Published: rec.Published},
		{Incarnation: rec.Incarnation, Rank: rec.Rank, Published: rec.Published, Deleted: true}}
	if diff := cmp.Diff(want, got()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// Of many writers of many generations the newest wins, whatever the order.
func racing(t *testing.T, s metadata.Store) {
	var writers sync.WaitGroup
	for g := range uint64(16) {
		writers.Go(func() {
			for i := range 4 {
				err := s.Put(t.Context(), Later(Record("prefill-0", 100+g, 1, 0), time.Duration(i)*time.Second))
				if err != nil && !errors.Is(err, metadata.ErrStale) {
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
func untorn(t *testing.T, s metadata.Store) {
	const runs, ranks = 12, 4
	var writers sync.WaitGroup
	for rank := range ranks {
		writers.Go(func() {
			for g := range uint64(runs) {
				if err := s.Put(t.Context(), Record("prefill-0", 100+g, ranks, rank)); err != nil && !errors.Is(err, metadata.ErrStale) {
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
		if err != nil && !errors.Is(err, metadata.ErrNotFound) {
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
func many(t *testing.T, s metadata.Store) {
	const engines = 300
	Parallel(engines, func(i int) {
		if err := s.Put(t.Context(), Record(fmt.Sprintf("prefill-%03d", i), 7, 1, 0)); err != nil {
			t.Error(err)
		}
	})
	names, err := s.List(t.Context())
	if err != nil || len(names) != engines || names[engines-1] != fmt.Sprintf("prefill-%03d", engines-1) {
		t.Fatalf("%d engines, %v; want %d", len(names), err, engines)
	}
}

func nonsense(t *testing.T, s metadata.Store) {
	for name, change := range map[string]func(*metadata.Record){
		"no times":       func(r *metadata.Record) { r.Published, r.Expires = time.Time{}, time.Time{} },
		"no lifetime":    func(r *metadata.Record) { r.Expires = r.Published },
		"a day and more": func(r *metadata.Record) { r.Expires = r.Published.Add(24*time.Hour + time.Second) },
		"bad name":       func(r *metadata.Record) { r.Engine = "a b" },
		"other version":  func(r *metadata.Record) { r.Version = 2 },
	} {
		rec := Record("prefill-0", 7, 1, 0)
		change(&rec)
		if err := s.Put(t.Context(), rec); err == nil || errors.Is(err, metadata.ErrStale) {
			t.Errorf("%s: got %v; want another error", name, err)
		}
	}
	Held(t, s, "prefill-0")
}
