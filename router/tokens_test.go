package router_test

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/openai"
	"pdrouter/router/tokens"
)

const (
	tokenBody = `{"model":"tiny","messages":[{"role":"user","content":"one two three"}],"max_tokens":16}`
	tokenIDs  = `[151644, 8948,198 ,0]` // a space more or less is the engine's own
)

// startTokens serves one pair of connector vllm-nixl-pull, whose prefill engine answers with the array of token ids.
func startTokens(t *testing.T, ids string, faults map[string][]routertest.Fault, change func(*config.Config)) (*routertest.Pool, *routertest.Gateway) {
	t.Helper()
	p := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
	for _, e := range p.Engines() {
		e.SetHabit(func(h *routertest.Habit) { h.IDs = ids })
	}
	if change != nil {
		change(&p.Config)
	}
	g := routertest.Start(t, p.Config, router.Parts{})
	g.WaitWarm()
	p.SetFaults(faults)
	return p, g
}

// askTokens asks, and returns the legs of that request in order, but for what frees KV afterwards.
func askTokens(t *testing.T, p *routertest.Pool, g *routertest.Gateway, path, body string) (routertest.Reply, []*routertest.Request) {
	t.Helper()
	before := len(p.Cluster.All())
	r := g.Post(path, body)
	var legs []*routertest.Request
	for _, q := range p.Cluster.All()[before:] {
		if frees := q.Leg == "decode" && strings.Contains(q.Body, `"max_tokens":1}`); q.Path == path && !frees {
			legs = append(legs, q)
		}
	}
	return r, legs
}

// forwarded returns the array that a decode leg carries, to the byte; "" if it carries none.
func forwarded(t *testing.T, q *routertest.Request) string {
	t.Helper()
	var b struct {
		KV map[string]json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(q.Body), &b); err != nil || b.KV["remote_request_id"] == nil {
		t.Fatalf("decode's leg %s: %v", q.Body, err)
	}
	return string(b.KV["prompt_token_ids"])
}

// TestTokensForwarded has the decode leg of a chat carry the prompt's token ids as prefill wrote them, and neither the client nor the
// prefill leg see more than they asked for.
func TestTokensForwarded(t *testing.T) {
	long := "[" + strings.Repeat("100001,", 30000) + "1]"
	for _, row := range []struct{ name, ids, asks, decode string }{
		{"not asked for", tokenIDs, "", ""},
		{"asked for", tokenIDs, `,"return_token_ids":true`, `"return_token_ids":true`},
		{"declined", tokenIDs, `,"return_token_ids":false`, `"return_token_ids":false`},
		{"null", tokenIDs, `,"return_token_ids":null`, `"return_token_ids":null`},
		{"a long prompt", long, "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, g := startTokens(t, row.ids, nil, nil)
			for i, stream := range []string{"", `,"stream":true`} {
				r, legs := askTokens(t, p, g, routertest.PathChat, strings.TrimSuffix(tokenBody, "}")+row.asks+stream+"}")
				if r.Status != 200 || len(legs) != 2 || legs[0].Leg != "prefill" || legs[1].Leg != "decode" {
					t.Fatalf("status %d, %d legs: %s", r.Status, len(legs), r.Body)
				}
				if n := strings.Count(legs[0].Body, "return_token_ids"); n != 1 || !strings.Contains(legs[0].Body, `"return_token_ids":true`) {
					t.Errorf("prefill's leg has return_token_ids %d times: %s", n, legs[0].Body)
				}
				if got := forwarded(t, legs[1]); got != row.ids {
					t.Errorf("decode got %.80s, prefill has answered %.80s", got, row.ids)
				}
				if n := strings.Count(legs[1].Body, "return_token_ids"); n != strings.Count(row.decode, ":") || !strings.Contains(legs[1].Body, row.decode) {
					t.Errorf("decode's leg is %.300s, want it with %q", legs[1].Body, row.decode)
				}
				if row.asks == "" && strings.Contains(r.Body, "token_ids") {
					t.Errorf("the client got %.300s", r.Body)
				}
				if s := g.Summary(i + 1); s.TokenIDs.String() != "forwarded" || s.Attempts != 1 {
					t.Errorf("the summary says %q after %d attempts", s.TokenIDs, s.Attempts)
				}
			}
			p.CheckNothingHeld(t)
		})
	}
}

