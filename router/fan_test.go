package router_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
)

// fanAnswer is what a client got of several choices.
type fanAnswer struct {
	Texts                      []string // by index
	Prompt, Completion, Cached int      // usage
	IDs                        int      // different ids
	Usages, Dones              int
}

func fanOf(t *testing.T, r routertest.Reply) (a fanAnswer) {
	t.Helper()
	type part struct {
		ID      string
		Choices []struct {
			Index int
			Text  string
		}
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Details    struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Error any
	}
	texts, ids := map[int]string{}, map[string]bool{}
	take := func(data string) {
		var p part
		if err := json.Unmarshal([]byte(data), &p); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		for _, c := range p.Choices {
			texts[c.Index] += c.Text
		}
		if p.ID != "" {
			ids[p.ID] = true
		}
		if p.Usage != nil {
			a.Usages++
			a.Prompt, a.Completion, a.Cached = p.Usage.Prompt, p.Usage.Completion, p.Usage.Details.Cached
		}
	}
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		take(r.Body)
	} else {
		for _, event := range strings.Split(r.Body, "\n\n") {
			switch data, ok := strings.CutPrefix(event, "data: "); {
			case !ok:
			case data == "[DONE]":
				a.Dones++
			default:
				take(data)
			}
		}
	}
	a.IDs = len(ids)
	for i := range len(texts) {
		a.Texts = append(a.Texts, texts[i])
	}
	return a
}

