// Package peers exchanges load between the gateways in front of one fleet. Each publishes what it has at the engines: requests in flight, prompt
// tokens yet to compute, answers and their context, recent work. So each gateway's choices count the load of all.
//
// Run does so in the background, a few times a second; no request waits for it. An entry ends with its lease, so a gateway that is killed stops
// counting, and one that cannot reach the others goes by its own load. Package router runs it, and a Store keeps the entries (internal/shared). It
// makes no choices: package fleet has the sums for them.
package peers

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync/atomic"
	"time"

	"pdrouter/router/fleet"
)

const (
	// period is between two exchanges, and lease how long an entry counts.
	period = 250 * time.Millisecond
	lease  = 3 * time.Second
	// syncTimeout bounds one exchange. Without it, entries whose lease is over would count while the store hangs.
	syncTimeout = 500 * time.Millisecond
)

// Store has an entry of each gateway. Put and All must not wait; Sync is one round trip to where the entries are shared.
type Store interface {
	Put(gateway, value string, lease time.Duration)
	Sync(ctx context.Context) error
	All() map[string]string // without those whose lease is over
}

// Peers exchanges loads with other gateways while Run runs.
type Peers struct {
	log   *slog.Logger
	store Store
	id    string // unlike that of any other gateway, and of this one's earlier life
	fleet func() *fleet.Fleet

	gateways atomic.Int64
	failures atomic.Uint64
	behind   atomic.Bool
	invalid  atomic.Bool // an entry was, and that was logged
}

// New returns Peers that say what this gateway has at the engines of the current fleet.
func New(log *slog.Logger, store Store, current func() *fleet.Fleet) *Peers {
	return &Peers{log: log, store: store, id: rand.Text(), fleet: current}
}

// Stats are for metrics.
type Stats struct {
	Gateways int    // other gateways whose load is known
	Failures uint64 // exchanges that failed
	Behind   bool   // the latest exchange failed
}

// Stats are those of now.
func (p *Peers) Stats() Stats {
	return Stats{Gateways: int(p.gateways.Load()), Failures: p.failures.Load(), Behind: p.behind.Load()}
}

// Run exchanges loads until ctx ends, and then takes this gateway's own back. The first exchange is at once, so a gateway that starts knows the
// others' load with its first requests.
func (p *Peers) Run(ctx context.Context) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		p.exchange(ctx)
		select {
		case <-ctx.Done():
			p.leave(context.WithoutCancel(ctx))
			return
		case <-tick.C:
		}
	}
}

// exchange tells this gateway's load and takes in the others'.
func (p *Peers) exchange(ctx context.Context) {
	p.store.Put(p.id, shareOf(p.fleet(), time.Now()).encode(), lease)
	within, cancel := context.WithTimeout(ctx, syncTimeout)
	err := p.store.Sync(within)
	cancel()
	if err != nil && ctx.Err() == nil {
		p.failures.Add(1)
	}
	p.behind.Store(err != nil)
	p.take(time.Now())
}

// take has the engines know what other gateways have there now, as far as that is known.
func (p *Peers) take(now time.Time) {
	all, gateways := share{Engines: map[string]load{}, Rates: map[string]float64{}}, 0
	for id, text := range p.store.All() {
		if id == p.id {
			continue
		}
		s, err := decode(text)
		if err != nil {
			if !p.invalid.Swap(true) {
				p.log.Error("what another gateway says of its load is invalid: it is ignored, and so is every other such entry", "gateway", id, "err", err)
			}
			continue
		}
		all.add(s)
		gateways++
	}
	p.gateways.Store(int64(gateways))
	f := p.fleet()
	for _, e := range f.Engines {
		e.SetOthers(all.Engines[e.Name].others())
	}
	for name, m := range f.Models {
		if m.Prices {
			m.Forecast.SetOthersRate(all.Rates[name])
		}
	}
}

// leave takes this gateway's load back, so that others need not wait for the end of its lease.
func (p *Peers) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	p.store.Put(p.id, "{}", 0)
	_ = p.store.Sync(ctx) // else the lease ends it
}
