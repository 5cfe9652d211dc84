package redisstore_test

import (
	"fmt"
	"strings"
	"testing"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
)

// TestRedisConformance: one suite over every way to reach Redis.
func TestRedisConformance(t *testing.T) {
	password := metadatatest.WriteTemp(t, "a-password\n")
	for name, start := range map[string]func(t *testing.T) redisdb.Config{
		"socket": func(t *testing.T) redisdb.Config { return redisdb.Config{Address: redistest.Start(t).Address()} },
		"TLS, client certificate, least ACL": func(t *testing.T) redisdb.Config {
			certs := redistest.NewCerts(t)
			server := redistest.StartTLS(t, certs, append(redistest.User(redistest.Rights), "--user", "default", "off")...)
			return redisdb.Config{Address: server.Address(), TLS: true, CAFile: certs.CA, CertFile: certs.ClientCert,
				CertKeyFile: certs.ClientKey, Username: "gateway", PasswordFile: password}
		},
		"Sentinel": func(t *testing.T) redisdb.Config {
			s := redistest.StartSentinel(t, redistest.User(redistest.Rights)...)
			return redisdb.Config{Sentinel: redisdb.Sentinel{Master: redistest.MasterName, Addresses: s.Addresses()},
				Username: "gateway", PasswordFile: password}
		},
		"Cluster": func(t *testing.T) redisdb.Config {
			c := redistest.StartCluster(t, 0, redistest.User(redistest.Rights, redistest.ClusterRights)...)
			return redisdb.Config{Cluster: c.Addresses(), Username: "gateway", PasswordFile: password}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := start(t)
			v := metadatatest.NewVoucher("gateway")
			n := 0
			metadatatest.StoreConformance(t, func(t *testing.T) metadata.Store {
				n++
				r := metadatatest.RedisOf(t, cfg, v, fmt.Sprintf("pdrouter:test%d", n))
				t.Cleanup(func() {
					if got := r.Quarantined(); got != 0 {
						t.Errorf("%d values were quarantined; want 0", got)
					}
				})
				return metadatatest.Signing{Redis: r, Voucher: v}
			})
		})
	}
}

// The least ACL keeps a gateway from everything that is not its own.
func TestRedisLeastACL(t *testing.T) {
	server := redistest.Start(t, redistest.User(redistest.Rights)...)
	cfg := redisdb.Config{Address: server.Address(), Username: "gateway", PasswordFile: metadatatest.WriteTemp(t, "a-password")}
	s := metadatatest.RedisOf(t, cfg, nil, "other")
	if err := s.Put(t.Context(), metadatatest.Record("prefill-0", 7, 1, 0)); err == nil || !strings.Contains(err.Error(), "permission") {
		t.Errorf("keys of another prefix: got %v; want no permission", err)
	}
	for _, args := range [][]any{{"FLUSHALL"}, {"KEYS", "*"}, {"CONFIG", "GET", "*"}, {"SUBSCRIBE", "other"}, {"GET", "other:x"}, {"APPEND", "pdrouter:x", "y"}} {
		if err := s.DB.Do(t.Context(), args...).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%v: got %v; want NOPERM", args, err)
		}
	}
}
