package router

import (
	"net"
	"strconv"
	"sync/atomic"

	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// SideChannel is where a stock engine answers questions about its ranks.
type SideChannel struct {
	Host     string
	Port     int
	EngineID string        // of the run that has said so; "" if no run has
	Size     metadata.Rank // as that run has said; zero if no run has
}

// sighting is what the latest look at a side channel has shown. It is never changed.
type sighting struct {
	run    string // the engine id; "" if no run has ever answered or reported
	compat string // "" until the run has answered
	missed int    // looks in a row that got no answer
}

// gone reports whether nobody answers there. The first look without an answer may be an accident.
func (s *sighting) gone() bool { return s.missed >= 2 }

// dead reports whether the channel of this run has answered, and does not any more.
func (s *sighting) dead() bool { return s.gone() && s.compat != "" }

// side is the side channel of a stock engine, and what is known of it.
type side struct {
	host string // of the configuration; "" if the engine's own report counts
	port int
	wake chan struct{} // has room for one: the channel is to be looked at

	seen atomic.Pointer[sighting] // nil until the channel was looked at
}

// newSide returns the side channel of a stock engine. The address was validated.
func newSide(ec config.Engine) *side {
	s := &side{wake: make(chan struct{}, 1)}
	if ec.SideChannel != "" {
		host, port, _ := net.SplitHostPort(ec.SideChannel)
		s.host = host
		s.port, _ = strconv.Atoi(port)
	}
	return s
}

// channel returns where the engine's run of these coordinates is to be asked, and false if that is not known.
func (e *engine) channel(c *connector.PrefillEndpoint) (SideChannel, bool) {
	at := SideChannel{Host: e.side.host, Port: e.side.port}
	if c != nil {
		at.EngineID, at.Size = c.EngineID, metadata.Rank{DP: 1, PP: c.PP, TP: c.TP}
		if at.Host == "" {
			at.Host, at.Port = c.Host, c.Port
		}
	}
	return at, at.Host != ""
}

// sighting returns what is known of the side channel of the engine's present run; the zero value is nothing.
func (e *engine) sighting() sighting {
	if e.side == nil {
		return sighting{}
	}
	s := e.side.seen.Load()
	if s == nil {
		return sighting{}
	}
	if e.origin.role == metadata.Prefill { // its answers name its run; of a decode engine only the channel does
		if c := e.coord.Load(); c == nil || c.EngineID != s.run {
			return sighting{}
		}
	}
	return *s
}

// look has the side channel looked at soon. It never blocks.
func (e *engine) look() {
	if e.side != nil {
		wake(e.side.wake)
	}
}

// incarnation names the run of a stock engine that the router knows of.
func (e *engine) incarnation() metadata.Incarnation {
	return metadata.Incarnation{Engine: e.name, Generation: e.generation.Load()}
}

// known returns the engine id of the run that pairs of the engine were warmed with, "" if that is not known. A prefill
// engine's answers name its run, so with one of these coordinates none was warmed while they are nil; of a decode engine
// only its channel tells.
func (e *engine) known(c *connector.PrefillEndpoint, seen *sighting) string {
	switch {
	case c != nil:
		return c.EngineID
	case e.origin.role == metadata.Prefill || seen == nil:
		return ""
	}
	return seen.run
}
