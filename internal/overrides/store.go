package overrides

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"

	"pdrouter/metadata"
)

const (
	// TrustedFor is how long after its last refresh by a gateway another one takes in an override: what somebody kept who can write
	// to Redis, and puts back later, is not taken in any more.
	TrustedFor = time.Hour
	// refreshEvery is between two times that a running gateway refreshes what it holds.
	refreshEvery = TrustedFor / 6
	// keptFor is how long an override stays in the shared cache: longer than it is trusted, so that a gateway can say what expired.
	keptFor = 24 * time.Hour
	// forgottenAfter is how long a gateway keeps what only replaced something older, for gateways that hear of it late.
	forgottenAfter = 7 * 24 * time.Hour
	// clockAhead is how far another gateway's clock may be ahead. What is of a later time is ignored.
	clockAhead = time.Hour
)

// Shared is the cache that gateways share. Put keeps a value for as long as the lease; Watch calls changed with all values, at first
// and whenever they change, until ctx ends.
type Shared interface {
	Put(key, value string, lease time.Duration)
	Watch(ctx context.Context, changed func(map[string]string)) error
}

// Store has the overrides: here at once, and with the other gateways as soon as the shared cache tells them. They outlive reloads, a
// gateway that ends while another one runs, and a cache that loses everything meanwhile. When no gateway has run for TrustedFor, the
// configuration holds as it stands. A Store is safe for concurrent use.
type Store struct {
	shared Shared
	signed bool // nobody but gateways can put something into the cache
	log    *slog.Logger

	mu      sync.Mutex
	held    ByEngine
	trial   *Override // holds here while it is applied; other gateways do not hear of it
	expired ByEngine  // what the cache has and no gateway refreshes: it is not trusted
}

// NewStore returns an empty store. signed says that only gateways can put something into the cache.
func NewStore(shared Shared, signed bool, log *slog.Logger) *Store {
	return &Store{shared: shared, signed: signed, log: log, held: ByEngine{}, expired: ByEngine{}}
}

// Expired returns what is not trusted any more. The map is not changed.
func (s *Store) Expired() ByEngine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expired
}

// Applied returns every override but the one that is tried. The map is the caller's.
func (s *Store) Applied() ByEngine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.held)
}

// All returns every override, the one that is tried included. The map is the caller's.
func (s *Store) All() ByEngine {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.held)
	if s.trial != nil {
		all, _ = all.merged(ByEngine{s.trial.Engine: *s.trial})
	}
	return all
}

// Try has an override be the latest of its engine for as long as do runs, and keeps and shares it if that succeeds. Else it is
// as if it had never been. There is one trial at a time.
func (s *Store) Try(o Override, do func() error) error {
	s.mu.Lock()
	o.At = time.Now().UnixNano()
	if was, ok := s.held[o.Engine]; ok && was.At >= o.At { // another gateway's clock is ahead
		o.At = was.At + 1
	}
	s.trial = &o
	s.mu.Unlock()
	err := do()
	s.mu.Lock()
	s.trial = nil
	if err == nil {
		s.held, _ = s.held.merged(ByEngine{o.Engine: o}) // a newer one may have come meanwhile
		o = s.held[o.Engine]
	}
	s.mu.Unlock()
	if err == nil {
		s.share(o)
	}
	return err
}

// share puts an override into the cache, refreshed now.
func (s *Store) share(o Override) {
	o.Refreshed = time.Now().UnixNano()
	b, err := json.Marshal(o)
	if err != nil { // it has nothing that could not be written
		s.log.Error("what an administrator wants cannot be shared", "engine", o.Engine, "err", err)
		return
	}
	s.shared.Put(o.Engine, string(b), keptFor)
}

// Run keeps up with the cache until ctx ends, calls changed when something is another, and looked after each look that brought
// something, and after the first.
func (s *Store) Run(ctx context.Context, changed, looked func()) error {
	var refreshing sync.WaitGroup
	defer refreshing.Wait()
	refreshing.Go(func() { s.refresh(ctx) })
	return s.shared.Watch(ctx, func(values map[string]string) {
		if s.Learn(values) {
			changed()
		}
		looked()
	})
}

// Learn takes in what the cache has, and puts there what it lacks. It reports whether something is another here.
func (s *Store) Learn(values map[string]string) bool {
	now := time.Now()
	// seen is all that can be read, also what is not trusted: what stands there need not be put there, or gateways that do not
	// trust their own overrides, or each other's, would write without end.
	seen, ahead := ByEngine{}, map[string]bool{}
	others, old := ByEngine{}, ByEngine{}
	for name, text := range values {
		var o Override
		if err := json.Unmarshal([]byte(text), &o); err != nil || o.Engine != name || metadata.ValidName(name) != nil ||
			o.Entry != nil && o.Entry.Name != name {
			s.log.Warn("what is shared about an engine cannot be read", "engine", name, "err", err)
			continue
		}
		refreshed := o.refreshed()
		o.Refreshed = 0
		seen[name] = o
		if latest := now.Add(clockAhead); o.Time().After(latest) || refreshed.After(latest) {
			s.log.Warn("what is shared about an engine is of a time to come: it is ignored", "engine", name, "at", o.Time().UTC(), "refreshed", refreshed.UTC())
			ahead[name] = true
			continue
		}
		if o.Entry != nil && !s.signed { // whoever can write there would be sent prompts, and engines' credentials
			continue
		}
		if now.Sub(refreshed) > TrustedFor {
			old[name] = o
			continue
		}
		others[name] = o
	}
	s.mu.Lock()
	merged, other := s.held.merged(others)
	s.held = merged
	var lacking []Override
	for name, o := range merged {
		if there, ok := seen[name]; !ok && !o.forgotten(now) || ok && !ahead[name] && o.newer(there) {
			lacking = append(lacking, o)
		}
	}
	maps.DeleteFunc(old, func(name string, o Override) bool { _, known := merged[name]; return known || o.forgettable() })
	was := s.expired
	s.expired = old
	s.mu.Unlock()
	for name, o := range old {
		if was[name].At != o.At {
			s.log.Warn("no gateway has refreshed what an administrator wanted of an engine for too long: it is forgotten, and the configuration holds",
				"engine", name, "wanted", o.Wanted(), "by", o.By, "at", o.Time().UTC(), "trusted_for", TrustedFor)
		}
	}
	for _, o := range lacking {
		s.share(o)
	}
	return other
}

// refresh shares the overrides again and again while the gateway runs, and forgets those that only replaced others.
func (s *Store) refresh(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.mu.Lock()
			maps.DeleteFunc(s.held, func(_ string, o Override) bool { return o.forgotten(now) })
			kept := maps.Clone(s.held)
			s.mu.Unlock()
			for _, o := range kept {
				s.share(o)
			}
		}
	}
}
