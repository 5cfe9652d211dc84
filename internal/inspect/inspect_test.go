package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/inspect"
	"pdrouter/metadata"
	"pdrouter/router/config"
)

// fakeEngine answers as engines of vLLM 0.32 and SGLang 0.5 do. Its fields are the faults.
type fakeEngine struct {
	owner     string // "vllm" by default
	model     string // "m" by default
	maxLen    int
	version   string
	handOff   string // kv_transfer_params; "" if it hands nothing off
	fails     int    // status of a completion
	key       string // bearer token that it wants
	keepsIDs  bool
	noDetails bool
	sglang    string // disaggregation mode
	bootstrap int
	html      bool
}

func (f fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	owner, model := f.owner, f.model
	if owner == "" {
		owner = "vllm"
	}
	if model == "" {
		model = "m"
	}
	if f.key != "" && r.Header.Get("Authorization") != "Bearer "+f.key {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	switch {
	case f.html:
		fmt.Fprint(w, "<html>welcome</html>")
	case r.URL.Path == "/v1/models":
		fmt.Fprintf(w, `{"data":[{"id":%q,"owned_by":%q,"parent":null,"max_model_len":%d},{"id":"lora","parent":%q}]}`, model, owner, f.maxLen, model)
	case r.URL.Path == "/version":
		fmt.Fprintf(w, `{"version":%q}`, f.version)
	case r.URL.Path == "/get_server_info" && f.sglang != "":
		fmt.Fprintf(w, `{"version":"0.5.23","disaggregation_mode":%q,"disaggregation_bootstrap_port":%d}`, f.sglang, f.bootstrap)
	case r.URL.Path == "/v1/completions" && f.fails != 0:
		w.WriteHeader(f.fails)
	case r.URL.Path == "/v1/completions":
		var body struct {
			KV struct {
				RemoteDecode bool `json:"do_remote_decode"`
			} `json:"kv_transfer_params"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || !body.KV.RemoteDecode {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		details, kv := `{"cached_tokens":0}`, "null"
		if f.noDetails {
			details = "null"
		}
		if f.handOff != "" {
			name := "cmpl-" + r.Header.Get("X-Request-Id") + "-0"
			if !f.keepsIDs {
				name += "-0a1b2c3d"
			}
			kv = strings.Replace(f.handOff, "}", fmt.Sprintf(`,"remote_request_id":%q}`, name), 1)
		}
		fmt.Fprintf(w, `{"usage":{"prompt_tokens_details":%s},"kv_transfer_params":%s}`, details, kv)
	default:
		http.NotFound(w, r)
	}
}

// handsOff are the params of an engine, whose side channel nobody listens at.
func handsOff(id, mode, host string, tp int) string {
	return fmt.Sprintf(`{"remote_engine_id":%q,"remote_host":%q,"remote_port":9,"tp_size":%d,"pp_size":1,"transfer_mode":%q}`, id, host, tp, mode)
}

// subject is one engine of a case: what it is, and what the configuration says of it.
type subject struct {
	role   inspect.Role
	is     fakeEngine
	entry  config.Engine
	side   *metadata.Record
	broken error // instead of asking
}

// ask builds the engines of a case by asking fakes over HTTP. Side channels are not played here: side says what they answer.
func ask(t *testing.T, subjects []subject) []inspect.Engine {
	t.Helper()
	var all []inspect.Engine
	counts := map[inspect.Role]int{}
	for _, s := range subjects {
		server := httptest.NewServer(s.is)
		e := inspect.Engine{Path: fmt.Sprintf("models[0].%s[%d]", s.role, counts[s.role]), Role: s.role, Entry: s.entry}
		counts[s.role]++
		asked := server.URL
		if e.Entry.URL == "" {
			e.Entry.URL = server.URL
		} else if strings.HasPrefix(e.Entry.URL, "/") {
			e.Entry.URL = server.URL + e.Entry.URL
			asked = e.Entry.URL
		}
		token := ""
		if e.Entry.BearerTokenFile != "" {
			token = "secret"
		}
		ctx, cancel := context.WithCancel(t.Context())
		e.Facts, e.Err = inspect.Asker{URL: asked, Token: token, Client: server.Client()}.Ask(ctx)
		cancel()
		server.Close()
		e.Facts.SideErr, e.Facts.Side = nil, s.side
		if s.broken != nil {
			e.Err = s.broken
		}
		all = append(all, e)
	}
	return all
}

var push = handsOff("p", "push", "127.0.0.1", 1)

func vllmPair(change func(p, d *subject)) []subject {
	p := subject{role: inspect.Prefill, is: fakeEngine{version: "0.32.0", maxLen: 2048, handOff: push}}
	d := subject{role: inspect.Decode, is: fakeEngine{version: "0.32.0", maxLen: 2048, handOff: handsOff("d", "push", "127.0.0.1", 1)}}
	if change != nil {
		change(&p, &d)
	}
	return []subject{p, d}
}

func sglangPair(change func(p, d *subject)) []subject {
	p := subject{role: inspect.Prefill, is: fakeEngine{owner: "sglang", sglang: "prefill", bootstrap: 8998}}
	d := subject{role: inspect.Decode, is: fakeEngine{owner: "sglang", sglang: "decode"}}
	if change != nil {
		change(&p, &d)
	}
	return []subject{p, d}
}

func side(block int, digest string) *metadata.Record {
	return &metadata.Record{Compatibility: digest, Layout: metadata.Layout{BlockTokens: block}}
}

// refused is the error of a connection that nothing listens for.
func refused(t *testing.T) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	_, err = inspect.Asker{URL: "http://" + address, Client: http.DefaultClient}.Ask(t.Context())
	return err
}

// TestMistakesAreNamed has one mistake in each case.
func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct {
		name, connector string
		engines         []subject
		want            string // the only finding
	}{
		{"another model", "vllm-nixl-push", vllmPair(func(p, d *subject) { d.is.model = "other" }), `decode[0] does not serve model "m": it serves "other"`},
		{"not running", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.broken = refused(t) }), "connection refused; is the engine running"},
		{"no such host", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.broken = &net.DNSError{Err: "no such host", Name: "prefill.local"} }), "the name prefill.local does not resolve"},
		{"silent", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.broken = context.DeadlineExceeded }), "no answer within"},
		{"a path in the URL", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.entry.URL = "/v1" }), "leave the path out of the URL"},
		{"another server", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.is.html = true }), "is not answered with the JSON"},
		{"no key", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.is.key = "secret" }), "wants a key (status 401); name it in bearer_token_file"},
		{"another key", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.is.key, p.entry.BearerTokenFile = "other", "f" }), "bearer_token_file the engine refuses this key"},
		{"no KV connector", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.is.handOff = "" }), "prefill[0] hands no KV off; start it with --kv-transfer-config"},
		{"pull for push", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.is.handOff = handsOff("p", "pull", "127.0.0.1", 1) }), "connector for pull; connector vllm-nixl-push wants the one for push"},
		{"push for pull", "vllm-nixl-pull", vllmPair(func(_, d *subject) { d.is.handOff = handsOff("d", "pull", "127.0.0.1", 1) }), "connector for push; connector vllm-nixl-pull wants"},
		{"completions fail", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.is.fails = 500 }), "fails a request that is to be handed off"},
		{"another side channel", "vllm-nixl-push", vllmPair(func(_, d *subject) { d.entry.SideChannel = "127.0.0.1:5600" }), "side_channel is 127.0.0.1:5600; the engine says that its own is 127.0.0.1:9"},
		{"a side channel on every address", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.is.handOff = handsOff("p", "push", "0.0.0.0", 1) }), "set VLLM_NIXL_SIDE_CHANNEL_HOST"},
		{"a side channel on loopback", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.entry.URL = "http://10.0.0.7:8000" }), "set VLLM_NIXL_SIDE_CHANNEL_HOST"},
		{"tensor_parallel", "vllm-nixl-push", vllmPair(func(p, d *subject) {
			p.is.handOff, d.is.handOff = handsOff("p", "push", "127.0.0.1", 2), handsOff("d", "push", "127.0.0.1", 2)
		}), "tensor_parallel is 1; the engine has 2"},
		{"TP that divides nothing", "vllm-nixl-push", vllmPair(func(p, d *subject) {
			p.is.handOff, d.is.handOff, d.entry.TensorParallel = handsOff("p", "push", "127.0.0.1", 3), handsOff("d", "push", "127.0.0.1", 2), 2
		}), "one must be a multiple of the other"},
		{"request ids", "vllm-nixl-push", vllmPair(func(_, d *subject) { d.entry.RequestIDRandomizationDisabled = true }), "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1"},
		{"one engine twice", "vllm-nixl-push", vllmPair(func(_, d *subject) { d.is.handOff = push }), "is the same engine as models[0].prefill[0]"},
		{"another vLLM", "vllm-nixl-push", vllmPair(func(_, d *subject) { d.is.version = "0.33.0" }), "KV goes only between engines of one version"},
		{"block sizes", "vllm-nixl-push", vllmPair(func(p, d *subject) { p.side, d.side = side(48, "a"), side(32, "b") }), "has KV blocks of 32 tokens, and models[0].prefill[0] of 48"},
		{"another model's weights", "vllm-nixl-push", vllmPair(func(p, d *subject) { p.side, d.side = side(32, "a"), side(32, "b") }), "another compatibility digest"},
		{"SGLang as vLLM", "vllm-nixl-push", sglangPair(nil)[:1], "is SGLang; connector vllm-nixl-push is for vLLM"},
		{"vLLM as SGLang", "sglang", vllmPair(nil)[:1], "is vLLM; connector sglang is for SGLang"},
		{"lists exchanged", "sglang", sglangPair(func(_, d *subject) { d.is.sglang = "prefill" }), "runs with --disaggregation-mode prefill, and stands in the list decode"},
		{"no disaggregation", "sglang", sglangPair(func(p, _ *subject) { p.is.sglang = "null" }), "runs without --disaggregation-mode; want --disaggregation-mode prefill"},
		{"bootstrap port", "sglang", sglangPair(func(p, _ *subject) { p.is.bootstrap = 9000 }), "bootstrap_port is 8998; the engine's is 9000"},
		{"a decode engine alone", "none", []subject{{role: inspect.Both, is: fakeEngine{owner: "sglang", sglang: "decode"}}}, "serves no request alone"},
		{"vLLM's connector for the plane", "kvplane", vllmPair(nil)[:1], "wants PdrouterConnector"},
		{"context lengths", "vllm-nixl-push", vllmPair(func(_, d *subject) { d.is.maxLen = 1024 }), "longer requests fail on one of them"},
		{"no cached tokens", "vllm-nixl-push", vllmPair(func(p, _ *subject) { p.is.noDetails = true }), "--enable-prompt-tokens-details"},
		{"request ids kept", "vllm-nixl-push", vllmPair(func(_, d *subject) { d.is.keepsIDs = true }), "request_id_randomization_disabled is not set"},
		{"a connector that is not used", "none", []subject{{role: inspect.Both, is: fakeEngine{handOff: push}}}, "can hand KV off"},
	} {
		found := inspect.Compare(config.Model{Name: "m", Connector: c.connector}, ask(t, c.engines))
		if len(found) != 1 || !strings.Contains(found[0].String(), c.want) {
			t.Errorf("%s: got %v; want only %q", c.name, found, c.want)
		}
	}
}

// TestSoundFleets raises no alarm.
func TestSoundFleets(t *testing.T) {
	for name, c := range map[string]struct {
		connector string
		engines   []subject
	}{
		"push": {"vllm-nixl-push", vllmPair(func(p, d *subject) { p.side, d.side = side(32, "a"), side(32, "a") })},
		"pull": {"vllm-nixl-pull", vllmPair(func(p, d *subject) {
			p.is.handOff, d.is.handOff = handsOff("p", "pull", "127.0.0.1", 1), handsOff("d", "", "127.0.0.1", 1)
		})},
		"push, two to four ranks, plain ids": {"vllm-nixl-push", vllmPair(func(p, d *subject) {
			p.is.handOff, d.is.handOff = handsOff("p", "push", "127.0.0.1", 2), handsOff("d", "push", "127.0.0.1", 4)
			d.is.keepsIDs, d.entry.RequestIDRandomizationDisabled, d.entry.TensorParallel, d.entry.SideChannel = true, true, 4, "localhost:9"
		})},
		"sglang":     {"sglang", sglangPair(nil)},
		"aggregated": {"none", []subject{{role: inspect.Both}, {role: inspect.Both, is: fakeEngine{owner: "somebody"}}}},
		"with a key": {"none", []subject{{role: inspect.Both, is: fakeEngine{key: "secret"}, entry: config.Engine{BearerTokenFile: "f"}}}},
	} {
		if found := inspect.Compare(config.Model{Name: "m", Connector: c.connector}, ask(t, c.engines)); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// TestLearn makes configurations of what engines say.
func TestLearn(t *testing.T) {
	for name, c := range map[string]struct {
		engines []subject
		want    string // the connector
		err     string
	}{
		"push": {vllmPair(nil), "vllm-nixl-push", ""},
		"pull": {vllmPair(func(p, d *subject) {
			p.is.handOff, d.is.handOff = handsOff("p", "pull", "h", 1), handsOff("d", "pull", "h", 1)
		}), "vllm-nixl-pull", ""},
		"sglang":     {sglangPair(nil), "sglang", ""},
		"aggregated": {[]subject{{role: inspect.Both}}, "none", ""},
		"mixed":      {vllmPair(func(_, d *subject) { d.is.handOff = handsOff("d", "pull", "h", 1) }), "", "want engines of one kind"},
		"two models": {vllmPair(func(_, d *subject) { d.is.model = "other" }), "", `serves "m", and`},
		"nothing":    {vllmPair(func(_, d *subject) { d.is.handOff = "" }), "", "hands no KV off"},
		"unknown":    {vllmPair(func(_, d *subject) { d.is.owner, d.is.handOff = "somebody", "" }), "", "does not say how it hands KV off"},
		"failing":    {vllmPair(func(_, d *subject) { d.is.fails = 500 }), "", "answered 500"},
	} {
		m, err := inspect.Learn("", ask(t, c.engines))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v; want %q", name, err, c.err)
			}
			continue
		}
		if err != nil || m.Name != "m" || m.Connector != c.want || len(m.Prefill)+len(m.Decode)+len(m.Engines) != len(c.engines) {
			t.Errorf("%s: got %+v, %v; want connector %s", name, m, err, c.want)
		}
		if c.want == "vllm-nixl-push" && !slices.ContainsFunc(m.Decode, func(e config.Engine) bool { return e.SideChannel == "127.0.0.1:9" }) {
			t.Errorf("%s: the side channel was not learned: %+v", name, m.Decode)
		}
	}
}

// TestAnswersAreBounded: an engine's answer is foreign, and may be anything.
func TestAnswersAreBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, strings.Repeat("\x1b[31m", 1000))
	}))
	defer server.Close()
	_, err := inspect.Asker{URL: server.URL, Client: server.Client()}.Ask(t.Context())
	var status *inspect.StatusError
	if !errors.As(err, &status) || len(err.Error()) > 1200 || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("got %v", err)
	}
}
