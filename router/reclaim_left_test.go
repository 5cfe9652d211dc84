package router

import "testing"

// TestTokenizeBody: an engine that is to count a prompt gets the prompt, to the byte, and nothing of the hand-off.
func TestTokenizeBody(t *testing.T) {
	for _, row := range []struct {
		shape      shape
		body, want string
	}{
		{shapeCompletions, `{"kv_transfer_params":{"remote_host":"10.1.2.3"},"prompt":[1, 2],"max_tokens":1,"request_id":"r","model":"m"}`, `{"model":"m","prompt":[1, 2]}`},
		{shapeChat, `{"model":"m","messages":[{"role":"user","content":"\u00e4"}],"tools":[],"kv_transfer_params":{},"cache_salt":"s"}`,
			`{"model":"m","messages":[{"role":"user","content":"\u00e4"}],"tools":[]}`},
		{shapeResponses, `{"model":"m","input":"a"}`, ""},
		{shapeChat, `no`, ""},
	} {
		b := body{shape: row.shape, raw: []byte(row.body)}
		if got := string(b.tokenizeBody(nil, nil)); got != row.want {
			t.Errorf("%s: %s; want %s", row.body, got, row.want)
		}
	}
}
