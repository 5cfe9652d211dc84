package router

import (
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/openai"
)

// TestFault54StockDecodeHasNotBegun has prefill die while decode, whose places are taken, has yet to begin with the request. It may be
// told only of what it has begun with, so its leg is left open until it surely has; if that takes too long, or nothing can show it, what
// it may hold is counted, and it is never told.
func TestFault54StockDecodeHasNotBegun(t *testing.T) {
	const forms = `{"model":"tiny","prompt":"one two three four","max_tokens":3,"response_format":{"type":"json_object"}}`
	for _, row := range []struct {
		name string
		body string
		full time.Duration // decode begins with nothing for so long
		told int
		why  string
	}{
		{"it has begun", plainBody, 0, 1, ""},
		{"it begins later", plainBody, time.Second, 1, ""},
		{"it begins after the gateway's own request is there", plainBody, FenceAfter + time.Second, 1, ""},
		{"it is full", plainBody, BeginsWithin + 4*time.Second, 0, StrandUnbegun},
		{"it compiles a form first", forms, time.Second, 0, StrandUnbegun},
	} {
		unhurried(t, row.name, func(t *testing.T) {
			s, g, f := reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Ending = time.Minute })
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doResetLate, N: 100}}})
			s.d[0].isFull(row.full)
			before := s.c.count("", "")
			got := make(chan clientReply, 1)
			go func() { got <- g.post(pathCompletions, row.body) }()
			eventually(t, "both legs are under way", func() bool { return s.c.count("", "") == before+2 && s.d[0].underWay() == 1 })
			f.died("prefill-0")
			_ = s.p[0].srv.Listener.Close()
			s.p[0].srv.CloseClientConnections()
			if r := <-got; r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if row.told > 0 {
				eventually(t, "decode's blocks are free", func() bool { return g.freed("prefill_lost", "notify_decode") == 1 })
			} else {
				eventually(t, "they are counted", func() bool { return g.blocks("decode-0")[row.why] > 0 })
			}
			g.settled()
			if n := f.count("decode"); n != row.told {
				t.Errorf("decode was told %d times; want %d", n, row.told)
			}
			eventually(t, "no leg is open at decode", func() bool { return s.d[0].underWay() == 0 })
		})
	}
}

func TestInTurn(t *testing.T) {
	for body, want := range map[string]bool{
		`{"model":"m","prompt":"a"}`: true,
		`{"prompt":"a"}`:             true,
		`{"model":"m","prompt":"a","response_format":null,"tool_choice":"auto"}`: true,
		`{"model":"m","prompt":"a","tool_choice":"none"}`:                        true,
		`{"model":"adapter","prompt":"a"}`:                                       false,
		`{"model":"m","prompt":"a","priority":-1}`:                               false,
		`{"model":"m","prompt":"a","response_format":{"type":"text"}}`:           false,
		`{"model":"m","prompt":"a","structured_outputs":{"regex":"a"}}`:          false,
		`{"model":"m","prompt":"a","guided_choice":["a"]}`:                       false,
		`{"model":"m","prompt":"a","tool_choice":"required"}`:                    false,
		`{"model":"m","prompt":"a","tool_choice":{"type":"function"}}`:           false,
		`{"model":"m","prompt":"a","guided_json":{},"response_format":null}`:     false,
	} {
		b, err := openai.ParseBody(openai.ShapeCompletions, []byte(body), openai.Limits{})
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if got := b.InTurn("m"); got != want {
			t.Errorf("%s: in turn %v; want %v", body, got, want)
		}
	}
}
