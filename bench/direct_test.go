package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDirect: the client without a router makes the legs that it says, each at its engine, and its answers are decode's.
func TestDirect(t *testing.T) {
	for _, mode := range []string{"pull", "push", modeSGLang} {
		for legs, name := range map[int]string{1: "one leg", 2: "two legs"} {
			t.Run(mode+" "+name, func(t *testing.T) {
				_, fakes := behind(t, mode)
				c := direct{load: load{connections: 2, body: chatBody(1024, false)}, mode: mode, prefill: fakes[0], decode: fakes[1], legs: legs}
				seen, want, err := c.run(t.Context(), 20*time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				if seen.completed < 2 || len(seen.took) != seen.completed {
					t.Errorf("%d requests with %d times; want at least one a connection, and a time for each", seen.completed, len(seen.took))
				}
				checkCounts(t, fakes, want)
			})
		}
	}
}

// checkCounts compares what both engines were asked, prefill's legs at the first and all others at the second.
func checkCounts(t *testing.T, fakes [2]string, want Counts) {
	t.Helper()
	for i, part := range []Counts{{Prefill: want.Prefill}, {Decode: want.Decode, Other: want.Other}} {
		got, err := countsOf(t.Context(), fakes[i])
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(part, got.asked()); d != "" {
			t.Error(d)
		}
	}
}

// TestDirectRefuses: a client that asks the wrong engine for prefill is told, and its run has no figure.
func TestDirectRefuses(t *testing.T) {
	_, fakes := behind(t, "pull")
	c := direct{load: load{connections: 1, body: chatBody(1024, false)}, mode: modeSGLang, prefill: fakes[0], decode: fakes[1] + "0", legs: 2}
	if _, _, err := c.run(t.Context(), time.Millisecond); err == nil {
		t.Error("nobody listens for decode, and the run has a figure")
	}
	c.decode = fakes[1]
	_, want, err := c.run(t.Context(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	got, err := countsOf(t.Context(), fakes[1])
	if err != nil || verdict(want, got) == nil {
		t.Errorf("engines of vLLM count rooms as legs: %+v, %v", got, err)
	}
}

// TestAlternate: as many requests one way as the other, in changing order.
func TestAlternate(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var asked []string
	open := func(name string) func(context.Context, time.Time) (asker, error) {
		return func(context.Context, time.Time) (asker, error) {
			return askerFunc(func() error {
				if asked = append(asked, name); len(asked) == 4 {
					stop()
				}
				return nil
			}), nil
		}
	}
	p, err := alternate(ctx, time.Hour, open("through"), open("direct"))
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if len(p.through) != 2 || len(p.direct) != 2 {
		t.Errorf("%d requests through the router and %d without; want 2 of each", len(p.through), len(p.direct))
	}
	if got, want := strings.Join(asked, " "), "through direct direct through"; got != want {
		t.Errorf("got %s; want %s", got, want)
	}
}

// askerFunc is an asker without connections.
type askerFunc func() error

func (f askerFunc) ask() error { return f() }
func (askerFunc) close()       {}
