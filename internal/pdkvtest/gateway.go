// Package pdkvtest is what tests of the embedded plane share: a gateway's metadata routes with tickets, and the library,
// built once.
package pdkvtest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/kvplane"
	"pdrouter/kvplane/ticket"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/store"
)

// Gateway is the agents' listener of a gateway that signs records and tickets.
type Gateway struct {
	URL     string
	Store   *store.Memory
	Keys    string // the file of the public key with which it signs: record_keys of its engines
	records *records.Records
	dir     string
}

// NewGateway starts a gateway that ends with the test.
func NewGateway(t testing.TB) *Gateway {
	t.Helper()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := keys.Trust(key)
	if err != nil {
		t.Fatal(err)
	}
	g := &Gateway{Store: store.NewMemory(), dir: t.TempDir()}
	if _, g.Keys, err = keys.Write(filepath.Join(g.dir, "keys"), key); err != nil {
		t.Fatal(err)
	}
	if g.records, err = records.New(key, trusted); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	local, err := cache.New(g.Store, cache.Config{}, log)
	if err != nil {
		t.Fatal(err)
	}
	h, err := routes.New(routes.Config{}, routes.Parts{
		Store: g.Store, Copy: local, Authorizer: routes.AuthorizerFunc(authorize), Voucher: g.records, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = local.Run(ctx) // it ends with ctx
	}()
	server := httptest.NewUnstartedServer(h)
	server.Config.BaseContext = nil
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		stop()
		<-ended
	})
	g.URL = server.URL
	return g
}

// authorize takes the token "engine role" for that engine's.
func authorize(r *http.Request, a routes.Access) (routes.Caller, error) {
	engine, role, ok := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ":")
	if !ok || a.Action == routes.Write && a.Engine != engine {
		return routes.Caller{}, errors.New("not an agent of this engine")
	}
	return routes.Caller{Engine: engine, Role: metadata.Role(role)}, nil
}

// Token returns the path of a file with an engine's token.
func (g *Gateway) Token(t testing.TB, engine string, role metadata.Role) string {
	t.Helper()
	path := filepath.Join(g.dir, engine+".token")
	if err := os.WriteFile(path, []byte(engine+":"+string(role)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Ticket signs the ticket of a transfer, which both of its legs carry.
func (g *Gateway) Ticket(t testing.TB, id kvplane.TransferID, prefill, decode metadata.Incarnation) string {
	t.Helper()
	it := ticket.Ticket{ID: id, Prefill: prefill, Decode: decode, Issued: time.Now(), Valid: time.Minute}
	text, err := it.AppendSigned(nil, g.records.Tickets())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
