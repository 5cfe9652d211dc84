package main

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/discovery"
	"pdrouter/internal/overrides"
	"pdrouter/internal/shared"
	"pdrouter/router/config"
)

const (
	// sourcesSettle is between two looks at whether requests of engines that are removed have ended.
	sourcesSettle = 250 * time.Millisecond
	// sourcesRetry is between two tries of a change that could not be applied.
	sourcesRetry = 5 * time.Second
	// sourcesStart bounds how long a start waits for what the sources know.
	sourcesStart = 5 * time.Second
)

// sources know of the engines besides those that the configuration file lists: they look at DNS names and files, keep what
// administrators want, and have the owner of the configuration apply it. They are safe for concurrent use.
type sources struct {
	log       *slog.Logger
	inFlight  func(engine string) int64
	apply     func(context.Context, merge) error // takes what merge makes of the configuration file into use
	overrides *overrides.Store

	base  atomic.Pointer[config.Config] // of the file that is in use
	news  chan struct{}                 // has room for one: base is another
	again chan struct{}                 // has room for one: a change could not be applied
	known chan struct{}                 // closed when every source of the first base, and what administrators want, was looked at once

	mu      sync.Mutex
	found   map[listOf]found
	kept    map[listOf]bool   // these had no source for a while: what was found is the list, and whatever looks is to look anew
	gone    map[string]int64  // as in a roster
	keyless map[string]string // as in a roster
	dns     map[listOf]*discovery.DNS
	files   map[listOf]*discovery.File
	waits   map[listOf]bool // sources of the first base that have not been looked at
	said    map[conflict]bool
	rejects uint64 // changes that could not be applied
}

func newSources(base config.Config, w *overrides.Store, inFlight func(string) int64, apply func(context.Context, merge) error, log *slog.Logger) *sources {
	s := &sources{log: log, inFlight: inFlight, apply: apply, overrides: w, news: make(chan struct{}, 1), again: make(chan struct{}, 1),
		known: make(chan struct{}), found: map[listOf]found{}, kept: map[listOf]bool{}, gone: map[string]int64{}, keyless: map[string]string{}, dns: map[listOf]*discovery.DNS{},
		files: map[listOf]*discovery.File{}, waits: map[listOf]bool{}, said: map[conflict]bool{}}
	for at := range configured(base) {
		s.waits[at] = true
	}
	s.waits[listOf{}] = true // what administrators want
	s.base.Store(&base)
	return s
}

// configured returns the sources of a configuration.
func configured(cfg config.Config) map[listOf]config.Source {
	all := map[listOf]config.Source{}
	for i := range cfg.Models {
		for _, at := range configfile.EngineLists(&cfg.Models[i]) {
			if at.Source.On() {
				all[listOf{cfg.Models[i].Name, at.Key}] = *at.Source
			}
		}
	}
	return all
}

// follow has the sources be those of another file. It does not wait.
func (s *sources) follow(l *configfile.Loaded) {
	base := l.Config
	s.base.Store(&base)
	wake(s.news)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ready waits until every source has been looked at once, for a bounded time.
func (s *sources) ready(ctx context.Context) {
	select {
	case <-s.known:
	case <-time.After(sourcesStart):
		s.log.Warn("not every source of engines could be looked at in time: the start does not wait for it")
	case <-ctx.Done():
	}
}

// run looks at the sources until ctx ends.
func (s *sources) run(ctx context.Context) error {
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { _ = s.overrides.Run(ctx, func() { s.refresh(ctx) }, func() { s.looked(listOf{}) }) }) // always nil
	running := map[listOf]*lookout{}
	defer func() {
		for _, w := range running {
			w.stop()
		}
	}()
	settle := time.NewTicker(sourcesSettle)
	defer settle.Stop()
	keys := time.NewTicker(sourcesRetry)
	defer keys.Stop()
	var retry <-chan time.Time
	s.watch(ctx, running)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.news:
			s.watch(ctx, running)
			s.refresh(ctx) // what was found for lists that are none any more is let go
		case <-settle.C:
			if s.settle() {
				s.refresh(ctx)
			}
		case <-keys.C:
			if s.keysCame() {
				s.refresh(ctx)
			}
		case <-s.again:
			retry = time.After(sourcesRetry)
		case <-retry:
			retry = nil
			s.refresh(ctx)
		}
	}
}

// take notes what a source has, and applies it.
func (s *sources) take(ctx context.Context, at listOf, f found) {
	s.mu.Lock()
	s.found[at] = f
	s.mu.Unlock()
	s.refresh(ctx)
}

// looked notes that a source has been looked at.
func (s *sources) looked(at listOf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.waits[at] {
		return
	}
	if delete(s.waits, at); len(s.waits) == 0 {
		close(s.known)
	}
}

// roster returns what is known now.
func (s *sources) roster() roster {
	wanted := s.overrides.All()
	s.mu.Lock()
	defer s.mu.Unlock()
	return roster{found: maps.Clone(s.found), records: wanted, gone: maps.Clone(s.gone), keyless: maps.Clone(s.keyless)}
}

