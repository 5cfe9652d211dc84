package router_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
)

// shaped is a request of one of the newer routes, and how its answer ends.
type shaped struct {
	shape openai.Shape
	path  string
	body  string // more members go where the @ is
	end   string // the terminal event
	fails string // what an error event of the router's begins with
}

var shapedRoutes = []shaped{
	{openai.ShapeResponses, routertest.PathResponses, `{"model":"tiny","input":"one two three","max_output_tokens":16@}`, "event: response.completed\n", "event: error\ndata: {\"type\":\"error\",\"sequence_number\":4,"},
	{openai.ShapeMessages, routertest.PathMessages, `{"model":"tiny","messages":[{"role":"user","content":"one two three"}],"max_tokens":16@}`, "event: message_stop\n", "event: error\ndata: {\"type\":\"error\","},
	{openai.ShapeGenerate, routertest.PathGenerate, `{"model":"tiny","token_ids":[1,2,3],"sampling_params":{"max_tokens":16}@}`, "data: [DONE]\n", "data: {\"error\":"},
}

func (s shaped) with(members string) string { return strings.Replace(s.body, "@", members, 1) }

var aToken = regexp.MustCompile(`tok\d `)

// TestShapesServed asks each of the newer routes of every connector, streamed and whole.
func TestShapesServed(t *testing.T) {
	for _, s := range shapedRoutes {
		for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s %v", s.shape, connectorName, stream), func(t *testing.T) {
					// Prefill has said what it had cached before decode has come to its end.
					p := routertest.NewPool(t, connectorName, 1, 1, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 30}}})
					g := routertest.Start(t, p.Config, router.Parts{})
					r := g.Post(s.path, s.with(fmt.Sprintf(`,"stream":%v,"kv_transfer_params":{"remote_host":"evil"}`, stream)))
					sum := g.Summary(1)
					cached := routertest.CachedByDecode
					if connectorName != connector.NameNone {
						cached = routertest.CachedByPrefill
					}
					if r.Status != 200 || r.Err != nil || strings.Join(aToken.FindAllString(r.Body, -1), "") != routertest.WholeText {
						t.Fatalf("%d %v: %s", r.Status, r.Err, r.Body)
					}
					if strings.Contains(r.Body, "transfer_params") || strings.Contains(r.Body, "10.9.9.9") {
						t.Errorf("the answer tells of the hand-off: %s", r.Body)
					}
					if n := strings.Count(r.Body, s.end); stream && (n != 1 || !strings.HasSuffix(r.Body, "\n\n") || !strings.Contains(lastEvent(r.Body), strings.TrimSpace(s.end))) {
						t.Errorf("%d terminal events: %s", n, r.Body)
					}
					told := map[openai.Shape]string{
						openai.ShapeResponses: fmt.Sprintf(`"cached_tokens":%d,"cached_tokens_per_turn":[%d]`, cached, cached),
						openai.ShapeMessages:  fmt.Sprintf(`"input_tokens":%d,"output_tokens":3,"cache_read_input_tokens":%d`, 7-cached, cached),
						openai.ShapeGenerate:  fmt.Sprintf(`"prompt_tokens_details":{"cached_tokens":%d}`, cached),
					}[s.shape]
					if strings.Count(r.Body, told) != 1 {
						t.Errorf("want %s in %s", told, r.Body)
					}
					if int(sum.CachedTokens) != cached || sum.PromptTokens != 7 || sum.OutputTokens != 3 || !sum.Removed || sum.Attempts != 1 {
						t.Errorf("summary %+v", sum)
					}
					if connectorName == connector.NameNone {
						return
					}
					if sum.Prefill == "" {
						t.Errorf("served without prefill: %s", sum.Reason)
					}
					checkShapedLegs(t, p, s)
				})
			}
		}
	}
}

func lastEvent(body string) string {
	events := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	return events[len(events)-1]
}

// checkShapedLegs checks what both engines were asked: on the client's route, under one id, the prefill leg for one token.
func checkShapedLegs(t *testing.T, s *routertest.Pool, of shaped) {
	t.Helper()
	s.Cluster.Mu.Lock()
	defer s.Cluster.Mu.Unlock()
	ids := map[string]string{}
	for _, q := range s.Cluster.Requests {
		if q.Path != of.path {
			continue // of a probe
		}
		var b struct {
			Max       int    `json:"max_tokens"`
			MaxOutput int    `json:"max_output_tokens"`
			RequestID string `json:"request_id"`
			Stream    bool
			Store     *bool
			Sampling  struct {
				Max int `json:"max_tokens"`
			} `json:"sampling_params"`
		}
		if err := json.Unmarshal([]byte(q.Body), &b); err != nil {
			t.Fatal(err)
		}
		ids[q.Leg] = q.ID
		want := 16
		if q.Leg == "prefill" {
			want = 1
		}
		if b.Max+b.MaxOutput+b.Sampling.Max != want || q.Leg == "prefill" && b.Stream {
			t.Errorf("%s leg: %s", q.Leg, q.Body)
		}
		if of.shape == openai.ShapeResponses && (b.RequestID != "resp_"+q.ID || (q.Leg == "prefill") != (b.Store != nil && !*b.Store)) {
			t.Errorf("%s leg of %s: %s", q.Leg, q.ID, q.Body)
		}
		if want := string(of.shape.AppendEngineRequest(nil, q.ID)); s.Cluster.Push && q.Leg == "decode" && q.KV["remote_request_id"] != want {
			t.Errorf("decode is told of %v, want %s", q.KV["remote_request_id"], want)
		}
	}
	if ids["prefill"] == "" || ids["decode"] == "" {
		t.Errorf("legs %v", ids)
	}
}

