package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/auth/keys"
)

const (
	// reloadEvery bounds how long a withdrawn key is still accepted.
	reloadEvery = 10 * time.Second
	// warnEvery is how often it is said that secrets for development are in use.
	warnEvery = time.Hour
)

// reloads are the credentials that change under a running gateway: those that came from files and can be read from them
// again, and the key sets that issuers publish. The zero value has none and logs nothing.
type reloads struct {
	log   *slog.Logger // nil for none
	files []interface{ Reload() error }
	sets  []issuerSet

	failures atomic.Uint64
	whole    atomic.Pointer[time.Time] // when everything was read last; nil before run
}

// reloadStats is how reading credentials again is doing.
type reloadStats struct {
	Failures uint64        // times that something could not be read, or not all of it
	Age      time.Duration // since everything could be read; 0 before run
}

// stats returns how reading again is doing.
func (r *reloads) stats() reloadStats {
	s := reloadStats{Failures: r.failures.Load()}
	if at := r.whole.Load(); at != nil {
		s.Age = time.Since(*at)
	}
	return s
}

// issuerSet is the key set that an issuer publishes, for tokens of one audience.
type issuerSet struct {
	*keys.JWKS
	audience, issuer string
}

// add keeps one more; a nil *reloads keeps none.
func (r *reloads) add(one interface{ Reload() error }) {
	if r != nil {
		r.files = append(r.files, one)
	}
}

// addSet keeps one more key set, to be asked for; a nil *reloads keeps none.
func (r *reloads) addSet(set issuerSet) {
	if r != nil {
		r.sets = append(r.sets, set)
	}
}

func (r *reloads) logger() *slog.Logger {
	if r == nil || r.log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return r.log
}

// Reload reads all files again. What cannot be read stays as it was; of a file of API keys, what can be read holds.
func (r *reloads) Reload() error {
	var errs []error
	for _, one := range r.files {
		errs = append(errs, one.Reload())
	}
	err := errors.Join(errs...)
	if err != nil {
		r.failures.Add(1)
		return err
	}
	now := time.Now()
	r.whole.Store(&now)
	return nil
}

// asked waits until each issuer was asked for its keys once, well or not, so that the first callers after a start are not
// told to come back. It is bounded by the issuers' timeouts.
func (r *reloads) asked(ctx context.Context) {
	for _, set := range r.sets {
		select {
		case <-set.Asked():
		case <-ctx.Done():
		}
	}
}

// run reads files again now and then and asks issuers for their keys, so that both can be rotated under a running
// gateway. A file that cannot be used leaves its keys as they were. It repeats what is to be warned of, loudly.
func (r *reloads) run(warnings ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		var background sync.WaitGroup
		defer background.Wait()
		for _, set := range r.sets {
			background.Go(func() { _ = set.Run(ctx) }) // always nil
		}
		warn := func() {
			for _, text := range warnings {
				r.logger().Warn(text)
			}
		}
		warn()
		started := time.Now()
		r.whole.CompareAndSwap(nil, &started) // nothing starts without having read everything
		reload, again := time.NewTicker(reloadEvery), time.NewTicker(warnEvery)
		defer reload.Stop()
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-reload.C:
				if err := r.Reload(); err != nil {
					r.logger().Error("credentials: not all could be read again", "err", err)
				}
			case <-again.C:
				warn()
			}
		}
	}
}

// developmentWarnings are what a running gateway says of secrets for development.
func (a authConfig) developmentWarnings() []string {
	var all []string
	for _, section := range a.development() {
		all = append(all, developmentWarning(section))
	}
	return all
}
