package telemetry

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Registry exports the metrics of the table and those of the Go runtime and the process, and no others.
type Registry struct {
	prometheus.Gatherer

	all     *prometheus.Registry
	metrics map[string]described
}

// described is a row of the table with what client_golang makes of it.
type described struct {
	Metric
	desc *prometheus.Desc
}

// New returns a registry in which nothing has been measured yet.
func New() *Registry {
	r := &Registry{all: prometheus.NewRegistry(), metrics: map[string]described{}}
	r.Gatherer = r.all
	r.all.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, s := range Subjects() {
		for _, m := range s.Metrics {
			r.metrics[m.Name] = described{m, prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)}
		}
	}
	return r
}

// Counter returns the counters of a metric of the table, by its labels in their order. Call it once for each name. It panics if
// the table has no such counter.
func (r *Registry) Counter(name string) *prometheus.CounterVec {
	m := r.metric(name, Counter)
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
	r.all.MustRegister(c)
	return c
}

// Histogram is Counter for histograms of seconds.
func (r *Registry) Histogram(name string) *prometheus.HistogramVec {
	m := r.metric(name, Histogram)
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: m.Name, Help: m.Help,
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, m.Labels)
	r.all.MustRegister(h)
	return h
}

func (r *Registry) metric(name string, kind Kind) Metric {
	m, ok := r.metrics[name]
	if !ok || m.Kind != kind {
		panic(fmt.Sprintf("telemetry: the table has no %s %s", kind, name))
	}
	return m.Metric
}

// Collect has read called at every scrape. It reports the values of metrics that are not counted one by one. It must be safe for
// concurrent use.
func (r *Registry) Collect(read func(*Scrape)) { r.all.MustRegister(collector{r.metrics, read}) }

// Handler serves the metrics in the formats of Prometheus.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.all, promhttp.HandlerOpts{Registry: r.all, EnableOpenMetrics: true}) // which has exemplars
}

// collector is a prometheus.Collector. It describes nothing, as which series there are is known at a scrape alone.
type collector struct {
	metrics map[string]described
	read    func(*Scrape)
}

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c.read(&Scrape{c.metrics, out}) }

// Scrape takes the values of metrics at one scrape. A name, a kind or labels that are not in the table
// make the scrape fail.
type Scrape struct {
	metrics map[string]described
	out     chan<- prometheus.Metric
}

// Set reports the value of a counter or a gauge. The labels have the table's order.
func (s *Scrape) Set(name string, value float64, labels ...string) {
	m, kind := s.metric(name, false), prometheus.GaugeValue
	if m.Kind == Counter {
		kind = prometheus.CounterValue
	}
	one, err := prometheus.NewConstMetric(m.desc, kind, value, labels...)
	s.send(m, one, err)
}

// SetBool reports a boolean gauge.
func (s *Scrape) SetBool(name string, value bool, labels ...string) {
	v := 0.0
	if value {
		v = 1
	}
	s.Set(name, v, labels...)
}

// SetHistogram reports a histogram: how many values there were, their sum, and how many were at most each bound.
func (s *Scrape) SetHistogram(name string, count uint64, sum float64, atMost map[float64]uint64, labels ...string) {
	m := s.metric(name, true)
	one, err := prometheus.NewConstHistogram(m.desc, count, sum, atMost, labels...)
	s.send(m, one, err)
}

func (s *Scrape) metric(name string, histogram bool) described {
	m, ok := s.metrics[name]
	if !ok || histogram != (m.Kind == Histogram) {
		m.desc = prometheus.NewInvalidDesc(fmt.Errorf("telemetry: the table has no %s of this kind", name))
	}
	return m
}

func (s *Scrape) send(m described, one prometheus.Metric, err error) {
	if err != nil {
		one = prometheus.NewInvalidMetric(m.desc, err)
	}
	s.out <- one
}