// merge is what the owner of the configuration calls: it always takes what is known at that moment, so that a change that came
// late cannot undo one that came later.
func (s *sources) merge(cfg config.Config) (config.Config, error) {
	s.keep(cfg)
	cfg, _, out := s.roster().merge(cfg)
	s.tell(out)
	return cfg, nil
}

// keep has a list that a source is to have from now on be what it was, until the source has an answer.
func (s *sources) keep(cfg config.Config) {
	base := s.base.Load()
	had := configured(*base)
	for at, source := range configured(cfg) {
		if _, ok := had[at]; ok {
			continue
		}
		s.mu.Lock()
		delete(s.found, at) // of a source that it had once
		s.kept[at] = true
		s.mu.Unlock()
		from := fromDNS
		if source.File != "" {
			from = fromFile
		}
		was, err := modelNamed(*base, at.model)
		if err != nil {
			continue
		}
		now, _ := modelNamed(cfg, at.model)
		if was.Connector != now.Connector {
			continue
		}
		for _, list := range configfile.EngineLists(&was) {
			if list.Key == at.list {
				s.mu.Lock()
				s.found[at] = found{from: from, engines: slices.DeleteFunc(slices.Clone(*list.Engines), func(e config.Engine) bool { return listed(cfg, e.Name) })}
				s.mu.Unlock()
			}
		}
	}
}

// listed reports whether the file lists an engine of that name.
func listed(cfg config.Config, name string) bool {
	for i := range cfg.Models {
		for _, at := range configfile.EngineLists(&cfg.Models[i]) {
			if slices.ContainsFunc(*at.Engines, func(e config.Engine) bool { return e.Name == name }) {
				return true
			}
		}
	}
	return false
}

// tell logs each engine that is left out, once.
func (s *sources) tell(out []conflict) {
	said := map[conflict]bool{}
	s.mu.Lock()
	before := s.said
	for _, c := range out {
		said[c] = true
	}
	s.said = said
	s.mu.Unlock()
	for c := range said {
		if !before[c] {
			s.log.Warn("an engine is left out", "engine", c.engine, "list", c.String(), "source", c.from, "why", c.why)
		}
	}
}

// refresh applies what is known. What could not be applied is tried again.
func (s *sources) refresh(ctx context.Context) {
	err := s.apply(ctx, s.merge)
	if err == nil || ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	s.rejects++
	s.mu.Unlock()
	s.log.Error("engines that came or went could not be taken into use", "err", err)
	wake(s.again)
}

// engines returns every engine and where it is from, also of those that were removed if their source still has them.
func (s *sources) engines() []placed {
	_, all, _ := s.roster().merge(*s.base.Load())
	return all
}

// settle lets go of removed engines whose requests have ended, or have been waited for long enough. It reports whether there
// were any.
func (s *sources) settle() bool {
	removing := false
	all := s.roster()
	all.records = s.overrides.Applied() // what is being tried may yet be refused
	for name, rec := range all.records {
		removing = removing || rec.Removed && all.gone[name] != rec.At
	}
	if !removing {
		return false
	}
	now, any := time.Now(), false
	_, list, _ := all.merge(*s.base.Load())
	for _, p := range list {
		rec := p.record
		if p.gone || !rec.Removed || s.inFlight(p.Name) > 0 && (rec.Wait == nil || now.Sub(rec.Time()) < *rec.Wait) {
			continue
		}
		s.mu.Lock()
		s.gone[p.Name] = rec.At
		s.mu.Unlock()
		s.log.Info("engine is removed", "engine", p.Name, "list", p.String(), "in_flight", s.inFlight(p.Name))
		any = true
	}
	return any
}

// stats returns how each source is doing.
func (s *sources) stats() (dns map[listOf]discovery.DNSStats, files map[listOf]discovery.FileStats, rejects uint64) {
	dns, files = map[listOf]discovery.DNSStats{}, map[listOf]discovery.FileStats{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, d := range s.dns {
		dns[at] = d.Stats()
	}
	for at, f := range s.files {
		files[at] = f.Stats()
	}
	return dns, files, s.rejects
}

// engines makes what knows of engines besides the file, and the routes of administrators who add and remove some.
func (g *gateway) engines(l *configfile.Loaded) {
	g.board = shared.NewBoard(g.redis, l.Metadata.Redis.WithDefaults().Prefix, "engines", g.signer, g.log)
	const name = "sources and administrators"
	apply := func(ctx context.Context, to merge) error { return g.applied.engines(ctx, name, to) }
	g.sources = newSources(l.Config, overrides.NewStore(g.board, g.redis == nil || g.signer != nil, g.log), g.router.InFlight, apply, g.log)
	g.applied.sources = []source{{name, g.sources.merge}} // also for a reload that comes before anything was found
	g.applied.without = g.sources.without
	g.applied.told(g.sources.follow)
	g.adminRoutes = newAdmin(&admin{auth: presentAdmins{g}, sources: g.sources, stats: g.router.Stats, requests: g.meters.adminRequests, log: g.log})
}
