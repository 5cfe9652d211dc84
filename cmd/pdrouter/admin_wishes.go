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
	// wishLease is how long what administrators want is kept where no gateway is left that knows of it.
	wishLease = 7 * 24 * time.Hour
	// wishRenew is between two renewals by a gateway that runs.
	wishRenew = time.Hour
	// wishAhead is how far another gateway's clock may be ahead. What is of a later time is ignored.
	wishAhead = time.Hour
)

// board is what gateways know in common.
type board interface {
	Put(key, value string, lease time.Duration)
	Watch(ctx context.Context, changed func(map[string]string)) error
}

// wishes are what administrators want of engines: here at once, and with the other gateways as soon as the board tells them.
// They outlive reloads, gateways that end, and a board that loses everything while a gateway runs. They are safe for
// concurrent use.
type wishes struct {
	board  board
	signed bool // nobody but gateways can put something on the board
	log    *slog.Logger

	mu      sync.Mutex
	records records
}

func newWishes(b board, signed bool, log *slog.Logger) *wishes {
	return &wishes{board: b, signed: signed, log: log, records: records{}}
}

// all returns every record. The map is the caller's.
func (w *wishes) all() records {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.records)
}

// put enters a record as the latest of its engine, and returns it as it was entered.
func (w *wishes) put(rec record) record {
	w.mu.Lock()
	rec.At = time.Now().UnixNano()
	if was, ok := w.records[rec.Engine]; ok && was.At >= rec.At { // another gateway's clock is ahead
		rec.At = was.At + 1
	}
	w.records[rec.Engine] = rec
	w.mu.Unlock()
	w.share(rec)
	return rec
}

// share puts a record on the board.
func (w *wishes) share(rec record) {
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
	others, latest := records{}, time.Now().Add(wishAhead).UnixNano()
	for name, text := range on {
		var rec record
		if err := json.Unmarshal([]byte(text), &rec); err != nil || rec.Engine != name || metadata.ValidName(name) != nil ||
			rec.Entry != nil && rec.Entry.Name != name {
			w.log.Warn("what is shared about an engine cannot be read", "engine", name, "err", err)
			continue
		}
		if rec.At > latest {
			w.log.Warn("what is shared about an engine is of a time to come: it is ignored", "engine", name, "at", rec.At)
			continue
		}
		if rec.Entry != nil && !w.signed { // whoever can write there would be sent prompts, and engines' credentials
			continue
		}
		others[name] = rec
	}
	w.mu.Lock()
	merged, other := w.records.merged(others)
	w.records = merged
	var lacking []record
	for name, rec := range merged {
		if there, ok := others[name]; !ok && !rec.lapses() || ok && rec.newer(there) {
			lacking = append(lacking, rec)
		}
	}
	w.mu.Unlock()
	for _, rec := range lacking {
		w.share(rec)
	}
	return other
}

// renew keeps records on the board for as long as a gateway runs, and forgets those that only outdid others, after their lease.
func (w *wishes) renew(ctx context.Context) {
	tick := time.NewTicker(wishRenew)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.mu.Lock()
			maps.DeleteFunc(w.records, func(_ string, rec record) bool { return rec.lapses() && now.Sub(rec.at()) > wishLease })
			kept := maps.Clone(w.records)
			w.mu.Unlock()
			for _, rec := range kept {
				if !rec.lapses() {
					w.share(rec)
				}
			}
		}
	}
}
