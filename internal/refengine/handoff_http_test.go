package refengine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// httpPair is a prefill and a decode engine over HTTP.
type httpPair struct {
	pair
	pURL, dURL string
}

func servePair(t *testing.T, p, d Config) httpPair {
	t.Helper()
	var book phonebook
	p.Name, d.Name = "p", "d"
	x := httpPair{pair: pair{p: book.open(t, p), d: book.open(t, d)}}
	x.pURL, x.dURL = serveOn(t, x.p), serveOn(t, x.d)
	return x
}

// legs are both bodies of a request: what the gateway would send to each engine.
func (x httpPair) legs(fields string, valid time.Duration) (id kvplane.TransferID, prefill, decode string) {
	id = kvplane.NewTransferID()
	params := func(produce bool, peer metadata.Incarnation) string {
		return fmt.Sprintf(`"kv_transfer_params":{"do_remote_decode":%v,"do_remote_prefill":%v,"transfer_id":%q,"peer":{"engine":%q,"generation":%d},"valid_ms":%d}`,
			produce, !produce, id, peer.Engine, peer.Generation, valid.Milliseconds())
	}
	const ask = `"messages":[{"role":"user","content":"Tell me of the sea."}]`
	return id, `{` + ask + `,"max_tokens":1,` + params(true, x.d.Incarnation()) + `}`, `{` + ask + fields + `,` + params(false, x.p.Incarnation()) + `}`
}

// answered is what one leg came to.
type answered struct {
	status int
	body   string
	err    error
}

func sendLeg(url, body string) <-chan answered {
	out := make(chan answered, 1)
	go func() {
		resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			out <- answered{err: err}
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		out <- answered{resp.StatusCode, string(b), err}
	}()
	return out
}

func chatTextOf(t *testing.T, a answered) string {
	t.Helper()
	if a.err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", a.status, a.err, a.body)
	}
	text := ""
	for line := range strings.Lines(a.body) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "data: "))
		if line == "" || line == "[DONE]" {
			continue
		}
		var r reply
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		for i := range r.Choices {
			text += r.text(i)
		}
	}
	return text
}

func TestBothLegsOverHTTP(t *testing.T) {
	shape := Shape{Seed: 21}
	_, whole := serve(t, Config{Shape: shape})
	for _, tps := range [][2]int{{2, 1}, {2, 4}} {
		x := servePair(t, Config{Shape: shape, TP: tps[0], Role: metadata.Prefill}, Config{Shape: shape, TP: tps[1], Role: metadata.Decode})
		for _, fields := range []string{`,"max_tokens":20`, `,"max_tokens":20,"stream":true`, `,"max_tokens":20,"stop":["a","b"]`} {
			_, prefill, decode := x.legs(fields, 20*time.Second)
			one := decode[:strings.Index(decode, `,"kv_transfer_params"`)] + `}`
			want := chatTextOf(t, <-sendLeg(whole, one))
			d, p := sendLeg(x.dURL, decode), sendLeg(x.pURL, prefill)
			pa := <-p
			if pa.status != http.StatusOK || !strings.Contains(pa.body, `"kv_transfer_params":{"transfer_id":"`) || !strings.Contains(pa.body, `,"num_tokens":`) {
				t.Fatalf("tp %v: prefill: %+v", tps, pa)
			}
			if got := chatTextOf(t, <-d); got != want || want == "" {
				t.Errorf("tp %v%s: %q; one engine %q", tps, fields, got, want)
			}
			x.settled(t)
		}
		if b := x.d.Books(); b.External == 0 || b.Computed != 0 {
			t.Errorf("tp %v: decode's prompts came from %+v", tps, b)
		}
		if b := x.p.Books(); b.Computed == 0 || b.External != 0 {
			t.Errorf("tp %v: prefill's prompts came from %+v", tps, b)
		}
	}
}

