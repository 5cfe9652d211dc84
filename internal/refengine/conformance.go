package refengine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// T is what Conformance needs of a test; *testing.T is one.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Conformance checks that an engine, or what stands in front of engines, at a base URL answers the OpenAI routes as
// the reference engine does: shapes, statuses, streams equal to whole answers, the same answer each time.
func Conformance(t T, url string) {
	t.Helper()
	c := &conformance{t: t, url: strings.TrimSuffix(url, "/")}
	c.models()
	for _, route := range []string{"/v1/completions", "/v1/chat/completions"} {
		c.answers(route)
	}
	c.several()
	c.errors()
}

type conformance struct {
	t     T
	url   string
	model string
}

// reply is what both routes answer, whole or as one event.
type reply struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Index   int     `json:"index"`
		Text    string  `json:"text"`
		Message turn    `json:"message"`
		Delta   turn    `json:"delta"`
		Finish  *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    any    `json:"code"`
	} `json:"error"`
}

type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (r reply) text(choice int) string {
	c := r.Choices[choice]
	return c.Text + c.Message.Content + c.Delta.Content
}

// send posts a body and returns status and answer.
func (c *conformance) send(path string, body string) (int, []byte) {
	c.t.Helper()
	resp, err := http.Post(c.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		c.t.Fatalf("POST %s: %v", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("POST %s: %v", path, err)
	}
	return resp.StatusCode, b
}

func (c *conformance) get(path string) (int, []byte) {
	c.t.Helper()
	resp, err := http.Get(c.url + path)
	if err != nil {
		c.t.Fatalf("GET %s: %v", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("GET %s: %v", path, err)
	}
	return resp.StatusCode, b
}

func (c *conformance) models() {
	c.t.Helper()
	if status, _ := c.get("/health"); status != http.StatusOK {
		c.t.Errorf("GET /health: status %d; want 200", status)
	}
	var list struct {
		Object string `json:"object"`
		Data   []struct {
			ID     string `json:"id"`
			Object string `json:"object"`
		} `json:"data"`
	}
	status, b := c.get("/v1/models")
	if err := json.Unmarshal(b, &list); err != nil || status != http.StatusOK || list.Object != "list" || len(list.Data) == 0 || list.Data[0].ID == "" || list.Data[0].Object != "model" {
		c.t.Fatalf("GET /v1/models: status %d, %v: %.300s", status, err, b)
	}
	c.model = list.Data[0].ID
}

// body is a request of either route with one prompt. extra are more fields, each with a comma before it.
func (c *conformance) body(path, extra string) string {
	ask := `"prompt":"The quick brown fox jumps over the lazy dog"`
	if strings.Contains(path, "chat") {
		ask = `"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"The quick brown fox?"}]`
	}
	return fmt.Sprintf(`{"model":%q,"temperature":0,"max_tokens":12,"ignore_eos":true,%s%s}`, c.model, ask, extra)
}

// whole sends a request that must succeed.
func (c *conformance) whole(path, extra string) reply {
	c.t.Helper()
	status, b := c.send(path, c.body(path, extra))
	var r reply
	if err := json.Unmarshal(b, &r); err != nil || status != http.StatusOK || len(r.Choices) == 0 || r.Usage == nil {
		c.t.Fatalf("POST %s%s: status %d, %v: %.300s", path, extra, status, err, b)
	}
	return r
}

func (c *conformance) answers(path string) {
	c.t.Helper()
	r := c.whole(path, "")
	text := r.text(0)
	u := r.Usage
	if text == "" || r.ID == "" || r.Model != c.model || u.Completion != 12 || u.Prompt < 1 || u.Total != u.Prompt+u.Completion {
		c.t.Errorf("POST %s: %+v", path, r)
	}
	if f := r.Choices[0].Finish; f == nil || *f != "length" {
		c.t.Errorf("POST %s: finish_reason is not length", path)
	}
	if again := c.whole(path, "").text(0); again != text {
		c.t.Errorf("POST %s: %q, then %q", path, text, again)
	}
	streamed, usage := c.stream(path, `,"stream":true`)
	if streamed != text || usage {
		c.t.Errorf("POST %s streamed: %q, usage %v; want %q, false", path, streamed, usage, text)
	}
	streamed, usage = c.stream(path, `,"stream":true,"stream_options":{"include_usage":true}`)
	if streamed != text || !usage {
		c.t.Errorf("POST %s streamed with usage: %q, usage %v; want %q, true", path, streamed, usage, text)
	}
	if len(text) < 5 {
		return
	}
	// A stop ends the text before it, whole and streamed.
	stop, err := json.Marshal(text[3:5])
	if err != nil {
		c.t.Fatalf("stop %q: %v", text[3:5], err)
	}
	want := text[:strings.Index(text, text[3:5])]
	extra := `,"stop":` + string(stop)
	r = c.whole(path, extra)
	if f := r.Choices[0].Finish; r.text(0) != want || f == nil || *f != "stop" {
		c.t.Errorf("POST %s stopped at %s: %q; want %q and finish_reason stop", path, stop, r.text(0), want)
	}
	if streamed, _ = c.stream(path, extra+`,"stream":true`); streamed != want {
		c.t.Errorf("POST %s streamed, stopped at %s: %q; want %q", path, stop, streamed, want)
	}
}

// stream sends a request whose answer is a stream, checks its frames, and returns the text of choice 0 and whether
// there was an event with the usage.
func (c *conformance) stream(path, extra string) (text string, usage bool) {
	c.t.Helper()
	status, b := c.send(path, c.body(path, extra))
	if status != http.StatusOK || !bytes.HasSuffix(b, []byte("data: [DONE]\n\n")) || bytes.Count(b, []byte("[DONE]")) != 1 {
		c.t.Fatalf("POST %s%s: status %d: %.300s", path, extra, status, b)
	}
	finished := 0
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, len(b)+1)
	for i := 0; lines.Scan(); i++ {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if ok != (i%2 == 0) || !ok && lines.Text() != "" {
			c.t.Fatalf("POST %s%s: line %d is %.100q", path, extra, i, lines.Text())
		}
		if !ok || data == "[DONE]" {
			continue
		}
		var r reply
		if err := json.Unmarshal([]byte(data), &r); err != nil {
			c.t.Fatalf("POST %s%s: event %.100q: %v", path, extra, data, err)
		}
		if len(r.Choices) == 0 {
			usage = r.Usage != nil && r.Usage.Total == r.Usage.Prompt+r.Usage.Completion && finished == 1
			continue
		}
		text += r.text(0)
		if r.Choices[0].Finish != nil {
			finished++
		}
	}
	if finished != 1 {
		c.t.Errorf("POST %s%s: %d events with a finish_reason; want 1", path, extra, finished)
	}
	return text, usage
}

// several asks for more than one choice, and for more than one prompt.
func (c *conformance) several() {
	c.t.Helper()
	const path = "/v1/completions"
	status, b := c.send(path, fmt.Sprintf(`{"model":%q,"temperature":0,"max_tokens":6,"ignore_eos":true,"prompt":["one prompt","another prompt"]}`, c.model))
	var r reply
	if err := json.Unmarshal(b, &r); err != nil || status != http.StatusOK || len(r.Choices) != 2 || r.Usage == nil || r.Usage.Completion != 12 {
		c.t.Fatalf("POST %s with two prompts: status %d, %v: %.300s", path, status, err, b)
	}
	for i, ch := range r.Choices {
		if ch.Index != i {
			c.t.Errorf("POST %s with two prompts: choice %d has index %d", path, i, ch.Index)
		}
	}
}

func (c *conformance) errors() {
	c.t.Helper()
	const route = "/v1/completions"
	for _, bad := range []struct {
		name, body string
		status     int
	}{
		{"broken JSON", `{"model":`, http.StatusBadRequest},
		{"no prompt", fmt.Sprintf(`{"model":%q,"temperature":0}`, c.model), http.StatusBadRequest},
		{"unknown model", `{"model":"no-such-model","prompt":"x"}`, http.StatusNotFound},
		{"negative max_tokens", fmt.Sprintf(`{"model":%q,"prompt":"x","max_tokens":-1}`, c.model), http.StatusBadRequest},
		{"stream_options without stream", fmt.Sprintf(`{"model":%q,"prompt":"x","stream_options":{"include_usage":true}}`, c.model), http.StatusBadRequest},
	} {
		status, b := c.send(route, bad.body)
		var r reply
		if err := json.Unmarshal(b, &r); err != nil || status != bad.status || r.Error == nil || r.Error.Message == "" || r.Error.Type == "" || r.Error.Code != float64(bad.status) {
			c.t.Errorf("%s: status %d, %v: %.300s; want %d and an error object", bad.name, status, err, b, bad.status)
		}
	}
	if status, _ := c.send("/v1/no-such-route", `{}`); status != http.StatusNotFound {
		c.t.Errorf("unknown route: status %d; want 404", status)
	}
}
