package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
)

// metadataMetrics reads what the local copy of the records, its store and the watches have counted whenever somebody
// scrapes.
type metadataMetrics struct {
	cache       func() cache.Stats
	watches     func() routes.WatchStats // nil without an agents' listener
	quarantined func() uint64            // nil for a store that nobody else writes to

	engines, age, behind, records, failures *prometheus.Desc
	subscriptions, deaf, suspect            *prometheus.Desc
	watching, syncs                         *prometheus.Desc
}

func newMetadataMetrics(cache func() cache.Stats, watches func() routes.WatchStats, quarantined func() uint64) *metadataMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, labels, nil)
	}
	return &metadataMetrics{
		cache: cache, watches: watches, quarantined: quarantined,
		engines:       desc("metadata_engines", "Engines with a record that has not expired."),
		age:           desc("metadata_age_seconds", "Since the whole store was last read; missing before the first time."),
		behind:        desc("metadata_behind", "1 while the store cannot be read and the last good copy is used."),
		records:       desc("metadata_records_read_total", "Records that were new: fetched, decoded and checked."),
		failures:      desc("metadata_read_failures_total", "Reads of the store that failed."),
		subscriptions: desc("metadata_subscriptions_total", "Subscriptions to the store's announcements; each after the first followed a loss."),
		deaf:          desc("metadata_subscription_failures_total", "Subscriptions that could not be made, were lost, or did not hear what was announced."),
		suspect:       desc("metadata_quarantined_total", "Values in Redis that could not be trusted or understood."),
		watching:      desc("metadata_watches", "Open streams of GET /metadata/v1/watch."),
		syncs:         desc("metadata_watch_syncs_total", "Times readers of watches were made to read everything again, by why.", "reason"),
	}
}

// Describe implements prometheus.Collector.
func (m *metadataMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.engines, m.age, m.behind, m.records, m.failures, m.subscriptions, m.deaf, m.suspect,
		m.watching, m.syncs} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metadataMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	s := m.cache()
	gauge(m.engines, float64(s.Engines))
	if s.Age > 0 {
		gauge(m.age, s.Age.Seconds())
	}
	gauge(m.behind, oneIf(s.Behind))
	count(m.records, s.Records)
	count(m.failures, s.Failures)
	count(m.subscriptions, s.Watches)
	count(m.deaf, s.Deaf)
	if m.quarantined != nil {
		count(m.suspect, m.quarantined())
	}
	if m.watches != nil {
		w := m.watches()
		gauge(m.watching, float64(w.Open))
		count(m.syncs, w.Lost, "store")
		count(m.syncs, w.Slow, "slow_reader")
	}
}
