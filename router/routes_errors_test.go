package router

import (
	"encoding/json"
	"testing"

	"pdrouter/router/openai/sse"
)

// TestErrorShapes reads the errors of each route as its clients do.
func TestErrorShapes(t *testing.T) {
	e := errBadUpstream()
	e.Msg = `"quoted"`
	for path, want := range map[string]string{
		pathMessages: `{"type":"error","error":{"type":"BadGatewayError","message":"\"quoted\""}}`, pathMessages + "/count_tokens": `{"type":"error","error":{"type":"BadGatewayError","message":"\"quoted\""}}`,
		pathResponses: string(e.appendJSON(nil)), pathChat: string(e.appendJSON(nil)), "/v1/messagesx": string(e.appendJSON(nil)),
	} {
		if got := string(errorsOf(path).appendError(nil, e)); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	for s := range shapesSplit {
		event := shape(s).appendErrorEvent(nil, e, 7)
		if got := shape(s).kindOf(event); got != eventError {
			t.Errorf("%s: %q is an event of kind %s", shape(s), event, got)
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
			t.Fatalf("%s: %q: %v", shape(s), event, err)
		}
		if got.Error.Message != e.Msg {
			t.Errorf("%s: message %q", shape(s), got.Error.Message)
		}
		if shape(s) == shapeResponses && (got.Type != "error" || got.Number != 7 || got.Message != e.Msg) {
			t.Errorf("responses: %s", data)
		}
		if shape(s) == shapeMessages && got.Type != "error" {
			t.Errorf("messages: %s", data)
		}
	}
}
