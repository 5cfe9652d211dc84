package gateway

import (
	"context"
	"net/http"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/configfile"
)

// issuer is who signs the tokens of these tests.
const issuer = "pdrouter"

// load reads a configuration file.
func load(t *testing.T, path string) *configfile.Loaded {
	t.Helper()
	l, err := configfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// running runs a gateway until the test and what it starts after this call have ended.
func running(t *testing.T, g *Gateway) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("gateway: %v", err)
		}
	})
}

// makeKey makes a key pair, and returns its files.
func makeKey(t *testing.T, dir string) (key *keys.Key, private, public string) {
	t.Helper()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	if private, public, err = keys.Write(dir, key); err != nil {
		t.Fatal(err)
	}
	return key, private, public
}

// mint makes a token that is valid for an hour.
func mint(t *testing.T, key *keys.Key, g auth.Grant) string {
	t.Helper()
	if g.TTL = time.Hour; g.Issuer == "" {
		g.Issuer = issuer
	}
	token, err := auth.Mint(key, g)
	if err != nil {
		t.Fatal(err)
	}
	return token
}
