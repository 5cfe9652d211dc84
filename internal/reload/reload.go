// Package reload reads credentials again under a running process: files now and then, and the key sets that issuers publish. What a file
// holds is its owner's concern.
package reload

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
	// ReloadEvery bounds how long a withdrawn key is still accepted.
	ReloadEvery = 10 * time.Second
	// warnEvery is how often it is said that secrets for development are in use.
	warnEvery = time.Hour
)

// Credentials are the credentials that change under a running gateway: those that came from files and can be read from them
// again, and the key sets that issuers publish. The zero value has none and logs nothing.
type Credentials struct {
	Log   *slog.Logger // nil for none
	files []interface{ Reload() error }
	Sets  []IssuerSet

	failures atomic.Uint64
	whole    atomic.Pointer[time.Time] // when everything was read last; nil before run
}

// Stats is how reading credentials again is doing.
type Stats struct {
	Failures uint64        // times that something could not be read, or not all of it
	Age      time.Duration // since everything could be read; 0 before run
}

// Stats returns how reading again is doing.
func (c *Credentials) Stats() Stats {
	s := Stats{Failures: c.failures.Load()}
	if at := c.whole.Load(); at != nil {
		s.Age = time.Since(*at)
	}
	return s
}

// IssuerSet is the key set that an issuer publishes, for tokens of one audience.
type IssuerSet struct {
	*keys.JWKS
	Audience, Issuer string
}

// Add keeps one more; a nil one keeps none.
func (c *Credentials) Add(one interface{ Reload() error }) {
	if c != nil {
		c.files = append(c.files, one)
	}
}

// AddSet keeps one more key set, to be asked for; a nil one keeps none.
func (c *Credentials) AddSet(set IssuerSet) {
	if c != nil {
		c.Sets = append(c.Sets, set)
	}
}

// Logger returns where failures are logged.
func (c *Credentials) Logger() *slog.Logger {
	if c == nil || c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}

// Reload reads all files again. What cannot be read stays as it was; of a file of API keys, what can be read holds.
func (c *Credentials) Reload() error {
	var errs []error
	for _, one := range c.files {
		errs = append(errs, one.Reload())
	}
	err := errors.Join(errs...)
	if err != nil {
		c.failures.Add(1)
		return err
	}
	now := time.Now()
	c.whole.Store(&now)
	return nil
}

// Asked waits until each issuer was asked for its keys once, well or not, so that the first callers after a start are not
// told to come back. It is bounded by the issuers' timeouts.
func (c *Credentials) Asked(ctx context.Context) {
	for _, set := range c.Sets {
		select {
		case <-set.Asked():
		case <-ctx.Done():
		}
	}
}

// Run reads files again now and then and asks issuers for their keys, so that both can be rotated under a running
// gateway. A file that cannot be used leaves its keys as they were. It repeats what is to be warned of, loudly.
func (c *Credentials) Run(warnings ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		var background sync.WaitGroup
		defer background.Wait()
		for _, set := range c.Sets {
			background.Go(func() { _ = set.Run(ctx) }) // always nil
		}
		warn := func() {
			for _, text := range warnings {
				c.Logger().Warn(text)
			}
		}
		warn()
		started := time.Now()
		c.whole.CompareAndSwap(nil, &started) // nothing starts without having read everything
		reload, again := time.NewTicker(ReloadEvery), time.NewTicker(warnEvery)
		defer reload.Stop()
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-reload.C:
				if err := c.Reload(); err != nil {
					c.Logger().Error("credentials: not all could be read again", "err", err)
				}
			case <-again.C:
				warn()
			}
		}
	}
}
