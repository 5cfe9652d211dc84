package main

import (
	"context"
	"fmt"
	"slices"

	"pdrouter/internal/configfile"
	"pdrouter/internal/fleetview"
	"pdrouter/router/config"
)

// applied is the configuration that a running gateway works by: what stands in the file, and the engines that others know
// of. One goroutine, run, owns it. Whatever is to change asks it, so that changes come one after the other, and each is
// applied as a whole or not at all.
type applied struct {
	load  func() (*configfile.Loaded, error)                     // reads the file, and finds it sound
	apply func(l *configfile.Loaded, merged config.Config) error // takes it into use; on an error nothing has changed

	without  func(l *configfile.Loaded, err error) bool // whether merging again may help, after apply has failed so; may be nil
	reloaded func(changed []string, err error)          // called with what became of each reload; may be nil

	base      *configfile.Loaded // the file that is in use
	sources   []source
	listeners []func(*configfile.Loaded)

	asks  chan func() // run by the owner
	ended chan struct{}
}

// source is one of those that know of engines besides the file.
type source struct {
	name  string
	merge fleetview.Merge
}

func newApplied(base *configfile.Loaded, load func() (*configfile.Loaded, error), apply func(*configfile.Loaded, config.Config) error) *applied {
	return &applied{load: load, apply: apply, base: base, asks: make(chan func()), ended: make(chan struct{})}
}

// run owns the configuration until ctx ends.
func (a *applied) run(ctx context.Context) error {
	defer close(a.ended)
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-a.asks:
			do()
		}
	}
}

// ask has the owner do something and waits for it. With an error it may yet be done, if ctx ended first.
func (a *applied) ask(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	select {
	case a.asks <- func() { done <- do() }:
	case <-a.ended:
		return fleetview.ErrStopping
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reload reads the file again, takes it into use, and returns the keys that have changed, never nil. On an error nothing has
// changed; it joins every mistake, each with file and line where it has one.
func (a *applied) reload(ctx context.Context) ([]string, error) {
	var keys []string
	err := a.ask(ctx, func() error {
		was := a.base
		l, err := a.load()
		if err == nil {
			err = a.take(l, a.sources)
		}
		if err == nil {
			keys = append([]string{}, was.Changes(l)...) // an empty list where nothing has changed
		}
		if a.reloaded != nil {
			a.reloaded(keys, err)
		}
		if err != nil {
			return err
		}
		for _, told := range a.listeners {
			told(l)
		}
		return nil
	})
	if err != nil {
		return nil, err // keys may be the owner's still
	}
	return keys, nil
}

// engines replaces what the named source knows of engines, and takes it into use; a nil merge forgets the source. Sources
// are merged in the order in which they first came. On an error nothing has changed, and what the source had said before
// still holds. It waits for run, which must run or be about to, and is safe for concurrent use.
func (a *applied) engines(ctx context.Context, name string, m fleetview.Merge) error {
	return a.ask(ctx, func() error {
		sources := slices.Clone(a.sources)
		at := slices.IndexFunc(sources, func(s source) bool { return s.name == name })
		switch {
		case m == nil && at < 0:
			return nil
		case m == nil:
			sources = slices.Delete(sources, at, at+1)
		case at < 0:
			sources = append(sources, source{name, m})
		default:
			sources[at].merge = m
		}
		return a.take(a.base, sources)
	})
}

// told has f called with every file that was taken into use after the first, by the owner: f must not block and must not
// call reload or engines itself. It is to be called before run.
func (a *applied) told(f func(*configfile.Loaded)) { a.listeners = append(a.listeners, f) }

// take merges and applies. It is the owner's.
func (a *applied) take(l *configfile.Loaded, sources []source) error {
	for {
		cfg := l.Config
		for _, s := range sources {
			var err error
			if cfg, err = s.merge(cfg); err != nil {
				return fmt.Errorf("engines of %s: %w", s.name, err)
			}
		}
		err := a.apply(l, cfg)
		if err == nil {
			a.base, a.sources = l, sources
			return nil
		}
		if a.without == nil || !a.without(l, err) {
			return err
		}
	}
}
