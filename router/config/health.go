package config

import (
	"fmt"
	"time"
)

// Health says when an engine, or a pair of engines, gets no requests though it can be reached. limits.failures and timeouts.health
// decide when an engine is down, that is, cannot be reached. Zero means the default.
type Health struct {
	// Failures is how many failed requests in a row open an engine's circuit. These are failures: no answer, an answer of 500 or
	// above except 501 and 503, an invalid answer, or a stream that stalls or breaks. 4xx answers are ignored, except a 401 or 403 that
	// refuses the gateway's own credential. Default 5.
	Failures int `yaml:"failures"`
	// PairFailures is how many failed transfers in a row between two engines open the circuit of the pair. Both are then paired with
	// other engines. Default 2.
	PairFailures int `yaml:"pair_failures"`
	// BaseEjectionTime is for how long an open circuit keeps requests away. Then one probe decides: a request for an engine, a handshake for a
	// pair. Each failed probe doubles the time. Each time is shortened at random by up to a quarter. Default 5s.
	BaseEjectionTime time.Duration `yaml:"base_ejection_time"`
	// MaxEjectionTime is the limit of that doubling. Default 1m.
	MaxEjectionTime time.Duration `yaml:"max_ejection_time"`
	// PanicPercent: if more than this percentage of a model's reachable decode engines is ejected, ejection is ignored and all of them get requests
	// (docs/operations.md, panic mode). With 100 it is never ignored: then requests are answered 503 with Retry-After while all are
	// ejected. Default 50.
	PanicPercent int `yaml:"panic_percent"`
	// Overload is for how long an engine that answered 429 or 503 gets no requests, or as long as its Retry-After says if that is
	// more. It doubles each time that the engine refuses again before it has served a request. At most 5s. Default 250ms.
	Overload time.Duration `yaml:"overload"`
	// SlowStart is the time in which the share of requests of an engine grows from 10 % to 100 %. It begins when the engine is added,
	// comes back, or is no longer drained. Engines that are present when the gateway starts have no slow start. 0 is off. Default 30s.
	SlowStart *time.Duration `yaml:"slow_start"`
	// Outliers are engines that are much slower than others of their role.
	Outliers Outliers `yaml:"outliers"`
}

// Outliers says when an engine gets no requests for being slow. The measure is the time of prefill, and of the first token, per prompt
// token, so that long prompts do not count as slow. The time of a whole answer is not measured.
type Outliers struct {
	// LatencyFactor is the factor by which an engine's time must exceed the median of its role. Default 3.
	LatencyFactor float64 `yaml:"latency_factor"`
	// After is for how long it must exceed that. Default 30s.
	After time.Duration `yaml:"after"`
	// Ejected is for how long a slow engine then gets no requests. Default 30s.
	Ejected time.Duration `yaml:"ejected"`
	// Percent is the largest percentage of a role's engines that may be ejected at once; at least one engine if the role has three or more. 0 is off. Default 20.
	Percent *int `yaml:"percent"`
}

func (h Health) withDefaults() Health {
	setDefault(&h.Failures, 5)
	setDefault(&h.PairFailures, 2)
	setDefault(&h.PanicPercent, 50)
	setDefault(&h.BaseEjectionTime, 5*time.Second)
	setDefault(&h.MaxEjectionTime, time.Minute)
	setDefault(&h.Overload, 250*time.Millisecond)
	setDefault(&h.Outliers.After, 30*time.Second)
	setDefault(&h.Outliers.Ejected, 30*time.Second)
	if h.SlowStart == nil {
		h.SlowStart = new(time.Duration)
		*h.SlowStart = 30 * time.Second
	}
	setDefault(&h.Outliers.LatencyFactor, 3)
	if h.Outliers.Percent == nil {
		h.Outliers.Percent = new(int)
		*h.Outliers.Percent = 20
	}
	return h
}

// validate reports mistakes of a section that has its defaults.
func (h Health) validate(v *faults) {
	for _, f := range []struct {
		key string
		d   time.Duration
	}{
		{"base_ejection_time", h.BaseEjectionTime}, {"max_ejection_time", h.MaxEjectionTime}, {"overload", h.Overload}, {"slow_start", *h.SlowStart},
		{"outliers.after", h.Outliers.After}, {"outliers.ejected", h.Outliers.Ejected},
	} {
		if f.d < 0 {
			v.add("health."+f.key, "is "+f.d.String(), "more than 0")
		}
	}
	if h.MaxEjectionTime < h.BaseEjectionTime {
		v.add("health.max_ejection_time", "is "+h.MaxEjectionTime.String(), "no less than health.base_ejection_time, "+h.BaseEjectionTime.String())
	}
	for _, f := range []struct {
		key            string
		n, least, most int
	}{
		{"failures", h.Failures, 1, 1 << 20}, {"pair_failures", h.PairFailures, 1, 1 << 20},
		{"panic_percent", h.PanicPercent, 1, 100}, {"outliers.percent", *h.Outliers.Percent, 0, 100},
	} {
		if f.n < f.least || f.n > f.most {
			v.add("health."+f.key, fmt.Sprintf("is %d", f.n), fmt.Sprintf("%d to %d", f.least, f.most))
		}
	}
	if !(h.Outliers.LatencyFactor > 1) { // and not NaN
		v.add("health.outliers.latency_factor", fmt.Sprintf("is %g", h.Outliers.LatencyFactor), "more than 1")
	}
}
