package router

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
	keep, _, _, ok := openai.ContinuationOf(b)
	o := &onward{keep: keep, max: 5, prompt: []byte("1,2"), nPrompt: 2}
	for _, salt := range []string{`"mine"`, `"sealed"`} {
		if got := string(o.body(nil, nil, []byte(salt))); !ok || strings.Count(got, "cache_salt") != 1 || !strings.Contains(got, `"cache_salt":`+salt) {
			t.Errorf("%v: %s", ok, got)
		}
	}
}