// TestTokensNotAsked has no engine get a member for token ids where decode has to render the prompt itself.
func TestTokensNotAsked(t *testing.T) {
	chat := func(with string) string { return strings.TrimSuffix(tokenBody, "}") + with + "}" }
	part := func(p string) string {
		return `{"model":"tiny","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},` + p + `]}],"max_tokens":16}`
	}
	for _, row := range []struct{ name, path, body, why string }{
		{"an image", routertest.PathChat, part(`{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}`), "media"},
		{"an image without a type", routertest.PathChat, part(`{"image_url":"data:image/png;base64,AA"}`), "media"},
		{"a sound", routertest.PathChat, part(`{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}`), "media"},
		{"a video", routertest.PathChat, part(`{"type":"video_url","video_url":{"url":"data:video/mp4;base64,AA"}}`), "media"},
		{"embeddings under the type text", routertest.PathChat, part(`{"type":"text","text":"b","image_embeds":"AA"}`), "media"},
		{"a part of an unknown type", routertest.PathChat, part(`{"type":"hologram","data":"AA"}`), "media"},
		{"text alone", routertest.PathChat, part(`{"type":"text","text":"b"}`), "forwarded"},
		{"a tool's result", routertest.PathChat, `{"model":"tiny","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
			`{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"42"}]}],"max_tokens":16}`, "forwarded"},
		{"the prompt's text", routertest.PathChat, chat(`,"return_prompt_text":true`), "prompt_text"},
		{"the prompt's text, declined", routertest.PathChat, chat(`,"return_prompt_text":false`), "forwarded"},
		{"echo", routertest.PathChat, chat(`,"echo":true`), ""}, // decode serves it alone
		{"transfer params of the client", routertest.PathChat, chat(`,"kv_transfer_params":{"prompt_token_ids":[7]}`), "forwarded"},
		{"a completion", routertest.PathCompletions, routertest.PlainBody, "route"},
		{"a response", routertest.PathResponses, `{"model":"tiny","input":"a","max_output_tokens":16}`, "route"},
		{"a message", routertest.PathMessages, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":16}`, "route"},
		{"tokens", routertest.PathGenerate, `{"model":"tiny","token_ids":[1,2],"sampling_params":{"max_tokens":16}}`, "route"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, g := startTokens(t, tokenIDs, nil, nil)
			r, legs := askTokens(t, p, g, row.path, row.body)
			if r.Status != 200 || len(legs) == 0 {
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
			if s := g.Summary(1); s.TokenIDs.String() != row.why {
				t.Errorf("the summary says %q, want %q", s.TokenIDs, row.why)
			}
			for _, q := range legs {
				body := strings.Replace(q.Body, `"token_ids":[1,2]`, "", 1)
				if got := strings.Contains(body, "token_ids"); got != (row.why == "forwarded") {
					t.Errorf("%s got %s", q.Leg, q.Body)
				}
				if strings.Contains(q.Body, "[7]") {
					t.Errorf("%s got the client's own ids: %s", q.Leg, q.Body)
				}
			}
			p.CheckNothingHeld(t)
		})
	}
}

// TestTokensOff has retokenize_on_decode turn it off.
func TestTokensOff(t *testing.T) {
	p, g := startTokens(t, tokenIDs, nil, func(c *config.Config) { c.Models[0].RetokenizeOnDecode = true })
	r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody)
	if r.Status != 200 || len(legs) != 2 || strings.Contains(legs[0].Body+legs[1].Body, "token_ids") {
		t.Errorf("status %d, legs %v", r.Status, legs)
	}
	if s := g.Summary(1); s.TokenIDs.String() != "off" {
		t.Errorf("the summary says %q", s.TokenIDs)
	}
}

// TestTokensTogether has engines whose legs start together get nothing of it: decode is asked before prefill can have answered.
func TestTokensTogether(t *testing.T) {
	p := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	g := routertest.Start(t, p.Config, router.Parts{})
	g.WaitWarm()
	r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody)
	if r.Status != 200 || len(legs) != 2 || strings.Contains(legs[0].Body+legs[1].Body, "token_ids") {
		t.Errorf("status %d, legs %v", r.Status, legs)
	}
	if s := g.Summary(1); s.TokenIDs.String() != "" {
		t.Errorf("the summary says %q", s.TokenIDs)
	}
}

