// Package router is the HTTP edge and the life of one request: it splits a request into a prefill and a decode
// leg, talks to the engines, and relays the answer. It chooses nothing (package policies) and moves no KV
// (the engines, or package kvplane inside them).
package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/auth"
	"pdrouter/metadata"
	"pdrouter/policies"
)

// Planner chooses the engines of a request. It must not block and be safe for concurrent use.
type Planner interface {
	Choose(policies.Request, policies.Fleet, policies.Draw) policies.Choice
}

// Clients says who calls, from the value of the Authorization header. It must not block and be safe for concurrent
// use. An error with a method HTTPStatus() int that returns 403 or 503 is answered with that, every other with 401; its
// Challenge() string, if it has one, is the answer's WWW-Authenticate, and of a 503 its Reason() string the reason.
type Clients interface {
	Authenticate(authorization string) (auth.Principal, error)
}

// Records is the local copy of the engines' metadata: Engine never waits. It must be safe for concurrent use.
type Records interface {
	Engine(name string) ([]metadata.Record, bool)
}

// Parts are what a router is built from. The zero value of each is usable, with the meaning given.
type Parts struct {
	Planner Planner                // nil: policies.Default()
	Clients Clients                // nil: everybody may call
	Limits  Limiter                // nil: nobody is limited
	Records Records                // nil: no engine of connector kvplane can be paired
	Stock   Stock                  // asks stock engines for their ranks; nil: they are not asked
	Token   func() (string, error) // bearer token for the engines' control routes; nil: none is sent
	Tickets Enroller               // signs both legs' tickets (connector kvplane); nil: legs carry none
	Observe func(Summary)          // called once per finished request, from many goroutines; must not block
	// Refused is called once per request that was answered before it was admitted, so without a Summary: bad framing,
	// route, credentials, body or model. reason is one of the code's own. It must not block.
	Refused func(status int, reason string)
	Log     *slog.Logger // nil: nothing is logged
}

// Router serves clients and owns every connection to the engines. New makes one; Run must run while Serve does.
type Router struct {
	cfg     Config
	parts   Parts
	log     *slog.Logger
	fleet   *fleet
	gone    *goneWatcher
	pairs   *metadata.Pairs
	books   *books
	recent  *recent
	stir    chan struct{} // has room for one: pairs are to be looked at
	control *http.Client  // for the engines' control routes
	limits  bodyLimits

	letters sync.Pool // of *letter
	rooms   sync.Pool // of *streamRoom

	draining atomic.Bool
	live     live

	// Legs may outlive their requests: they end with legs, and ended waits for them.
	legs     context.Context
	stopLegs context.CancelCauseFunc
	ended    sync.WaitGroup
	held     leashes      // of the requests' own legs
	running  atomic.Int64 // legs that run on after their requests

	stranded atomic.Uint64 // how often KV may have been left with an engine for nobody
}

// New returns a router that has connected to nothing yet. The configuration is validated and copied.
func New(cfg Config, parts Parts) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("router: config: %w", err)
	}
	cfg = cfg.withDefaults()
	if parts.Planner == nil {
		parts.Planner = policies.Default()
	}
	if parts.Log == nil {
		parts.Log = slog.New(slog.DiscardHandler)
	}
	f, err := newFleet(cfg)
	if err != nil {
		return nil, err
	}
	r := &Router{
		cfg:     cfg,
		parts:   parts,
		log:     parts.Log,
		fleet:   f,
		gone:    newGoneWatcher(),
		books:   newBooks(4 * cfg.Limits.Recent),
		stir:    make(chan struct{}, 1),
		recent:  newRecent(cfg.Limits.Recent),
		control: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}},
		limits: bodyLimits{
			N: cfg.Limits.N, Prompts: cfg.Limits.Prompts, Stop: cfg.Limits.Stop, Logprobs: cfg.Limits.Logprobs,
			Strict: cfg.Strict,
		},
	}
	r.legs, r.stopLegs = context.WithCancelCause(context.Background())
	r.pairs, err = metadata.NewPairs(metadata.PairsConfig{
		Timeout: cfg.Timeouts.Probe, Concurrency: cfg.Limits.Handshakes, PerEngine: cfg.Limits.HandshakesPerEngine,
	}, r.shake)
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	return r, nil
}

// Close ends what outlives requests: handshakes, idle connections, and legs that run on, which get the time of an ending,
// or that of draining if it is less. Serve must have returned. It is safe to call twice.
func (r *Router) Close() {
	r.pairs.Close()
	late := time.AfterFunc(min(r.cfg.Timeouts.Ending, r.cfg.Timeouts.Drain), func() {
		r.stopLegs(errStopped)
		r.held.cut(errStopped)
	})
	r.ended.Wait()
	late.Stop()
	r.stopLegs(errStopped)
	r.gone.Close()
	r.fleet.close()
	r.control.CloseIdleConnections()
}

// The causes with which a leg is ended.
var (
	errStopped      = errors.New("the router stops")
	errEnded        = errors.New("nobody waits for this leg")
	errInterrupted  = errors.New("interrupted")
	errLegLate      = errors.New("the leg's time is over")
	errTransferLate = errors.New("no token within the transfer's time")
)

// background runs f for a leg that outlives its request, or returns false if there are too many of them.
func (r *Router) background(f func(context.Context)) bool {
	if r.legs.Err() != nil || r.running.Add(1) > int64(r.cfg.Limits.Background) {
		r.running.Add(-1)
		return false
	}
	r.ended.Go(func() {
		defer r.running.Add(-1)
		ctx, cancel := context.WithTimeoutCause(r.legs, r.cfg.Timeouts.Ending, errLegLate)
		defer cancel()
		f(ctx)
	})
	return true
}
