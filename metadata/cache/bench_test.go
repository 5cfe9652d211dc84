package cache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/store"
)

func BenchmarkCacheLookup(b *testing.B) {
	s := store.NewMemory()
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("prefill-%d", i)
		if err := s.Put(b.Context(), metadatatest.Record(names[i], 7, 1, 0)); err != nil {
			b.Fatal(err)
		}
	}
	c, err := New(s, Config{}, metadatatest.Quiet())
	if err != nil {
		b.Fatal(err)
	}
	c.note(metadata.Change{})
	if err := c.follow(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, ok := c.Engine(names[i%len(names)]); !ok {
			b.Fatal("unknown")
		}
		i++
	}
}

// BenchmarkCacheStart1000x8 is what a gateway that starts does with 8,000 signed records in a real Redis, and what it
// does with them when it looks again.
func BenchmarkCacheStart1000x8(b *testing.B) {
	const engines, ranks = 1000, 8
	s := fleetOf(b, redistest.Start(b), engines, ranks)
	full := func() *Cache {
		c, err := New(s, Config{}, metadatatest.Quiet())
		if err != nil {
			b.Fatal(err)
		}
		c.note(metadata.Change{})
		if err := c.follow(b.Context()); err != nil {
			b.Fatal(err)
		}
		return c
	}
	b.Run("start", func(b *testing.B) {
		for b.Loop() {
			if st := full().Stats(); st.Engines != engines || st.Records != engines*ranks {
				b.Fatalf("stats are %+v", st)
			}
		}
	})
	b.Run("refresh", func(b *testing.B) {
		c := full()
		for b.Loop() {
			c.note(metadata.Change{})
			if err := c.follow(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		if st := c.Stats(); st.Records != engines*ranks {
			b.Fatalf("%d records were fetched; want each once", st.Records)
		}
	})
}

// fleetOf returns a store with the signed records of so many engines, for an hour.
func fleetOf(t testing.TB, server *redistest.Server, engines, ranks int) metadatatest.Signing {
	t.Helper()
	v := metadatatest.NewVoucher("gateway")
	s := metadatatest.Signing{Redis: metadatatest.RedisAt(t, server, v, "pdrouter"), Voucher: v}
	metadatatest.Parallel(engines, func(i int) {
		for rank := range ranks {
			rec := metadatatest.Record(fmt.Sprintf("prefill-%d", i), 7, ranks, rank)
			rec.Expires = rec.Published.Add(time.Hour)
			if err := s.Put(t.Context(), rec); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// A gateway that starts reads every record once; when it looks again it fetches what has changed, and nothing else.
func TestCacheFetchesWhatIsNew(t *testing.T) {
	const engines, ranks = 100, 2 // more than one batch
	server := redistest.Start(t)
	s := fleetOf(t, server, engines, ranks)
	c := newCache(t, s, Config{})
	look := func(want uint64) {
		t.Helper()
		c.note(metadata.Change{})
		if err := c.follow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := c.Stats(); st.Engines != engines || st.Records != want {
			t.Fatalf("stats are %+v; want %d engines and %d records", st, engines, want)
		}
	}
	look(engines * ranks)
	metadatatest.Put(t, s, metadatatest.Later(metadatatest.Record("prefill-9", 7, ranks, 1), time.Second), nil) // a renewal
	look(engines * ranks)
	metadatatest.Put(t, s, metadatatest.Anew(metadatatest.Record("prefill-7", 7, ranks, 1), time.Second), nil)
	look(engines*ranks + 1)
	metadatatest.Put(t, s, metadatatest.Record("prefill-8", 8, ranks, 0), nil) // a new run
	look(engines*ranks + 2)
	look(engines*ranks + 2)
}

// More engines than are read at once, of any store.
func TestCacheReadsBatchAfterBatch(t *testing.T) {
	const engines = 300
	for name, s := range map[string]metadata.Store{"memory": store.NewMemory(), "redis": metadatatest.RedisAt(t, redistest.Start(t), nil, "pdrouter")} {
		metadatatest.Parallel(engines, func(i int) {
			if err := s.Put(t.Context(), metadatatest.Record(fmt.Sprintf("prefill-%03d", i), 7, 1, 0)); err != nil {
				t.Error(err)
			}
		})
		c := newCache(t, s, Config{Read: time.Minute})
		look(t, c)
		if got := len(c.Engines()); got != engines {
			t.Errorf("%s: the local copy has %d engines; want %d", name, got, engines)
		}
	}
}

// Two gateways on one Redis: each sees what is published through the other, all of it, and in order.
func TestCacheSeesOtherGateways(t *testing.T) {
	const changes = 200
	server := redistest.Start(t)
	v := metadatatest.NewVoucher("gateway")
	var stores [2]metadatatest.Signing
	var caches [2]*Cache
	var told [2]chan time.Time // when the record was published that the copy has
	for i := range stores {
		stores[i] = metadatatest.Signing{Redis: metadatatest.RedisAt(t, server, v, "pdrouter"), Voucher: v}
		caches[i] = newCache(t, stores[i], Config{Refresh: time.Hour})
		told[i] = make(chan time.Time, 2*changes)
		caches[i].Subscribe(func(engine string) {
			if recs, ok := caches[i].Engine(engine); ok {
				told[i] <- recs[0].Published
			}
		})
		metadatatest.Background(t, caches[i].Run)
		metadatatest.Eventually(t, "a subscription", func() bool { return caches[i].Stats().Watches == 1 })
	}
	var took []time.Duration
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	for i := range changes {
		rec = metadatatest.Anew(rec, time.Millisecond)
		begun := time.Now()
		metadatatest.Put(t, stores[i%2], rec, nil)
		for _, heard := range told {
			if got := <-heard; !got.Equal(rec.Published) {
				t.Fatalf("change %d: told of the record of %v; want that of %v", i, got, rec.Published)
			}
		}
		took = append(took, time.Since(begun))
	}
	for i, c := range caches {
		if st := c.Stats(); len(told[i]) != 0 || st.Records != changes || st.Failures != 0 {
			t.Errorf("gateway %d: told %d times more than there were changes; stats are %+v", i, len(told[i]), st)
		}
	}
	slices.Sort(took)
	t.Logf("from put at one gateway to both copies, %d changes: p50 %v, p99 %v", changes, took[changes/2], took[changes*99/100])
}

// BenchmarkCacheRenewals1000x8 is what it costs a gateway that 8,000 records are renewed, each announced by itself: in
// processor time, and as the share of a core that it takes when all of them are renewed in 10 s.
func BenchmarkCacheRenewals1000x8(b *testing.B) {
	const engines, ranks = 1000, 8
	for _, c := range []struct {
		name  string
		every bool // each is fetched, as when half of the lease is over
	}{{"first half of the lease", false}, {"second half", true}} {
		b.Run(c.name, func(b *testing.B) {
			s := fleetOf(b, redistest.Start(b), engines, ranks)
			cache, err := New(s, Config{}, metadatatest.Quiet())
			if err != nil {
				b.Fatal(err)
			}
			cache.note(metadata.Change{})
			if err := cache.follow(b.Context()); err != nil {
				b.Fatal(err)
			}
			var used time.Duration
			by := time.Duration(0)
			for b.Loop() {
				by += time.Second
				news := make([]metadata.Change, engines*ranks)
				metadatatest.Parallel(len(news), func(i int) {
					rec := metadatatest.Later(metadatatest.Record(fmt.Sprintf("prefill-%d", i/ranks), 7, ranks, i%ranks), by)
					rec.Expires = rec.Published.Add(time.Hour)
					if c.every {
						rec = metadatatest.Anew(rec, 0)
						rec.Expires = rec.Published.Add(time.Hour)
					}
					if err := s.Put(b.Context(), rec); err != nil {
						b.Error(err)
					}
					news[i] = metadata.Change{Incarnation: rec.Incarnation, Rank: rec.Rank, Published: rec.Published, Content: rec.Content()}
				})
				begun := metadatatest.ProcessorTime()
				for i, ch := range news {
					if cache.note(ch); i%ranks == ranks-1 { // an engine's ranks are renewed together
						if err := cache.follow(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
				}
				used += metadatatest.ProcessorTime() - begun
			}
			b.ReportMetric(float64(used.Microseconds())/float64(b.N*engines*ranks), "µs-processor/renewal")
			b.ReportMetric(used.Seconds()/float64(b.N)/10, "cores-at-10s")
		})
	}
}