// TestTokensNotReported has a request go on without token ids if prefill's answer has none that can be used, and if it is too large with them.
func TestTokensNotReported(t *testing.T) {
	const bound = 64 << 10
	for _, row := range []struct{ name, ids, why string }{
		{"ignored", "", "not_reported"},
		{"null", "null", "not_reported"},
		{"no tokens", "[]", "not_reported"},
		{"words", `["a"]`, "not_reported"},
		{"below 0", "[1,-1]", "not_reported"},
		{"arrays", "[[1],[2]]", "not_reported"},
		{"just within the bound", "[" + strings.Repeat("1,", bound/2-1024) + "1]", "forwarded"},
		{"larger than the bound", "[" + strings.Repeat("1,", bound/2) + "1]", "too_large"},
		{"much larger", "[" + strings.Repeat("123456, ", 400_000) + "1]", "too_large"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, g := startTokens(t, row.ids, nil, func(c *config.Config) { c.Limits.Answer = bound })
			for i := range 2 {
				r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody)
				if r.Status != 200 || len(legs) != 2 {
					t.Fatalf("status %d, %d legs: %s", r.Status, len(legs), r.Body)
				}
				if got := forwarded(t, legs[1]); (got != "") != (row.why == "forwarded") {
					t.Errorf("decode got %.80s", got)
				}
				if s := g.Summary(i + 1); s.TokenIDs.String() != row.why || s.Attempts != 1 {
					t.Errorf("the summary says %q after %d attempts, want %q", s.TokenIDs, s.Attempts, row.why)
				}
			}
			p.CheckNothingHeld(t)
		})
	}
	t.Run("too large without the ids as well", func(t *testing.T) {
		p, g := startTokens(t, tokenIDs, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoBigToken, N: 2 * bound}}},
			func(c *config.Config) { c.Limits.Answer = bound })
		if r, _ := askTokens(t, p, g, routertest.PathChat, tokenBody); r.Status != 502 {
			t.Errorf("status %d: %s", r.Status, r.Body)
		}
	})
}

// TestTokensRefused has an engine that rejects the members for token ids asked again without them, once, and never again with them until it
// is another run. No request fails, however few attempts there may be.
func TestTokensRefused(t *testing.T) {
	for _, leg := range []string{"prefill", "decode"} {
		for _, do := range []string{routertest.DoRefuseIDs, routertest.DoBareIDs} {
			t.Run(leg+" "+do, func(t *testing.T) {
				refuses := map[string][]routertest.Fault{leg + "-0": {{Leg: leg, Do: do}}}
				p, g := startTokens(t, tokenIDs, refuses, func(c *config.Config) {
					c.Limits.Attempts, c.Limits.RetryPercent, c.Limits.RetryFloor = 1, new(0), new(0) // no retry is allowed
					c.Timeouts.Health = routertest.Patience / 400
				})
				r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody)
				if r.Status != 200 {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
				asked := 0
				for _, q := range legs {
					if q.Leg == leg {
						if asked++; strings.Contains(q.Body, "token_ids") != (asked == 1) {
							t.Errorf("the %s leg number %d is %s", leg, asked, q.Body)
						}
					}
				}
				if asked != 2 {
					t.Errorf("%s was asked %d times", leg, asked)
				}
				for i := range 3 {
					r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody)
					if r.Status != 200 || len(legs) != 2 || strings.Contains(legs[0].Body+legs[1].Body, "token_ids") {
						t.Errorf("request %d: status %d, legs %v", i, r.Status, legs)
					}
					if s := g.Summary(i + 2); s.TokenIDs.String() != "refused" || s.Attempts != 1 {
						t.Errorf("request %d: the summary says %q after %d attempts", i, s.TokenIDs, s.Attempts)
					}
				}
				p.CheckNothingHeld(t)

				e := p.Prefill[0]
				if leg == "decode" {
					e = p.Decode[0]
				}
				e.SetHealth(routertest.Unhealthy)
				routertest.Eventually(t, "the engine is down", func() bool { return g.EngineStats(e.Name).State == "down" })
				e.SetHealth(nil)
				p.SetFaults(nil)
				routertest.Eventually(t, "the engine is back", func() bool { return g.EngineStats(e.Name).State != "down" })
				g.WaitWarm()
				if r, legs = askTokens(t, p, g, routertest.PathChat, tokenBody); r.Status != 200 || len(legs) != 2 || forwarded(t, legs[1]) != tokenIDs {
					t.Errorf("after a restart: status %d, legs %v", r.Status, legs)
				}
			})
		}
	}
}

// TestTokensRejected has a request that engines reject for its own sake rejected, once more at most, and no engine thought to refuse token ids
// for that, whatever the rejection says.
func TestTokensRejected(t *testing.T) {
	p, g := startTokens(t, tokenIDs, nil, nil)
	for i, row := range []struct {
		do   string
		legs int
	}{
		{routertest.DoReject, 2}, // it is not known yet whether the engine accepts them
		{routertest.DoReject, 1},
		{routertest.DoRejectNamed, 2}, // the client may have sent what it says
	} {
		p.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: row.do}}})
		r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody)
		if r.Status != 400 || len(legs) != row.legs {
			t.Errorf("request %d: status %d, %d legs: %s", i, r.Status, len(legs), r.Body)
		}
		p.SetFaults(nil)
		if r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody); r.Status != 200 || len(legs) != 2 || forwarded(t, legs[1]) != tokenIDs {
			t.Errorf("request %d: status %d, legs %v", i, r.Status, legs)
		}
	}
	p.CheckNothingHeld(t)
}

