package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/suites/pair"
	"pdrouter/bench/suites/redis"
	"pdrouter/internal/redisdb"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/redisstore"
)

// The fleet that the suite metadata measures with.
const (
	fleetEngines = 1000
	fleetRanks   = 8
)

// metadataSuite measures the local copy of the records and the registry of handshakes.
func metadataSuite() harness.Suite {
	return harness.Suite{
		Name: "metadata", Brief: fmt.Sprintf("the records of %d engines with %d ranks each in a real Redis", fleetEngines, fleetRanks), Run: measureMetadata,
	}
}

func measureMetadata(ctx context.Context, r *harness.Run) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := redis.StartRedis(ctx)
	if err != nil {
		return err
	}
	defer server.Stop()
	f := &recordFleet{ctx: ctx, server: server}
	defer f.close()
	if err := f.fill(); err != nil {
		return err
	}
	rows, err := f.rows()
	if err != nil {
		return err
	}
	return r.CompareEach(ctx, rows)
}

// recordFleet is the records in Redis, and what reads them.
type recordFleet struct {
	ctx     context.Context
	server  *redis.RedisServer
	vouch   *records.Records
	clients []redisdb.Client
	running sync.WaitGroup
	writer  *redisstore.Store
	last    time.Time // a record was published
}

func (f *recordFleet) close() {
	for _, c := range f.clients {
		_ = c.Close()
	}
	f.running.Wait()
}

// store returns a store with a connection of its own.
func (f *recordFleet) store() (*redisstore.Store, redisdb.Client, error) {
	db, err := f.server.Open()
	if err != nil {
		return nil, nil, err
	}
	f.clients = append(f.clients, db)
	return redisstore.New(db, "bench", f.vouch, slog.New(slog.DiscardHandler)), db, nil
}

// cache returns a copy that follows a store of its own until the returned function is called, and has seen n engines.
func (f *recordFleet) cache(n int) (*cache.Cache, func(), error) {
	store, _, err := f.store()
	if err != nil {
		return nil, nil, err
	}
	c, err := cache.New(store, cache.Config{Refresh: time.Hour}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithCancel(f.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx) // ends with ctx
	}()
	end := func() { stop(); <-ended }
	for c.Stats().Engines < n {
		if err := harness.Pause(ctx, time.Millisecond); err != nil {
			end()
			return nil, nil, err
		}
	}
	return c, end, nil
}

func (f *recordFleet) fill() error {
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return err
	}
	keys, err := keys.Trust(key)
	if err != nil {
		return err
	}
	if f.vouch, err = records.New(key, keys); err != nil {
		return err
	}
	if f.writer, _, err = f.store(); err != nil {
		return err
	}
	for e := range fleetEngines {
		for rank := range fleetRanks {
			if err := f.put(e, rank); err != nil {
				return err
			}
		}
	}
	return nil
}

// put publishes one rank of an engine anew.
func (f *recordFleet) put(engine, rank int) error {
	now := time.Now().UTC()
	if !now.After(f.last) {
		now = f.last.Add(1)
	}
	f.last = now
	inc := metadata.Incarnation{Engine: fmt.Sprintf("prefill-%d", engine), Generation: 1}
	rec := metadata.Record{
		Version: metadata.RecordVersion, Incarnation: inc, Role: metadata.Prefill, Rank: metadata.Rank{TP: rank},
		Size: metadata.Rank{DP: 1, PP: 1, TP: fleetRanks}, Connector: "kvplane", Compatibility: "bench", Agent: inc.ID() + "/" + metadata.Rank{TP: rank}.String(),
		Transport: "tcp", Blob: binary.BigEndian.AppendUint64(make([]byte, 482), uint64(now.UnixNano())), EngineID: inc.ID(), HTTP: "http://127.0.0.1:1", Published: now, Expires: now.Add(time.Hour),
	}
	rec, err := rec.Sign(f.vouch)
	if err != nil {
		return err
	}
	return f.writer.Put(f.ctx, rec)
}

