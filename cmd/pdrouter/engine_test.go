package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/configfile"
	"pdrouter/internal/gateway"
	"pdrouter/kvplane"
	"pdrouter/kvplane/control"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/store"
)

// plant is a gateway's agents' listener and what its engines need to speak to it.
type plant struct {
	dir, url, public string
	key              *keys.Key
	store            *store.Memory
}

func newPlant(t *testing.T) *plant {
	t.Helper()
	p := &plant{dir: t.TempDir(), store: store.NewMemory()}
	var err error
	if p.key, err = keys.Generate(keys.EdDSA); err != nil {
		t.Fatal(err)
	}
	if _, p.public, err = keys.Write(p.dir, p.key); err != nil {
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
	quiet := slog.New(slog.DiscardHandler)
	local, err := cache.New(p.store, cache.Config{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	h, err := routes.New(routes.Config{}, routes.Parts{Store: p.store, Copy: local, Authorizer: gateway.AuthorizeAgents(agents), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var following sync.WaitGroup
	following.Go(func() { _ = local.Run(t.Context()) }) // it ends with the test
	t.Cleanup(following.Wait)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// token mints a token of an engine, or of the gateway if engine is empty.
func (p *plant) token(t *testing.T, engine, role string, scopes ...string) string {
	t.Helper()
	token, err := auth.Mint(p.key, auth.Grant{
		Issuer: defaultIssuer, Audience: auth.MetadataAudience, Subject: "test", Scopes: scopes, TTL: time.Hour, Engine: engine, Role: role,
	})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// runningEngine is one pdrouter mock-engine, run inside the test.
type runningEngine struct {
	line, url, control string
	stop               func() error // as SIGTERM does, and waits
}

func (p *plant) start(t *testing.T, name, role string, args ...string) runningEngine {
	t.Helper()
	file := filepath.Join(p.dir, name+".token")
	if err := os.WriteFile(file, []byte(p.token(t, name, role, auth.WriteScope, auth.ReadScope)), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--name", name, "--role", role, "--gateway", p.url, "--token-file", file, "--control-keys", p.public, "--transport", "tcp"}, args...)
	return startEngine(t, args...)
}

func startEngine(t *testing.T, args ...string) runningEngine {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"mock-engine"}, args...), w)
		w.CloseWithError(io.EOF)
		ended <- err
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("no line: %v; the engine ended: %v", err, <-ended)
	}
	e := runningEngine{line: line, stop: sync.OnceValue(func() error { cancel(); return <-ended })}
	urls := regexp.MustCompile(`http://[0-9.:]+`).FindAllString(line, -1)
	e.url = urls[0]
	if len(urls) > 1 {
		e.control = urls[1]
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := e.stop(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func complete(url, body string) (status int, text string, err error) {
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var answer struct {
		Choices []struct{ Text string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return resp.StatusCode, "", err
	}
	for _, c := range answer.Choices {
		text += c.Text
	}
	return resp.StatusCode, text, nil
}

func TestEnginesFindEachOtherThroughTheGateway(t *testing.T) {
	p := newPlant(t)
	one := startEngine(t)
	prefill := p.start(t, "prefill-0", "prefill", "--tp", "2")
	decode := p.start(t, "decode-0", "decode", "--pp", "2", "--tp", "2")
	for name, line := range map[string]string{"prefill-0@": prefill.line, "transport tcp": prefill.line, "as decode": decode.line, "pp 2, tp 2": decode.line, "as both": one.line} {
		if !strings.Contains(line, name) {
			t.Errorf("no %q in %q", name, line)
		}
	}
	generation := func(name string, ranks int) uint64 {
		recs, err := p.store.Engine(t.Context(), name)
		if err != nil || len(recs) != ranks {
			t.Fatalf("%d records of %s, %v; want %d", len(recs), name, err, ranks)
		}
		return recs[0].Generation
	}
	pg, dg := generation("prefill-0", 2), generation("decode-0", 4)

	// The gateway's subscription sees each decode rank become ready.
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan string, 64)
	watched := make(chan error, 1)
	token := func() (string, error) { return p.token(t, "", "", auth.PlaneScope), nil }
	go func() {
		watched <- control.Watch(ctx, &http.Client{}, decode.control, token, func(ev control.Event) {
			if ev.Event == "ready" {
				ready <- ev.Transfer + " " + ev.Rank.String()
			}
		})
	}()
	defer func() { cancel(); <-watched }()

	const ask = `"prompt":"The sea, the sea","max_tokens":12,"ignore_eos":true`
	_, want, err := complete(one.url, `{`+ask+`}`)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	seen := false
	for !seen { // the first hand-offs may come before the subscription
		id := kvplane.NewTransferID()
		params := func(produce bool, peer string, generation uint64) string {
			return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_decode":%v,"do_remote_prefill":%v,"transfer_id":%q,"peer":{"engine":%q,"generation":%d},"valid_ms":20000}}`,
				produce, !produce, id, peer, generation)
		}
		ended := make(chan error, 1)
		go func() {
			status, _, err := complete(prefill.url, `{"prompt":"The sea, the sea","max_tokens":1`+params(true, "decode-0", dg))
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("prefill answered %d", status)
			}
			ended <- err
		}()
		status, got, err := complete(decode.url, `{`+ask+params(false, "prefill-0", pg))
		if err != nil || status != http.StatusOK || got != want || want == "" {
			t.Fatalf("split: status %d, %v, %q; one engine %q", status, err, got, want)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		select {
		case ev := <-ready:
			seen = true
			if !strings.Contains(ev, " 0/0/") && !strings.Contains(ev, " 0/1/") {
				t.Errorf("event %q", ev)
			}
		case <-deadline:
			t.Fatal("no ready event in 20 s")
		case <-time.After(100 * time.Millisecond):
		}
	}

	if resp, err := http.Get(decode.control + "/kvplane/v1/events"); err != nil || resp.StatusCode < 400 {
		t.Errorf("control routes without a token: %v, %v", resp, err)
	}
	for _, e := range []runningEngine{prefill, decode} {
		if err := e.stop(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"prefill-0", "decode-0"} {
		if recs, err := p.store.Engine(t.Context(), name); err == nil {
			t.Errorf("%s has %d records after its end", name, len(recs))
		}
	}
}

func TestEngineLetsAnswersEndOnSIGTERM(t *testing.T) {
	e := startEngine(t, "--decode-us-per-step", "20000")
	resp, err := http.Post(e.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":30,"ignore_eos":true,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	ended := make(chan error, 1)
	go func() { ended <- e.stop() }()
	b, err := io.ReadAll(resp.Body)
	if n := strings.Count(string(b), "data: "); err != nil || n != 31 || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		t.Errorf("%d events, %v; want 31, the last one [DONE]", n, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestEngineOptionsRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--role", "prefill"}, "--gateway is missing; a prefill engine needs it"},
		{[]string{"--gateway", "http://127.0.0.1:1"}, "--token-file is missing"},
		{[]string{"--gateway", "http://127.0.0.1:1", "--token-file", "none"}, "--token-file: metadata: token file none: "},
		{[]string{"--control", "0.0.0.0:0"}, "open control routes are for loopback only"},
		{[]string{"--transport", "rdma"}, "want auto, tcp or nixl"},
		{[]string{"--kv-memory", "tape"}, "want dram or vram"},
		{[]string{"--kv-memory", "vram", "--transport", "tcp"}, "--kv-memory vram needs --transport nixl"},
		{[]string{"--name", "a/b"}, "--name"},
		{[]string{"--tp", "3"}, "tp is 3; want a divisor or a multiple of the 4 heads"},
		{[]string{"--pp", "5"}, "pp is 5; want at most the 4 layers"},
		{[]string{"--blocks", "-1"}, "blocks is -1"},
		{[]string{"--role", "chief"}, "role is \"chief\""},
		{[]string{"extra"}, `unknown command "extra"`},
	} {
		if err := run(t.Context(), append([]string{"mock-engine"}, c.args...), io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v; want %q", c.args, err, c.want)
		}
	}
}