// TestTokensOfEachAttempt has every attempt forward what its own prefill engine has answered, and none what another has.
func TestTokensOfEachAttempt(t *testing.T) {
	p := routertest.NewPool(t, connector.NamePull, 2, 2, nil)
	for i, e := range p.Prefill {
		e.SetHabit(func(h *routertest.Habit) { h.IDs = fmt.Sprintf("[%d]", i+1) })
	}
	g := routertest.Start(t, p.Config, router.Parts{})
	g.WaitWarm()
	p.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoRefuse}}})
	for range 6 {
		r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody)
		if r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		var by string
		for _, q := range legs {
			if q.Leg == "prefill" {
				by = q.Engine
				continue
			}
			want := map[string]string{"prefill-0": "[1]", "prefill-1": "[2]"}[by]
			if q.Leg == "decode" && forwarded(t, q) != want {
				t.Errorf("after %s decode got %s", by, q.Body)
			}
		}
	}
	p.CheckNothingHeld(t)
}

// TestTokensLate has prefill answer late, never, or too late for the client: nothing of the request is held afterwards, and what is in time is
// forwarded.
func TestTokensLate(t *testing.T) {
	for _, row := range []struct {
		name, ids string
		fault     routertest.Fault
		leaves    string // the leg in which the client leaves
		status    int
	}{
		{"late", tokenIDs, routertest.Fault{Leg: "prefill", Do: routertest.DoSlow, N: 5000}, "", 200},
		{"its answer is late", tokenIDs, routertest.Fault{Leg: "prefill", Do: routertest.DoSlowReply, N: 5000}, "", 200},
		{"never", tokenIDs, routertest.Fault{Leg: "prefill", Do: routertest.DoHang}, "", 504},
		{"the client leaves prefill", tokenIDs, routertest.Fault{Leg: "prefill", Do: routertest.DoSlow, N: 5000}, "prefill", 499},
		{"the client leaves prefill, which has finished", "[" + strings.Repeat("7,", 1<<20) + "7]", routertest.Fault{Leg: "prefill", Do: routertest.DoSlowReply, N: 300}, "prefill", 499},
		{"the client leaves decode", tokenIDs, routertest.Fault{Leg: "decode", Do: routertest.DoSlow, N: 2000}, "decode", 499},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			p, g := startTokens(t, row.ids, nil, func(c *config.Config) { c.Limits.Attempts = 1 })
			fault := map[string][]routertest.Fault{"prefill-0": {row.fault}}
			if row.fault.Leg == "decode" {
				fault = map[string][]routertest.Fault{"decode-0": {row.fault}}
			}
			p.SetFaults(fault)
			if row.leaves != "" {
				before := p.Cluster.Count("", row.leaves)
				conn := g.Dial(t)
				_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathChat, tokenBody, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(tokenBody))))
				routertest.Eventually(t, "the leg was asked", func() bool { return p.Cluster.Count("", row.leaves) > before })
				conn.Close()
			} else if r, _ := askTokens(t, p, g, routertest.PathChat, tokenBody); r.Status != row.status {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			s := g.Summary(1)
			if int(s.Status) != row.status || row.status == 200 && s.TokenIDs.String() != "forwarded" {
				t.Errorf("the summary says %d, %q", s.Status, s.TokenIDs)
			}
			g.WaitIdle()
			p.SetFaults(nil)
			p.CheckNothingHeld(t)
		})
	}
}

