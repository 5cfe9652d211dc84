package router

import (
	"bytes"
	"errors"
	"time"

	"pdrouter/metadata"
)

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
