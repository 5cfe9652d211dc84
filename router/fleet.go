package router

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/metadata"
	"pdrouter/policies"
)

// fleet is every engine of the configuration, by model. The set never changes; what is known of each does.
type fleet struct {
	models  map[string]*model
	engines []*engine
	couples []*couple // of the models whose engines shake hands, model by model
	named   map[string]*engine
	paired  map[[2]string]*couple // by the names of prefill and decode
}

// model is one served model.
type model struct {
	name    string
	conn    connector
	prefill []*engine
	decode  []*engine // the aggregated engines for connector none
	couples []*couple // prefill by prefill; empty if the engines need no handshake
	turn    atomic.Uint64
}

// couple returns the prefill and the decode engine with these indices; only where engines shake hands.
func (m *model) couple(p, d int) *couple { return m.couples[p*len(m.decode)+d] }

// engine is one engine and what the router knows of it. It is safe for concurrent use.
type engine struct {
	name      string
	control   string
	publishes bool // records of its own, with its generation in them
	up        *upstream
	header    []field // sent with every request: content type, accept, the engine's own credential
	inFlight  atomic.Int64
	failures  atomic.Int32 // connect failures and failed health checks in a row
	limit     int32        // of them, from which the engine is unusable
	down      atomic.Bool
	recheck   chan struct{} // has room for one: its health is to be checked now
	followed  atomic.Bool   // its event stream is open
	streams   atomic.Uint64 // how often that stream began, broke or had a gap
	// generation counts the starts of an engine that does not publish its own: it grows whenever another run of the
	// engine is seen, so that whatever was known of its earlier start is void.
	generation atomic.Uint64
	coord      atomic.Pointer[coordinates] // of a stock prefill engine that has answered; nil until then
	side       *side                       // of a stock engine; nil of others
	enrolment  atomic.Pointer[enrolment]   // connector kvplane; of the run that was last given a ticket
}

func newFleet(cfg Config) (*fleet, error) {
	f := &fleet{models: make(map[string]*model, len(cfg.Models)), named: map[string]*engine{}, paired: map[[2]string]*couple{}}
	for i, mc := range cfg.Models {
		m := &model{name: mc.Name, conn: connectorNamed(mc.Connector)}
		for _, list := range []struct {
			key  string
			from []Engine
			to   *[]*engine
			role metadata.Role
		}{
			{"prefill", mc.Prefill, &m.prefill, metadata.Prefill}, {"decode", mc.Decode, &m.decode, metadata.Decode},
			{"engines", mc.Engines, &m.decode, metadata.Both},
		} {
			for j, ec := range list.from {
				e, err := newEngine(ec, cfg)
				if err != nil {
					return nil, fmt.Errorf("router: models[%d].%s[%d]: %w", i, list.key, j, err)
				}
				_, e.publishes = m.conn.(plane)
				if stocked(m.conn) {
					e.side = newSide(m.conn, list.role, ec)
				}
				*list.to = append(*list.to, e)
				f.engines = append(f.engines, e)
				f.named[e.name] = e
			}
		}
		if shakes(m.conn) {
			for _, p := range m.prefill {
				for _, d := range m.decode {
					m.couples = append(m.couples, &couple{model: m.name, conn: m.conn, prefill: p, decode: d})
				}
			}
			f.couples = append(f.couples, m.couples...)
			for _, c := range m.couples {
				f.paired[[2]string{c.prefill.name, c.decode.name}] = c
			}
		}
		f.models[m.name] = m
	}
	return f, nil
}

func newEngine(ec Engine, cfg Config) (*engine, error) {
	up, err := newUpstream(ec.URL, upstreamConfig{DialTimeout: cfg.Timeouts.Connect, MaxIdle: cfg.Limits.IdlePer})
	if err != nil {
		return nil, err
	}
	e := &engine{name: ec.Name, control: strings.TrimSuffix(ec.Control, "/"), up: up, limit: int32(cfg.Limits.Failures), recheck: make(chan struct{}, 1)}
	e.generation.Store(1)
	e.header = []field{{"Content-Type", "application/json"}}
	if ec.KeyFile != "" {
		key, err := os.ReadFile(ec.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("key_file: %w", err)
		}
		e.header = append(e.header, field{"Authorization", "Bearer " + strings.TrimSpace(string(key))})
	}
	return e, nil
}

// incarnation names the run of a stock engine that the router knows of.
func (e *engine) incarnation() metadata.Incarnation {
	return metadata.Incarnation{Engine: e.name, Generation: e.generation.Load()}
}

// couple returns the engines of a pair, nil if they are no couple.
func (f *fleet) couple(pair metadata.Pair) *couple {
	return f.paired[[2]string{pair.Prefill.Engine, pair.Decode.Engine}]
}

// engine returns the engine of that name, nil if there is none.
func (f *fleet) engine(name string) *engine { return f.named[name] }

// reached notes that the engine has answered. One that is down is checked at once, and only that takes it into use again.
func (e *engine) reached() {
	if e.failures.Load() != 0 {
		e.failures.Store(0)
	}
	if !e.down.Load() {
		return
	}
	select {
	case e.recheck <- struct{}{}:
	default:
	}
}

// missed notes a failure to connect or a failed health check. It reports whether the engine went down by it.
func (e *engine) missed() bool {
	return e.failures.Add(1) >= e.limit && e.down.CompareAndSwap(false, true)
}

// tried is the set of engines that a request has failed on.
type tried []*engine

func (t tried) has(e *engine) bool {
	for _, o := range t {
		if o == e {
			return true
		}
	}
	return false
}

// snapshot appends one policies.Engine per engine: what a choice may know.
func snapshot(dst []policies.Engine, engines []*engine, not tried) []policies.Engine {
	for _, e := range engines {
		dst = append(dst, policies.Engine{
			Name: e.name, Usable: !e.down.Load() && !not.has(e), InFlight: int(e.inFlight.Load()),
		})
	}
	return dst
}

// usable counts the engines that are not down.
func usable(engines []*engine) (n int) {
	for _, e := range engines {
		if !e.down.Load() {
			n++
		}
	}
	return n
}

func (f *fleet) close() {
	for _, e := range f.engines {
		e.up.Close()
	}
}

// watch checks the health of every engine until ctx ends. back is called when one that is down is healthy.
func (f *fleet) watch(ctx context.Context, every time.Duration, log *slog.Logger, back func(context.Context, *engine)) {
	var wg sync.WaitGroup
	for _, e := range f.engines {
		wg.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				ok := e.check(ctx, every)
				if ctx.Err() != nil {
					return
				}
				switch {
				case ok && e.down.Load():
					back(ctx, e)
				case ok:
					e.reached()
				case e.missed():
					log.Warn("engine is down", "engine", e.name)
				}
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				case <-e.recheck:
				}
			}
		})
	}
	wg.Wait()
}

// check asks the engine's health route, for at most timeout but no less than a second.
func (e *engine) check(ctx context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, max(timeout, time.Second))
	defer cancel()
	resp, err := e.up.do(ctx, &upstreamRequest{Method: "GET", Path: "/health", Header: e.header[1:]})
	if err != nil {
		return false
	}
	defer resp.Close()
	if _, err := resp.ReadAll(nil, 1<<20); err != nil {
		return false
	}
	return resp.Status == 200
}
