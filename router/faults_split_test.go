package router_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/openai"
)

// TestFault23and24Alone sends shapes that one hand-off cannot serve, or need not: one engine serves them, without any KV that
// came from another, and nothing is pinned anywhere.
func TestFault23and24Alone(t *testing.T) {
	rows := []struct{ name, path, body, reason string }{
		{"23 echo", routertest.PathCompletions, `{"model":"tiny","prompt":"a","echo":true,"logprobs":1,"max_tokens":9}`, openai.UnsplitEcho},
		{"23 echo of chat", routertest.PathChat, `{"model":"tiny","messages":[],"echo":true,"max_tokens":9}`, openai.UnsplitEcho},
		{"23 prompt_logprobs", routertest.PathCompletions, `{"model":"tiny","prompt":"a","prompt_logprobs":0,"max_tokens":9}`, openai.UnsplitLogprobs},
		{"23 prompt_logprobs of chat", routertest.PathChat, `{"model":"tiny","messages":[],"prompt_logprobs":1}`, openai.UnsplitLogprobs},
		{"23 beam", routertest.PathChat, `{"model":"tiny","messages":[],"use_beam_search":true,"n":2,"max_tokens":9}`, openai.UnsplitBeam},
		{"23 best_of", routertest.PathCompletions, `{"model":"tiny","prompt":"a","best_of":2,"max_tokens":9}`, openai.UnsplitBestOf},
		{"23 batch", "/v1/chat/completions/batch", `{"model":"tiny","messages":[[],[]],"max_tokens":9}`, openai.UnsplitPassed},
		{"24 one token", routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":1}`, openai.UnsplitOneToken},
		{"24 one token, streamed", routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":1,"stream":true}`, openai.UnsplitOneToken},
		{"24 no token and echo", routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":0,"echo":true}`, openai.UnsplitEcho},
		{"24 one token of chat", routertest.PathChat, `{"model":"tiny","messages":[],"max_tokens":9,"max_completion_tokens":1}`, openai.UnsplitOneToken},
		{"24 one token of responses", routertest.PathResponses, `{"model":"tiny","input":"a","max_output_tokens":1}`, openai.UnsplitOneToken},
		{"24 one token of messages", routertest.PathMessages, `{"model":"tiny","messages":[],"max_tokens":1}`, openai.UnsplitOneToken},
		{"24 one token of tokens", routertest.PathGenerate, `{"model":"tiny","token_ids":[1],"sampling_params":{"max_tokens":1}}`, openai.UnsplitOneToken},
	}
	for _, connectorName := range []string{connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		s, g := newServed(t, connectorName)
		for i, row := range rows {
			t.Run(row.name+" "+connectorName, func(t *testing.T) {
				before := s.Cluster.Count("", "")
				r := g.Post(row.path, row.body)
				if r.Status != 200 || r.Err != nil || r.Header.Get("X-Pdrouter-Reason") != row.reason || r.Header.Get("X-Pdrouter-Prefill") != "" {
					t.Errorf("status %d, header %v; want reason %s", r.Status, r.Header, row.reason)
				}
				if sum := g.Summary(i + 1); sum.Reason != row.reason || sum.Prefill != "" || sum.Attempts != 1 {
					t.Errorf("summary %+v", sum)
				}
				asked := s.Cluster.All()[before:]
				if len(asked) != 1 || asked[0].Leg != "alone" || asked[0].Engine != "decode-0" || strings.Contains(asked[0].Body, "transfer") {
					t.Errorf("engines were asked %d times, first %+v", len(asked), asked[0])
				}
			})
		}
		s.CheckNothingHeld(t)
		g.Stop()
	}
}

// TestFault25EveryOtherField sends what bounds or shapes an answer: prefill is asked for one token, decode for what the client asked.
func TestFault25EveryOtherField(t *testing.T) {
	const tools = `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto"`
	const format = `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object"}}},"reasoning_effort":"low","stop":["x"],"temperature":0`
	for _, connectorName := range []string{connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		for name, row := range map[string]struct{ path, head, limits string }{
			"completions": {routertest.PathCompletions, `{"model":"tiny","prompt":"a",` + format, `,"min_tokens":5,"max_tokens":16,"ignore_eos":true`},
			"chat":        {routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],` + tools + `,` + format, `,"min_tokens":5,"max_tokens":17,"max_completion_tokens":16`},
			"no limit":    {routertest.PathChat, `{"model":"tiny","messages":[],` + tools + `,` + format, ``},
		} {
			for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
				t.Run(fmt.Sprint("25 ", connectorName, " ", name, " ", stream != ""), func(t *testing.T) {
					s, g := newServed(t, connectorName)
					before := s.Cluster.Count("", "")
					body := row.head + row.limits + stream + "}"
					if r := g.Post(row.path, body); r.Status != 200 || r.Err != nil || r.Header.Get("X-Pdrouter-Reason") != "split" {
						t.Fatalf("status %d, %v, header %v: %s", r.Status, r.Err, r.Header, r.Body)
					}
					g.WaitIdle()
					for _, q := range s.Cluster.All()[before:] {
						got := withoutKV(t, q.Body)
						if q.Leg == "decode" && got != body {
							t.Errorf("decode was sent %s", q.Body)
						}
						if q.Leg == "prefill" && (!strings.Contains(got, row.head[1:]) || !strings.Contains(got, `"max_tokens":1`) || strings.Contains(got, "16") ||
							strings.Contains(got, "17") || strings.Contains(got, "min_tokens") || strings.Contains(got, `"stream":true`) || strings.Contains(got, "stream_options")) {
							t.Errorf("prefill was sent %s", q.Body)
						}
					}
				})
			}
		}
	}
}

// TestFault27Usage asks for the usage of a stream: its last chunk has it and no choice, with what prefill had cached, and there is
// one [DONE] behind it.
func TestFault27Usage(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		for path, body := range map[string]string{
			routertest.PathCompletions: `{"model":"tiny","prompt":"a","max_tokens":16,"stream":true,"stream_options":{"include_usage":true}}`,
			routertest.PathChat:        `{"model":"tiny","messages":[],"max_tokens":16,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":false}}`,
		} {
			t.Run("27 "+connectorName+path, func(t *testing.T) {
				s, g := newServed(t, connectorName)
				s.Decode[0].SetHabit(func(h *routertest.Habit) { h.Cached = 9 }) // of which prefill's hand-off is the most; prefill says 4
				s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: 20}}})
				r := g.Post(path, body)
				want := 4
				if connectorName == connector.NameNone {
					want = 9
				}
				sum := g.Summary(1)
				if got, whole := routertest.Text(t, r); got != routertest.WholeText || !whole || strings.Count(r.Body, "[DONE]") != 1 || int(sum.CachedTokens) != want {
					t.Errorf("text %q, whole %v, %d tokens cached; want %d", got, whole, sum.CachedTokens, want)
				}
				events := strings.Split(strings.TrimSuffix(r.Body, "\n\n"), "\n\n")
				usage := events[len(events)-2]
				if strings.Count(r.Body, `"usage"`) != 1 || !strings.Contains(usage, `"choices":[]`) || strings.Contains(r.Body, "transfer_params") ||
					!strings.Contains(usage, fmt.Sprintf(`"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":%d}`, want)) {
					t.Errorf("usage in %s", r.Body)
				}
			})
		}
	}
}

// TestFault28MediaIsNotFetched names media at an address where somebody listens: the gateway refuses them, or passes the name on
// where the configuration lets it, and does not call there itself.
func TestFault28MediaIsNotFetched(t *testing.T) {
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	media := "http://" + trap.Addr().String() + "/a.png"
	for name, row := range map[string]struct{ path, body string }{
		"chat":      {routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + media + `"}}]}],"max_tokens":16}`},
		"responses": {routertest.PathResponses, `{"model":"tiny","input":[{"role":"user","content":[{"type":"input_image","image_url":"` + media + `"}]}],"max_output_tokens":16}`},
		"messages":  {routertest.PathMessages, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"` + media + `"}}]}],"max_tokens":16}`},
	} {
		for _, allowed := range []bool{false, true} {
			t.Run(fmt.Sprint("28 ", name, ", allowed ", allowed), func(t *testing.T) {
				s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
				s.Config.Media.AllowPrivate = allowed
				g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
				g.WaitWarm()
				before := s.Cluster.Count("", "")
				r := g.Post(row.path, row.body)
				n := s.Cluster.Count("", "") - before
				if allowed && (r.Status != 200 || n != 2) {
					t.Errorf("status %d, %d legs: %s", r.Status, n, r.Body)
				}
				if !allowed && (r.Status != 400 || r.Header.Get("X-Pdrouter-Reason") != "media_host" || r.Header.Get("X-Should-Retry") != "false" || n != 0 ||
					strings.Contains(r.Body, media)) {
					t.Errorf("status %d, %d legs, header %v: %s", r.Status, n, r.Header, r.Body)
				}
			})
		}
	}
	_ = trap.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond))
	if conn, err := trap.Accept(); err == nil {
		t.Errorf("%s has called", conn.RemoteAddr())
	}
}

// TestFault29Tenants has two tenants ask with the same salt, and with none: no engine is sent the same salt for both, unless nobody
// wants the caches apart.
func TestFault29Tenants(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("k", openai.MinSealKey)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		for _, apart := range []bool{false, true} {
			t.Run(fmt.Sprint("29 ", connectorName, ", apart ", apart), func(t *testing.T) {
				s := routertest.NewPool(t, connectorName, 1, 1, nil)
				if apart {
					s.Config.IsolatePrefixCache, s.Config.PrefixCacheSecretFile = true, secret
				}
				g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Clients: tenants{}})
				if connectorName != connector.NameNone {
					g.WaitWarm()
				}
				salts := map[string][]string{} // by what was asked
				for _, own := range []string{"", `,"cache_salt":"own"`} {
					for _, tenant := range []string{"a", "b", "a"} {
						before := s.Cluster.Count("", "")
						if r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"one two","max_tokens":16`+own+`}`, "Authorization", tenant); r.Status != 200 {
							t.Fatalf("status %d: %s", r.Status, r.Body)
						}
						g.WaitIdle()
						for _, q := range s.Cluster.All()[before:] {
							_, salt, _ := strings.Cut(withoutKV(t, q.Body), `"cache_salt":"`)
							salt, _, _ = strings.Cut(salt, `"`)
							salts[tenant+own] = append(salts[tenant+own], salt)
						}
					}
				}
				seen := map[string]string{}
				for who, all := range salts {
					if all = slices.Compact(all); len(all) != 1 {
						t.Errorf("%s has %q", who, all)
					}
					if other, ok := seen[all[0]]; apart && (ok || all[0] == "" || all[0] == "own") {
						t.Errorf("%s has the salt %q, as %s", who, all[0], other)
					}
					if seen[all[0]] = who; !apart && all[0] != map[bool]string{true: "own"}[strings.Contains(who, "own")] {
						t.Errorf("%s has the salt %q", who, all[0])
					}
				}
			})
		}
	}
}
