package cache

import (
	"log/slog"
	"time"
)

// outageSaid is how often the log says that something still fails.
const outageSaid = time.Minute

// outage tells the log of something that fails again and again: when it begins, once a minute, and when it is over. It is
// for one goroutine. The zero value has nothing to tell.
type outage struct {
	since    time.Time // zero if all is well
	said     time.Time
	failures int
}

// failed counts one more failure.
func (o *outage) failed(log *slog.Logger, msg string, err error) {
	now := time.Now()
	o.failures++
	switch {
	case o.since.IsZero():
		o.since = now
		log.Warn(msg, "err", err)
	case now.Sub(o.said) >= outageSaid:
		log.Warn(msg, "err", err, "failures", o.failures, "for", now.Sub(o.since).Round(time.Second))
	default:
		return
	}
	o.said = now
}

// over says that all is well again.
func (o *outage) over(log *slog.Logger, msg string) {
	if !o.since.IsZero() {
		log.Info(msg+": over", "failures", o.failures, "after", time.Since(o.since).Round(time.Millisecond))
		*o = outage{}
	}
}
