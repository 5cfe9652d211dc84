package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/internal/configfile"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
)

// fakeStock is a stock prefill or decode engine: as much of HTTP as a hand-over of two legs needs, and a side channel at a
// ROUTER socket that remembers every rank it was asked for.
type fakeStock struct {
	srv  *httptest.Server
	side string // host:port
	mute bool   // the gateway is not told of the side channel
	tp   int

	mu     sync.Mutex
	id     string
	compat string
	asked  []string      // "pp/tp"
	strays int           // questions about ranks that do not exist
	legs   int           // prefill legs
	unwell bool          // says that it is not healthy
	busy   chan struct{} // legs wait until it is closed; nil: they do not
	stop   func()
}

func newFakeStock(t *testing.T, id string, tp int) *fakeStock {
	t.Helper()
	f := &fakeStock{id: id, tp: tp, compat: "digest"}
	f.listen(t, "127.0.0.1:0")
	f.srv = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() { f.srv.CloseClientConnections(); f.srv.Close(); f.stop() })
	return f
}

// listen opens the side channel.
func (f *fakeStock) listen(t *testing.T, address string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	socket := zmq4.NewRouter(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	if err := socket.Listen("tcp://" + address); err != nil {
		stop()
		t.Fatal(err)
	}
	f.side = socket.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			m, err := socket.Recv()
			if err != nil {
				return
			}
			if answer := f.answer(m.Frames[len(m.Frames)-1]); answer != nil {
				_ = socket.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, answer, []byte{0}))
			}
		}
	})
	f.stop = sync.OnceFunc(func() {
		stop()
		_ = socket.Close()
		serving.Wait()
	})
}

func (f *fakeStock) answer(question []byte) []byte {
	var q [3]any
	err := msgpack.Unmarshal(question, &q)
	rank := fmt.Sprintf("%v/%v", q[1], q[2])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, rank)
	var pp, tp int
	if n, _ := fmt.Sscanf(rank, "%d/%d", &pp, &tp); err != nil || n != 2 || pp != 0 || tp >= f.tp {
		f.strays++
		return nil
	}
	agent, _ := msgpack.Marshal(map[string]any{"engine_id": f.id, "agent_metadata": []byte("agent " + rank)})
	b, _ := msgpack.Marshal(map[string]any{"compatibility_hash": f.compat, "agent_metadata_bytes": agent})
	return b
}

