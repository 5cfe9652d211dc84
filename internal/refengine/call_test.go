package refengine

import (
	"net/http"
	"testing"
)

// FuzzParseCall holds that whatever a body is, the call it makes can be submitted and the error it makes is one of the client's.
func FuzzParseCall(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `[]`, `{"prompt":"x"}`, `{"prompt":["x","y"],"n":3}`, `{"prompt":[1,2]}`, `{"prompt":[[1],[258]]}`, `{"prompt":[]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stop":["a"],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"messages":[{"role":"user","content":null}],"max_completion_tokens":0}`, `{"prompt":"x","max_tokens":2,"min_tokens":3}`, `{"prompt":"x","stop":null}`,
		`{"prompt":"x","kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"0123456789abcdef0123456789abcdef","peer":{"engine":"d","generation":1},"valid_ms":1000}}`,
		`{"prompt":"x","kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":true}}`, `{"prompt":"x","kv_transfer_params":[]}`,
	} {
		f.Add(false, []byte(s))
		f.Add(true, []byte(s))
	}
	cfg := Config{}.withDefaults()
	f.Fuzz(func(t *testing.T, chat bool, body []byte) {
		c, api := parseCall(chat, body, cfg)
		if api != nil {
			if api.Status != http.StatusBadRequest && api.Status != http.StatusNotFound || api.Message == "" || len(api.Message) > 1024 {
				t.Errorf("refused with %d %q", api.Status, api.Message)
			}
			return
		}
		if len(c.prompts) == 0 || c.n < 1 || c.req.MaxTokens < 1 || c.req.MinTokens > c.req.MaxTokens || len(c.stops) > maxStops {
			t.Errorf("accepted as %+v", c)
		}
		for _, p := range c.prompts {
			if len(p) == 0 {
				t.Error("accepted a prompt without tokens")
			}
		}
		if c.req.Leg != WholeLeg && (len(c.prompts) != 1 || c.n != 1 || c.req.Handoff.Peer.Engine == "" || c.req.Handoff.Valid <= 0) {
			t.Errorf("accepted as a leg: %+v", c)
		}
	})
}
