package gateway

import (
	"time"

	"pdrouter/internal/fleetview"
	"pdrouter/internal/limits"
	"pdrouter/internal/reload"
	"pdrouter/internal/shared"
	"pdrouter/internal/telemetry"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/redisstore"
	"pdrouter/metadata/routes"
)

// collect reports what the parts of the gateway count themselves. It is called at every scrape.
func (g *Gateway) collect(out *telemetry.Scrape) {
	collectRouter(out, g.router.Stats())
	collectLimits(out, g.limiter.Stats())
	collectSources(out, g.engines.Engines(), g.engines.Stats())
	collectMetadata(out, g.cache.Stats(), g.agentRoutes.Watches())
	if inRedis, ok := g.store.(*redisstore.Store); ok {
		out.Set("pdrouter_metadata_quarantined_total", float64(inRedis.Quarantined()))
	}
	refused := map[string]uint64{"engines": g.overrides.Refused(), "load": 0}
	if g.loads != nil {
		refused["load"] = g.loads.Refused()
	}
	collectShared(out, g.responses.Stats(), refused)
	collectKeySets(out, g.keySets())
	collectCredentials(out, g.credentialStats())
	if g.tracing != nil {
		collectTracing(out, g.tracing.Stats())
	}
	collectConfig(out, g.reloads.stats(), g.current.Load().l.Digest)
}

func collectLimits(out *telemetry.Scrape, s limits.Stats) {
	for limit, n := range s.Refused {
		out.Set("pdrouter_rate_limited_total", float64(n), limit)
	}
	out.Set("pdrouter_limits_tenants", float64(s.Tenants))
	out.Set("pdrouter_limits_exchange_failures_total", float64(s.Failures))
	out.SetBool("pdrouter_limits_alone", s.Behind)
}

func collectSources(out *telemetry.Scrape, engines []fleetview.Engine, stats fleetview.Stats) {
	type counted struct {
		fleetview.List
		from string
	}
	count := map[counted]int{}
	for _, e := range engines {
		if !e.Removed {
			count[counted{e.List, e.From}]++
		}
	}
	for at, n := range count {
		out.Set("pdrouter_source_engines", float64(n), at.Model, at.Key, at.from)
	}
	one := func(at fleetview.List, failures uint64, good time.Time, stale bool) {
		out.Set("pdrouter_source_failures_total", float64(failures), at.Model, at.Key)
		out.SetBool("pdrouter_source_stale", stale, at.Model, at.Key)
		if !good.IsZero() {
			out.Set("pdrouter_source_age_seconds", time.Since(good).Seconds(), at.Model, at.Key)
		}
	}
	for at, s := range stats.DNS {
		one(at, s.Failures, s.Good, s.Stale)
		out.Set("pdrouter_source_refused_addresses", float64(s.Refused), at.Model, at.Key)
	}
	for at, s := range stats.Files {
		one(at, s.Failures, s.Good, s.Bad)
	}
	for at, s := range stats.Pods {
		one(at, s.Failures, s.Good, s.Stale)
	}
	out.Set("pdrouter_source_changes_failed_total", float64(stats.Rejected))
}

func collectMetadata(out *telemetry.Scrape, s cache.Stats, w routes.WatchStats) {
	out.Set("pdrouter_metadata_engines", float64(s.Engines))
	if s.Age > 0 {
		out.Set("pdrouter_metadata_age_seconds", s.Age.Seconds())
	}
	out.SetBool("pdrouter_metadata_behind", s.Behind)
	out.Set("pdrouter_metadata_records_read_total", float64(s.Records))
	out.Set("pdrouter_metadata_read_failures_total", float64(s.Failures))
	out.Set("pdrouter_metadata_subscriptions_total", float64(s.Watches))
	out.Set("pdrouter_metadata_subscription_failures_total", float64(s.Deaf))
	out.Set("pdrouter_metadata_watches", float64(w.Open))
	out.Set("pdrouter_metadata_watch_syncs_total", float64(w.Lost), "store")
	out.Set("pdrouter_metadata_watch_syncs_total", float64(w.Slow), "slow_reader")
}

func collectShared(out *telemetry.Scrape, responses shared.CacheStats, refused map[string]uint64) {
	out.Set("pdrouter_shared_responses", float64(responses.Known))
	out.Set("pdrouter_shared_waiting", float64(responses.Waiting))
	out.Set("pdrouter_shared_failures_total", float64(responses.Failures))
	out.Set("pdrouter_shared_dropped_total", float64(responses.Dropped))
	out.Set("pdrouter_shared_late_total", float64(responses.Late))
	out.SetBool("pdrouter_shared_behind", responses.Behind)
	out.Set("pdrouter_shared_refused_total", float64(responses.Refused), "responses")
	for what, n := range refused {
		out.Set("pdrouter_shared_refused_total", float64(n), what)
	}
}

func collectKeySets(out *telemetry.Scrape, sets []reload.IssuerSet) {
	for _, set := range sets {
		s := set.Stats()
		out.Set("pdrouter_jwks_keys", float64(s.Keys), set.Audience, set.Issuer)
		if s.Age > 0 {
			out.Set("pdrouter_jwks_age_seconds", s.Age.Seconds(), set.Audience, set.Issuer)
		}
		out.SetBool("pdrouter_jwks_stale", s.Stale, set.Audience, set.Issuer)
		out.Set("pdrouter_jwks_fetches_total", float64(s.Fetches), set.Audience, set.Issuer)
		out.Set("pdrouter_jwks_fetch_failures_total", float64(s.Failures), set.Audience, set.Issuer)
	}
}

func collectCredentials(out *telemetry.Scrape, s reload.Stats) {
	out.Set("pdrouter_credentials_reload_failures_total", float64(s.Failures))
	out.Set("pdrouter_credentials_reload_age_seconds", s.Age.Seconds())
}

func collectConfig(out *telemetry.Scrape, s reloadCount, digest string) {
	out.Set("pdrouter_config_reloads_total", float64(s.Applied), "applied")
	out.Set("pdrouter_config_reloads_total", float64(s.Refused), "refused")
	out.Set("pdrouter_config_applied_timestamp_seconds", float64(s.At.UnixMilli())/float64(time.Second/time.Millisecond))
	out.SetBool("pdrouter_config_refused", s.Behind)
	out.Set("pdrouter_config_info", 1, digest)
}
