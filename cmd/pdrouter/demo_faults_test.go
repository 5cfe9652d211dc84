package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/demo"
)

// TestFault19and25and29RealKV asks a fleet that moves real KV blocks for what could have them cross: the same id on requests that are
// live at once, parameters that one leg must not see, and tenants with the same prompt.
func TestFault19and25and29RealKV(t *testing.T) {
	t.Parallel() // it waits for processes more than it works
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f := newFleet(t, ctx, "tcp")
	t.Run("19 the same X-Request-Id on live requests", func(t *testing.T) { sameID(t, ctx, f) })
	t.Run("25 parameters", func(t *testing.T) { sameAsAlone(t, ctx, f) })
	t.Run("29 two tenants", func(t *testing.T) { twoTenants(t, ctx, f) })
	if err := f.Settled(ctx); err != nil {
		t.Error(err)
	}
}

// asked is an answer with its head, and what the caller is told while it comes.
type asked struct {
	text   string
	header http.Header
}

// askAs sends a body, and reads the answer whole. begun is called at its first byte; it may be nil.
func askAs(ctx context.Context, url, body string, header map[string]string, begun func()) (asked, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return asked{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return asked{}, err
	}
	defer resp.Body.Close()
	if begun != nil {
		begun()
	}
	all, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, all)
	}
	return asked{string(all), resp.Header}, err
}

// differs is what no two answers have in common.
var differs = regexp.MustCompile(`"(created|cached_tokens)":\d+|((chat)?cmpl-)[0-9a-z-]+`)

// sameID has eight clients choose one id for requests of their own, again and again, until some were live at once.
func sameID(t *testing.T, ctx context.Context, f *demo.Fleet) {
	const clients, rounds = 8, 50
	bodies, want := make([]string, clients), make([]string, clients)
	for i := range clients {
		bodies[i] = fmt.Sprintf(`{"model":%q,"prompt":"%s","max_tokens":48,"min_tokens":48,"ignore_eos":true,"temperature":0,"stream":true}`,
			demo.Model, strings.Repeat(fmt.Sprintf("Client %d asks about %d seas. ", i, i*i), 10))
		a, err := askAs(ctx, f.Alone+"/v1/completions", bodies[i], nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		want[i] = differs.ReplaceAllString(a.text, "-")
	}
	for i := range clients - 1 {
		if want[i] == want[i+1] {
			t.Fatal("two prompts have one answer: nobody would see that they were exchanged")
		}
	}
	var live, most atomic.Int32
	for round := 0; round < 3 || most.Load() < 2; round++ {
		if round == rounds {
			t.Fatal("no two of the requests were live at once")
		}
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				a, err := askAs(ctx, f.Client+"/v1/completions", bodies[i], map[string]string{"X-Request-Id": "the-same"}, func() {
					if n := live.Add(1); n > most.Load() {
						most.Store(n)
					}
				})
				live.Add(-1)
				switch {
				case err != nil:
					t.Errorf("client %d: %v", i, err)
				case differs.ReplaceAllString(a.text, "-") != want[i]:
					t.Errorf("client %d: another answer than one engine's alone:\n%s", i, a.text)
				case a.header.Get("X-Request-Id") != "the-same" || a.header.Get("X-Pdrouter-Prefill") == "":
					t.Errorf("client %d: header %v", i, a.header)
				}
			})
		}
		if wg.Wait(); t.Failed() {
			return
		}
	}
	t.Logf("counted: %d at once", most.Load())
}

