package main

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/shared"
	"pdrouter/router/config"
)

// countedBoard counts what is put on a board, and gives up looking after too many.
type countedBoard struct {
	*shared.Board
	puts int
	stop context.CancelFunc
}

func (b *countedBoard) Put(key, value string, lease time.Duration) {
	if b.puts++; b.puts > 100 {
		b.stop()
	}
	time.Sleep(time.Millisecond) // of a bubble: so that no two are vouched for at one moment
	b.Board.Put(key, value, lease)
}

// TestWishesAreWrittenOnce has gateways hold what they would not believe from another one: it is written no more often for that.
func TestWishesAreWrittenOnce(t *testing.T) {
	e := config.Engine{Name: "d-7", URL: "http://x:1"}
	for what, row := range map[string]struct {
		signed bool
		held   record
		ahead  time.Duration
		want   int
	}{
		"added, and nobody signs": {held: record{Engine: "d-7", Model: "m", List: "decode", Entry: &e, By: "a"}, want: 1},
		"the clock stepped back":  {signed: true, held: record{Engine: "d-7", Drain: drainOn, By: "a"}, ahead: 2 * wishAhead, want: 1},
		"removed, the same":       {held: record{Engine: "d-7", Removed: true, By: "a"}, ahead: 2 * wishAhead, want: 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				ctx, stop := context.WithCancel(t.Context())
				b := &countedBoard{Board: shared.NewBoard(nil, "p", "engines", nil, log), stop: stop}
				w, ended := newWishes(b, row.signed, log), make(chan error)
				row.held.At = time.Now().Add(row.ahead).UnixNano()
				w.records["d-7"] = row.held
				go func() { ended <- w.run(ctx, func() {}, func() {}) }()
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

// TestWishesOfClocksThatDiffer has two gateways, one of them two hours ahead, hold wishes for one engine: neither writes over the
// other's whenever it sees it.
func TestWishesOfClocksThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		b := &countedBoard{Board: shared.NewBoard(nil, "p", "engines", nil, log), stop: func() {}}
		one, two := newWishes(b, true, log), newWishes(b, true, log)
		one.put(record{Engine: "a", Drain: drainOn, By: "one"})
		two.records["a"] = record{Engine: "a", Removed: true, By: "two", At: time.Now().Add(2 * wishAhead).UnixNano()}
		for range 10 {
			two.learn(b.All())
			one.learn(b.All())
		}
		if b.puts != 2 {
			t.Errorf("%d times written; want once each", b.puts)
		}
	})
}
