package openai

import "testing"

// TestTurns: where the turns of a prompt end.
func TestTurns(t *testing.T) {
	for _, row := range []struct {
		shape                Shape
		body                 string
		asked, answered, end string // the last part of the prompt up to there
	}{
		{ShapeChat, `{"messages": [{"role":"user","content":"a"} ] ,"model":"m"}`, "", "", `[{"role":"user","content":"a"}`},
		{ShapeChat, `{"messages":[{"role":"user","content":"a"},{"content":"b","role":"assistant"},{"role":"user","content":"c"}]}`,
			`[{"role":"user","content":"a"}`, `[{"role":"user","content":"a"},{"content":"b","role":"assistant"}`, `[{"role":"user","content":"a"},{"content":"b","role":"assistant"},{"role":"user","content":"c"}`},
		{ShapeMessages, `{"max_tokens":1,"messages":[{"role":"assistant","content":"a"},{"role":"user","content":"b"}]}`, "", `[{"role":"assistant","content":"a"}`, `[{"role":"assistant","content":"a"},{"role":"user","content":"b"}`},
		{ShapeChat, `{"messages":[]}`, "", "", `[]`},
		{ShapeCompletions, `{"prompt":"text"}`, "", "", `"text"`},
		{ShapeCompletions, `{"prompt":[1,2]}`, "", "", `[1,2]`},
	} {
		b, err := ParseBody(row.shape, []byte(row.body), Limits{})
		if err != nil {
			t.Fatalf("%s: %v", row.body, err)
		}
		all, got := b.Asked[askedLast].Of(b.Raw), b.Turns()
		if string(all[:got.Asked]) != row.asked || string(all[:got.Answered]) != row.answered || string(all[:got.End]) != row.end {
			t.Errorf("%s: %q, %q, %q", row.body, all[:got.Asked], all[:got.Answered], all[:got.End])
		}
	}
}
