package metadatatest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/redisstore"
)

// Redis is a store over a real server, with its keys.
type Redis struct {
	*redisstore.Store
	DB     redis.UniversalClient
	prefix string
}

// RedisAt returns a store over this server.
func RedisAt(t testing.TB, s *redistest.Server, v metadata.Voucher, prefix string) *Redis {
	t.Helper()
	return openRedis(t, redisdb.Config{Address: s.Address()}, v, prefix)
}

// RedisOf returns a store over what is configured, for tests that are not about time.
func RedisOf(t testing.TB, cfg redisdb.Config, v metadata.Voucher, prefix string) *Redis {
	t.Helper()
	cfg.Timeout, cfg.Dial = 5*time.Second, 5*time.Second
	return openRedis(t, cfg, v, prefix)
}

func openRedis(t testing.TB, cfg redisdb.Config, v metadata.Voucher, prefix string) *Redis {
	t.Helper()
	db, err := redisdb.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &Redis{redisstore.New(db, prefix, v, Quiet()), db, prefix}
}

// IndexKey returns the key of the index of engines.
func (s *Redis) IndexKey() string { return s.prefix + ":engines" }

// EngineKey returns the key of an engine's hash.
func (s *Redis) EngineKey(engine string) string { return s.prefix + ":{" + engine + "}" }

// RankKey returns the key of one rank's record.
func (s *Redis) RankKey(inc metadata.Incarnation, rank string) string {
	return fmt.Sprintf("%s:%020d:%s", s.EngineKey(inc.Engine), inc.Generation, rank)
}

// Signing signs what is put, as the routes do.
type Signing struct {
	*Redis
	Voucher metadata.Voucher
}

// Put implements metadata.Store.
func (s Signing) Put(ctx context.Context, rec metadata.Record) error {
	rec, err := rec.Sign(s.Voucher)
	if err != nil {
		return err
	}
	return s.Redis.Put(ctx, rec)
}
