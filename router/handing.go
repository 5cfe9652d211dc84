package router

import (
	"bytes"
	"errors"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
)

// sawHandOff learns from a prefill leg with an answer of 200 whether its engine hands off on this route. An answer that ended for a reason
// of its own, such as a stop token, says nothing: stock engines hand off only what was cut at the limit.
func (r *Router) sawHandOff(l *call, conn connector.Connector, s openai.Shape, k dispatch.EventKind) {
	if conn.Traits().Stock == nil {
		return
	}
	switch {
	case k == dispatch.EvPrefillUsable:
		l.engine.handing.handed(s)
	case k == dispatch.EvPrefillUnusable, k == dispatch.EvPrefillBare && capped(l.body):
		if pause := l.engine.handing.kept(s, time.Now(), pairRules(r.now().cfg.Health)); pause > 0 {
			r.log.Warn("prefill engine hands nothing off", "engine", l.engine.name, "route", s.String(), "pause_seconds", pause.Seconds())
		}
	}
}

// capped reports whether an answer of one token ended at its limit. In a JSON string these bytes would have backslashes.
func capped(answer []byte) bool {
	for _, end := range []string{`"finish_reason":"length"`, `"stop_reason":"max_tokens"`, `"status":"incomplete"`} {
		if bytes.Contains(answer, []byte(end)) {
			return true
		}
	}
	return false
}

// errHandsNothing says that a prefill engine does not hand off what a handshake asked for.
var errHandsNothing = errors.New("router: probe: prefill hands nothing off")

// handsNothing ends a handshake with a prefill engine that hands nothing off: decode serves alone until it is another run.
func (r *Router) handsNothing(c *couple, why string) error {
	if c.prefill.handing.keeps(why, time.Now()) {
		r.log.Warn("prefill engine hands nothing off", "engine", c.prefill.name, "err", &metadata.Unpairable{Reason: metadata.NoConnector, Text: c.prefill.name + why})
	}
	return errHandsNothing
}
