package refengine

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// TestDialects asks the same conversation on every route: the answers are the same, whole and streamed.
func TestDialects(t *testing.T) {
	e, url := serve(t, Config{BlockTokens: 4, PrefixCache: true})
	_, chat := post(t, url+"/v1/chat/completions", `{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hello"}],"max_tokens":6,"ignore_eos":true,"return_token_ids":true}`)
	var want struct {
		Choices []struct {
			Message struct{ Content string }
			Tokens  json.RawMessage `json:"token_ids"`
		}
		Prompt json.RawMessage `json:"prompt_token_ids"`
	}
	if err := json.Unmarshal([]byte(chat), &want); err != nil || len(want.Choices) != 1 {
		t.Fatalf("%s: %v", chat, err)
	}
	text, deltas := want.Choices[0].Message.Content, regexp.MustCompile(`"(?:delta|text)":"([^"]*)"`)
	for _, tt := range []struct{ name, path, body, whole, end string }{
		{"responses", "/v1/responses", `{"instructions":"be kind","input":"hello","max_output_tokens":6,"ignore_eos":true,"request_id":"resp_mine"`, `"status":"incomplete"`, "event: response.completed\n"},
		{"responses, items", "/v1/responses", `{"input":[{"role":"system","content":"be kind"},{"role":"user","content":[{"type":"input_text","text":"hello"}]}],"max_output_tokens":6,"ignore_eos":true,"request_id":"resp_mine"`, `"id":"resp_mine"`, "event: response.completed\n"},
		{"messages", "/v1/messages", `{"system":"be kind","messages":[{"role":"user","content":"hello"}],"max_tokens":6,"ignore_eos":true`, `"stop_reason":"max_tokens"`, "event: message_stop\n"},
	} {
		status, whole := post(t, url+tt.path, tt.body+`}`)
		if status != 200 || !strings.Contains(whole, `"text":"`+text+`"`) || !strings.Contains(whole, tt.whole) {
			t.Errorf("%s: %d %s; want the text %q", tt.name, status, whole, text)
		}
		_, stream := post(t, url+tt.path, tt.body+`,"stream":true}`)
		var joined strings.Builder
		for _, event := range strings.Split(stream, "\n\n") {
			if m := deltas.FindStringSubmatch(event); m != nil && strings.Contains(event, "delta\n") {
				joined.WriteString(m[1])
			}
		}
		last := strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n")
		if joined.String() != text || strings.Count(stream, tt.end) != 1 || !strings.HasPrefix(last[len(last)-1], tt.end) {
			t.Errorf("%s streamed: %q, %s; want %q", tt.name, joined.String(), stream, text)
		}
	}
	body := `{"token_ids":` + string(want.Prompt) + `,"sampling_params":{"max_tokens":6,"ignore_eos":true}`
	for _, more := range []string{`}`, `,"stream":true,"stream_options":{"include_usage":true}}`} {
		status, got := post(t, url+"/inference/v1/generate", body+more)
		tokens := strings.Trim(string(want.Choices[0].Tokens), "[]")
		var all []string
		for _, m := range regexp.MustCompile(`"token_ids":\[([0-9,]+)\]`).FindAllStringSubmatch(got, -1) {
			all = append(all, m[1])
		}
		if status != 200 || strings.Join(all, ",") != tokens || !strings.Contains(got, `"completion_tokens":6`) || strings.Contains(more, "stream") != strings.HasSuffix(got, "data: [DONE]\n\n") {
			t.Errorf("generate: %d %s; want the tokens %s", status, got, tokens)
		}
	}
	if status, got := post(t, url+"/v1/messages", `{"messages":[]}`); status != 400 || !strings.HasPrefix(got, `{"error":{"message":`) || !strings.Contains(got, `"type":"error"`) {
		t.Errorf("messages: %d %s", status, got)
	}
	allFree(t, e)
}