// newFanPool is a fleet whose engines answer with what they were asked, all of whose pairs are known.
func newFanPool(t *testing.T, connectorName string, p, d int, change ...func(*config.Config)) (*routertest.Pool, *routertest.Gateway) {
	t.Helper()
	var s *routertest.Pool
	var parts router.Parts
	if connectorName == connector.NameKVPlane {
		s, _, parts = routertest.NewPlane(t, p, d)
	} else {
		s = routertest.NewPool(t, connectorName, p, d, nil)
	}
	parts.Planner = routertest.FirstUsable{}
	for _, e := range s.Engines() {
		e.SetHabit(func(h *routertest.Habit) { h.Parrot = true })
	}
	s.Config.Limits.MaxParallelChoices = 8
	s.Config.Timeouts.Prefill, s.Config.Timeouts.Transfer = 5*time.Second, 5*time.Second
	for _, f := range change {
		f(&s.Config)
	}
	g := routertest.Start(t, s.Config, parts)
	if connectorName != connector.NameNone {
		routertest.Eventually(t, "every pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == p*d })
	}
	g.WaitIdle()
	return s, g
}

var fanConnectors = []string{connector.NamePush, connector.NamePull, connector.NameKVPlane}

// TestFault21Fan serves several choices one by one over each connector: 200, in the order of their index, usage summed,
// one id, one terminal event, one transfer each.
func TestFault21Fan(t *testing.T) {
	const toks = "tok0 tok1 tok2 "
	for _, connectorName := range fanConnectors {
		for _, row := range []struct {
			name, path, body string
			texts            []string
			prompts          int
		}{
			{"n", routertest.PathCompletions, `{"model":"tiny","prompt":"a","n":3,"seed":7,"max_tokens":16%s}`, []string{"a/7/1 ", "a/8/1 ", "a/9/1 "}, 1},
			{"texts", routertest.PathCompletions, `{"model":"tiny","prompt":["a","b"],"max_tokens":16%s}`, []string{"a//0 ", "b//0 "}, 2},
			{"tokens", routertest.PathCompletions, `{"model":"tiny","prompt":[[1,2],[3]],"n":2,"max_tokens":16%s}`,
				[]string{"[1 2]//1 ", "[1 2]//1 ", "[3]//1 ", "[3]//1 "}, 2},
			{"chat", routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"n":2,"seed":9007199254740993%s}`,
				[]string{"<nil>/9007199254740993/1 ", "<nil>/9007199254740994/1 "}, 1},
		} {
			for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
				t.Run(connectorName+" "+row.name+strconv.FormatBool(stream != ""), func(t *testing.T) {
					s, g := newFanPool(t, connectorName, 1, 1)
					before := s.Cluster.Count("", "")
					r := g.Post(row.path, fmt.Sprintf(row.body, stream))
					if r.Status != 200 || r.Err != nil {
						t.Fatalf("status %d, %v: %s", r.Status, r.Err, r.Body)
					}
					want := fanAnswer{Prompt: 7 * row.prompts, Completion: 3 * len(row.texts), Cached: 4 * row.prompts, IDs: 1, Usages: 1}
					for _, text := range row.texts {
						want.Texts = append(want.Texts, text+toks)
					}
					if stream != "" {
						want.Dones, want.Cached = 1, 0 // the fake's streams do not say
					}
					got := fanOf(t, r)
					if connectorName != connector.NamePull { // decode may have answered before prefill has told
						got.Cached = want.Cached
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("-want +got\n%s\n%s", diff, r.Body)
					}
					sum := g.Summary(1)
					if int(sum.Attempts) != len(row.texts) || len(sum.Parts) != len(row.texts) || int(sum.OutputTokens) != 3*len(row.texts) ||
						int(sum.PromptTokens) != 7*row.prompts || sum.Outcome != dispatch.Completed || sum.Reason != "split" || sum.Status != 200 {
						t.Errorf("summary %+v", sum)
					}
					if strings.Contains(r.Body, "_transfer_params") {
						t.Errorf("the hand-off reached the client: %s", r.Body)
					}
					transfers := map[string]bool{}
					for _, p := range sum.Parts {
						transfers[p.TransferID] = true
					}
					if len(transfers) != len(row.texts) || r.Header.Get("X-Pdrouter-Parts") != strconv.Itoa(len(row.texts)) {
						t.Errorf("%d transfers; header %v", len(transfers), r.Header)
					}
					g.WaitIdle()
					s.CheckNothingHeld(t)
					legs := map[string]int{}
					for _, q := range s.Cluster.All()[before:] {
						legs[q.Leg]++
					}
					if diff := cmp.Diff(map[string]int{"prefill": len(row.texts), "decode": len(row.texts)}, legs); diff != "" {
						t.Errorf("legs: -want +got\n%s", diff)
					}
					g.Mu.Lock()
					defer g.Mu.Unlock()
					if len(g.Summaries) != 1 {
						t.Errorf("%d summaries", len(g.Summaries))
					}
				})
			}
		}
	}
}

// TestFault21FanFails has one of the choices fail: before any was sent the answer is its true error, behind it an error event
// and a cut; the others are ended and nothing is held.
func TestFault21FanFails(t *testing.T) {
	for _, connectorName := range fanConnectors {
		for _, row := range []struct {
			name   string
			fault  []routertest.Fault
			body   string
			status int
			frame  bool
		}{
			{"rejected", []routertest.Fault{{Do: routertest.DoReject}}, routertest.PlainBody, 400, false},
			{"rejected, streamed", []routertest.Fault{{Do: routertest.DoReject}}, routertest.StreamBody, 400, false},
			{"errors", []routertest.Fault{{Leg: "decode", Do: routertest.DoError}, {Leg: "alone", Do: routertest.DoError}}, routertest.PlainBody, 500, false},
			{"garbage", []routertest.Fault{{Leg: "decode", Do: routertest.DoGarbage}, {Leg: "alone", Do: routertest.DoGarbage}}, routertest.StreamBody, 500, false},
			// So long that the others have begun: what waits for them is bounded.
			{"breaks", []routertest.Fault{{Leg: "decode", Nth: 2, Do: routertest.DoCut, N: 5000}}, routertest.StreamBody, 200, true},
			{"error event", []routertest.Fault{{Leg: "decode", Nth: 2, Do: routertest.DoErrFrame, N: 5000}}, routertest.StreamBody, 200, true},
			{"ends early", []routertest.Fault{{Leg: "decode", Nth: 2, Do: routertest.DoNoDone, N: 5000}}, routertest.StreamBody, 200, true},
		} {
			t.Run(connectorName+" "+row.name, func(t *testing.T) {
				s, g := newFanPool(t, connectorName, 1, 1)
				s.SetFaults(map[string][]routertest.Fault{"decode-0": row.fault, "prefill-0": row.fault})
				r := g.Post(routertest.PathCompletions, strings.Replace(row.body, `"prompt"`, `"n":3,"prompt"`, 1))
				if r.Status != row.status && (row.status != 500 || r.Status < 500) {
					t.Fatalf("status %d; want %d: %s", r.Status, row.status, r.Body)
				}
				sum := g.Summary(1)
				switch {
				case row.frame:
					if r.Err == nil || strings.Contains(r.Body, "[DONE]") || strings.Count(r.Body, `"error"`) != 1 || sum.Outcome != dispatch.FailedAfter {
						t.Errorf("outcome %s, ended by %v: %s", sum.Outcome, r.Err, r.Body)
					}
				default:
					routertest.ErrorOf(t, r.Body)
					if sum.Outcome != dispatch.FailedBefore || int(sum.Status) != r.Status {
						t.Errorf("summary %+v", sum)
					}
					if row.status == 400 && r.Header.Get("X-Should-Retry") != "false" || r.Header.Get("X-Pdrouter-Reason") != sum.Reason || sum.Reason == "branch" {
						t.Errorf("reason %s, header %v", sum.Reason, r.Header)
					}
				}
				g.WaitIdle()
				if row.name != "errors" && row.name != "garbage" || connectorName == connector.NameKVPlane {
					s.CheckNothingHeld(t)
				}
			})
		}
	}
}

// TestFault29Fan has every choice carry the salt and the media ids of its tenant.
func TestFault29Fan(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
	s.Config.IsolatePrefixCache = true
	g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
	routertest.Eventually(t, "the pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 1 })
	g.WaitIdle()
	before := s.Cluster.Count("", "")
	if r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":["a","b"],"max_tokens":16,"cache_salt":"own"}`); r.Status != 200 || r.Header.Get("X-Pdrouter-Parts") != "2" {
		t.Fatalf("status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
	for _, q := range s.Cluster.All()[before:] {
		if strings.Contains(q.Body, `"own"`) || strings.Count(q.Body, `"cache_salt"`) != 1 {
			t.Errorf("%s was sent %s", q.Leg, q.Body)
		}
	}
	before = s.Cluster.Count("", "")
	const image = `{"model":"tiny","n":2,"max_tokens":16,"messages":[{"role":"user","content":[{"type":"image_url","image_url":null,"uuid":"own"}]}]}`
	if r := g.Post(routertest.PathChat, image); r.Status != 200 || r.Header.Get("X-Pdrouter-Parts") != "2" {
		t.Fatalf("status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
	ids := map[string]bool{}
	for _, q := range s.Cluster.All()[before:] {
		for _, uuid := range uuidsOf(t, []byte(q.Body)) {
			ids[uuid] = true
		}
	}
	if len(ids) != 1 || ids[`"own"`] {
		t.Errorf("the legs named %v; want one id that is not the client's", ids)
	}
}

// TestFault23FanWhole leaves to one engine what several cannot do as one would.
func TestFault23FanWhole(t *testing.T) {
	for _, row := range []struct{ field, reason string }{
		{`"n":2,"echo":true`, openai.UnsplitEcho}, {`"n":2,"best_of":2`, openai.UnsplitBestOf}, {`"n":2,"use_beam_search":true`, openai.UnsplitBeam},
		{`"n":2,"prompt_logprobs":1`, openai.UnsplitLogprobs}, {`"n":2,"max_tokens":1`, openai.UnsplitOneToken}, {`"n":2,"temperature":0`, openai.UnsplitN},
		{`"n":2,"seed":9223372036854775807`, openai.UnsplitN}, {`"n":9`, openai.UnsplitFan},
	} {
		t.Run(row.field, func(t *testing.T) {
			s, g := newFanPool(t, connector.NamePush, 1, 1)
			before := s.Cluster.Count("", "")
			r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a",`+row.field+`}`)
			if got := r.Header.Get("X-Pdrouter-Reason"); r.Status != 200 || got != row.reason {
				t.Errorf("status %d, reason %q; want %q", r.Status, got, row.reason)
			}
			if all := s.Cluster.All()[before:]; len(all) != 1 || all[0].Leg != "alone" || !strings.Contains(all[0].Body, row.field) {
				t.Errorf("%d requests", len(all))
			}
		})
	}
	s, g := newFanPool(t, connector.NameNone, 0, 1)
	if r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a","n":2}`); r.Status != 200 || s.Cluster.Count("", "") != 1 {
		t.Errorf("aggregated: status %d, %d requests", r.Status, s.Cluster.Count("", ""))
	}
}

// TestFault58Fan has the client leave while the choices are under way: all of them end, nothing is held.
func TestFault58Fan(t *testing.T) {
	for _, connectorName := range fanConnectors {
		for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
			for _, x := range []routertest.Fault{{Leg: "prefill", Do: routertest.DoSlow, N: 300}, {Leg: "decode", Do: routertest.DoSlow, N: 300}} {
				t.Run(fmt.Sprint(connectorName, " ", body == routertest.StreamBody, x.Leg), func(t *testing.T) {
					s, g := newFanPool(t, connectorName, 1, 1)
					s.SetFaults(map[string][]routertest.Fault{"decode-0": {x}, "prefill-0": {x}})
					conn := send(t, g.Addr, strings.Replace(body, `"prompt"`, `"n":3,"prompt"`, 1))
					routertest.Eventually(t, "all legs are out", func() bool { return s.Prefill[0].UnderWay()+s.Decode[0].UnderWay() >= 3 })
					_ = conn.Close()
					if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft || sum.Reason != "client_left" {
						t.Errorf("summary %+v", sum)
					}
					g.WaitIdle()
					routertest.Eventually(t, "no engine is at work", func() bool { return s.Prefill[0].UnderWay()+s.Decode[0].UnderWay() == 0 })
					s.CheckNothingHeld(t)
				})
			}
		}
	}
}

// TestFault09Fan has a client that does not read: no choice is read further than the bound, and its write has a deadline.
func TestFault09Fan(t *testing.T) {
	s, parts := routertest.NewPool(t, connector.NamePush, 1, 1, nil), router.Parts{Planner: routertest.FirstUsable{}}
	s.Config.Timeouts.Write = 300 * time.Millisecond
	g := routertest.Start(t, s.Config, parts)
	routertest.Eventually(t, "the pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 1 })
	g.WaitIdle()
	s.Decode[0].SetHabit(func(h *routertest.Habit) { h.Tokens = 1 << 20 })
	conn := send(t, g.Addr, strings.Replace(routertest.StreamBody, `"prompt"`, `"n":3,"prompt"`, 1))
	defer conn.Close()
	if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft || sum.Reason != "slow_client" {
		t.Errorf("summary %+v", sum)
	}
}

// send sends a request and leaves its answer to the caller.
func send(t *testing.T, addr, body string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", routertest.PathCompletions, len(body), body)
	return conn
}
