package edge

import (
	"encoding/json"
	"testing"

	"pdrouter/router/openai"
	"pdrouter/router/openai/sse"
)

// TestErrorShapes reads the errors of each route as its clients do.
func TestErrorShapes(t *testing.T) {
	e := openai.ErrBadUpstream()
	e.Msg = `"quoted"`
	for path, want := range map[string]string{
		pathMessages: `{"type":"error","error":{"type":"BadGatewayError","message":"\"quoted\""}}`, pathMessages + "/count_tokens": `{"type":"error","error":{"type":"BadGatewayError","message":"\"quoted\""}}`,
		pathResponses: string(e.AppendJSON(nil)), pathChat: string(e.AppendJSON(nil)), "/v1/messagesx": string(e.AppendJSON(nil)),
	} {
		if got := string(errorsOf(path).AppendError(nil, e)); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	for s := range int(openai.ShapeGenerate) + 1 {
		event := openai.Shape(s).AppendErrorEvent(nil, e, 7)
		if got := openai.Shape(s).KindOf(event); got != openai.EventError {
			t.Errorf("%s: %q is an event of kind %s", openai.Shape(s), event, got)
		}
		data, ok := sse.Data(event)
		var got struct {
			Type    string
			Number  int `json:"sequence_number"`
			Message string
			Error   struct{ Message string }
			Code    any
		}
		if err := json.Unmarshal(data, &got); !ok || err != nil {
			t.Fatalf("%s: %q: %v", openai.Shape(s), event, err)
		}
		if got.Error.Message != e.Msg {
			t.Errorf("%s: message %q", openai.Shape(s), got.Error.Message)
		}
		if openai.Shape(s) == openai.ShapeResponses && (got.Type != "error" || got.Number != 7 || got.Message != e.Msg) {
			t.Errorf("responses: %s", data)
		}
		if openai.Shape(s) == openai.ShapeMessages && got.Type != "error" {
			t.Errorf("messages: %s", data)
		}
	}
}
