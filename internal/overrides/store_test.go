package overrides

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/router/config"
)

// fakeCache is a shared cache that loses everything when it is told to.
type fakeCache struct {
	mu      sync.Mutex
	facts   map[string]string
	changed func(map[string]string)
}

func (b *fakeCache) Put(key, value string, _ time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.facts == nil {
		b.facts = map[string]string{}
	}
	b.facts[key] = value
}

func (b *fakeCache) Watch(ctx context.Context, changed func(map[string]string)) error {
	b.mu.Lock()
	b.changed = changed
	b.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (b *fakeCache) all() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.facts)
}

// lose has a value be there no more.
func (b *fakeCache) lose(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.facts, key)
}

// tell has the cache be another.
func (b *fakeCache) tell(facts map[string]string) {
	b.mu.Lock()
	b.facts = maps.Clone(facts)
	changed := b.changed
	b.mu.Unlock()
	changed(facts)
}

// put enters an override that nothing is wrong with, and returns it as it was entered.
func (s *Store) put(o Override) Override {
	_ = s.Try(o, func() error { return nil })
	return s.All()[o.Engine]
}

// TestOverridesOutliveTheCache has a cache lose everything, have something older, and something that cannot be read.
func TestOverridesOutliveTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeCache{}
		w := NewStore(b, true, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		changes := 0
		ended := make(chan error)
		go func() { ended <- w.Run(ctx, func() { changes++ }, func() {}) }()
		synctest.Wait()
		w.put(Override{Engine: "a", Drain: DrainOn, By: "x"})
		older := b.all()
		w.put(Override{Engine: "a", Removed: true, By: "x"})
		newest := b.all()
		w.put(Override{Engine: "b", By: "x"}) // nothing is wanted of it any more
		for what, facts := range map[string]map[string]string{
			"nothing": {}, "something older": older, "garbage": {"a": "{", "c": `{"engine":"d"}`, "../x": `{"engine":"../x"}`},
		} {
			b.tell(facts)
			if got := b.all()["a"]; got != newest["a"] {
				t.Errorf("a cache with %s has %s then; want %s", what, got, newest["a"])
			}
			if len(w.All()) != 2 || !w.All()["a"].Removed {
				t.Errorf("a cache with %s: %v", what, w.All())
			}
		}
		if changes != 0 {
			t.Errorf("%d changes; want none", changes)
		}
		w2 := NewStore(&fakeCache{}, true, slog.New(slog.DiscardHandler))
		w2.Learn(b.all())
		w2.put(Override{Engine: "a", By: "y"}) // by a clock that is behind, and yet the later one
		b.tell(w2.shared.(*fakeCache).facts)
		if changes != 1 || !w.All()["a"].Neutral() {
			t.Errorf("%d changes, %v; want the later override", changes, w.All())
		}
		b.lose("a")
		w.put(Override{Engine: "c", Drain: DrainOn, By: "x"})
		b.lose("c")
		time.Sleep(refreshEvery + time.Second)
		if all := b.all(); all["c"] == "" || all["a"] == "" {
			t.Errorf("after a while the cache has %v; want both again", all)
		}
		time.Sleep(forgottenAfter + refreshEvery)
		if all := w.All(); len(all) != 1 || all["c"].Drain != DrainOn {
			t.Errorf("in the end %v is kept; want c", all)
		}
		stop()
		<-ended
	})
}

// TestReplacingOverridesArePutBack has a cache lose an override that only replaces an older one, and have that older one instead.
func TestReplacingOverridesArePutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeCache{}
		w := NewStore(b, true, slog.New(slog.DiscardHandler))
		e := config.Engine{Name: "a", URL: "http://a:1"}
		w.put(Override{Engine: "a", Model: "m", List: "engines", Entry: &e, By: "x"})
		older := b.all()
		time.Sleep(time.Second)
		w.put(Override{Engine: "a", Model: "m", List: "engines", Entry: &e, Removed: true, By: "x"})
		for what, on := range map[string]map[string]string{"nothing": {}, "the older one": older} {
			b.lose("a")
			w.Learn(on)
			var back Override
			if err := json.Unmarshal([]byte(b.all()["a"]), &back); err != nil || !back.Removed {
				t.Errorf("the cache has %s; then %q, %v; want it removed", what, b.all()["a"], err)
			}
		}
		time.Sleep(forgottenAfter + time.Second)
		b.lose("a")
		if w.Learn(nil); len(b.all()) != 0 {
			t.Errorf("in the end the cache still gets %v", b.all())
		}
	})
}