// engineNames are those of the fleet, looked up in an order that no cache of the processor foresees.
func engineNames() []string {
	names := make([]string, fleetEngines)
	for i := range names {
		names[i] = fmt.Sprintf("prefill-%d", i*617%fleetEngines)
	}
	return names
}

func (f *recordFleet) rows() ([]harness.Versus, error) {
	local, _, err := f.cache(fleetEngines) // it ends with the suite
	if err != nil {
		return nil, err
	}
	names := engineNames()
	var lock sync.RWMutex
	plain := map[string]int{}
	for i, name := range names {
		plain[name] = i
	}
	var found int
	change, err := f.change(local)
	if err != nil {
		return nil, err
	}
	pair, err := pair.PairLookup()
	if err != nil {
		return nil, err
	}
	return []harness.Versus{
		{
			Name: "lookup", Unit: "ns", Beside: "map and lock", Goal: 1000, Slice: 50 * time.Millisecond,
			Run: func(n int) error {
				for i := range n {
					if recs, ok := local.Engine(names[i%len(names)]); !ok || len(recs) != fleetRanks {
						return fmt.Errorf("%w: %s has %d records", load.ErrVoid, names[i%len(names)], len(recs))
					}
				}
				return nil
			},
			Limit: func(n int) error {
				for i := range n {
					lock.RLock()
					found += plain[names[i%len(names)]]
					lock.RUnlock()
				}
				return nil
			},
		},
		pair,
		{Name: "start", Unit: "s", Wall: true, Beside: "the bare values", Goal: 5, Run: f.start, Limit: f.fetch},
		change,
	}, nil
}

// start reads the whole fleet into an empty copy.
func (f *recordFleet) start(n int) error {
	for range n {
		_, stop, err := f.cache(fleetEngines)
		if err != nil {
			return err
		}
		stop()
	}
	return nil
}

// fetch reads every value, in as few exchanges as one would.
func (f *recordFleet) fetch(n int) error {
	_, db, err := f.store()
	if err != nil {
		return err
	}
	for range n {
		keys, err := db.Keys(f.ctx, "bench:{*:0/0/*").Result()
		if err != nil {
			return err
		}
		got := 0
		for len(keys) > 0 {
			k := min(500, len(keys))
			values, err := db.MGet(f.ctx, keys[:k]...).Result()
			if err != nil {
				return err
			}
			got, keys = got+len(values), keys[k:]
		}
		if got != fleetEngines*fleetRanks {
			return fmt.Errorf("%w: %d values; want %d", load.ErrVoid, got, fleetEngines*fleetRanks)
		}
	}
	return nil
}

// change publishes at one gateway and waits for another.
func (f *recordFleet) change(local *cache.Cache) (harness.Versus, error) {
	_, db, err := f.store()
	if err != nil {
		return harness.Versus{}, err
	}
	sub := db.Subscribe(f.ctx, "bench-ping")
	if _, err := sub.Receive(f.ctx); err != nil {
		return harness.Versus{}, fmt.Errorf("bench: redis: %w", err)
	}
	heard := sub.Channel()
	run := func(n int) error {
		for i := range n {
			if err := f.put(i%fleetEngines, 0); err != nil {
				return err
			}
			want, name := f.last, fmt.Sprintf("prefill-%d", i%fleetEngines)
			for start := time.Now(); ; time.Sleep(50 * time.Microsecond) {
				if recs, ok := local.Engine(name); ok && recs[0].Published.Equal(want) {
					break
				}
				if time.Since(start) > 10*time.Second {
					return fmt.Errorf("%w: a change did not come", load.ErrVoid)
				}
			}
		}
		return nil
	}
	limit := func(n int) error {
		for range n {
			if err := db.Publish(f.ctx, "bench-ping", "x").Err(); err != nil {
				return err
			}
			select {
			case <-heard:
			case <-time.After(10 * time.Second):
				return errors.New("a message did not come")
			}
		}
		return nil
	}
	return harness.Versus{Name: "change", Unit: "ms", Wall: true, Beside: "a bare message", Goal: 100, Slice: 200 * time.Millisecond, Run: run, Limit: limit}, nil
}
