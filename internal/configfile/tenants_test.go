package configfile

import (
	"strings"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/limits"
)

// TestTenantsComeFirst shows whose word counts for each limit.
func TestTenantsComeFirst(t *testing.T) {
	c := Tenants{
		Default: auth.Limits{Requests: 1, Tokens: 2, Concurrent: 3},
		Named:   map[string]auth.Limits{"a": {Requests: 10, Tokens: 20}},
	}
	for _, row := range []struct {
		who  auth.Principal
		want limits.Limits
	}{
		{auth.Principal{}, limits.Limits{Requests: 1, Tokens: 2, Concurrent: 3}},
		{auth.Principal{Tenant: "a"}, limits.Limits{Requests: 10, Tokens: 20, Concurrent: 3}},
		{auth.Principal{Tenant: "a", Limits: auth.Limits{Requests: 100}}, limits.Limits{Requests: 100, Tokens: 20, Concurrent: 3}},
	} {
		if got := c.Of(row.who); got != row.want {
			t.Errorf("%+v: got %+v; want %+v", row.who, got, row.want)
		}
	}
	c.Named["b"] = auth.Limits{Concurrent: -1}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "tenants.named.b.concurrent is -1") {
		t.Errorf("got %v; want the key and the value", err)
	}
}

// TestTokensNeedConcurrent warns of tokens per minute that nothing bounds while they are used.
func TestTokensNeedConcurrent(t *testing.T) {
	tokens, both := auth.Limits{Tokens: 1000}, auth.Limits{Tokens: 1000, Concurrent: 4}
	for name, row := range map[string]struct {
		tenants Tenants
		want    []string
	}{
		"nothing":    {Tenants{}, nil},
		"default":    {Tenants{Default: tokens}, []string{"tenants.default"}},
		"named":      {Tenants{Named: map[string]auth.Limits{"a": tokens, "b": both}}, []string{"tenants.named.a"}},
		"both":       {Tenants{Default: both, Named: map[string]auth.Limits{"a": tokens}}, nil},
		"concurrent": {Tenants{Default: auth.Limits{Concurrent: 1}, Named: map[string]auth.Limits{"a": tokens}}, nil},
	} {
		got := row.tenants.Warnings()
		if len(got) != len(row.want) || len(got) > 0 && !strings.HasPrefix(got[0], row.want[0]+" has tokens_per_minute without concurrent") {
			t.Errorf("%s: got %q; want one of %q each", name, got, row.want)
		}
	}
}
