package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/redistest"
	"pdrouter/internal/stocktest"
	"pdrouter/metadata"
)

// stockGateway runs a gateway between the engines.
func stockGateway(t *testing.T, p, d *stocktest.Engine, more string) *Gateway {
	t.Helper()
	g := newStockGateway(t, p, d, more)
	Running(t, g)
	return g
}

// newStockGateway makes one that does not run yet.
func newStockGateway(t *testing.T, p, d *stocktest.Engine, more string) *Gateway {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	text := fmt.Sprintf("listen: {clients: 127.0.0.1:0, operations: 127.0.0.1:0}\ntimeouts: {side_channel: 50ms, health: 20ms}\npolicy: {default: {policy: roles}}\n"+
		"models:\n  - name: tiny\n    connector: vllm-nixl-push\n    prefill: [{name: prefill-0, url: %q}]\n    decode: [{name: decode-0, url: %q, side_channel: %q}]\n%s",
		p.URL, d.URL, d.Side, more)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := Load(t, path)
	g, err := New(l, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// reason asks for two tokens and returns how they were served.
func (g *Gateway) reason(t *testing.T) string {
	t.Helper()
	a, err := http.Post("http://"+g.clients.Addr().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"tiny","prompt":"a","max_tokens":2}`))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if said, _ := io.ReadAll(a.Body); a.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", a.StatusCode, said)
	}
	return a.Header.Get("X-Pdrouter-Reason")
}

// ranks returns the engine's records in the gateway's own copy.
func (g *Gateway) ranks(engine string) []metadata.Record {
	recs, _ := g.cache.Engine(engine)
	return recs
}

// TestFault46SideChannelDead: a prefill engine whose side channel falls silent gets no more requests, which decode serves
// alone, until it answers again. Only ranks that exist are asked for.
func TestFault46SideChannelDead(t *testing.T) {
	p, d := stocktest.New(t, "p1", 2), stocktest.New(t, "d1", 1)
	g := stockGateway(t, p, d, "")
	Until(t, "both ranks are published", func() bool { return len(g.ranks("prefill-0")) == 2 })
	Until(t, "a request is split", func() bool { return g.reason(t) == "split" })
	for i, rec := range g.ranks("prefill-0") {
		if rec.EngineID != "p1" || rec.Rank.TP != i || rec.Size.TP != 2 || rec.Side != p.Side || rec.HTTP != p.URL ||
			rec.Connector != "vllm-nixl-push" || rec.Role != metadata.Prefill || rec.Compatibility != "digest" || string(rec.Blob) != fmt.Sprintf("agent 0/%d", i) {
			t.Errorf("rank %d: %+v", i, rec)
		}
	}
	p.StopSideChannel()
	Until(t, "decode serves alone", func() bool { return g.reason(t) == "no_pair" })
	if why := g.router.Pairs()[0].Reason; why != "side_channel_dead" {
		t.Errorf("the pair is not used because %q", why)
	}
	p.Listen(t, p.Side)
	Until(t, "a request is split again", func() bool { return g.reason(t) == "split" })
	if ranks, strays := p.Asked(); strays != 0 {
		t.Errorf("asked for ranks that do not exist, among %v", ranks)
	}
}

// TestFault44StockRestarted: another run of an engine is noticed though nobody asks anything, and is shaken hands with once.
func TestFault44StockRestarted(t *testing.T) {
	p, d := stocktest.New(t, "p1", 1), stocktest.New(t, "d1", 1)
	g := stockGateway(t, p, d, "")
	Until(t, "the rank is published", func() bool { return len(g.ranks("prefill-0")) == 1 })
	Until(t, "a request is split", func() bool { return g.reason(t) == "split" })
	first := g.ranks("prefill-0")[0]
	before := g.router.Stats().Handshakes.Done
	p.Restart("p2")
	Until(t, "the new run is published", func() bool {
		recs := g.ranks("prefill-0")
		return len(recs) == 1 && recs[0].EngineID == "p2" && recs[0].Generation > first.Generation
	})
	Until(t, "a request is split", func() bool { return g.reason(t) == "split" })
	if done := g.router.Stats().Handshakes.Done; done != before+1 {
		t.Errorf("%d handshakes; want 1", done-before)
	}
	if n := g.router.Stats().Leaked; n != 0 {
		t.Errorf("%d leaked", n)
	}
}

// TestFault45StockDigestsDiffer: engines that say that they are not alike are never asked to hand over.
func TestFault45StockDigestsDiffer(t *testing.T) {
	p, d := stocktest.New(t, "p1", 1), stocktest.New(t, "d1", 1)
	d.Compat = "other"
	g := stockGateway(t, p, d, "")
	Until(t, "the pair is judged", func() bool {
		pair := g.router.Pairs()[0]
		return pair.Reason == "compatibility" && strings.Contains(pair.Why, "other")
	})
	Until(t, "decode serves alone", func() bool { return g.reason(t) == "no_pair" })
	if n := d.PrefillLegs(); n != 0 {
		t.Errorf("decode was asked to prefill %d times", n)
	}
}

// TestStockTwoGateways: gateways that share a store call one run of an engine by one generation, and do not fight over it.
func TestStockTwoGateways(t *testing.T) {
	r := redistest.Start(t)
	p, d := stocktest.New(t, "p1", 2), stocktest.New(t, "d1", 1)
	more := fmt.Sprintf("metadata: {store: redis, redis: {address: %q}}\n", r.Address())
	a, b := stockGateway(t, p, d, more), stockGateway(t, p, d, more)
	same := func(id string) func() bool {
		return func() bool {
			x, y := a.ranks("prefill-0"), b.ranks("prefill-0")
			return len(x) == 2 && len(y) == 2 && x[0].EngineID == id && y[0].EngineID == id && x[0].Incarnation == y[0].Incarnation
		}
	}
	again := func() { // both have looked several times
		t.Helper()
		looks := func() int {
			ranks, _ := p.Asked()
			return len(ranks)
		}
		n := looks()
		Until(t, "both have looked again and again", func() bool { return looks() > n+20 })
	}
	Until(t, "both know the ranks", same("p1"))
	again() // had both come at the very same moment, the later name has won by now
	run := a.ranks("prefill-0")[0].Incarnation
	again()
	if !same("p1")() || a.ranks("prefill-0")[0].Generation != run.Generation {
		t.Errorf("generation %x became %x and %x", run.Generation, a.ranks("prefill-0")[0].Generation, b.ranks("prefill-0")[0].Generation)
	}
	p.Restart("p2")
	Until(t, "both know the new run", same("p2"))
	if next := a.ranks("prefill-0")[0].Generation; next <= run.Generation {
		t.Errorf("generation %x follows %x", next, run.Generation)
	}
	Until(t, "both split", func() bool { return a.reason(t) == "split" && b.reason(t) == "split" })
	if ranks, strays := p.Asked(); strays != 0 {
		t.Errorf("asked for ranks that do not exist, among %v", ranks)
	}
}
