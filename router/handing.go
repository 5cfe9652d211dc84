package router

import (
	"bytes"
	"errors"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet"
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
func (r *Router) handsNothing(c *fleet.Pair, why string) error {
	if c.Prefill.HandOff.Keeps(why, time.Now()) {
		r.log.Warn("prefill engine hands nothing off", "engine", c.Prefill.Name, "err", &metadata.Unpairable{Reason: metadata.NoConnector, Text: c.Prefill.Name + why})
	}
	return errHandsNothing
}
