package choices

import (
	"encoding/json"
	"testing"

	"pdrouter/router/openai"
	"pdrouter/router/openai/sse"
)

// FuzzMerge merges any two answers, as whole bodies and as events: what comes of it is JSON, and nothing panics.
func FuzzMerge(f *testing.F) {
	const whole = `{"id":"a","created":1,"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"d":{"e":1}},"metrics":{"a":1}}`
	f.Add([]byte(whole), []byte(`{"choices":[{"text":"y","index":7}],"usage":{"completion_tokens":2,"d":{"f":1}},"id":"b"}`))
	f.Add([]byte(`{"id":"a","choices":[],"usage":{}}`), []byte(`{"usage":{"total_tokens":1,"total_tokens":2},"choices":[],"choices":[{"index":1}]}`))
	f.Add([]byte(`{"choices":[{"index":0}],"usage":null,"usage":{"a":1}}`), []byte(`{"choices":[{"index":0}]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if out, ok := NewMerger(1, 2).Whole([][]byte{a, b}); ok && !json.Valid(out) {
			t.Errorf("of %q and %q came %q", a, b, out)
		}
		m := NewMerger(1, 2)
		var out []byte
		for _, data := range [][]byte{a, b, []byte("[DONE]")} {
			for k := range 2 {
				frames := sse.NewFrames(1 << 20)
				_ = frames.Push(append(append([]byte("data: "), data...), "\n\n"...))
				for event, ok := frames.Next(); ok; event, ok = frames.Next() {
					out, _ = m.Event(out, k, event)
				}
			}
		}
		frames := sse.NewFrames(1 << 20)
		if frames.Push(out) != nil {
			return
		}
		for event, ok := frames.Next(); ok; event, ok = frames.Next() {
			if kind := openai.ShapeCompletions.KindOf(event); kind != openai.EventData {
				continue
			}
			if data, ok := sse.Data(event); ok && !json.Valid(data) {
				t.Errorf("of %q and %q came the event %q", a, b, event)
			}
		}
	})
}
