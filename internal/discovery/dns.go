package discovery

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// settleEvery is between two looks at whether requests of what is leaving have ended.
const settleEvery = 250 * time.Millisecond

// DNS keeps the addresses of a name up to date while Run runs. It is safe for concurrent use.
type DNS struct {
	name    Name
	r       resolver
	busy    func(netip.AddrPort) bool
	changed func([]Member)
	log     *slog.Logger

	known []Member  // before the first answer
	good  time.Time // of the answer that they are of

	mu    sync.Mutex
	stats DNSStats
}

// DNSStats is how asking for a name is doing.
type DNSStats struct {
	Name     string
	Known    int       // addresses that are used
	Leaving  int       // addresses that take no more requests
	Refused  int       // addresses of the last answer that are not allowed
	Asked    uint64    // times the name was asked for
	Failures uint64    // times there was no good answer
	Good     time.Time // of the last good answer; zero before the first
	Stale    bool      // it is too long ago: all that it had are leaving
}

// NewDNS returns what asks r for a name; nil is the system's resolver. busy reports whether an address still has requests.
// changed is called by Run, one call after the other, with the whole set whenever it is another, and with the first answer.
func NewDNS(n Name, r *net.Resolver, busy func(netip.AddrPort) bool, changed func([]Member), log *slog.Logger) *DNS {
	if r == nil {
		r = &net.Resolver{PreferGo: true}
	}
	return newDNS(n, r, busy, changed, log)
}

func newDNS(n Name, r resolver, busy func(netip.AddrPort) bool, changed func([]Member), log *slog.Logger) *DNS {
	n = n.withDefaults()
	return &DNS{name: n, r: r, busy: busy, changed: changed, log: log, stats: DNSStats{Name: n.Host}}
}

// Seed has the name begin with what is known of it, by a good answer at good, so that this holds no longer than MaxStale
// where there is never another one. It is to be called before Run.
func (d *DNS) Seed(known []Member, good time.Time) {
	d.known, d.good, d.stats.Good = known, good, good
}

// Run asks for the name now and then until ctx ends.
func (d *DNS) Run(ctx context.Context) error {
	set := Set{Damping: d.name.Damping}
	set.seed(d.known, d.good)
	refused, failing, answered := 0, false, false
	ask := time.NewTimer(0)
	defer ask.Stop()
	settle := time.NewTicker(settleEvery)
	defer settle.Stop()
	for {
		var changes []Change
		tell := false // even if nothing is another
		select {
		case <-ctx.Done():
			return nil
		case <-settle.C:
			if !set.leaves() {
				continue
			}
			changes = set.Settle(d.busy)
		case <-ask.C:
			answer, not, err := lookup(ctx, d.r, d.name)
			if ctx.Err() != nil {
				return nil
			}
			now, was := time.Now(), set.Stale()
			if err != nil {
				changes = set.Lacked(now)
			} else {
				changes = set.Saw(now, answer)
			}
			over, first := set.Stale() && !was, err == nil && !answered
			d.tell(err, failing, over)
			tell, answered = over || first, answered || first
			if not > 0 && not != refused {
				d.log.Warn("addresses of a name are not allowed and left out", "name", d.name.Host, "addresses", not)
			}
			refused, failing = not, err != nil
			d.asked(err)
			d.note(&set, not)
			ask.Reset(jittered(d.name.Every))
		}
		for _, c := range changes {
			d.log.Info("discovery: "+c.Do.String(), "name", d.name.Host, "address", c.At.String())
		}
		if len(changes) > 0 || tell {
			d.note(&set, refused)
			d.changed(set.Members())
		}
	}
}

// tell logs when asking begins to fail, when it succeeds again, and when what is known is given up.
func (d *DNS) tell(err error, failing, over bool) {
	switch {
	case over:
		d.log.Error("no good answer for too long: the engines of a name are drained", "name", d.name.Host, "max_stale", d.name.MaxStale, "err", err)
	case err != nil && !failing:
		d.log.Warn("no good answer for a name: the last one holds on", "name", d.name.Host, "for_at_most", d.name.MaxStale, "err", err)
	case err == nil && failing:
		d.log.Info("there are good answers for a name again", "name", d.name.Host)
	}
}

// asked counts one look.
func (d *DNS) asked(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Asked++
	if err != nil {
		d.stats.Failures++
	}
}

// note enters what is known now.
func (d *DNS) note(set *Set, refused int) {
	members := set.Members()
	leaving := 0
	for _, m := range members {
		if m.Leaving {
			leaving++
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Known, d.stats.Leaving, d.stats.Refused = len(members)-leaving, leaving, refused
	d.stats.Good, d.stats.Stale = set.good, set.stale
}

// Stats returns how asking is doing.
func (d *DNS) Stats() DNSStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}
