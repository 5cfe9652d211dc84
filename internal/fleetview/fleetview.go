// Package fleetview knows every engine of a gateway: those of its configuration file, those that DNS names, files of engines and pods of
// Kubernetes have, and those that administrators add. It merges them into one configuration, in which each engine has its overrides. It watches
// the sources with internal/discovery and applies nothing itself: the owner of the configuration calls Merge, which a View asks for whenever
// something has changed. internal/gateway runs one View; internal/adminapi shows it and changes it.
package fleetview

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/background"
	"pdrouter/internal/configfile"
	"pdrouter/internal/discovery"
	"pdrouter/internal/discovery/kubernetes"
	"pdrouter/internal/overrides"
	"pdrouter/router/config"
)

const (
	// settleEvery is between two looks at whether requests of engines that are removed have ended.
	settleEvery = 250 * time.Millisecond
	// retryAfter is between two tries of a change that could not be applied.
	retryAfter = 5 * time.Second
	// startBound bounds how long a start waits for what the sources know.
	startBound = 5 * time.Second
)

// ErrStopping is the answer of an owner of the configuration that has ended.
var ErrStopping = errors.New("the gateway is stopping")

// Apply has the owner of the configuration call View.Merge, and take what that makes of the file into use. On an error nothing has changed.
type Apply func(context.Context) error

// View has all engines, those that the configuration file does not list as well. It is safe for concurrent use.
type View struct {
	log       *slog.Logger
	busy      func(engine string) bool
	apply     Apply
	overrides *overrides.Store

	base  atomic.Pointer[config.Config] // of the file that is in use
	news  chan struct{}                 // has room for one: base is another
	again chan struct{}                 // has room for one: a change could not be applied
	known chan struct{}                 // closed when every source of the first base, and the overrides, were looked at once

	mu         sync.Mutex
	found      map[List]found
	renewed    map[List]bool     // these had no source for a while: what was found is the list, and its watcher is to look anew
	removed    map[string]int64  // as in a snapshot
	unreadable map[string]string // as in a snapshot
	dns        map[List]*discovery.DNS
	files      map[List]*discovery.File
	pods       map[List]*kubernetes.Watcher
	pending    map[List]bool // sources of the first base that have not been looked at
	logged     map[conflict]bool
	rejected   uint64 // changes that could not be applied
}

// New returns the view of a configuration. busy reports whether requests of this gateway need an engine.
func New(base config.Config, store *overrides.Store, busy func(engine string) bool, apply Apply, log *slog.Logger) *View {
	v := &View{log: log, busy: busy, apply: apply, overrides: store, news: make(chan struct{}, 1), again: make(chan struct{}, 1),
		known: make(chan struct{}), found: map[List]found{}, renewed: map[List]bool{}, removed: map[string]int64{}, unreadable: map[string]string{},
		dns: map[List]*discovery.DNS{}, files: map[List]*discovery.File{}, pods: map[List]*kubernetes.Watcher{}, pending: map[List]bool{}, logged: map[conflict]bool{}}
	for at := range sourcesOf(base) {
		v.pending[at] = true
	}
	v.pending[List{}] = true // the overrides
	v.base.Store(&base)
	return v
}

// sourcesOf returns the sources of a configuration.
func sourcesOf(cfg config.Config) map[List]config.Source {
	all := map[List]config.Source{}
	for i := range cfg.Models {
		for _, at := range configfile.EngineLists(&cfg.Models[i]) {
			if at.Source.On() {
				all[List{cfg.Models[i].Name, at.Key}] = *at.Source
			}
		}
	}
	return all
}

// originOf says where the engines of a source come from.
func originOf(s config.Source) string {
	switch {
	case s.File != "":
		return FromFile
	case s.Kubernetes.On():
		return FromKubernetes
	}
	return FromDNS
}

// Follow has the sources be those of another file. It does not wait.
func (v *View) Follow(l *configfile.Loaded) {
	base := l.Config
	v.base.Store(&base)
	background.Notify(v.news)
}

// Ready waits until every source has been looked at once, for a bounded time.
func (v *View) Ready(ctx context.Context) {
	select {
	case <-v.known:
	case <-time.After(startBound):
		v.log.Warn("not every source of engines could be looked at in time: the start does not wait for it")
	case <-ctx.Done():
	}
}

// Run looks at the sources until ctx ends.
func (v *View) Run(ctx context.Context) error {
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { _ = v.overrides.Run(ctx, func() { v.refresh(ctx) }, func() { v.looked(List{}) }) }) // always nil
	running := map[List]*watcher{}
	defer func() {
		for _, w := range running {
			w.stop()
		}
	}()
	settle := time.NewTicker(settleEvery)
	defer settle.Stop()
	credentials := time.NewTicker(retryAfter)
	defer credentials.Stop()
	var retry <-chan time.Time
	v.watch(ctx, running)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.news:
			v.watch(ctx, running)
			v.refresh(ctx) // what was found for lists that are none any more is let go
		case <-settle.C:
			v.Settle(ctx)
		case <-credentials.C:
			if v.readable() {
				v.refresh(ctx)
			}
		case <-v.again:
			retry = time.After(retryAfter)
		case <-retry:
			retry = nil
			v.refresh(ctx)
		}
	}
}

// take notes what a source has, and applies it.
func (v *View) take(ctx context.Context, at List, f found) {
	v.mu.Lock()
	v.found[at] = f
	v.mu.Unlock()
	v.refresh(ctx)
}

// looked notes that a source has been looked at.
func (v *View) looked(at List) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.pending[at] {
		return
	}
	if delete(v.pending, at); len(v.pending) == 0 {
		close(v.known)
	}
}

