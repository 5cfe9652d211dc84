package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/sse"
)

var streams = []struct {
	name  string
	in    string
	kinds []EventKind
}{
	{"plain", "data: {\"a\":1}\n\ndata: [DONE]\n\n", []EventKind{EventData, EventDone}},
	{"CRLF", "data: {}\r\n\r\ndata: [DONE]\r\n\r\n", []EventKind{EventData, EventDone}},
	{"no space", "data:{}\n\ndata:[DONE]\n\n", []EventKind{EventData, EventDone}},
	{"comments", ": ping\n\ndata: {}\n\n: ping\n\ndata: [DONE]\n\n",
		[]EventKind{EventComment, EventData, EventComment, EventDone}},
	{"comment within the last event", "data: {}\n\n: x\ndata: [DONE]\n\n", []EventKind{EventData, EventDone}},
	{"bytes behind the end", "data: [DONE]\n\n: bye\n\n", []EventKind{EventDone, EventComment}},
	{"content ends in the word", "data: {\"text\":\"data: [DONE]\"}\n\n", []EventKind{EventData}},
	{"content is the word", "data: \"[DONE]\"\n\n", []EventKind{EventData}},
	{"escaped line end before the word", "data: {\"text\":\"\\n\\ndata: [DONE]\\n\\n\"}\n\n", []EventKind{EventData}},
	{"second line of an event", "data: {}\ndata: [DONE]\n\n", []EventKind{EventData}},
	{"first line of an event", "data: [DONE]\ndata: {}\n\n", []EventKind{EventData}},
	{"no blank line", "data: {}\n\ndata: [DONE]\n", []EventKind{EventData}},
	{"no line end", "data: {}\n\ndata: [DONE]", []EventKind{EventData}},
	{"bytes behind the word", "data: [DONE] \n\ndata: [DONE]]\n\ndata: [DONE]\r\r\n\n",
		[]EventKind{EventData, EventData, EventData}},
	{"bytes before the word", " data: [DONE]\n\ndata:  [DONE]\n\nxdata: [DONE]\n\n",
		[]EventKind{EventComment, EventData, EventComment}},
	{"error", "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n", []EventKind{EventError, EventDone}},
	{"null error", "data: {\"error\":null,\"choices\":[]}\n\n", []EventKind{EventData}},
	{"content about an error", "data: {\"choices\":[{\"text\":\"\\\"error\\\":1\"}],\"x\":{\"error\":1}}\n\n",
		[]EventKind{EventData}},
	{"nothing", "", nil},
}

func TestSSEFrames(t *testing.T) {
	for _, tt := range streams {
		t.Run(tt.name, func(t *testing.T) {
			for size := 1; size <= len(tt.in)+1; size++ {
				var kinds []EventKind
				var joined []byte
				frames := sse.NewFrames(len(tt.in) + 1)
				for rest := []byte(tt.in); len(rest) > 0; {
					part := rest[:min(size, len(rest))]
					rest = rest[len(part):]
					if err := frames.Push(part); err != nil {
						t.Fatal(err)
					}
					for event, ok := frames.Next(); ok; event, ok = frames.Next() {
						kinds = append(kinds, ShapeCompletions.KindOf(event))
						joined = append(joined, event...)
					}
				}
				joined = append(joined, frames.Unfinished()...)
				if diff := cmp.Diff(tt.kinds, kinds); diff != "" {
					t.Errorf("pieces of %d: kinds (-want +got):\n%s", size, diff)
				}
				if got, want := string(joined), tt.in; got != want {
					t.Errorf("pieces of %d: got %q, want %q", size, got, want)
				}
			}
		})
	}
}

