package gateway

import (
	"slices"
	"testing"

	"pdrouter/internal/configfile"
	"pdrouter/router/config"
)

// TestWatchedFiles: what only a reload reads is watched, secrets and the TLS files of engines as well.
func TestWatchedFiles(t *testing.T) {
	var c configfile.File
	c.PrefixCacheSecretFile = "salt"
	c.Models = []config.Model{{Engines: []config.Engine{{TLS: config.TLS{CAFile: "ca.pem"}}, {TLS: config.TLS{CertFile: "cert.pem", KeyFile: "key.pem"}}}}}
	got := watched(&c)
	slices.Sort(got)
	if want := []string{"ca.pem", "cert.pem", "key.pem", "salt"}; !slices.Equal(got, want) {
		t.Errorf("watched: %q; want %q", got, want)
	}
}
