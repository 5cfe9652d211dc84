package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/kvplane"
)

// Engines that were told of each other hand over without asking the gateway for anything.
func TestEnginesKnowTheirPeersBeforeTheFirstRequest(t *testing.T) {
	p := newPlant(t)
	target, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	answered := map[string]int{} // reads of one engine
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(r *http.Response) error {
		mu.Lock()
		defer mu.Unlock()
		if name, ok := strings.CutPrefix(r.Request.URL.Path, "/metadata/v1/engines/"); ok && r.Request.Method == http.MethodGet && r.StatusCode == http.StatusOK {
			answered[name]++
		}
		return nil
	}
	between := httptest.NewServer(proxy)
	t.Cleanup(between.Close)
	p.url = between.URL
	reads := func() (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(answered), answered["decode-0"] > 0 && answered["prefill-0"] > 0
	}

	one := startEngine(t)
	prefill := p.start(t, "prefill-0", "prefill", "--tp", "2")
	decode := p.start(t, "decode-0", "decode")
	before, known := reads()
	for end := time.Now().Add(30 * time.Second); !known; before, known = reads() {
		if time.Now().After(end) {
			t.Fatalf("after 30 s the gateway was asked for %s; want both engines", before)
		}
		time.Sleep(5 * time.Millisecond)
	}

	generation := func(name string) uint64 {
		recs, err := p.store.Engine(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return recs[0].Generation
	}
	id := kvplane.NewTransferID()
	params := func(produce bool, peer string) string {
		return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_decode":%v,"do_remote_prefill":%v,"transfer_id":%q,"peer":{"engine":%q,"generation":%d},"valid_ms":20000}}`,
			produce, !produce, id, peer, generation(peer))
	}
	_, want, err := complete(one.url, `{"prompt":"The sea","max_tokens":8,"ignore_eos":true}`)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := complete(prefill.url, `{"prompt":"The sea","max_tokens":1`+params(true, "decode-0"))
		ended <- err
	}()
	status, got, err := complete(decode.url, `{"prompt":"The sea","max_tokens":8,"ignore_eos":true`+params(false, "prefill-0"))
	if err != nil || status != http.StatusOK || got != want {
		t.Fatalf("split: status %d, %v, %q; one engine %q", status, err, got, want)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if after, _ := reads(); after != before {
		t.Errorf("the gateway was asked for %s; want %s, as before the request", after, before)
	}
}
