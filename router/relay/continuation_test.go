package relay

import (
	"strings"
	"testing"

	"pdrouter/router/openai"
)

// TestContinuedSaltOnce has the salt of the caller's own share of the cache stand once in the body that goes on.
func TestContinuedSaltOnce(t *testing.T) {
	b, e := openai.ParseBody(openai.ShapeCompletions, []byte(`{"model":"m","prompt":"p","temperature":0,"stream":true,"cache_salt":"mine"}`), openai.Limits{})
	if e != nil {
		t.Fatal(e)
	}
	c, ok := openai.ContinuationOf(b)
	o := &Continuation{of: c, prompt: []byte("1,2"), nPrompt: 2}
	for _, salt := range []string{`"mine"`, `"sealed"`} {
		if got := string(o.Body(nil, nil, []byte(salt), nil)); !ok || strings.Count(got, "cache_salt") != 1 || !strings.Contains(got, `"cache_salt":`+salt) {
			t.Errorf("%v: %s", ok, got)
		}
	}
}

// TestOnwardLevers has the engine that goes on get one salt, and a priority only of who may say it.
func TestOnwardLevers(t *testing.T) {
	b, e := openai.ParseBody(openai.ShapeCompletions, []byte(`{"model":"m","prompt":"a","stream":true,"temperature":0,"cache_salt":"mine","priority":-9,"session_id":"x","max_tokens":9}`), openai.Limits{})
	if e != nil {
		t.Fatal(e)
	}
	for _, urgent := range []bool{false, true} {
		b.Sealed, b.Urgent = `"sealed"`, urgent
		c, ok := openai.ContinuationOf(b)
		if !ok {
			t.Fatal("not to be continued")
		}
		o := &Continuation{of: c, prompt: []byte("1")}
		out := o.Body(nil, nil, []byte(b.Sealed), nil)
		if again, e := openai.ParseBody(openai.ShapeCompletions, out, openai.Limits{}); e != nil || string(again.Salt) != b.Sealed || (again.Priority == -9) != urgent || strings.Contains(string(out), "session_id") {
			t.Errorf("urgent %v: %s: %v", urgent, out, e)
		}
	}
}
