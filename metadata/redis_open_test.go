package metadata_test

import (
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9"

	"pdrouter/metadata"
	"pdrouter/metadata/redisstore"
)

// TestMain opens the store over Redis for tests inside of package metadata, which redisstore imports.
func TestMain(m *testing.M) {
	metadata.OpenRedis = func(db redis.UniversalClient, prefix string, v metadata.Voucher, log *slog.Logger) metadata.RedisStore {
		return redisstore.New(db, prefix, v, log)
	}
	m.Run()
}
