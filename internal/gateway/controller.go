package gateway

import (
	"context"

	"pdrouter/internal/configfile"
	"pdrouter/internal/fleetview"
	"pdrouter/router/config"
)

// controller owns the configuration that a running gateway works by: what stands in the file, and the engines that others know
// of. One goroutine, run, owns it. Whatever is to change asks it, so that changes come one after the other, and each is
// applied as a whole or not at all.
type controller struct {
	load  func() (*configfile.Loaded, error)                     // reads the file, and finds it sound
	apply func(l *configfile.Loaded, merged config.Config) error // takes it into use; on an error nothing has changed

	merge    func(config.Config) config.Config          // adds the engines that others know of; nil: nobody does. It may run at any change
	without  func(l *configfile.Loaded, err error) bool // whether merging again may help, after apply has failed so; may be nil
	reloaded func(changed []string, err error)          // called with what became of each reload; may be nil

	base        *configfile.Loaded // the file that is in use
	subscribers []func(*configfile.Loaded)

	asks  chan func() // run by the owner
	ended chan struct{}
}

func newController(base *configfile.Loaded, load func() (*configfile.Loaded, error), apply func(*configfile.Loaded, config.Config) error) *controller {
	return &controller{load: load, apply: apply, base: base, asks: make(chan func()), ended: make(chan struct{})}
}

// run owns the configuration until ctx ends.
func (c *controller) run(ctx context.Context) error {
	defer close(c.ended)
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-c.asks:
			do()
		}
	}
}

// ask has the owner do something and waits for it. With an error it may yet be done, if ctx ended first.
func (c *controller) ask(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	select {
	case c.asks <- func() { done <- do() }:
	case <-c.ended:
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
func (c *controller) reload(ctx context.Context) ([]string, error) {
	var keys []string
	err := c.ask(ctx, func() error {
		was := c.base
		l, err := c.load()
		if err == nil {
			err = c.take(l)
		}
		if err == nil {
			keys = append([]string{}, was.Changes(l)...) // an empty list where nothing has changed
		}
		if c.reloaded != nil {
			c.reloaded(keys, err)
		}
		if err != nil {
			return err
		}
		for _, f := range c.subscribers {
			f(l)
		}
		return nil
	})
	if err != nil {
		return nil, err // keys may be the owner's still
	}
	return keys, nil
}

// engines merges again and takes that into use. On an error nothing has changed. It waits for run, which must run or be about to, and is
// safe for concurrent use.
func (c *controller) engines(ctx context.Context) error {
	return c.ask(ctx, func() error { return c.take(c.base) })
}

// subscribe has f called with every file that was taken into use after the first, by the owner: f must not block and must not
// call reload or engines itself. It is to be called before run.
func (c *controller) subscribe(f func(*configfile.Loaded)) { c.subscribers = append(c.subscribers, f) }

// take merges and applies. It is the owner's.
func (c *controller) take(l *configfile.Loaded) error {
	for {
		merged := l.Config
		if c.merge != nil {
			merged = c.merge(merged)
		}
		err := c.apply(l, merged)
		if err == nil {
			c.base = l
			return nil
		}
		if c.without == nil || !c.without(l, err) {
			return err
		}
	}
}
