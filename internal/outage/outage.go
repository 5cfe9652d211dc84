// Package outage tells the log of something that fails again and again, such as exchanges with Redis: when it begins, once a minute, and when it is
// over. It does not try anything again: its callers do.
package outage

import (
	"log/slog"
	"time"
)

// every is how often the log says that something still fails.
const every = time.Minute

// Outage is what fails. It is for one goroutine. The zero value has nothing to tell.
type Outage struct {
	since    time.Time // zero if all is well
	said     time.Time
	failures int
}

// Failed counts one more failure. msg says what fails and what works all the same.
func (o *Outage) Failed(log *slog.Logger, msg string, err error, fields ...any) {
	now := time.Now()
	o.failures++
	switch {
	case o.since.IsZero():
		o.since = now
		log.Warn(msg, append(fields, "err", err)...)
	case now.Sub(o.said) >= every:
		log.Warn(msg, append(fields, "err", err, "failures", o.failures, "for_seconds", now.Sub(o.since).Round(time.Second).Seconds())...)
	default:
		return
	}
	o.said = now
}

// Over says that all is well again, if it was not.
func (o *Outage) Over(log *slog.Logger, msg string, fields ...any) {
	if !o.since.IsZero() {
		log.Info(msg, append(fields, "failures", o.failures, "after_seconds", time.Since(o.since).Round(time.Millisecond).Seconds())...)
		*o = Outage{}
	}
}
