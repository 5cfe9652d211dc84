package main

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/internal/configfile"
	"pdrouter/internal/gateway"
	"pdrouter/internal/reload"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
)

// TestRecordKeyRotatesUnderRunningEngines changes the key that a gateway signs records with, step by step, under two engines
// that run on: the new key is trusted, it signs, the old one is dropped. At no step does an engine lose
// the other, and in the end records under the old key are refused.
func TestRecordKeyRotatesUnderRunningEngines(t *testing.T) {
	p := newPlant(t)
	trusted := filepath.Join(p.dir, "trusted")
	key := func(name string) (*keys.Key, string) {
		k, err := keys.Generate(keys.EdDSA)
		if err != nil {
			t.Fatal(err)
		}
		_, public, err := keys.Write(filepath.Join(p.dir, name), k)
		if err != nil {
			t.Fatal(err)
		}
		return k, public
	}
	trust := func(public string) string {
		b, err := os.ReadFile(public)
		if err == nil {
			err = os.MkdirAll(trusted, 0o700)
		}
		at := filepath.Join(trusted, filepath.Base(public))
		if err == nil {
			err = os.WriteFile(at, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	old, oldPublic := key("old")
	next, nextPublic := key("next")
	oldFile := trust(oldPublic)

	var handler atomic.Pointer[routes.Handler]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Load().ServeHTTP(w, r) }))
	t.Cleanup(server.Close)
	gateway := func(own *keys.Key, others ...*keys.Key) {
		keys, err := keys.Trust(append([]*keys.Key{own}, others...)...)
		if err != nil {
			t.Fatal(err)
		}
		records, err := records.New(own, keys)
		if err != nil {
			t.Fatal(err)
		}
		v, err := configfile.TokenAuth{Keys: []string{p.public}, Issuer: defaultIssuer}.Verifier(auth.MetadataAudience, nil)
		if err != nil {
			t.Fatal(err)
		}
		agents, err := auth.NewAgents(v)
		if err != nil {
			t.Fatal(err)
		}
		h, err := routes.New(routes.Config{}, routes.Parts{
			Store: p.store, Copy: routestest.Direct{Store: p.store}, Authorizer: gateway.AuthorizeAgents(agents), Voucher: records, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		handler.Store(h)
	}

	type running struct {
		client *client.Client
		files  reload.Credentials
		rec    metadata.Record
	}
	engines := map[string]*running{}
	for _, e := range []struct{ name, role string }{{"prefill-0", "prefill"}, {"decode-0", "decode"}} {
		file := filepath.Join(p.dir, e.name+".token")
		if err := os.WriteFile(file, []byte(p.token(t, e.name, e.role, auth.WriteScope, auth.ReadScope)), 0o600); err != nil {
			t.Fatal(err)
		}
		r := &running{}
		known, err := keys.LoadTrusted(trusted)
		if err != nil {
			t.Fatal(err)
		}
		r.files.Add(known)
		checker, err := records.New(nil, known)
		if err != nil {
			t.Fatal(err)
		}
		if r.client, err = client.New(client.Config{URL: server.URL}, client.TokenFile(file), checker, nil); err != nil {
			t.Fatal(err)
		}
		now := time.Now().UTC()
		inc := metadata.Incarnation{Engine: e.name, Generation: uint64(now.UnixNano())}
		r.rec = metadata.Record{
			Version: metadata.RecordVersion, Incarnation: inc, Role: metadata.Role(e.role), Size: metadata.Rank{DP: 1, PP: 1, TP: 1},
			Connector: "kvplane", Agent: inc.ID() + "/0/0/0", Transport: "tcp", Published: now, Expires: now.Add(time.Minute),
		}
		engines[e.name] = r
	}
	publish := func() {
		for name, r := range engines {
			r.rec.Published, r.rec.Expires = r.rec.Published.Add(1), r.rec.Expires.Add(1)
			if err := r.client.Put(t.Context(), r.rec); err != nil {
				t.Fatalf("%s publishes: %v", name, err)
			}
		}
	}
	paired := func(step string) {
		for name, peer := range map[string]string{"prefill-0": "decode-0", "decode-0": "prefill-0"} {
			if _, err := engines[name].client.Engine(t.Context(), peer); err != nil {
				t.Errorf("%s: %s has lost %s: %v", step, name, peer, err)
			}
		}
	}
	reload := func() {
		for name, r := range engines {
			if err := r.files.Reload(); err != nil {
				t.Fatalf("%s reads its keys again: %v", name, err)
			}
		}
	}

	gateway(old)
	publish()
	paired("before")
	trust(nextPublic)
	reload()
	paired("the new key is trusted")
	gateway(old, next)
	publish()
	paired("overlap")
	gateway(next, old)
	paired("the gateway signs with the new key, the records are of the old one")
	publish()
	paired("published anew")
	gateway(next)
	if err := os.Remove(oldFile); err != nil {
		t.Fatal(err)
	}
	reload()
	paired("the old key is dropped")
	gateway(old)
	publish()
	if _, err := engines["decode-0"].client.Engine(t.Context(), "prefill-0"); err == nil || errors.Is(err, metadata.ErrNotFound) {
		t.Errorf("under the old key: got %v; want it refused", err)
	}
}

// TestFault69EngineWhoseClockWentBack: an engine that starts with a generation older than the one it had takes the next one,
// and serves.
func TestFault69EngineWhoseClockWentBack(t *testing.T) {
	p := newPlant(t)
	now := time.Now().UTC()
	inc := metadata.Incarnation{Engine: "prefill-0", Generation: uint64(now.Add(time.Hour).UnixNano())}
	before := metadata.Record{
		Version: metadata.RecordVersion, Incarnation: inc, Role: metadata.Prefill, Size: metadata.Rank{DP: 1, PP: 1, TP: 1},
		Connector: "kvplane", Agent: inc.ID() + "/0/0/0", Transport: "tcp", Published: now, Expires: now.Add(time.Minute),
	}
	if err := p.store.Put(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	if err := p.store.Delete(t.Context(), inc, before.Rank); err != nil { // it has ended, and is remembered
		t.Fatal(err)
	}
	p.start(t, "prefill-0", "prefill", "--tp", "2")
	recs, err := p.store.Engine(t.Context(), "prefill-0")
	if err != nil || len(recs) != 2 || recs[0].Generation != inc.Generation+1 {
		t.Fatalf("got %d records, %v; want those of generation %x", len(recs), err, inc.Generation+1)
	}
	if err := recs[0].CheckAgent(); err != nil {
		t.Error(err)
	}
	// Another process of the name that is newer still is not outdone: who runs is superseded.
	newer := before
	newer.Generation = inc.Generation + 2
	if err := p.store.Put(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	var stale *metadata.Superseded
	if err := p.store.Put(t.Context(), recs[0]); !errors.As(err, &stale) || stale.Known != newer.Generation {
		t.Errorf("the engine that runs: got %v; want it superseded", err)
	}
}
