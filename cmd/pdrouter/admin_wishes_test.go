package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
	"pdrouter/router/config"
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

// put enters a record that nothing is wrong with, and returns it as it was entered.
func (w *wishes) put(rec record) record {
	_ = w.try(rec, func() error { return nil })
	return w.all()[rec.Engine]
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
		if all := b.all(); all["c"] == "" || all["a"] == "" {
			t.Errorf("after a while the board has %v; want both again", all)
		}
		time.Sleep(wishForget + wishRenew)
		if all := w.all(); len(all) != 1 || all["c"].Drain != drainOn {
			t.Errorf("in the end %v is kept; want c", all)
		}
		stop()
		<-ended
	})
}

// TestWishesThatOutdoArePutBack has a board lose a wish that only outdoes an older one, and have that older one instead.
func TestWishesThatOutdoArePutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBoard{}
		w := newWishes(b, true, slog.New(slog.DiscardHandler))
		e := config.Engine{Name: "a", URL: "http://a:1"}
		w.put(record{Engine: "a", Model: "m", List: "engines", Entry: &e, By: "x"})
		older := b.all()
		time.Sleep(time.Second)
		w.put(record{Engine: "a", Model: "m", List: "engines", Entry: &e, Removed: true, By: "x"})
		for what, on := range map[string]map[string]string{"nothing": {}, "the older one": older} {
			b.lose("a")
			w.learn(on)
			var back record
			if err := json.Unmarshal([]byte(b.all()["a"]), &back); err != nil || !back.Removed {
				t.Errorf("the board has %s; then %q, %v; want it removed", what, b.all()["a"], err)
			}
		}
		time.Sleep(wishForget + time.Second)
		b.lose("a")
		if w.learn(nil); len(b.all()) != 0 {
			t.Errorf("in the end the board still gets %v", b.all())
		}
	})
}

// TestWishesAreNotAnybodys has a board that nobody signs add an engine, and one whose record is of a time to come.
func TestWishesAreNotAnybodys(t *testing.T) {
	e := engineOf("evil")
	now := time.Now().UnixNano()
	text := func(rec record) string {
		b, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	facts := map[string]string{
		"evil":  text(record{Engine: "evil", Model: "m", List: "engines", Entry: &e, At: now}),
		"one":   text(record{Engine: "one", Removed: true, At: 1<<63 - 1}),
		"two":   text(record{Engine: "two", Drain: drainOn, At: now}),
		"three": text(record{Engine: "three", Drain: drainOn, At: 1, Vouched: 1<<63 - 1}),
	}
	for signed, want := range map[bool]int{false: 1, true: 2} {
		w := newWishes(&fakeBoard{}, signed, slog.New(slog.DiscardHandler))
		w.learn(facts)
		if all := w.all(); len(all) != want || all["two"].Drain != drainOn {
			t.Errorf("signed %v: %v; want %d", signed, all, want)
		}
	}
}

// TestWishesAreNotBelievedForLong has a gateway vouch for wishes while it runs, and somebody who kept one put it back later.
func TestWishesAreNotBelievedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		b := &fakeBoard{}
		ctx, stop := context.WithCancel(t.Context())
		w, ended := newWishes(b, true, log), make(chan error)
		go func() { ended <- w.run(ctx, func() {}, func() {}) }()
		synctest.Wait()
		w.put(record{Engine: "a", Drain: drainOn, By: "ann"})
		w.put(record{Engine: "b", Removed: true, By: "ann"})
		kept := b.all()["a"]
		w.put(record{Engine: "a", By: "ann"}) // undrained
		time.Sleep(3 * wishLease)
		later := newWishes(&fakeBoard{}, true, log)
		if !later.learn(b.all()) || !later.all()["b"].Removed || !later.all()["a"].neutral() || len(later.over()) != 0 {
			t.Errorf("while a gateway runs: %v, over %v; want all that it knows", later.all(), later.over())
		}
		if later.learn(map[string]string{"a": kept}) || !later.all()["a"].neutral() || len(later.over()) != 0 {
			t.Errorf("an older wish put back: %v, over %v", later.all(), later.over())
		}
		alone := newWishes(&fakeBoard{}, true, log)
		if alone.learn(map[string]string{"a": kept}) || len(alone.all()) != 0 || alone.over()["a"].Drain != drainOn {
			t.Errorf("an older wish, and nobody knows better: %v, over %v; want it not believed, and told of", alone.all(), alone.over())
		}
		if facts := alone.board.(*fakeBoard).all(); len(facts) != 0 {
			t.Errorf("it is vouched for: %v", facts)
		}
		alone.put(record{Engine: "a", Drain: drainOff, By: "bob"})
		if alone.learn(map[string]string{"a": kept}) || alone.all()["a"].Drain != drainOff || len(alone.over()) != 0 {
			t.Errorf("wanted anew: %v, over %v", alone.all(), alone.over())
		}

		stop()
		<-ended
		left := b.all()
		time.Sleep(wishBelieved - wishRenew)
		if soon := newWishes(&fakeBoard{}, true, log); !soon.learn(left) || len(soon.all()) != 2 {
			t.Errorf("one that starts soon knows %v", soon.all())
		}
		time.Sleep(wishRenew + time.Second)
		late := newWishes(&fakeBoard{}, true, log)
		if late.learn(left) || len(late.all()) != 0 || len(late.over()) != 1 || !late.over()["b"].Removed {
			t.Errorf("one that starts late knows %v, over %v; want b told of alone", late.all(), late.over())
		}
	})
}

// TestAdminTellsWhatLapsed starts a gateway where none has run for long.
func TestAdminTellsWhatLapsed(t *testing.T) {
	server := redistest.Start(t)
	one := newFakeServing(t, "one", "127.0.0.1:0")
	now := time.Now()
	for key, at := range map[string]time.Time{"one": now.Add(-2 * wishBelieved), "two": now} {
		b, err := json.Marshal(record{Engine: key, Drain: drainOn, By: "ann", At: at.UnixNano()})
		if err != nil {
			t.Fatal(err)
		}
		board := redisdb.Config{}.WithDefaults().Prefix + ":engines"
		if got := server.Do("HSET", board, key, fmt.Sprintf("%d %s", now.Add(time.Hour).UnixMilli(), b)); got != "1" {
			t.Fatal(got)
		}
	}
	a := administer(t, fmt.Sprintf("{name: m, engines: [{name: one, url: %q}, {name: two, url: %q}]}", one.URL, one.URL),
		fmt.Sprintf("metadata: {store: redis, redis: {address: %q}}\n", server.Address()))
	a.until("what was wanted lately holds", a.lists("two", "drained", "by ann"))
	a.until("the configuration holds", a.lists("one", "up"))
	a.until("it is told", a.lists("one: drained by ann", "does not hold any more"))
}