func TestTransferFailures(t *testing.T) {
	failed := func(t *testing.T, d <-chan answered) {
		t.Helper()
		a := <-d
		if a.err != nil || a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, `"code":"transfer_failed"`) {
			t.Errorf("decode: %+v; want 503 transfer_failed", a)
		}
	}
	t.Run("prefill never asked", func(t *testing.T) {
		x := servePair(t, Config{}, Config{TP: 2})
		_, _, decode := x.legs(`,"max_tokens":5,"stream":true`, 50*time.Millisecond)
		failed(t, sendLeg(x.dURL, decode))
		x.settled(t)
	})
	t.Run("prefill's client left in mid prefill", func(t *testing.T) {
		x := servePair(t, Config{TP: 2, PrefillCost: time.Second}, Config{})
		_, prefill, decode := x.legs(`,"max_tokens":5`, time.Minute)
		d := sendLeg(x.dURL, decode)
		ctx, leave := context.WithCancel(context.Background())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.pURL+"/v1/chat/completions", strings.NewReader(prefill))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		eventually(t, func() bool { return x.p.Books().Running == 1 && x.d.Books().Receiving == 1 })
		leave()
		failed(t, d)
		x.settled(t)
	})
	t.Run("cancelled by the gateway", func(t *testing.T) {
		x := servePair(t, Config{}, Config{TP: 4})
		id, _, decode := x.legs(`,"max_tokens":5`, time.Minute)
		d := sendLeg(x.dURL, decode)
		eventually(t, func() bool { return x.d.Books().Receiving == 1 })
		x.d.CancelTransfer(id, "tried elsewhere")
		failed(t, d)
		x.settled(t)
	})
	t.Run("decode never asked, prefill's blocks given up", func(t *testing.T) {
		x := servePair(t, Config{TP: 2}, Config{})
		id, prefill, _ := x.legs(``, time.Minute)
		if a := <-sendLeg(x.pURL, prefill); a.status != http.StatusOK {
			t.Fatalf("prefill: %+v", a)
		}
		if b := x.p.Books(); b.Held == 0 || b.Free+b.Held != b.Blocks {
			t.Errorf("held for nobody: %+v", b)
		}
		x.p.CancelTransfer(id, "decode was never asked")
		x.settled(t)
	})
	t.Run("decode's client left while it waited", func(t *testing.T) {
		x := servePair(t, Config{}, Config{TP: 2})
		_, prefill, decode := x.legs(`,"max_tokens":5`, time.Minute)
		ctx, leave := context.WithCancel(context.Background())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.dURL+"/v1/chat/completions", strings.NewReader(decode))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		eventually(t, func() bool { return x.d.Books().Receiving == 1 })
		leave()
		eventually(t, func() bool { b := x.d.Books(); return b.Free == b.Blocks })
		if a := <-sendLeg(x.pURL, prefill); a.status != http.StatusOK {
			t.Fatalf("prefill: %+v", a)
		}
		x.settled(t)
	})
	t.Run("a transfer id serves once at a time", func(t *testing.T) {
		x := servePair(t, Config{}, Config{})
		id, _, decode := x.legs(`,"max_tokens":5`, time.Minute)
		first := sendLeg(x.dURL, decode)
		eventually(t, func() bool { return x.d.Books().Receiving == 1 })
		if a := <-sendLeg(x.dURL, decode); a.status != http.StatusConflict {
			t.Errorf("the second: %+v; want 409", a)
		}
		x.d.CancelTransfer(id, "over")
		failed(t, first)
		x.settled(t)
	})
}

// TestCloseLetsTransfersEnd closes prefill while its blocks wait for decode.
func TestCloseLetsTransfersEnd(t *testing.T) {
	var book phonebook
	x := pair{p: book.open(t, Config{Name: "p", TP: 2}), d: book.open(t, Config{Name: "d"})}
	h := Handoff{ID: kvplane.NewTransferID(), Valid: 30 * time.Second, Peer: x.d.Incarnation()}
	p, err := x.p.Submit(Request{Tokens: tokenize("hello"), MaxTokens: 1, Leg: PrefillLeg, Handoff: h})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collect(p); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { closeEngine(t, x.p); close(closed) }()
	eventually(t, func() bool { return x.p.Books().Held > 0 })
	h.Peer = x.p.Incarnation()
	want := naive(x.d.model, tokenize("hello"), 5, 0, false)
	got := ask(t, x.d, Request{Tokens: tokenize("hello"), MaxTokens: 5, Leg: DecodeLeg, Handoff: h})
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("answered %v; want %v", got, want)
	}
	<-closed
	eventually(t, func() bool { b := x.d.Books(); return b.Free == b.Blocks })
}

// serveOn serves an engine on loopback until the test ends and returns its base URL.
func serveOn(t *testing.T, e *Engine) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- NewServer(e).Serve(ctx, ln, 10*time.Second) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}
