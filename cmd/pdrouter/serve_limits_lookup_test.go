package main

import (
	"log/slog"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/limits"
	"pdrouter/router"
)

// TestLookupsTakeNoPlace has a tenant at its limit of concurrency: it may still ask for a response, as often as its limit of requests allows.
func TestLookupsTakeNoPlace(t *testing.T) {
	c := clientLimits{limits.New(nil, "", slog.New(slog.DiscardHandler)), tenantsConfig{Default: auth.Limits{Requests: 3, Concurrent: 1}}}
	if lease, a := c.Admit(auth.Principal{}, 10); lease == nil || a.Concurrent != 1 {
		t.Fatalf("got %v, %+v", lease, a)
	}
	if _, a := c.Admit(auth.Principal{}, 10); a.Over != "concurrent" {
		t.Errorf("a second request: %+v", a)
	}
	for range 2 {
		if lease, a := c.Admit(auth.Principal{}, router.ExpectedLookup); lease == nil {
			t.Errorf("a lookup: %+v", a)
		}
	}
	if _, a := c.Admit(auth.Principal{}, router.ExpectedLookup); a.Over != "requests" {
		t.Errorf("one more: %+v", a)
	}
}
