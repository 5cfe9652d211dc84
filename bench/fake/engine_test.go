package fake

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// TestLegs: a leg counts as one only at an engine of its role, and with what the connector needs.
func TestLegs(t *testing.T) {
	const (
		prefill = `{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}`
		decode  = `{"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true}}`
		room    = `{"bootstrap_host":"127.0.0.1","bootstrap_port":1,"bootstrap_room":7}`
	)
	for name, c := range map[string]struct{ mode, role, body, want string }{
		"prefill":                    {"pull", "prefill", prefill, "prefill"},
		"decode":                     {"push", "decode", decode, "decode"},
		"prefill at decode":          {"pull", "decode", prefill, "other"},
		"decode at prefill":          {"push", "prefill", decode, "other"},
		"no hand-off":                {"push", "decode", `{}`, "other"},
		"a room and no params":       {"push", "decode", room, "other"},
		"SGLang's prefill":           {SGLang, "prefill", room, "prefill"},
		"SGLang's decode":            {SGLang, "decode", room, "decode"},
		"no room":                    {SGLang, "decode", `{"bootstrap_host":"127.0.0.1"}`, "other"},
		"a room of null":             {SGLang, "decode", strings.Replace(room, `:7}`, `:null}`, 1), "other"},
		"a room and nowhere to meet": {SGLang, "decode", `{"bootstrap_room":7}`, "other"},
		"a room and vLLM's params":   {SGLang, "decode", room[:len(room)-1] + "," + decode[1:], "other"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newEngine(c.mode, c.role)
			leg := f.leg([]byte(c.body))
			if got := map[any]string{&f.prefill: "prefill", &f.decode: "decode", &f.other: "other"}[leg]; got != c.want {
				t.Errorf("got %s; want %s", got, c.want)
			}
		})
	}
}

// TestFakeDescribesItself: what routers ask of an engine is answered in JSON, and only where engines of the mode have it.
func TestFakeDescribesItself(t *testing.T) {
	for path, modes := range map[string]string{
		"/v1/models": "push pull sglang", "/version": "push pull", "/server_info": "sglang", "/model_info": "sglang", "/v1/loads": "sglang", "/nowhere": "",
	} {
		for _, mode := range []string{"push", "pull", SGLang} {
			var q fasthttp.RequestCtx
			q.Request.SetRequestURI(path)
			newEngine(mode, "decode").serve(&q)
			has := strings.Contains(modes, mode)
			if body := q.Response.Body(); (q.Response.StatusCode() == 200) != has || has && !json.Valid(body) {
				t.Errorf("%s of %s: status %d: %s", path, mode, q.Response.StatusCode(), body)
			}
		}
	}
	if f := newEngine(SGLang, "prefill"); !json.Valid(f.handoff) || bytes.Contains(f.handoff, []byte("kv_transfer_params")) {
		t.Errorf("SGLang's prefill answers %s", f.handoff)
	}
}
