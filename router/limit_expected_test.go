package router_test

import (
	"strings"
	"testing"

	"pdrouter/router"
	"pdrouter/router/openai"
)

// TestExpectedTokens reads from bodies how much may come.
func TestExpectedTokens(t *testing.T) {
	for body, want := range map[string]int{
		`{"model":"m","prompt":"12345678"}`:                                  2 + 16,
		`{"model":"m","prompt":"12345678","max_tokens":0}`:                   2,
		`{"model":"m","prompt":["1234","5678"],"max_tokens":10,"n":3}`:       2 + 10*3*2,
		`{"model":"m","prompt":[1,2,3,4,5],"max_tokens":10}`:                 5 + 10,
		`{"model":"m","prompt":"1234","max_tokens":1099511627776}`:           1 + router.MostTokens,
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
		if got := router.ExpectedTokens(b); got != want {
			t.Errorf("%s: expected %d; want %d", body, got, want)
		}
	}
}

// TestExpectedTokensPassed counts the conversations of a batch, and what a form asks for.
func TestExpectedTokensPassed(t *testing.T) {
	raw := `{"model":"m","messages":[[{}],[{}]],"max_tokens":100}`
	b, e := openai.ParsePassed(openai.ShapeBatch, []byte(raw), openai.Limits{})
	if e != nil || router.ExpectedTokens(b) != len(raw)/4+200 {
		t.Errorf("batch: %+v, %v", b, e)
	}
	ctype, form := formBody(t, "model", "m", "n", "3", "max_completion_tokens", "50")
	if b, e = openai.ParseForm(ctype, []byte(form), openai.Limits{}); e != nil || router.ExpectedTokens(b) != 150 {
		t.Errorf("form: %+v, %v", b, e)
	}
}
