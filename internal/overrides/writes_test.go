package overrides

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/shared"
	"pdrouter/router/config"
)

// countedCache counts what is put into a cache, and gives up looking after too many.
type countedCache struct {
	*shared.Map
	puts int
	stop context.CancelFunc
}

func (b *countedCache) Put(key, value string, lease time.Duration) {
	if b.puts++; b.puts > 100 {
		b.stop()
	}
	time.Sleep(time.Millisecond) // of a bubble: so that no two are refreshed at one moment
	b.Map.Put(key, value, lease)
}

// TestOverridesAreWrittenOnce has gateways hold what they would not trust from another one: it is written no more often for that.
func TestOverridesAreWrittenOnce(t *testing.T) {
	e := config.Engine{Name: "d-7", URL: "http://x:1"}
	for what, row := range map[string]struct {
		signed bool
		held   Override
		ahead  time.Duration
		want   int
	}{
		"added, and nobody signs": {held: Override{Engine: "d-7", Model: "m", List: "decode", Entry: &e, By: "a"}, want: 1},
		"the clock stepped back":  {signed: true, held: Override{Engine: "d-7", Drain: DrainOn, By: "a"}, ahead: 2 * clockAhead, want: 1},
		"removed, the same":       {held: Override{Engine: "d-7", Removed: true, By: "a"}, ahead: 2 * clockAhead, want: 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				ctx, stop := context.WithCancel(t.Context())
				b := &countedCache{Map: shared.NewMap(nil, "p", "engines", nil, log), stop: stop}
				w, ended := NewStore(b, row.signed, log), make(chan error)
				row.held.At = time.Now().Add(row.ahead).UnixNano()
				w.held["d-7"] = row.held
				go func() { ended <- w.Run(ctx, func() {}, func() {}) }()
				time.Sleep(time.Minute)
				stop()
				<-ended
				if b.puts != row.want {
					t.Errorf("%d times written in a minute; want %d", b.puts, row.want)
				}
			})
		})
	}
}

// TestOverridesOfClocksThatDiffer has two gateways, one of them two hours ahead, hold overrides of one engine: neither writes over the
// other's whenever it sees it.
func TestOverridesOfClocksThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		b := &countedCache{Map: shared.NewMap(nil, "p", "engines", nil, log), stop: func() {}}
		one, two := NewStore(b, true, log), NewStore(b, true, log)
		one.put(Override{Engine: "a", Drain: DrainOn, By: "one"})
		two.held["a"] = Override{Engine: "a", Removed: true, By: "two", At: time.Now().Add(2 * clockAhead).UnixNano()}
		for range 10 {
			two.Learn(b.All())
			one.Learn(b.All())
		}
		if b.puts != 2 {
			t.Errorf("%d times written; want once each", b.puts)
		}
	})
}
