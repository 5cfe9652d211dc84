package edge

import (
	"strings"
	"testing"

	"pdrouter/router/openai"
)

// TestExpectedTokens reads from bodies how much may come.
func TestExpectedTokens(t *testing.T) {
	for body, want := range map[string]int{
		`{"model":"m","prompt":"12345678"}`:                                  2 + 16,
		`{"model":"m","prompt":"12345678","max_tokens":0}`:                   2,
		`{"model":"m","prompt":["1234","5678"],"max_tokens":10,"n":3}`:       2 + 10*3*2,
		`{"model":"m","prompt":[1,2,3,4,5],"max_tokens":10}`:                 5 + 10,
		`{"model":"m","prompt":"1234","max_tokens":1099511627776}`:           1 + mostTokens,
		`{"model":"m","messages":[{"role":"user"}]}`:                         4,
		`{"model":"m","messages":[{"role":"user"}],"max_tokens":5,"n":2}`:    4 + 10,
		`{"model":"m","messages":[{"role":"u"}],"max_completion_tokens":50}`: 3 + 50,
	} {
		s := openai.ShapeCompletions
		if strings.Contains(body, "messages") {
			s = openai.ShapeChat
		}
		b, e := openai.ParseBody(s, []byte(body), openai.Limits{})
		if e != nil {
			t.Fatal(e)
		}
		if got := expectedTokens(b); got != want {
			t.Errorf("%s: expected %d; want %d", body, got, want)
		}
	}
}

// TestExpectedTokensPassed counts the conversations of a batch, and what a form asks for.
func TestExpectedTokensPassed(t *testing.T) {
	raw := `{"model":"m","messages":[[{}],[{}]],"max_tokens":100}`
	b, e := openai.ParsePassed(openai.ShapeBatch, []byte(raw), openai.Limits{})
	if e != nil || expectedTokens(b) != len(raw)/4+200 {
		t.Errorf("batch: %+v, %v", b, e)
	}
	ctype, form := "multipart/form-data; boundary=x", ""
	for _, field := range [][2]string{{"model", "m"}, {"n", "3"}, {"max_completion_tokens", "50"}} {
		form += "--x\r\nContent-Disposition: form-data; name=\"" + field[0] + "\"\r\n\r\n" + field[1] + "\r\n"
	}
	form += "--x--\r\n"
	if b, e = openai.ParseForm(ctype, []byte(form), openai.Limits{}); e != nil || expectedTokens(b) != 150 {
		t.Errorf("form: %+v, %v", b, e)
	}
}
