package harness

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/fake"
	"pdrouter/bench/internal/benchtest"
	"pdrouter/bench/load"
)

// TestDirect: the client without a router makes the legs that it says, each at its engine, and its answers are decode's.
func TestDirect(t *testing.T) {
	for _, mode := range []string{"pull", "push", fake.SGLang} {
		for legs, name := range map[int]string{1: "one leg", 2: "two legs"} {
			t.Run(mode+" "+name, func(t *testing.T) {
				_, fakes := benchtest.Behind(t, mode)
				c := direct{Closed: load.Closed{Connections: 2, Body: fake.ChatBody(1024, false)}, mode: mode, prefill: fakes[0], decode: fakes[1], legs: legs}
				seen, want, err := c.Run(t.Context(), 20*time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				if seen.Completed < 2 || len(seen.Took) != seen.Completed {
					t.Errorf("%d requests with %d times; want at least one a connection, and a time for each", seen.Completed, len(seen.Took))
				}
				checkCounts(t, fakes, want)
			})
		}
	}
}

// checkCounts compares what both engines were asked, prefill's legs at the first and all others at the second.
func checkCounts(t *testing.T, fakes [2]string, want fake.Counts) {
	t.Helper()
	for i, part := range []fake.Counts{{Prefill: want.Prefill}, {Decode: want.Decode, Other: want.Other}} {
		got, err := countsOf(t.Context(), fakes[i])
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(part, got.Asked()); d != "" {
			t.Error(d)
		}
	}
}

// TestDirectRefuses: a client that asks the wrong engine for prefill is told, and its run has no figure.
func TestDirectRefuses(t *testing.T) {
	_, fakes := benchtest.Behind(t, "pull")
	c := direct{Closed: load.Closed{Connections: 1, Body: fake.ChatBody(1024, false)}, mode: fake.SGLang, prefill: fakes[0], decode: fakes[1] + "0", legs: 2}
	if _, _, err := c.Run(t.Context(), time.Millisecond); err == nil {
		t.Error("nobody listens for decode, and the run has a figure")
	}
	c.decode = fakes[1]
	_, want, err := c.Run(t.Context(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	got, err := countsOf(t.Context(), fakes[1])
	if err != nil || Verdict(want, got) == nil {
		t.Errorf("engines of vLLM count rooms as legs: %+v, %v", got, err)
	}
}

// TestAlternate: as many requests one way as the other, in changing order.
func TestAlternate(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var asked []string
	open := func(name string) func(context.Context, time.Time) (load.Asker, error) {
		return func(context.Context, time.Time) (load.Asker, error) {
			return askerFunc(func() error {
				if asked = append(asked, name); len(asked) == 4 {
					stop()
				}
				return nil
			}), nil
		}
	}
	p, err := Alternate(ctx, time.Hour, open("through"), open("direct"))
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if len(p.Through) != 2 || len(p.Direct) != 2 {
		t.Errorf("%d requests through the router and %d without; want 2 of each", len(p.Through), len(p.Direct))
	}
	if got, want := strings.Join(asked, " "), "through direct direct through"; got != want {
		t.Errorf("got %s; want %s", got, want)
	}
}

// askerFunc is an asker without connections.
type askerFunc func() error

func (f askerFunc) Ask() error { return f() }
func (askerFunc) Close()       {}
