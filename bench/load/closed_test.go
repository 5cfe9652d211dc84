package load

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"pdrouter/bench/fake"
	"pdrouter/bench/internal/benchtest"
)

func TestLoadRefusesWrongAnswers(t *testing.T) {
	_, fakes := benchtest.Behind(t, "push")
	said := func(address string, stream bool, head string) string {
		answer, err := http.Post("http://"+address+"/v1/chat/completions", "application/json", strings.NewReader(head+string(fake.ChatBody(1024, stream)[1:])))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	plain, whole, handoff := said(fakes[1], false, "{"), said(fakes[1], true, "{"), said(fakes[0], false, fake.AskPrefill)
	for name, c := range map[string]struct {
		stream bool
		status int
		body   string
		ok     bool
	}{
		"plain":                {false, 200, plain, true},
		"stream":               {true, 200, whole, true},
		"an error":             {false, 503, plain, false},
		"prefill's answer":     {false, 200, handoff, false},
		"a stream cut":         {true, 200, strings.TrimSuffix(whole, "data: [DONE]\n\n"), false},
		"a token lost":         {true, 200, strings.Replace(whole, " word", "", 1), false},
		"a token twice":        {true, 200, " word" + whole, false},
		"a hand-off in it":     {false, 200, plain + `"kv_transfer_params":{`, false},
		"an event after DONE":  {true, 200, whole + "data: {}\n\n", false},
		"an empty body":        {false, 200, "", false},
		"DONE without a break": {true, 200, strings.TrimSuffix(whole, "\n"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := (Closed{Stream: c.stream}).Check(c.status, []byte(c.body)); (err == nil) != c.ok {
				t.Errorf("got %v; want it accepted: %t", err, c.ok)
			}
		})
	}
}
