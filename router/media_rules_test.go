package router

import (
	"testing"

	"pdrouter/router/config"
)

// TestMediaRules: without rules a body may name any host.
func TestMediaRules(t *testing.T) {
	if mediaRules((config.Media{AllowPrivate: true})) != nil {
		t.Error("there are rules where every host is allowed")
	}
	if mediaRules((config.Media{})) == nil || mediaRules((config.Media{AllowPrivate: true, Hosts: []string{"a.b"}})) == nil {
		t.Error("there are no rules where not every host is allowed")
	}
}
