package router

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestKeptConnectionOutlivesAWriteDeadline asks again on a connection whose earlier answer's write deadline is long
// over: routes that answer early must set their own.
func TestKeptConnectionOutlivesAWriteDeadline(t *testing.T) {
	e := newFakeVLLM(t, newCluster(false), "e")
	var refused []string
	g := start(t, Config{
		Models:   []Model{{Name: "tiny", Engines: []Engine{{Name: "e", URL: e.srv.URL}}}},
		Timeouts: Timeouts{Write: 50 * time.Millisecond},
	}, Parts{Refused: func(_ int, reason string) { refused = append(refused, reason) }})
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	if got := g.post(pathCompletions, `{"model":"tiny","prompt":"hello","max_tokens":2}`); got.Status != 200 {
		t.Fatalf("first answer: %+v", got)
	}
	for _, ask := range []struct {
		method, path, body string
		status             int
	}{
		{http.MethodPost, pathCompletions, `{"model":"tiny","prompt":"hello","max_tokens":2}`, 200},
		{http.MethodGet, pathModels, "", 200},
		{http.MethodPost, pathCompletions, `{"model":"other","prompt":"hello"}`, 404},
		{http.MethodGet, pathModels, "", 200},
	} {
		req, err := http.NewRequest(ask.method, g.url+ask.path, strings.NewReader(ask.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", ask.method, ask.path, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != ask.status {
			t.Errorf("%s %s: status %d; want %d", ask.method, ask.path, resp.StatusCode, ask.status)
		}
		time.Sleep(100 * time.Millisecond) // the deadline of that answer passes
	}
	if len(refused) != 1 || refused[0] != reasonNoModel {
		t.Errorf("refusals noted: %q; want the one of the unknown model", refused)
	}
}
