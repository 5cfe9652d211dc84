package fake

import (
	"encoding/json"
	"testing"
	"time"
)

func TestIsTrue(t *testing.T) {
	for body, want := range map[string]bool{
		`{"stream":true}`:                                 true,
		`{"stream" : true}`:                               true,
		`{"stream":false}`:                                false,
		`{"a":"stream"}`:                                  false,
		`{"a":"stream","stream":true}`:                    true,
		`{"stream_options":{"x":true}}`:                   false,
		`{"kv":{"do_remote_decode":false},"stream":null}`: false,
	} {
		if got := IsTrue([]byte(body), "stream"); got != want {
			t.Errorf("%s: got %t; want %t", body, got, want)
		}
	}
}

func TestFakeBodiesAreJSON(t *testing.T) {
	f := newEngine("push", "decode")
	for name, body := range map[string][]byte{
		"plain":   f.plain,
		"handoff": f.handoff,
		"request": ChatBody(1024, true),
	} {
		if !json.Valid(body) {
			t.Errorf("%s: %s", name, body)
		}
	}
	for _, size := range []int{512, 1024, 16 << 10} {
		if got := len(ChatBody(size, false)); got != size {
			t.Errorf("a body of %d bytes has %d", size, got)
		}
	}
}

func TestPaceOf(t *testing.T) {
	want := Pace{Tokens: 7, Every: 5 * time.Millisecond}
	if got, ok := paceOf(PacedBody(want)); !ok || got != want {
		t.Errorf("got %+v, %t; want %+v", got, ok, want)
	}
	for _, body := range []string{`{}`, `{"bench_pace":`, `{"bench_pace":{}}`, `{"bench_pace":{"tokens":-1}}`, `{"bench_pace":{"tokens":99999999}}`, `{"bench_pace":7}`} {
		if got, ok := paceOf([]byte(body)); ok {
			t.Errorf("%s asks for %+v", body, got)
		}
	}
}
