package fleet

import (
	"net"
	"strconv"
	"sync/atomic"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// run is which run of an engine answers, and what that run says.
type run struct {
	Generation   atomic.Uint64                             // grows whenever another run of an engine that does not publish is seen
	Endpoint     atomic.Pointer[connector.PrefillEndpoint] // of a stock prefill engine; nil until it has answered
	Channel      *ChannelState                             // of a stock engine; nil of others
	Reported     atomic.Pointer[Reported]                  // what it serves; nil until it has said so
	cacheSize    atomic.Pointer[CacheSize]                 // nil until it has said so
	AdapterSlots atomic.Pointer[AdapterSlots]              // nil where no policy asks, or if it does not say
	Relist       chan struct{}                             // has its models listed again; has a buffer of one
	EventsOpen   atomic.Bool                               // its event stream is open
	EventStreams atomic.Uint64                             // how often that stream began, broke or had a gap
	pins         atomic.Uint64                             // the generation of the latest run that has shown that it pins; 0 if none has
}

// Pins reports whether the engine's run has shown that it pins the blocks of split requests that it has answered: it has vLLM's
// bidirectional_kv_xfer.
func (r *run) Pins() bool { return r.pins.Load() == r.Generation.Load() }

// NotePins notes that the run does. It reports whether that is new.
func (r *run) NotePins() bool {
	g := r.Generation.Load()
	return r.pins.Swap(g) != g
}

// SideChannel is where a stock engine answers questions about its ranks.
type SideChannel struct {
	Host     string
	Port     int
	EngineID string        // of the run that has said so; "" if no run has
	Size     metadata.Rank // as that run has said; zero if no run has
}

// ChannelReport is the result of the latest check of a side channel. It is never changed.
type ChannelReport struct {
	Run           string // the engine id; "" if no run has ever answered or reported
	Compatibility string // "" until the run has answered
	Missed        int    // checks in a row without an answer
}

// Silent reports whether the side channel does not answer. One missed check alone does not count.
func (s *ChannelReport) Silent() bool { return s.Missed >= 2 }

// Dead reports whether the channel of this run has answered before, and no longer does.
func (s *ChannelReport) Dead() bool { return s.Silent() && s.Compatibility != "" }

// ChannelState is the side channel of a stock engine, and what is known of it.
type ChannelState struct {
	host string // of the configuration; "" if the engine's own report counts
	port int
	Wake chan struct{} // buffer of one; asks for a check of the channel

	Latest atomic.Pointer[ChannelReport] // nil until the channel was looked at
}

// newChannelState returns the side channel of a stock engine. The address was validated.
func newChannelState(ec config.Engine) *ChannelState {
	s := &ChannelState{Wake: make(chan struct{}, 1)}
	if ec.SideChannel != "" {
		host, port, _ := net.SplitHostPort(ec.SideChannel)
		s.host = host
		s.port, _ = strconv.Atoi(port)
	}
	return s
}

// SideChannel returns the side channel of the engine's run with this endpoint, and false if it is not known.
func (e *Engine) SideChannel(c *connector.PrefillEndpoint) (SideChannel, bool) {
	at := SideChannel{Host: e.Channel.host, Port: e.Channel.port}
	if c != nil {
		at.EngineID, at.Size = c.EngineID, metadata.Rank{DP: 1, PP: c.PP, TP: c.TP}
		if at.Host == "" {
			at.Host, at.Port = c.Host, c.Port
		}
	}
	return at, at.Host != ""
}

// ChannelReport returns what is known of the side channel of the engine's present run; the zero value is nothing.
func (e *Engine) ChannelReport() ChannelReport {
	if e.Channel == nil {
		return ChannelReport{}
	}
	s := e.Channel.Latest.Load()
	if s == nil {
		return ChannelReport{}
	}
	if e.Origin.Role == metadata.Prefill { // its answers name its run; of a decode engine only the channel does
		if c := e.Endpoint.Load(); c == nil || c.EngineID != s.Run {
			return ChannelReport{}
		}
	}
	return *s
}

// PollSoon asks for a check of the side channel soon. It never blocks.
func (e *Engine) PollSoon() {
	if e.Channel != nil {
		background.Notify(e.Channel.Wake)
	}
}

// Incarnation names the run of a stock engine that the router knows of.
func (e *Engine) Incarnation() metadata.Incarnation {
	return metadata.Incarnation{Engine: e.Name, Generation: e.Generation.Load()}
}

// StockRuns names the runs of two stock engines that the router knows of.
func StockRuns(prefill, decode *Engine) metadata.Pair {
	return metadata.Pair{Prefill: prefill.Incarnation(), Decode: decode.Incarnation()}
}

// KnownRun returns the engine id of the run that pairs of the engine were warmed with, "" if that is not known. A prefill
// engine's answers name its run, so no pair was warmed while its endpoint c is nil. Of a decode engine only its channel
// tells.
func (e *Engine) KnownRun(c *connector.PrefillEndpoint, seen *ChannelReport) string {
	switch {
	case c != nil:
		return c.EngineID
	case e.Origin.Role == metadata.Prefill || seen == nil:
		return ""
	}
	return seen.Run
}