// TestTokensLearned has the gateway learn the token ids of chats whose engines publish their blocks, apart for each salt, and of no others.
func TestTokensLearned(t *testing.T) {
	const first, second = `{"role":"user","content":"one"}`, `{"role":"assistant","content":"two"},{"role":"user","content":"three"}`
	chat := func(messages ...string) string {
		return fmt.Sprintf(`{"model":"tiny","max_tokens":16,"messages":[%s]}`, strings.Join(messages, ","))
	}
	for _, published := range []bool{true, false} {
		t.Run(fmt.Sprint(published), func(t *testing.T) {
			p, g := startTokens(t, "", nil, func(c *config.Config) {
				if published {
					c.Models[0].Decode[0].KVEvents.Endpoint = "tcp://127.0.0.1:9" // nobody listens: the ids are learned all the same
				}
			})
			for _, turn := range []struct{ body, ids string }{{chat(first), "[1,2,3,9]"}, {chat(first, second), "[1,2,3,4,5,6,7,9]"}} {
				p.Prefill[0].SetHabit(func(h *routertest.Habit) { h.IDs = turn.ids })
				if r, _ := askTokens(t, p, g, routertest.PathChat, turn.body); r.Status != 200 {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
				g.WaitIdle() // it is learned after the answer
			}
			look := func(more string) (ids []uint32, exact int) {
				b, bad := openai.ParseBody(openai.ShapeChat, []byte(strings.Replace(chat(first, second, second), `"max_tokens":16`, `"max_tokens":5`+more, 1)), openai.Limits{})
				if bad != nil {
					t.Fatal(bad)
				}
				ids, exact, _ = g.Router.Debug().Tokens().Lookup(tokens.PromptOf("tiny", "", b))
				return ids, exact
			}
			ids, exact := look("")
			if want := []uint32{1, 2, 3, 4, 5, 6, 7}; published && (exact != 3 || !slices.Equal(ids, want)) || !published && ids != nil {
				t.Errorf("%v are known, %d exact", ids, exact)
			}
			if ids, _ := look(`,"cache_salt":"mine"`); ids != nil {
				t.Errorf("with another salt %v are known", ids)
			}
		})
	}
}

// TestTokensLearnedBound has a change of limits.kv_index_blocks bound what is learned, as it bounds the index of blocks.
func TestTokensLearnedBound(t *testing.T) {
	p, g := startTokens(t, "[1,2,3,9]", nil, func(c *config.Config) { c.Models[0].Decode[0].KVEvents.Endpoint = "tcp://127.0.0.1:9" })
	learned := func(blocks int) int {
		t.Helper()
		cfg := p.Config
		cfg.Limits.KVIndexBlocks = blocks
		if err := g.Router.Apply(cfg, g.Parts); err != nil {
			t.Fatal(err)
		}
		g.WaitWarm()
		if r, _ := askTokens(t, p, g, routertest.PathChat, tokenBody); r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		g.WaitIdle() // it is learned after the answer
		return g.Router.Debug().Tokens().Bytes()
	}
	for _, blocks := range []int{1, 1000, 1} {
		if n := learned(blocks); (n > 0) != (blocks > 1) {
			t.Errorf("%d bytes are learned with room for %d blocks", n, blocks)
		}
	}
}

// TestTokensOfChoices has each of several choices of a chat, which are served one by one, forward what its own prefill leg has answered.
func TestTokensOfChoices(t *testing.T) {
	p, g := startTokens(t, tokenIDs, nil, nil)
	r, legs := askTokens(t, p, g, routertest.PathChat, strings.TrimSuffix(tokenBody, "}")+`,"n":2,"seed":1}`)
	if r.Status != 200 || len(legs) != 4 || strings.Contains(r.Body, "token_ids") {
		t.Fatalf("status %d, %d legs: %s", r.Status, len(legs), r.Body)
	}
	for _, q := range legs {
		if q.Leg == "decode" && forwarded(t, q) != tokenIDs {
			t.Errorf("decode got %s", q.Body)
		}
	}
	if s := g.Summary(1); s.TokenIDs.String() != "forwarded" || len(s.Parts) != 2 {
		t.Errorf("the summary says %q of %d parts", s.TokenIDs, len(s.Parts))
	}
	p.CheckNothingHeld(t)
}

// TestTokensRefusedByOne has an engine known to refuse token ids although the request is served by another one then.
func TestTokensRefusedByOne(t *testing.T) {
	p := routertest.NewPool(t, connector.NamePull, 2, 2, nil)
	for _, e := range p.Prefill {
		e.SetHabit(func(h *routertest.Habit) { h.IDs = tokenIDs })
	}
	g := routertest.Start(t, p.Config, router.Parts{})
	g.WaitWarm()
	p.SetFaults(map[string][]routertest.Fault{
		"prefill-0": {{Leg: "prefill", Do: routertest.DoRefuseIDs}}, "prefill-1": {{Leg: "prefill", Do: routertest.DoBareIDs}}, "decode-1": {{Leg: "decode", Do: routertest.DoRefuseIDs}},
	})
	refused := 0
	for n := 0; n < 20 || refused < 2 && n < 1000; n++ { // on a busy machine an engine may look loaded, and get no request, for a while
		r, legs := askTokens(t, p, g, routertest.PathChat, tokenBody)
		if r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		refused += len(legs) - 2
	}
	if refused != 2 {
		t.Errorf("two prefill engines have refused token ids %d times", refused)
	}
	p.CheckNothingHeld(t)
}
