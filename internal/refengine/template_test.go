package refengine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestTemplate has the tools, calls and reasoning of a chat be part of its prompt, and reasoning dropped once the user has spoken again.
func TestTemplate(t *testing.T) {
	for _, row := range []struct{ name, body, want string }{
		{"a turn", `"messages":[{"role":"user","content":"a"}]`, "<|user|>\na\n<|assistant|>\n"},
		{"tools", `"tools":[ {"a": 1} ],"messages":[{"role":"user","content":"a"}]`, "<|tools|>\n[{\"a\":1}]\n<|user|>\na\n<|assistant|>\n"},
		{"null", `"tools":null,"messages":[{"role":"user","content":"a","tool_calls":null}]`, "<|user|>\na\n<|assistant|>\n"},
		{"reasoning that is kept", `"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"reasoning":"r","tool_calls":[{"b":2}]},{"role":"tool","content":"c"}]`,
			"<|user|>\na\n<|assistant|>\n<think>r</think>[{\"b\":2}]\n<|tool|>\nc\n<|assistant|>\n"},
		{"reasoning that is dropped", `"messages":[{"role":"assistant","content":"b","reasoning":"r"},{"role":"user","content":"a"}]`, "<|assistant|>\nb\n<|user|>\na\n<|assistant|>\n"},
	} {
		c, api := parseCall(true, []byte(`{`+row.body+`}`), Config{}.withDefaults())
		if api != nil {
			t.Fatalf("%s: %s", row.name, api.Message)
		}
		if got := string(detokenize(nil, c.prompts[0]...)); got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

// TestGivenPrompt has a chat take the prompt's token ids that come with a hand-off in place of its messages, as stock vLLM does, and other
// routes ignore them.
func TestGivenPrompt(t *testing.T) {
	e, url := serve(t, Config{})
	const messages, others = `"messages":[{"role":"user","content":"what is it?"}]`, `"messages":[{"role":"user","content":"something else"}]`
	ask := func(body string) (ids []int32, answer string) {
		t.Helper()
		status, said := post(t, url+"/v1/chat/completions", `{`+body+`,"max_tokens":8,"return_token_ids":true}`)
		var a answerBody
		if err := json.Unmarshal([]byte(said), &a); err != nil || status != 200 {
			t.Fatalf("%s: status %d: %s", body, status, said)
		}
		return a.Prompt, *a.Choices[0].Message.Content
	}
	ids, want := ask(messages)
	list, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	if _, other := ask(others); other == want {
		t.Fatal("both prompts have one answer")
	}
	given, got := ask(fmt.Sprintf(`%s,"kv_transfer_params":{"prompt_token_ids":%s}`, others, list))
	if got != want || len(given) != len(ids) {
		t.Errorf("from %d token ids it says %q, from the messages %q", len(given), got, want)
	}
	for _, bad := range []string{`[]`, `[-1]`, `[1.5]`, `["a"]`, `{}`, `[99999]`, `[[1]]`} {
		status, said := post(t, url+"/v1/chat/completions", `{`+messages+`,"kv_transfer_params":{"prompt_token_ids":`+bad+`}}`)
		if status != 400 || !strings.Contains(said, "prompt_token_ids") {
			t.Errorf("%s: status %d: %s", bad, status, said)
		}
	}
	const completion = `{"prompt":"a","max_tokens":4%s}`
	_, plain := post(t, url+"/v1/completions", fmt.Sprintf(completion, ""))
	status, ignored := post(t, url+"/v1/completions", fmt.Sprintf(completion, `,"kv_transfer_params":{"prompt_token_ids":[1,2,3]}`))
	text := func(s string) string {
		_, rest, _ := strings.Cut(s, `"text":`)
		at, _, _ := strings.Cut(rest, `,`)
		return at
	}
	if status != 200 || text(ignored) != text(plain) {
		t.Errorf("a completion: status %d, %s, want %s", status, ignored, plain)
	}
	allFree(t, e)
}
