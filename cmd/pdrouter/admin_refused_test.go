package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"

	"pdrouter/internal/overrides"
	"pdrouter/internal/shared"
	"pdrouter/router/config"
)

// TestAdminRefusedLeavesNothing has a change that cannot be taken into use, while somebody else's change applies it as well:
// it holds nowhere, is with no other gateway, and is not done later.
func TestAdminRefusedLeavesNothing(t *testing.T) {
	base := config.Config{Models: []config.Model{{Name: "m", Engines: []config.Engine{engineOf("e0")}}}}
	log := slog.New(slog.DiscardHandler)
	b := shared.NewBoard(nil, "p", "engines", nil, log)
	w := overrides.NewStore(b, true, log)
	var fails int
	var now config.Config // what is in use
	apply := func(ctx context.Context, m merge) error {
		cfg, err := m(base)
		if err != nil {
			return err
		}
		if fails > 0 {
			fails--
			w.Learn(nil) // a look at the board
			now = cfg    // another source's change took it into use
			return errors.New("no")
		}
		now = cfg
		return ctx.Err()
	}
	s := newSources(base, w, func(string) int64 { return 0 }, apply, log)
	left, leave := context.WithCancel(t.Context())
	leave() // the administrator has
	e1 := engineOf("e1")
	for what, change := range map[string]func() error{
		"drain":  func() error { return s.drain(left, "e0", true, "ann") },
		"remove": func() error { return s.remove(left, "e0", nil, "ann") },
		"add": func() error {
			_, err := s.add(left, listOf{"m", "engines"}, e1, "ann")
			return err
		},
	} {
		fails = 1
		var refused *adminError
		if err := change(); !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable {
			t.Errorf("%s: got %v; want it refused", what, err)
		}
		if all, facts := w.All(), b.All(); len(all) != 0 || len(facts) != 0 {
			t.Errorf("%s: %v is kept, %v told", what, all, facts)
		}
		if e := now.Models[0].Engines; len(e) != 1 || e[0].Drain {
			t.Errorf("%s: %+v in use", what, e)
		}
	}
	if err := s.drain(left, "e0", true, "ann"); err != nil || b.All()["e0"] == "" || !now.Models[0].Engines[0].Drain {
		t.Errorf("the same again: %v, %v told, %+v in use", err, b.All(), now.Models[0].Engines)
	}
}