// typed are streams whose events have types.
var typed = []struct {
	name  string
	shape Shape
	in    string
	kinds []EventKind
}{
	{"responses", ShapeResponses, "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.in_progress\ndata: {}\n\n" +
		"event: response.output_text.delta\ndata: {\"delta\":\"a\"}\n\nevent: response.completed\ndata: {\"response\":{\"error\":null}}\n\n",
		[]EventKind{eventEarly, eventEarly, EventData, EventDone}},
	{"types within the data", ShapeResponses, "data: {\"a\":1,\"type\":\"response.queued\"}\n\ndata: {\"type\":\"response.incomplete\"}\n\n", []EventKind{eventEarly, EventDone}},
	{"the end of another route", ShapeResponses, "data: [DONE]\n\n", []EventKind{EventData}},
	{"content about the end", ShapeResponses, "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"\\n\\nevent: response.completed\\ndata: {}\\n\\n\"}\n\n",
		[]EventKind{EventData}},
	{"failed response", ShapeResponses, "event: response.failed\ndata: {\"type\":\"response.failed\"}\n\n", []EventKind{EventError}},
	{"error", ShapeResponses, "event: error\ndata: {\"type\":\"error\",\"message\":\"x\"}\n\n", []EventKind{EventError}},
	{"error without a type", ShapeResponses, "data: {\"error\":{\"message\":\"x\"}}\n\n", []EventKind{EventError}},
	{"messages", ShapeMessages, "event: message_start\r\ndata: {\"type\":\"message_start\"}\r\n\r\nevent: ping\ndata: {\"type\": \"ping\"}\n\n" +
		"event:content_block_delta\ndata: {}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		[]EventKind{EventData, EventComment, EventData, EventDone}},
	{"message error", ShapeMessages, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"x\"}}\n\n", []EventKind{EventError}},
	{"an event without data", ShapeMessages, "event: message_stop\n\n", []EventKind{EventComment}},
	{"a type that only begins so", ShapeMessages, "event: message_stopped\ndata: {}\n\nevent: message_stop \ndata: {}\n\n", []EventKind{EventData, EventData}},
	{"generate", ShapeGenerate, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", []EventKind{EventData, EventDone}},
}

func TestTypedEvents(t *testing.T) {
	for _, tt := range typed {
		t.Run(tt.name, func(t *testing.T) {
			var kinds []EventKind
			frames := sse.NewFrames(len(tt.in) + 1)
			if err := frames.Push([]byte(tt.in)); err != nil {
				t.Fatal(err)
			}
			for event, ok := frames.Next(); ok; event, ok = frames.Next() {
				kinds = append(kinds, tt.shape.KindOf(event))
			}
			if diff := cmp.Diff(tt.kinds, kinds); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzSSE cuts a stream into pieces of any length: the events, what they are, and what the client gets of them are the same.
func FuzzSSE(f *testing.F) {
	for _, s := range streams {
		f.Add([]byte(s.in), byte(3), byte(ShapeCompletions))
	}
	for _, s := range typed {
		f.Add([]byte(s.in), byte(5), byte(s.shape))
	}
	for _, s := range []string{
		"data: {\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":8}},\"kv_transfer_params\":{}}\n\ndata: [DONE]\n\n",
		"event: message_delta\ndata: {\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":8}}\n\n",
		"data: {\"text\":\"\u00e9\U0001f600\"}\n\n: keep\n\ndata: {\"error\":{}}\n\n",
	} {
		f.Add([]byte(s), byte(1), byte(ShapeChat))
	}
	f.Fuzz(func(t *testing.T, in []byte, cut, which byte) {
		s := Shape(int(which) % shapesSplit)
		type seen struct {
			kind EventKind
			sent string
		}
		see := func(frames *sse.Frames, all []seen) []seen {
			for event, ok := frames.Next(); ok; event, ok = frames.Next() {
				sent, ok := answer.StripEvent(nil, event)
				if ok && bytes.Contains(sent, []byte("transfer_params")) && !bytes.Contains(event, []byte(`\`)) && forbidden(sent) {
					t.Errorf("%q is relayed as %q", event, sent)
				}
				if ok && !bytes.Contains(event, []byte("_transfer_params")) && !bytes.Equal(sent, event) {
					t.Errorf("%q is relayed as %q", event, sent)
				}
				all = append(all, seen{s.KindOf(event), string(answer.SetCached(sent, 0, 3, -1))})
			}
			return all
		}
		whole := sse.NewFrames(len(in) + 1)
		if err := whole.Push(in); err != nil {
			t.Fatal(err)
		}
		want := see(whole, nil)
		frames := sse.NewFrames(len(in) + 1)
		var got []seen
		step := uint32(cut) + 1
		for rest := in; len(rest) > 0; {
			step = step*1664525 + 1013904223
			part := rest[:min(len(rest), int(step>>28)+1)]
			rest = rest[len(part):]
			if err := frames.Push(part); err != nil {
				t.Fatal(err)
			}
			got = see(frames, got)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(seen{})); diff != "" {
			t.Errorf("in one piece and in several (-one +several):\n%s", diff)
		}
		again := sse.NewFrames(len(in) + 1)
		var joined []byte
		for i := range in {
			if err := again.Push(in[i : i+1]); err != nil {
				t.Fatal(err)
			}
			for event, ok := again.Next(); ok; event, ok = again.Next() {
				joined = append(joined, event...)
			}
		}
		if joined = append(joined, again.Unfinished()...); !bytes.Equal(joined, in) {
			t.Errorf("joined %q, want %q", joined, in)
		}
	})
}

// forbidden reports whether the data of an event has a member that tells of a hand-off, by encoding/json.
func forbidden(event []byte) bool {
	data, ok := sse.Data(event)
	var v any
	if !ok || json.Unmarshal(data, &v) != nil {
		return false
	}
	var within func(v any) bool
	within = func(v any) bool {
		switch v := v.(type) {
		case map[string]any:
			for key, member := range v {
				if answer.IsTransferKey([]byte(key)) || within(member) {
					return true
				}
			}
		case []any:
			return slices.ContainsFunc(v, within)
		}
		return false
	}
	return within(v)
}
