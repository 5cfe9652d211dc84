package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"pdrouter/metadata"
)

// PublisherConfig says how long a record lives without renewal and how failures are retried.
type PublisherConfig struct {
	TTL      time.Duration `yaml:"ttl"`      // lease of a record, renewed every third of it; default 30s
	Retry    time.Duration `yaml:"retry"`    // first pause after a failure, doubled up to a third of TTL; default 100ms
	Withdraw time.Duration `yaml:"withdraw"` // time for deleting the records at the end; default 2s
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	c.TTL = cmp.Or(c.TTL, 30*time.Second)
	c.Retry = cmp.Or(c.Retry, 100*time.Millisecond)
	c.Withdraw = cmp.Or(c.Withdraw, 2*time.Second)
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c PublisherConfig) Validate() error {
	var errs []error
	if c.TTL < 0 {
		errs = append(errs, fmt.Errorf("ttl is %v; want more than 0", c.TTL))
	}
	if c.Retry < 0 {
		errs = append(errs, fmt.Errorf("retry is %v; want more than 0", c.Retry))
	}
	if c.Withdraw < 0 {
		errs = append(errs, fmt.Errorf("withdraw is %v; want more than 0", c.Withdraw))
	}
	return errors.Join(errs...)
}

// Putter is where a Publisher publishes; *Client is one, and every metadata.Store.
type Putter interface {
	Put(ctx context.Context, rec metadata.Record) error
	Delete(ctx context.Context, inc metadata.Incarnation, rank metadata.Rank) error
}

// Publisher keeps the records of one engine's ranks published: it puts them, renews them before their lease ends, and
// deletes them at the end.
type Publisher struct {
	to  Putter
	cfg PublisherConfig
	log *slog.Logger

	once  sync.Once
	ready chan struct{}
	recs  []metadata.Record // of whoever publishes: Begin, then Run
}

// NewPublisher returns a publisher of these records, whose times it sets itself.
func NewPublisher(to Putter, cfg PublisherConfig, log *slog.Logger, recs ...metadata.Record) (*Publisher, error) {
	errs := []error{cfg.Validate()}
	for _, r := range recs {
		errs = append(errs, r.Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("metadata: publisher: %w", err)
	}
	return &Publisher{to: to, cfg: cfg.withDefaults(), recs: append([]metadata.Record(nil), recs...), log: log, ready: make(chan struct{})}, nil
}

// Ready is closed when every record has been published once.
func (p *Publisher) Ready() <-chan struct{} { return p.ready }

// Begin publishes every record once, so that a process learns whether its generation is one before it does anything else:
// the error is then a *Superseded. Whatever it returns, Run goes on from there.
func (p *Publisher) Begin(ctx context.Context) error { return p.publish(ctx) }

// Run publishes until ctx ends, then deletes what it published, and returns ctx's error. It returns ErrStale if a
// newer generation of the engine has published: this process is then superseded. Other failures are retried.
func (p *Publisher) Run(ctx context.Context) error {
	defer p.withdraw(ctx)
	pause := p.cfg.Retry
	for {
		next := p.cfg.TTL / 3
		if err := p.publish(ctx); err == nil {
			pause = p.cfg.Retry
			p.once.Do(func() { close(p.ready) })
		} else if errors.Is(err, metadata.ErrStale) {
			return err
		} else if ctx.Err() == nil {
			p.log.Warn("metadata: publish; trying again", "err", err, "pause", pause)
			next, pause = pause, min(2*pause, p.cfg.TTL/3)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(next):
		}
	}
}

// publish puts every record once, with new times.
func (p *Publisher) publish(ctx context.Context) error {
	for i := range p.recs {
		if err := p.to.Put(ctx, p.dated(i)); err != nil {
			return err
		}
	}
	return nil
}

// dated returns the ith record with new times.
func (p *Publisher) dated(i int) metadata.Record {
	r := &p.recs[i]
	now := time.Now().UTC().Round(0)
	if !now.After(r.Published) { // the wall clock went back
		now = r.Published.Add(1)
	}
	r.Published, r.Expires = now, now.Add(p.cfg.TTL)
	return *r
}

func (p *Publisher) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Withdraw)
	defer cancel()
	for _, r := range p.recs {
		if r.Published.IsZero() {
			continue
		}
		err := p.to.Delete(ctx, r.Incarnation, r.Rank)
		if err != nil && !errors.Is(err, metadata.ErrStale) && !errors.Is(err, metadata.ErrNotFound) {
			p.log.Warn("metadata: withdraw", "err", err)
		}
	}
}
