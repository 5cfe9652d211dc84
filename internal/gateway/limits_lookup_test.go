package gateway

import (
	"log/slog"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/configfile"
	"pdrouter/internal/limits"
	"pdrouter/router/edge"
)

// TestLookupsTakeNoPlace has a tenant at its limit of concurrency: it may still ask for a response, as often as its limit of requests allows.
func TestLookupsTakeNoPlace(t *testing.T) {
	c := clientLimits{limits.New(nil, "", slog.New(slog.DiscardHandler)), configfile.Tenants{Default: auth.Limits{Requests: 3, Concurrent: 1}}}
	if lease, a := c.Acquire(auth.Principal{}, 10); lease == nil || a.Concurrent != 1 {
		t.Fatalf("got %v, %+v", lease, a)
	}
	if _, a := c.Acquire(auth.Principal{}, 10); a.Over != "concurrent" {
		t.Errorf("a second request: %+v", a)
	}
	for range 2 {
		lease, a := c.Acquire(auth.Principal{}, edge.ExpectedLookup)
		if lease == nil {
			t.Fatalf("a lookup: %+v", a)
		}
		lease.Done(0)
	}
	for range 2 { // the refused lookup is not under way
		if _, a := c.Acquire(auth.Principal{}, edge.ExpectedLookup); a.Over != "requests" {
			t.Errorf("one more: %+v", a)
		}
	}
}

// TestLookupsAreBounded has lookups that do not end: as many are admitted at once as other requests, and they hold up none of those.
func TestLookupsAreBounded(t *testing.T) {
	c := clientLimits{limits.New(nil, "", slog.New(slog.DiscardHandler)), configfile.Tenants{Default: auth.Limits{Requests: 100, Concurrent: 2}}}
	who := auth.Principal{Tenant: "a"}
	var leases []edge.Lease
	for range 2 {
		lease, a := c.Acquire(who, edge.ExpectedLookup)
		if lease == nil {
			t.Fatalf("a lookup: %+v", a)
		}
		leases = append(leases, lease)
	}
	if _, a := c.Acquire(who, edge.ExpectedLookup); a.Over != "concurrent" || a.Max != 2 {
		t.Errorf("a third lookup: %+v", a)
	}
	if lease, a := c.Acquire(auth.Principal{Tenant: "b"}, edge.ExpectedLookup); lease == nil {
		t.Errorf("a lookup of another tenant: %+v", a)
	}
	for range 2 {
		if lease, a := c.Acquire(who, 10); lease == nil {
			t.Errorf("a request beside lookups: %+v", a)
		}
	}
	leases[0].Done(0)
	if lease, a := c.Acquire(who, edge.ExpectedLookup); lease == nil {
		t.Errorf("a lookup after one has ended: %+v", a)
	}
}
