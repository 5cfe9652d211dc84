package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/demo"
)

// TestEveryRouteIsSplit asks a gateway on each route that two engines serve, streamed and whole: the answers are one engine's
// alone, and both engines had their part in it.
func TestEveryRouteIsSplit(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := newFleet(t, ctx, "tcp")
	defer func() {
		if err := f.Settled(ctx); err != nil {
			t.Error(err)
		}
	}()
	long := strings.Repeat("Tell me more about the sea. ", 12)
	tokens := strings.Repeat("97,98,99,", 100)
	// What depends on the hour, and on how much one of the engines had cached.
	varies := regexp.MustCompile(`"(created|created_at|cached_tokens|cache_read_input_tokens|input_tokens)":\d+|"cached_tokens_per_turn":\[\d+\]|(cmpl-|resp_|generate-tokens-)[0-9a-z-]+`)
	for _, tt := range []struct{ path, body string }{
		{"/v1/completions", `{"model":%q,"prompt":"` + long + `","max_tokens":24%s}`},
		{"/v1/chat/completions", `{"model":%q,"messages":[{"role":"user","content":"` + long + `"}],"max_tokens":24%s}`},
		{"/v1/responses", `{"model":%q,"input":"` + long + `","max_output_tokens":24%s}`},
		{"/v1/messages", `{"model":%q,"messages":[{"role":"user","content":"` + long + `"}],"max_tokens":24%s}`},
		{"/inference/v1/generate", `{"model":%q,"token_ids":[256,` + tokens + `100],"sampling_params":{"max_tokens":24}%s}`},
	} {
		for _, stream := range []string{``, `,"stream":true`} {
			body := fmt.Sprintf(tt.body, demo.Model, stream)
			want, _ := askRoute(t, ctx, f.Alone+tt.path, body)
			want = strings.ReplaceAll(want, `"kv_transfer_params":null,`, "") // the gateway takes it out, whatever it is
			got, header := askRoute(t, ctx, f.Client+tt.path, body)
			if a, b := varies.ReplaceAllString(got, "-"), varies.ReplaceAllString(want, "-"); a != b || got == "" {
				t.Errorf("%s%s: got\n%s\nwant\n%s", tt.path, stream, a, b)
			}
			if header.Get("X-Pdrouter-Prefill") == "" || header.Get("X-Pdrouter-Decode") == "" {
				t.Errorf("%s%s: served by one engine: %v", tt.path, stream, header)
			}
		}
	}
}

func askRoute(t *testing.T, ctx context.Context, url, body string, header ...string) (string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %d %s %v", url, resp.StatusCode, b, err)
	}
	return string(b), resp.Header
}