// snapshot returns what is known now.
func (v *View) snapshot() snapshot {
	wanted := v.overrides.All()
	v.mu.Lock()
	defer v.mu.Unlock()
	return snapshot{found: maps.Clone(v.found), overrides: wanted, removed: maps.Clone(v.removed), unreadable: maps.Clone(v.unreadable)}
}

// Merge returns the configuration with all engines, for the owner of the configuration. It changes nothing of cfg and does no I/O, and takes
// what is known at that moment, so that a change that came late cannot undo one that came later.
func (v *View) Merge(cfg config.Config) config.Config {
	v.keep(cfg)
	cfg, _, out := v.snapshot().merge(cfg)
	v.logLeftOut(out)
	return cfg
}

// keep has a list that a source is to have from now on be what it was, until the source has an answer.
func (v *View) keep(cfg config.Config) {
	base := v.base.Load()
	had := sourcesOf(*base)
	for at, source := range sourcesOf(cfg) {
		if _, ok := had[at]; ok {
			continue
		}
		v.mu.Lock()
		delete(v.found, at) // of a source that it had once
		v.renewed[at] = true
		v.mu.Unlock()
		from := originOf(source)
		was, err := modelNamed(*base, at.Model)
		if err != nil {
			continue
		}
		now, _ := modelNamed(cfg, at.Model)
		if was.Connector != now.Connector {
			continue
		}
		for _, list := range configfile.EngineLists(&was) {
			if list.Key == at.Key {
				v.mu.Lock()
				v.found[at] = found{from: from, engines: slices.DeleteFunc(slices.Clone(*list.Engines), func(e config.Engine) bool { return listed(cfg, e.Name) })}
				v.mu.Unlock()
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

// logLeftOut logs each engine that is left out, once.
func (v *View) logLeftOut(out []conflict) {
	now := map[conflict]bool{}
	v.mu.Lock()
	before := v.logged
	for _, c := range out {
		now[c] = true
	}
	v.logged = now
	v.mu.Unlock()
	for c := range now {
		if !before[c] {
			v.log.Warn("an engine is left out", "engine", c.engine, "list", c.String(), "source", c.from, "why", c.why)
		}
	}
}

// refresh applies what is known. What could not be applied is tried again.
func (v *View) refresh(ctx context.Context) {
	err := v.apply(ctx)
	if err == nil || ctx.Err() != nil {
		return
	}
	v.mu.Lock()
	v.rejected++
	v.mu.Unlock()
	v.log.Error("engines that came or went could not be taken into use", "err", err)
	background.Notify(v.again)
}

// Engines returns every engine and where it is from, also of those that were removed if their source still has them.
func (v *View) Engines() []Engine {
	_, all, _ := v.snapshot().merge(*v.base.Load())
	return all
}

// Engine returns the engine of that name.
func (v *View) Engine(name string) (Engine, bool) { return find(v.Engines(), name) }

// Model returns a model of the file that is in use.
func (v *View) Model(name string) (config.Model, error) { return modelNamed(*v.base.Load(), name) }

// Override takes an override into use, and tells the other gateways. What cannot be taken into use leaves nothing behind: not here, where
// somebody else's change may have applied it as well, and not with the others. It does not end before it is decided, whatever becomes of
// ctx.
func (v *View) Override(ctx context.Context, o overrides.Override) error {
	ctx = context.WithoutCancel(ctx)
	err := v.overrides.Try(o, func() error { return v.apply(ctx) })
	if err == nil {
		return nil
	}
	v.log.Error("what an administrator wants could not be taken into use: it is refused", "engine", o.Engine, "err", err)
	if !errors.Is(err, ErrStopping) {
		v.refresh(ctx)
	}
	return err
}

// Settle lets go of removed engines whose requests have ended, or have been waited for long enough.
func (v *View) Settle(ctx context.Context) {
	if v.settle() {
		v.refresh(ctx)
	}
}

// settle reports whether there were removed engines to let go.
func (v *View) settle() bool {
	removing := false
	all := v.snapshot()
	all.overrides = v.overrides.Applied() // what is being tried may yet be refused
	for name, o := range all.overrides {
		removing = removing || o.Removed && all.removed[name] != o.At
	}
	if !removing {
		return false
	}
	now, any := time.Now(), false
	_, list, _ := all.merge(*v.base.Load())
	for _, e := range list {
		o := e.Override
		if e.Removed || !o.Removed || v.busy(e.Name) && (o.Wait == nil || now.Sub(o.Time()) < *o.Wait) {
			continue
		}
		v.mu.Lock()
		v.removed[e.Name] = o.At
		v.mu.Unlock()
		v.log.Info("engine is removed", "engine", e.Name, "list", e.String(), "busy", v.busy(e.Name))
		any = true
	}
	return any
}

// Stats is how the sources are doing.
type Stats struct {
	DNS      map[List]discovery.DNSStats
	Files    map[List]discovery.FileStats
	Pods     map[List]kubernetes.Stats
	Rejected uint64 // changes that could not be applied
}

// Stats returns how each source is doing.
func (v *View) Stats() Stats {
	s := Stats{DNS: map[List]discovery.DNSStats{}, Files: map[List]discovery.FileStats{}, Pods: map[List]kubernetes.Stats{}}
	v.mu.Lock()
	defer v.mu.Unlock()
	for at, d := range v.dns {
		s.DNS[at] = d.Stats()
	}
	for at, f := range v.files {
		s.Files[at] = f.Stats()
	}
	for at, p := range v.pods {
		s.Pods[at] = p.Stats()
	}
	s.Rejected = v.rejected
	return s
}
