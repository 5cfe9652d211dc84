package fleet

import (
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/policies"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
)

// NoHandOff is the reason of a request that decode serves alone since prefill engines hand nothing off.
const NoHandOff = policies.Reason("no_transfer_params")

// HandOff is what a stock prefill engine's answers show of whether it hands KV off. It is safe for concurrent use; the zero value is of an
// engine that does.
type HandOff struct {
	noted atomic.Bool // something below may be set; it rarely is, and otherwise mu is not taken

	mu     sync.Mutex
	routes [openai.ShapeCount]health.Breaker // answers without params that were capped at one token, route by route
	why    string                            // why no route does, as a handshake has shown; "" if none has
	until  time.Time                         // then another handshake finds out whether that still holds
}

// handshakeAgain is how long an engine that handed nothing off in a handshake is not asked for another.
const handshakeAgain = 10 * time.Minute

// lets reports whether the engine may be asked to hand off a request of this shape.
func (h *HandOff) lets(s openai.Shape, now time.Time) bool {
	if !h.noted.Load() {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routes[s].Lets(now) && (h.why == "" || !now.Before(h.until))
}

// never says why the engine hands nothing off, whatever the route; "" if it does as far as is known.
func (h *HandOff) never() string {
	if !h.noted.Load() {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !time.Now().Before(h.until) {
		return ""
	}
	return h.why
}

// Handed notes an answer that has handed KV off.
func (h *HandOff) Handed(s openai.Shape) {
	if !h.noted.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.routes[s].OKWhole(time.Now())
}

// Kept notes an answer that has not handed KV off. It returns for how long the engine is not asked on this route; 0 if it still is.
func (h *HandOff) Kept(s openai.Shape, now time.Time, rules health.BreakerRules) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noted.Store(true)
	if !h.routes[s].Fail(health.AnswerFailed, now, rules, 0) {
		return 0
	}
	return h.routes[s].Wait(now)
}

// Keeps notes that a handshake has shown that the engine hands nothing off. It reports whether that is new.
func (h *HandOff) Keeps(why string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.why
	h.noted.Store(true)
	h.why, h.until = why, now.Add(handshakeAgain)
	return was != why
}

// Reset forgets all: the engine may be another run.
func (h *HandOff) Reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noted.Store(false)
	h.routes, h.why = [openai.ShapeCount]health.Breaker{}, ""
}
