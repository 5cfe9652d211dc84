package refengine

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestTokenizeAndBack asks for a text's tokens, and for the text of these.
func TestTokenizeAndBack(t *testing.T) {
	_, url := serve(t, Config{})
	status, body := post(t, url+"/tokenize", `{"prompt":"abc é"}`)
	var got struct {
		Count  int
		Tokens []int32
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 || got.Count != len(got.Tokens) || got.Count != 7 {
		t.Fatalf("status %d: %s", status, body)
	}
	back, _ := json.Marshal(map[string]any{"tokens": got.Tokens})
	if status, body := post(t, url+"/detokenize", string(back)); status != 200 || !strings.Contains(body, `"abc é"`) {
		t.Errorf("status %d: %s", status, body)
	}
	for _, bad := range []string{`{}`, `{"prompt":1}`, `{"prompt":"a","model":"none of these"}`} {
		if status, body := post(t, url+"/tokenize", bad); status/100 != 4 {
			t.Errorf("%s: status %d: %s", bad, status, body)
		}
	}
}
