package main

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
	// wishBelieved is how long after a gateway has vouched for it last another one takes in what administrators want: what
	// somebody kept who can write to Redis, and puts back later, is nobody's wish any more.
	wishBelieved = time.Hour
	// wishRenew is between two times that a gateway that runs vouches for what it knows.
	wishRenew = wishBelieved / 6
	// wishLease is how long the board keeps it: for longer than it is believed, so that a gateway can say what it does not.
	wishLease = 24 * time.Hour
	// wishForget is how long a gateway knows what only outdid something older, for gateways that hear of it late.
	wishForget = 7 * 24 * time.Hour
	// wishAhead is how far another gateway's clock may be ahead. What is of a later time is ignored.
	wishAhead = time.Hour
)

// board is what gateways know in common.
type board interface {
	Put(key, value string, lease time.Duration)
	Watch(ctx context.Context, changed func(map[string]string)) error
}

// wishes are what administrators want of engines: here at once, and with the other gateways as soon as the board tells them.
// They outlive reloads, a gateway that ends while another one runs, and a board that loses everything meanwhile. When no
// gateway has run for wishBelieved, the configuration holds as it stands. They are safe for concurrent use.
type wishes struct {
	board  board
	signed bool // nobody but gateways can put something on the board
	log    *slog.Logger

	mu      sync.Mutex
	records recordsByEngine
	trial   *record         // holds here while it is taken into use; other gateways do not hear of it
	lapsed  recordsByEngine // what the board has and no gateway refreshes: it is not believed
}

func newWishes(b board, signed bool, log *slog.Logger) *wishes {
	return &wishes{board: b, signed: signed, log: log, records: recordsByEngine{}, lapsed: recordsByEngine{}}
}

// over returns what is not believed any more. The map is not changed.
func (w *wishes) over() recordsByEngine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lapsed
}

// stand returns every record but the one that is tried. The map is the caller's.
func (w *wishes) stand() recordsByEngine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.records)
}

// all returns every record, the one that is tried included. The map is the caller's.
func (w *wishes) all() recordsByEngine {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := maps.Clone(w.records)
	if w.trial != nil {
		all, _ = all.merged(recordsByEngine{w.trial.Engine: *w.trial})
	}
	return all
}

// try has a record be the latest of its engine for as long as do runs, and keeps and shares it if that succeeds. Else it is
// as if it had never been. There is one trial at a time.
func (w *wishes) try(rec record, do func() error) error {
	w.mu.Lock()
	rec.At = time.Now().UnixNano()
	if was, ok := w.records[rec.Engine]; ok && was.At >= rec.At { // another gateway's clock is ahead
		rec.At = was.At + 1
	}
	w.trial = &rec
	w.mu.Unlock()
	err := do()
	w.mu.Lock()
	w.trial = nil
	if err == nil {
		w.records, _ = w.records.merged(recordsByEngine{rec.Engine: rec}) // the board may have told of a newer one meanwhile
		rec = w.records[rec.Engine]
	}
	w.mu.Unlock()
	if err == nil {
		w.share(rec)
	}
	return err
}

// share puts a record on the board, and vouches for it.
func (w *wishes) share(rec record) {
	rec.Vouched = time.Now().UnixNano()
	b, err := json.Marshal(rec)
	if err != nil { // it has nothing that could not be written
		w.log.Error("what an administrator wants cannot be shared", "engine", rec.Engine, "err", err)
		return
	}
	w.board.Put(rec.Engine, string(b), wishLease)
}

// run keeps up with the board until ctx ends, calls changed when something is another, and looked after each look that brought
// something, and after the first.
func (w *wishes) run(ctx context.Context, changed, looked func()) error {
	var renewing sync.WaitGroup
	defer renewing.Wait()
	renewing.Go(func() { w.renew(ctx) })
	return w.board.Watch(ctx, func(on map[string]string) {
		if w.learn(on) {
			changed()
		}
		looked()
	})
}

// learn takes in what the board has, and puts there what it lacks. It reports whether something is another here.
func (w *wishes) learn(on map[string]string) bool {
	now := time.Now()
	// seen is all that can be read, also what is not believed: what stands there need not be put there, or gateways that do not
	// believe their own records, or each other's, would write without end.
	seen, ahead := recordsByEngine{}, map[string]bool{}
	others, old := recordsByEngine{}, recordsByEngine{}
	for name, text := range on {
		var rec record
		if err := json.Unmarshal([]byte(text), &rec); err != nil || rec.Engine != name || metadata.ValidName(name) != nil ||
			rec.Entry != nil && rec.Entry.Name != name {
			w.log.Warn("what is shared about an engine cannot be read", "engine", name, "err", err)
			continue
		}
		vouched := rec.vouched()
		rec.Vouched = 0
		seen[name] = rec
		if latest := now.Add(wishAhead); rec.at().After(latest) || vouched.After(latest) {
			w.log.Warn("what is shared about an engine is of a time to come: it is ignored", "engine", name, "at", rec.at().UTC(), "vouched", vouched.UTC())
			ahead[name] = true
			continue
		}
		if rec.Entry != nil && !w.signed { // whoever can write there would be sent prompts, and engines' credentials
			continue
		}
		if now.Sub(vouched) > wishBelieved {
			old[name] = rec
			continue
		}
		others[name] = rec
	}
	w.mu.Lock()
	merged, other := w.records.merged(others)
	w.records = merged
	var lacking []record
	for name, rec := range merged {
		if there, ok := seen[name]; !ok && !rec.forgotten(now) || ok && !ahead[name] && rec.newer(there) {
			lacking = append(lacking, rec)
		}
	}
	maps.DeleteFunc(old, func(name string, rec record) bool { _, known := merged[name]; return known || rec.lapses() })
	was := w.lapsed
	w.lapsed = old
	w.mu.Unlock()
	for name, rec := range old {
		if was[name].At != rec.At {
			w.log.Warn("no gateway has vouched for what an administrator wanted of an engine for too long: it is forgotten, and the configuration holds",
				"engine", name, "wanted", rec.wanted(), "by", rec.By, "at", rec.at().UTC(), "believed_for", wishBelieved)
		}
	}
	for _, rec := range lacking {
		w.share(rec)
	}
	return other
}

// renew vouches for records for as long as a gateway runs, and forgets those that only outdid others after wishForget.
func (w *wishes) renew(ctx context.Context) {
	tick := time.NewTicker(wishRenew)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.mu.Lock()
			maps.DeleteFunc(w.records, func(_ string, rec record) bool { return rec.forgotten(now) })
			kept := maps.Clone(w.records)
			w.mu.Unlock()
			for _, rec := range kept {
				w.share(rec)
			}
		}
	}
}
