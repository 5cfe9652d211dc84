package fleet

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
)

// Pair is one prefill and one decode engine of a model, and what the router knows of the two together. It is safe
// for concurrent use.
type Pair struct {
	Model           string
	Connector       connector.Connector
	Prefill, Decode *Engine
	revisions       error                         // why the two differ in weights or version, as the configuration says; nil if they do not
	compatibility   atomic.Pointer[compatibility] // nil until both have published records
	Wanted          health.DecayingCounter        // requests that chose the two
	broken          atomic.Bool                   // transfers failed in a row; the two are not paired until a handshake succeeds
	opened          atomic.Uint64                 // how often that was so

	mu       sync.Mutex
	pair     metadata.Pair  // the runs that the rest is about
	failures int            // handshakes that failed in a row
	err      error          // of the last one
	next     time.Time      // when the background tries again, if there were failures
	circuit  health.Breaker // of transfers; a handshake is its probe
}

// compatibility says whether two engines that publish records can be paired.
type compatibility struct {
	of  recordsKey
	err error
}

// recordsKey identifies the records that were compared, by their addresses. Records are never changed: an engine that publishes again, even
// in the same generation, has new ones.
type recordsKey struct {
	prefill, decode           *metadata.Record // the first of each
	prefillRanks, decodeRanks int
}

// The pause after the first failed handshake doubles with each further one up to the longest.
const (
	handshakePause   = 100 * time.Millisecond
	handshakeLongest = 10 * time.Second
)

// Weight is the importance of a handshake of the pair: recent requests that chose it, plus the requests in flight at both engines. So a new
// engine shakes hands with its busiest peers first.
func (c *Pair) Weight(now time.Time) int {
	return c.Wanted.Count(now) + int(c.Prefill.InFlight.Load()) + int(c.Decode.InFlight.Load())
}

// HandshakeBegun notes that a handshake of these runs begins.
func (c *Pair) HandshakeBegun(pair metadata.Pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != pair {
		c.pair, c.failures, c.err = pair, 0, nil
	}
}

// HandshakeEnded notes how a handshake ended, and returns the pause before the next if it failed. It ignores results of earlier runs.
func (c *Pair) HandshakeEnded(pair metadata.Pair, err error, now time.Time, rules health.BreakerRules) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != pair {
		return 0
	}
	if c.err = err; err == nil {
		c.failures = 0
		c.circuit.Close(now)
		c.broken.Store(false)
		return 0
	}
	c.circuit.Reopen(now, rules, rand.Float64())
	pause := handshakeLongest
	if c.failures < 8 {
		pause = min(pause, handshakePause<<c.failures)
	}
	c.failures++
	c.next = now.Add(pause)
	return pause
}

// HandshakePause returns how long the background has to wait before it may try these runs.
func (c *Pair) HandshakePause(pair metadata.Pair, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.circuit.At(now) != health.Closed { // its next handshake is the probe
		return c.circuit.Wait(now)
	}
	if c.pair != pair || c.failures == 0 {
		return 0
	}
	return c.next.Sub(now)
}

// Reset forgets failures: an engine is down, and they say nothing about it after it comes back.
func (c *Pair) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures, c.err, c.circuit = 0, nil, health.Breaker{}
	c.broken.Store(false)
}

// TransferEnded notes how a transfer between the two has ended. It reports whether they are not paired any more by it, and
// for how long.
func (c *Pair) TransferEnded(good bool, now time.Time, rules health.BreakerRules) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if good {
		if c.circuit.At(now) == health.Closed {
			c.circuit.OK(health.AnswerFailed, now)
		}
		return 0, false
	}
	if c.circuit.At(now) != health.Closed || !c.circuit.Fail(health.AnswerFailed, now, rules, rand.Float64()) {
		return 0, false
	}
	c.broken.Store(true)
	c.opened.Add(1)
	return c.circuit.Wait(now), true
}

// Opened returns how often transfers between the two failed in a row.
func (c *Pair) Opened() uint64 { return c.opened.Load() }

// Circuit returns the state of its circuit.
func (c *Pair) Circuit(now time.Time) health.Circuit {
	if !c.broken.Load() {
		return health.Closed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.circuit.At(now)
}

// LastError returns the error of the last handshake of these runs.
func (c *Pair) LastError(pair metadata.Pair) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != pair {
		return nil
	}
	return c.err
}