// TestFault53and60Shapes ends the streams of the newer routes before their time: the client sees an error event of its route,
// never the terminal event, and its connection is cut.
func TestFault53and60Shapes(t *testing.T) {
	for _, s := range shapedRoutes {
		for _, do := range []string{routertest.DoBreak, routertest.DoNoDone, routertest.DoErrFrame} {
			t.Run(s.shape.String()+" "+do, func(t *testing.T) {
				p := routertest.NewPool(t, connector.NamePush, 1, 1, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: do, N: 2}}})
				g := routertest.Start(t, p.Config, router.Parts{})
				r := g.Post(s.path, s.with(`,"stream":true`))
				if r.Status != 200 || r.Err == nil || strings.Contains(r.Body, s.end) || len(aToken.FindAllString(r.Body, -1)) != 2 {
					t.Fatalf("%d %v: %s", r.Status, r.Err, r.Body)
				}
				want := s.fails
				if do == routertest.DoErrFrame {
					want = strings.TrimSuffix(strings.TrimSuffix(routertest.ShapedError(s.shape), "data: [DONE]\n\n"), "\n\n")
				}
				if last := lastEvent(r.Body); !strings.HasPrefix(last, want) || s.shape.KindOf([]byte(last+"\n\n")) != openai.EventError {
					t.Errorf("the last event is %q, want %q…", last, want)
				}
				if sum := g.Summary(1); sum.Outcome != dispatch.FailedAfter {
					t.Errorf("outcome %s", sum.Outcome)
				}
			})
		}
	}
}

// TestFault47EarlyEvents has prefill fail while decode's stream has begun with events that say nothing of the answer: the
// request is tried again, and the client sees one stream.
func TestFault47EarlyEvents(t *testing.T) {
	s := shapedRoutes[0]
	p := routertest.NewPool(t, connector.NamePush, 2, 1, map[string][]routertest.Fault{
		"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoResetLate, N: 100}, {Leg: "prefill", Nth: 2, Do: routertest.DoResetLate, N: 100}},
		"prefill-1": {{Leg: "prefill", Do: routertest.DoSlow, N: 1}},
	})
	g := routertest.Start(t, p.Config, router.Parts{})
	for n := 1; n <= 3; n++ {
		r := g.Post(s.path, s.with(`,"stream":true`))
		if r.Status != 200 || r.Err != nil || strings.Join(aToken.FindAllString(r.Body, -1), "") != routertest.WholeText {
			t.Fatalf("%d %v: %s", r.Status, r.Err, r.Body)
		}
		for _, kind := range []string{"created", "in_progress", "completed"} {
			if strings.Count(r.Body, "event: response."+kind+"\n") != 1 {
				t.Errorf("%s: %s", kind, r.Body)
			}
		}
		g.Summary(n)
	}
}

// TestFault23Shapes serves by one engine what a hand-off cannot serve, and says why.
func TestFault23Shapes(t *testing.T) {
	responses, generate := shapedRoutes[0], shapedRoutes[2]
	p := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	g := routertest.Start(t, p.Config, router.Parts{})
	for i, tt := range []struct{ path, body, why string }{
		{routertest.PathResponses, responses.with(`,"background":true`), openai.UnsplitBackground},
		{routertest.PathResponses, responses.with(`,"tools":[{"type":"mcp"}]`), openai.UnsplitServerTools},
		{routertest.PathResponses, responses.with(`,"truncation":"auto"`), openai.UnsplitTruncation},
		{routertest.PathChat, `{"model":"tiny","messages":[],"max_tokens":9,"truncate_prompt_tokens":-1}`, openai.UnsplitTruncation},
		{routertest.PathMessages, `{"model":"tiny","messages":[],"max_tokens":1}`, openai.UnsplitOneToken},
		{routertest.PathGenerate, strings.Replace(generate.with(""), `"max_tokens":16`, `"max_tokens":16,"prompt_logprobs":1`, 1), openai.UnsplitLogprobs},
	} {
		r := g.Post(tt.path, tt.body)
		sum := g.Summary(i + 1)
		if r.Status != 200 || sum.Reason != tt.why || sum.Prefill != "" || r.Header.Get("X-Pdrouter-Reason") != tt.why {
			t.Errorf("%s: %d %s, prefill %q; want %s", tt.body, r.Status, sum.Reason, sum.Prefill, tt.why)
		}
	}
}

// TestFault14MessagesErrors refuses a body of /v1/messages in the shape of that route.
func TestFault14MessagesErrors(t *testing.T) {
	p := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, p.Config, router.Parts{})
	for _, body := range []string{`{`, `{"model":"none","messages":[]}`, `{"model":"tiny","messages":[],"max_tokens":-1}`} {
		r := g.Post(routertest.PathMessages, body)
		var e struct {
			Type  string
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal([]byte(r.Body), &e); err != nil || e.Type != "error" || e.Error.Type == "" || e.Error.Message == "" ||
			r.Header.Get("X-Should-Retry") != "false" || r.Header.Get("X-Pdrouter-Reason") == "" {
			t.Errorf("%d %s %v", r.Status, r.Body, err)
		}
	}
}
