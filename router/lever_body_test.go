package router

import (
	"strings"
	"testing"

	"pdrouter/router/config"
	"pdrouter/router/openai"
)

// TestStandingOfBody orders the queue by the body's priority where its caller has the scope, and by the head before it.
func TestStandingOfBody(t *testing.T) {
	for _, row := range []struct {
		urgent         bool
		header         string
		priority, want int
	}{{true, "", -5, 5}, {true, "-7", -5, 7}, {true, "x", -5, 5}, {true, "", -9000, config.MaxPriority}, {false, "-7", -5, 0}, {true, "", 0, 0}} {
		q := &admitted{s: &setup{}, b: &openai.Body{Priority: row.priority, Urgent: row.urgent}}
		if got := q.standing([]byte(row.header)); got != row.want {
			t.Errorf("%+v: standing %d", row, got)
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
		keep, usage, _, ok := openai.ContinuationOf(b)
		if !ok {
			t.Fatal("not to be continued")
		}
		o := &onward{keep: keep, usage: usage, max: 9, prompt: []byte("1")}
		out := o.body(nil, nil, []byte(b.Sealed))
		if again, e := openai.ParseBody(openai.ShapeCompletions, out, openai.Limits{}); e != nil || string(again.Salt) != b.Sealed || (again.Priority == -9) != urgent || strings.Contains(string(out), "session_id") {
			t.Errorf("urgent %v: %s: %v", urgent, out, e)
		}
	}
}