func (f *fakeStock) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	unwell, busy := f.unwell, f.busy
	f.mu.Unlock()
	if r.URL.Path == "/health" {
		if unwell {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	if busy != nil {
		<-busy
	}
	var b struct {
		KV map[string]any `json:"kv_transfer_params"`
	}
	_ = json.NewDecoder(r.Body).Decode(&b)
	f.mu.Lock()
	defer f.mu.Unlock()
	more := ""
	if b.KV["do_remote_decode"] == true {
		f.legs++
		host, port, _ := net.SplitHostPort(f.side)
		more = fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":%q,"remote_host":%q,"remote_port":%s,"tp_size":%d,"pp_size":1,"dcp_size":1,`+
			`"remote_block_ids":[[1]],"remote_request_id":"r","transfer_mode":"push"}`, f.id, host, port, f.tp)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"x","object":"text_completion","model":"tiny","choices":[{"index":0,"text":"tok","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}%s}`, more)
}

func (f *fakeStock) restart(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.id = id
}

// health has the engine say that it is healthy, or that it is not.
func (f *fakeStock) health(well bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unwell = !well
}

// stockGateway runs a gateway between the engines.
func stockGateway(t *testing.T, p, d *fakeStock, more string) *gateway {
	t.Helper()
	g := newStockGateway(t, p, d, more)
	running(t, g)
	return g
}

// newStockGateway makes one that does not run yet.
func newStockGateway(t *testing.T, p, d *fakeStock, more string) *gateway {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	side := d.side
	if d.mute {
		side = ""
	}
	text := fmt.Sprintf("listen: {clients: 127.0.0.1:0, operations: 127.0.0.1:0}\ntimeouts: {side_channel: 50ms, health: 20ms}\n"+
		"models:\n  - name: tiny\n    connector: vllm-nixl-push\n    prefill: [{name: prefill-0, url: %q}]\n    decode: [{name: decode-0, url: %q, side_channel: %q}]\n%s",
		p.srv.URL, d.srv.URL, side, more)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := configfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGateway(l, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// reason asks for two tokens and returns how they were served.
func (g *gateway) reason(t *testing.T) string {
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

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// ranks returns the engine's records in the gateway's own copy.
func (g *gateway) ranks(engine string) []metadata.Record {
	recs, _ := g.cache.Engine(engine)
	return recs
}

// TestFault46SideChannelDead: a prefill engine whose side channel falls silent gets no more requests, which decode serves
// alone, until it answers again. Only ranks that exist are asked for.
func TestFault46SideChannelDead(t *testing.T) {
	p, d := newFakeStock(t, "p1", 2), newFakeStock(t, "d1", 1)
	g := stockGateway(t, p, d, "")
	until(t, "both ranks are published", func() bool { return len(g.ranks("prefill-0")) == 2 })
	until(t, "a request is split", func() bool { return g.reason(t) == "split" })
	for i, rec := range g.ranks("prefill-0") {
		if rec.EngineID != "p1" || rec.Rank.TP != i || rec.Size.TP != 2 || rec.Side != p.side || rec.HTTP != p.srv.URL ||
			rec.Connector != "vllm-nixl-push" || rec.Role != metadata.Prefill || rec.Compatibility != "digest" || string(rec.Blob) != fmt.Sprintf("agent 0/%d", i) {
			t.Errorf("rank %d: %+v", i, rec)
		}
	}
	p.stop()
	until(t, "decode serves alone", func() bool { return g.reason(t) == "no_pair" })
	if why := g.router.Pairs()[0].Reason; why != "side_channel_dead" {
		t.Errorf("the pair is not used because %q", why)
	}
	p.listen(t, p.side)
	until(t, "a request is split again", func() bool { return g.reason(t) == "split" })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.strays != 0 {
		t.Errorf("asked for ranks that do not exist, among %v", p.asked)
	}
}

// TestFault44StockRestarted: another run of an engine is noticed though nobody asks anything, and is shaken hands with once.
func TestFault44StockRestarted(t *testing.T) {
	p, d := newFakeStock(t, "p1", 1), newFakeStock(t, "d1", 1)
	g := stockGateway(t, p, d, "")
	until(t, "the rank is published", func() bool { return len(g.ranks("prefill-0")) == 1 })
	until(t, "a request is split", func() bool { return g.reason(t) == "split" })
	first := g.ranks("prefill-0")[0]
	before := g.router.Stats().Handshakes.Done
	p.restart("p2")
	until(t, "the new run is published", func() bool {
		recs := g.ranks("prefill-0")
		return len(recs) == 1 && recs[0].EngineID == "p2" && recs[0].Generation > first.Generation
	})
	until(t, "a request is split", func() bool { return g.reason(t) == "split" })
	if done := g.router.Stats().Handshakes.Done; done != before+1 {
		t.Errorf("%d handshakes; want 1", done-before)
	}
	if n := g.router.Stats().Leaked; n != 0 {
		t.Errorf("%d leaked", n)
	}
}

// TestFault45StockDigestsDiffer: engines that say that they are not alike are never asked to hand over.
func TestFault45StockDigestsDiffer(t *testing.T) {
	p, d := newFakeStock(t, "p1", 1), newFakeStock(t, "d1", 1)
	d.compat = "other"
	g := stockGateway(t, p, d, "")
	until(t, "the pair is judged", func() bool {
		pair := g.router.Pairs()[0]
		return pair.Reason == "compatibility" && strings.Contains(pair.Why, "other")
	})
	until(t, "decode serves alone", func() bool { return g.reason(t) == "no_pair" })
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.legs != 0 {
		t.Errorf("decode was asked to prefill %d times", d.legs)
	}
}

// TestStockTwoGateways: gateways that share a store call one run of an engine by one generation, and do not fight over it.
func TestStockTwoGateways(t *testing.T) {
	r := redistest.Start(t)
	p, d := newFakeStock(t, "p1", 2), newFakeStock(t, "d1", 1)
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
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.asked)
		}
		n := looks()
		until(t, "both have looked again and again", func() bool { return looks() > n+20 })
	}
	until(t, "both know the ranks", same("p1"))
	again() // had both come at the very same moment, the later name has won by now
	run := a.ranks("prefill-0")[0].Incarnation
	again()
	if !same("p1")() || a.ranks("prefill-0")[0].Generation != run.Generation {
		t.Errorf("generation %x became %x and %x", run.Generation, a.ranks("prefill-0")[0].Generation, b.ranks("prefill-0")[0].Generation)
	}
	p.restart("p2")
	until(t, "both know the new run", same("p2"))
	if next := a.ranks("prefill-0")[0].Generation; next <= run.Generation {
		t.Errorf("generation %x follows %x", next, run.Generation)
	}
	until(t, "both split", func() bool { return a.reason(t) == "split" && b.reason(t) == "split" })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.strays != 0 {
		t.Errorf("asked for ranks that do not exist, among %v", p.asked)
	}
}
