package router_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/dispatch"
)

// formBody writes a form with these parts, each a name and a value; one called file is a file.
func formBody(t *testing.T, parts ...string) (ctype, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		var p io.Writer
		var err error
		if parts[i] == "file" {
			p, err = w.CreateFormFile("file", "a\u00e9.wav")
		} else {
			p, err = w.CreateFormField(parts[i])
		}
		if err == nil {
			_, err = io.WriteString(p, parts[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close()
	return w.FormDataContentType(), b.String()
}

// TestPassedForms sends audio: the model is a field of the form, the answer streams if the engine has it stream.
func TestPassedForms(t *testing.T) {
	const events = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"
	e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, r *http.Request, body string) {
		if strings.Contains(body, `name="stream"`) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			_, _ = io.WriteString(w, events)
			return
		}
		routertest.JSONAnswer(200, `{"text":"hello"}`)(w, r, body)
	})
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{})
	audio := strings.Repeat("\x00\r\n--\xff", 1000)
	ctype, body := formBody(t, "model", "tiny", "file", audio, "kv_transfer_params", "{}", "language", "en")
	r := g.Post("/v1/audio/transcriptions", body, "Content-Type", ctype)
	if r.Status != 200 || r.Body != `{"text":"hello"}` {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	asked := e.All()
	if len(asked) != 1 || asked[0].URI != "/v1/audio/transcriptions" || strings.Contains(asked[0].Body, "transfer") {
		t.Fatalf("the engine was asked %+v", asked)
	}
	req := &http.Request{Method: "POST", Header: asked[0].Header, Body: io.NopCloser(strings.NewReader(asked[0].Body))}
	if err := req.ParseMultipartForm(1 << 20); err != nil {
		t.Fatal(err)
	}
	file, _, err := req.FormFile("file")
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(file)
	if string(got) != audio || req.FormValue("model") != "tiny" || req.FormValue("language") != "en" {
		t.Errorf("the engine got %d bytes of %d, fields %v", len(got), len(audio), req.Form)
	}
	if !g.Summary(1).Removed {
		t.Error("the summary does not say that a field was dropped")
	}

	ctype, body = formBody(t, "stream", "true", "model", "tiny", "file", audio)
	r = g.Post("/v1/audio/translations", body, "Content-Type", ctype)
	if r.Status != 200 || r.Body != events || r.Err != nil {
		t.Errorf("status %d, %v: %s", r.Status, r.Err, r.Body)
	}
	if s := g.Summary(2); !s.Stream || s.PromptTokens != 4 || s.Outcome != dispatch.Completed {
		t.Errorf("summary %+v", s)
	}
	e.All()
	for name, fields := range map[string][]string{
		"no model": {"file", audio}, "two models": {"model", "tiny", "model", "other"}, "other model": {"model", "other"},
		"hidden": {"model", "tiny", "vllm_xargs", `{"kv_transfer_params":1}`}, "hidden, escaped": {"model", "tiny", "vllm_xargs", `{"kv\u005ftransfer_params":"x"}`},
		"hidden deep": {"model", "tiny", "vllm_xargs", `{"a":[{"\u0065c_transfer_params":1}]}`}, "no object": {"model", "tiny", "vllm_xargs", `"{}"`},
		"too many answers": {"model", "tiny", "n", "1000000"}, "no number": {"model", "tiny", "n", "many"}, "n twice": {"model", "tiny", "n", "1", "n", "2"},
		"two objects": {"model", "tiny", "vllm_xargs", `{}{}`}, "twice": {"model", "tiny", "vllm_xargs", `{"a":1,"\u0061":2}`},
	} {
		ctype, body := formBody(t, fields...)
		if r := g.Post("/v1/audio/transcriptions", body, "Content-Type", ctype); r.Status != 400 && r.Status != 404 {
			t.Errorf("%s: status %d: %s", name, r.Status, r.Body)
		}
	}
	if r := g.Post("/v1/audio/transcriptions", `{"model":"tiny"}`); r.Status != 400 || r.Header.Get("X-Pdrouter-Reason") != "content_type" {
		t.Errorf("JSON: status %d: %s", r.Status, r.Body)
	}
	if asked := e.All(); len(asked) != 0 {
		t.Errorf("the engine was asked %+v", asked)
	}
}
