package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeBoard is a board that loses everything when it is told to.
type fakeBoard struct {
	mu      sync.Mutex
	facts   map[string]string
	changed func(map[string]string)
}

func (b *fakeBoard) Put(key, value string, _ time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.facts == nil {
		b.facts = map[string]string{}
	}
	b.facts[key] = value
}

func (b *fakeBoard) Watch(ctx context.Context, changed func(map[string]string)) error {
	b.mu.Lock()
	b.changed = changed
	b.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (b *fakeBoard) all() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.facts)
}

// lose has a fact be there no more.
func (b *fakeBoard) lose(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.facts, key)
}

// tell has the board be another.
func (b *fakeBoard) tell(facts map[string]string) {
	b.mu.Lock()
	b.facts = maps.Clone(facts)
	changed := b.changed
	b.mu.Unlock()
	changed(facts)
}

// TestWishesOutliveTheBoard has a board lose everything, have something older, and something that cannot be read.
func TestWishesOutliveTheBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBoard{}
		w := newWishes(b, true, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		changes := 0
		ended := make(chan error)
		go func() { ended <- w.run(ctx, func() { changes++ }, func() {}) }()
		synctest.Wait()
		w.put(record{Engine: "a", Drain: drainOn, By: "x"})
		older := b.all()
		w.put(record{Engine: "a", Removed: true, By: "x"})
		newest := b.all()
		w.put(record{Engine: "b", By: "x"}) // nothing is wanted of it any more
		for what, facts := range map[string]map[string]string{
			"nothing": {}, "something older": older, "garbage": {"a": "{", "c": `{"engine":"d"}`, "../x": `{"engine":"../x"}`},
		} {
			b.tell(facts)
			if got := b.all()["a"]; got != newest["a"] {
				t.Errorf("a board with %s has %s then; want %s", what, got, newest["a"])
			}
			if len(w.all()) != 2 || !w.all()["a"].Removed {
				t.Errorf("a board with %s: %v", what, w.all())
			}
		}
		if changes != 0 {
			t.Errorf("%d changes; want none", changes)
		}
		w2 := newWishes(&fakeBoard{}, true, slog.New(slog.DiscardHandler))
		w2.learn(b.all())
		w2.put(record{Engine: "a", By: "y"}) // by a clock that is behind, and yet the later wish
		b.tell(w2.board.(*fakeBoard).facts)
		if changes != 1 || !w.all()["a"].neutral() {
			t.Errorf("%d changes, %v; want the later wish", changes, w.all())
		}
		b.lose("a")
		w.put(record{Engine: "c", Drain: drainOn, By: "x"})
		b.lose("c")
		time.Sleep(wishRenew + time.Second)
		if all := b.all(); all["c"] == "" || all["a"] != "" {
			t.Errorf("after a while the board has %v; want c renewed, and a not", all)
		}
		time.Sleep(wishLease + wishRenew)
		if all := w.all(); len(all) != 1 || all["c"].Drain != drainOn {
			t.Errorf("in the end %v is kept; want c", all)
		}
		stop()
		<-ended
	})
}

// TestWishesAreNotAnybodys has a board that nobody signs add an engine, and one whose record is of a time to come.
func TestWishesAreNotAnybodys(t *testing.T) {
	e := engineOf("evil")
	added, err := json.Marshal(record{Engine: "evil", Model: "m", List: "engines", Entry: &e, At: 1})
	if err != nil {
		t.Fatal(err)
	}
	for signed, want := range map[bool]int{false: 1, true: 2} {
		w := newWishes(&fakeBoard{}, signed, slog.New(slog.DiscardHandler))
		w.learn(map[string]string{"evil": string(added), "one": `{"engine":"one","removed":true,"at":9223372036854775807}`, "two": `{"engine":"two","drain":"on","at":1}`})
		if all := w.all(); len(all) != want || all["two"].Drain != drainOn {
			t.Errorf("signed %v: %v; want %d", signed, all, want)
		}
	}
}