// sameAsAlone asks with everything that is decode's alone to heed: the answer is to the byte one engine's.
func sameAsAlone(t *testing.T, ctx context.Context, f *demo.Fleet) {
	long := strings.Repeat("Tell me more about the sea. ", 12)
	plain, err := askAs(ctx, f.Alone+"/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":40,"temperature":0}`, demo.Model, long), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal([]byte(plain.text), &answer); err != nil || len(answer.Choices[0].Text) < 8 {
		t.Fatalf("%s: %v", plain.text, err)
	}
	stop, _ := json.Marshal(answer.Choices[0].Text[4:7])
	for _, extra := range []string{
		`"max_tokens":40,"min_tokens":32`,
		`"max_tokens":40,"min_tokens":40,"ignore_eos":true`,
		`"max_tokens":40,"stop":` + string(stop),
		`"max_tokens":40,"stop":["never said",` + string(stop) + `],"include_stop_str_in_output":false`,
		`"max_tokens":24,"response_format":{"type":"json_object"}`,
		`"max_tokens":24,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object"}}}`,
		`"max_tokens":24,"seed":9223372036854775807,"top_p":0.1,"reasoning_effort":"low"`,
		`"max_completion_tokens":24,"max_tokens":24,"tools":[{"type":"function","function":{"name":"sea","parameters":{"type":"object"}}}],"tool_choice":"auto"`,
	} {
		for _, route := range []string{"/v1/completions", "/v1/chat/completions"} {
			for _, stream := range []string{``, `,"stream":true,"stream_options":{"include_usage":true}`} {
				prompt := fmt.Sprintf(`"prompt":%q`, long)
				if route != "/v1/completions" {
					prompt = fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, long)
				}
				body := fmt.Sprintf(`{"model":%q,%s,"temperature":0,%s%s}`, demo.Model, prompt, extra, stream)
				want, err := askAs(ctx, f.Alone+route, body, nil, nil)
				if err != nil {
					t.Fatalf("%s %s: %v", route, body, err)
				}
				got, err := askAs(ctx, f.Client+route, body, nil, nil)
				if a, b := differs.ReplaceAllString(got.text, "-"), differs.ReplaceAllString(want.text, "-"); err != nil || a != b {
					t.Errorf("%s with %s%s: %v, got\n%s\nwant\n%s", route, extra, stream, err, a, b)
				}
				if got.header.Get("X-Pdrouter-Prefill") == "" {
					t.Errorf("%s with %s%s: served by one engine: %v", route, extra, stream, got.header)
				}
			}
		}
	}
}

// twoTenants has two tenants send one prompt. Without isolation the second finds what the first has left; with it nobody finds but his own,
// whatever salt he gives.
func twoTenants(t *testing.T, ctx context.Context, f *demo.Fleet) {
	cached := func(tenant, prompt, salt string) (int, string) {
		t.Helper()
		// The answer is long: one that decode has given whole before prefill has said what it had cached says 0.
		body := map[string]any{"model": demo.Model, "prompt": prompt, "max_tokens": 96, "min_tokens": 96, "ignore_eos": true, "temperature": 0}
		if salt != "" {
			body["cache_salt"] = salt
		}
		raw, _ := json.Marshal(body)
		header := map[string]string{}
		if tenant != "" {
			header["Authorization"] = "Bearer " + tenant
		}
		a, err := askAs(ctx, f.Client+"/v1/completions", string(raw), header, nil)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(a.text), &answer); err != nil || a.header.Get("X-Pdrouter-Prefill") == "" {
			t.Fatalf("%s, header %v: %v", a.text, a.header, err)
		}
		return answer.Usage.Details.Cached, a.header.Get("X-Pdrouter-Prefill")
	}
	// hits asks until each prefill engine was asked twice, and returns how many tokens the engines had the first time, and the second.
	hits := func(tenant, prompt, salt string) (first, second int) {
		t.Helper()
		times := map[string]int{}
		for n := 0; times["prefill-0"] < 2 || times["prefill-1"] < 2; n++ {
			if n == 20 {
				t.Fatalf("engines were asked %v", times)
			}
			tokens, engine := cached(tenant, prompt, salt)
			switch times[engine]++; times[engine] {
			case 1:
				first += tokens
			case 2:
				second += tokens
			}
		}
		return first, second
	}
	shared := strings.Repeat("What everybody may ask. ", 12)
	if first, second := hits("", shared, ""); first != 0 || second == 0 {
		t.Fatalf("%d tokens were cached before anybody had asked, %d behind that", first, second)
	}
	if first, _ := hits("", shared, ""); first == 0 {
		t.Fatal("no prefix is found again: what follows would show nothing")
	}
	tokens := isolate(f, t, ctx)
	for _, salt := range []string{"", "the same salt"} {
		for _, tenant := range tokens {
			if first, second := hits(tenant, shared, salt); first != 0 || second == 0 {
				t.Errorf("salt %q: %d tokens were another's, %d his own; want none and some", salt, first, second)
			}
		}
	}
}

// isolate has the gateway want tokens from now on, and keep tenants' prefixes apart. It returns two tenants' tokens.
func isolate(f *demo.Fleet, t *testing.T, ctx context.Context) []string {
	t.Helper()
	signer, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	_, public, err := keys.Write(f.Path("client-keys"), signer)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(f.Path("pdrouter.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(raw), "auth: {", fmt.Sprintf("isolate_prefix_cache: true\nauth: {clients: {keys: [%q], issuer: tests}, ", public), 1)
	if err := os.WriteFile(f.Path("pdrouter.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := askAs(ctx, f.Operations+"/config/reload", "", nil, nil); err != nil {
		t.Fatal(err)
	}
	var tokens []string
	for _, tenant := range []string{"one", "two"} {
		token, err := auth.Mint(signer, auth.Grant{Issuer: "tests", Audience: auth.ClientAudience, Subject: tenant, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	return tokens
}