// TestStoreIgnoresUnsignedAndFuture has a cache that nobody signs add an engine, and one whose override is of a time to come.
func TestStoreIgnoresUnsignedAndFuture(t *testing.T) {
	e := config.Engine{Name: "evil", URL: "http://evil:8000"}
	now := time.Now().UnixNano()
	text := func(rec Override) string {
		b, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	facts := map[string]string{
		"evil":  text(Override{Engine: "evil", Model: "m", List: "engines", Entry: &e, At: now}),
		"one":   text(Override{Engine: "one", Removed: true, At: 1<<63 - 1}),
		"two":   text(Override{Engine: "two", Drain: DrainOn, At: now}),
		"three": text(Override{Engine: "three", Drain: DrainOn, At: 1, Refreshed: 1<<63 - 1}),
	}
	for signed, want := range map[bool]int{false: 1, true: 2} {
		w := NewStore(&fakeCache{}, signed, slog.New(slog.DiscardHandler))
		w.Learn(facts)
		if all := w.All(); len(all) != want || all["two"].Drain != DrainOn {
			t.Errorf("signed %v: %v; want %d", signed, all, want)
		}
	}
}

// TestOverridesExpire has a gateway refresh overrides while it runs, and somebody who kept one put it back later.
func TestOverridesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		b := &fakeCache{}
		ctx, stop := context.WithCancel(t.Context())
		w, ended := NewStore(b, true, log), make(chan error)
		go func() { ended <- w.Run(ctx, func() {}, func() {}) }()
		synctest.Wait()
		w.put(Override{Engine: "a", Drain: DrainOn, By: "ann"})
		w.put(Override{Engine: "b", Removed: true, By: "ann"})
		kept := b.all()["a"]
		w.put(Override{Engine: "a", By: "ann"}) // undrained
		time.Sleep(3 * keptFor)
		later := NewStore(&fakeCache{}, true, log)
		if !later.Learn(b.all()) || !later.All()["b"].Removed || !later.All()["a"].Neutral() || len(later.Expired()) != 0 {
			t.Errorf("while a gateway runs: %v, expired %v; want all that it knows", later.All(), later.Expired())
		}
		if later.Learn(map[string]string{"a": kept}) || !later.All()["a"].Neutral() || len(later.Expired()) != 0 {
			t.Errorf("an older override put back: %v, expired %v", later.All(), later.Expired())
		}
		alone := NewStore(&fakeCache{}, true, log)
		if alone.Learn(map[string]string{"a": kept}) || len(alone.All()) != 0 || alone.Expired()["a"].Drain != DrainOn {
			t.Errorf("an older override, and nobody knows better: %v, expired %v; want it not trusted, and told of", alone.All(), alone.Expired())
		}
		if facts := alone.shared.(*fakeCache).all(); len(facts) != 0 {
			t.Errorf("it is refreshed: %v", facts)
		}
		alone.put(Override{Engine: "a", Drain: DrainOff, By: "bob"})
		if alone.Learn(map[string]string{"a": kept}) || alone.All()["a"].Drain != DrainOff || len(alone.Expired()) != 0 {
			t.Errorf("wanted anew: %v, expired %v", alone.All(), alone.Expired())
		}

		stop()
		<-ended
		left := b.all()
		time.Sleep(TrustedFor - refreshEvery)
		if soon := NewStore(&fakeCache{}, true, log); !soon.Learn(left) || len(soon.All()) != 2 {
			t.Errorf("one that starts soon knows %v", soon.All())
		}
		time.Sleep(refreshEvery + time.Second)
		late := NewStore(&fakeCache{}, true, log)
		if late.Learn(left) || len(late.All()) != 0 || len(late.Expired()) != 1 || !late.Expired()["b"].Removed {
			t.Errorf("one that starts late knows %v, expired %v; want b told of alone", late.All(), late.Expired())
		}
	})
}
