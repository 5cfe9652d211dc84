package router_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/dispatch"
	"pdrouter/router/firsttoken"
	"pdrouter/router/report"
)

// streamed is what a client has of a stream.
type streamed struct {
	text, finish string
	usage        string // of the last event, but for what was cached
	cached       int
	whole        bool // it has the end
	failed       bool // it has an error
	roles, heads int  // events with a role; different ids or times of the events
}

func streamOf(t *testing.T, body string) (s streamed) {
	t.Helper()
	heads := map[string]bool{}
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			continue
		}
		if s.whole {
			t.Fatalf("an event after the end: %s", body)
		}
		if data == "[DONE]" {
			s.whole = true
			continue
		}
		var e struct {
			ID, Object, Model string
			Created           int64
			Choices           []struct {
				Text   string
				Delta  struct{ Role, Content string }
				Finish string `json:"finish_reason"`
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Total      int `json:"total_tokens"`
				Completion int `json:"completion_tokens"`
				Details    *struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
			Error any
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if e.Error != nil {
			s.failed = true
			continue
		}
		heads[fmt.Sprint(e.ID, e.Object, e.Model, e.Created)] = true
		for _, c := range e.Choices {
			s.text += c.Text + c.Delta.Content
			if c.Delta.Role != "" {
				s.roles++
			}
			if s.finish += c.Finish; c.Finish != "" && s.finish != c.Finish {
				t.Fatalf("it has finished twice: %s", body)
			}
		}
		if u := e.Usage; u != nil {
			s.usage, s.cached = fmt.Sprint(u.Prompt, u.Total, u.Completion), -1
			if u.Details != nil {
				s.cached = u.Details.Cached
			}
		}
	}
	s.heads = len(heads)
	return s
}

// firstBody is a body whose client may get prefill's token, or, with more, one that asks for more than that allows.
func firstBody(rng *rand.Rand, more string) (path, body string) {
	text := strings.Repeat("of ", rng.IntN(20)) + strings.Repeat("x", rng.IntN(34)) // prompts end everywhere in a block
	prompt := fmt.Sprintf(`"prompt":%q`, text+"?")
	path = routertest.PathCompletions
	if rng.IntN(2) == 0 {
		path, prompt = routertest.PathChat, fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, text)
	}
	for _, m := range []string{`"ignore_eos":true`, `"temperature":0`, `"temperature":0.7,"top_p":0.9`, `"stop":null,"tools":null,"n":1`, `"presence_penalty":0,"frequency_penalty":0.0`,
		`"stream_options":{"include_usage":true}`, `"stream_options":{"include_usage":true}`, `"cache_salt":"mine"`, `"logit_bias":{"5":1}`, `"user":"u"`} {
		if name, _, _ := strings.Cut(m, ":"); rng.IntN(3) == 0 && !strings.Contains(prompt, name) {
			prompt += "," + m
		}
	}
	return path, fmt.Sprintf(`{"model":"tiny",%s,"max_tokens":%d,"stream":true%s}`, prompt, 2+rng.IntN(20), more)
}

// beyond asks for something for which prefill's token is not the client's.
var beyond = []string{`,"seed":1`, `,"stop":["ab"]`, `,"min_tokens":1`, `,"presence_penalty":1`, `,"repetition_penalty":1.1`, `,"return_token_ids":true`, `,"skip_special_tokens":false`,
	`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`}

// aloneSays is what one engine says to a body.
func (m *movers) aloneSays(path, body string) streamed {
	m.t.Helper()
	resp, err := http.Post("http://"+m.alone.Addr+path, "application/json", strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		m.t.Fatalf("%s: status %d, %v: %s", body, resp.StatusCode, err, answer)
	}
	return streamOf(m.t, string(answer))
}

func firstOfPrefill(c *config.Config, _ map[string]*refengine.Config) {
	c.Models[0].FirstToken = config.FirstTokenPrefill
}

// TestFirstTokenEqual: with first_token: prefill every stream is what one engine says, whether the client has got prefill's token or not, and
// whether the gateway keeps the conversation to move it or not.
func TestFirstTokenEqual(t *testing.T) {
	for _, moves := range []string{config.MigrationDisabled, config.MigrationEnabled} {
		t.Run("migration "+moves, func(t *testing.T) {
			m := newMovers(t, 2, func(c *config.Config, e map[string]*refengine.Config) {
				firstOfPrefill(c, e)
				c.Migration.Mode = moves
			})
			m.learnedSizes()
			got := map[firsttoken.Result]int{}
			seeds := 120
			if testing.Short() {
				seeds = 60
			}
			for seed := range seeds {
				rng := rand.New(rand.NewPCG(uint64(seed), 7))
				more := ""
				if rng.IntN(4) == 0 {
					more = beyond[rng.IntN(len(beyond))]
				}
				path, body := firstBody(rng, more)
				if strings.Contains(more, "stream_options") && strings.Count(body, "stream_options") > 1 || strings.Contains(more, "presence") && strings.Count(body, "presence_penalty") > 1 ||
					strings.Contains(more, `"stop"`) && strings.Count(body, `"stop"`) > 1 {
					continue
				}
				want := m.aloneSays(path, body)
				r, s := m.ask(path, body)
				have := streamOf(t, r.Body)
				if have.cached != int(s.CachedTokens) && have.usage != "" {
					t.Errorf("%s\nthe usage says %d cached tokens, prefill %d", body, have.cached, s.CachedTokens)
				}
				have.cached, want.cached = 0, 0
				if have != want || r.Err != nil || have.heads != 1 {
					t.Fatalf("seed %d, %v: %s\ngot  %+v, %v\nwant %+v\n%s", seed, s.FirstToken, body, have, r.Err, want, r.Body)
				}
				got[s.FirstToken]++
				if fresh := s.FirstToken == firsttoken.Prefill; fresh != (s.Phases.Joined > 0) || fresh && (s.Phases.FirstToken != s.Phases.Prefill || s.Phases.Joined < s.Phases.FirstToken) ||
					(more != "") != (s.FirstToken == firsttoken.Body) || strings.Contains(r.Body, `token_ids":[`) != strings.Contains(more, "return_token_ids") {
					t.Fatalf("%v, %+v: %s\n%s", s.FirstToken, s.Phases, body, r.Body)
				}
			}
			t.Log(got)
			for _, r := range []firsttoken.Result{firsttoken.Prefill, firsttoken.Body, firsttoken.Block, firsttoken.Text} {
				if got[r] == 0 && r != firsttoken.Text {
					t.Errorf("no request with %v", r)
				}
			}
			m.freed(0)
		})
	}
}

// ask asks, and returns the summary too. No other request is under way.
func (m *movers) ask(path, body string) (routertest.Reply, report.Summary) {
	m.t.Helper()
	n := m.summaries()
	r := m.Post(path, body)
	return r, m.Summary(n + 1)
}

func (m *movers) summaries() int {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return len(m.Summaries)
}

// learnedSizes waits until the gateway knows the blocks and the room of all engines: before, no client gets prefill's token.
func (m *movers) learnedSizes() {
	m.t.Helper()
	routertest.Eventually(m.t, "clients get prefill's token", func() bool {
		_, s := m.ask(routertest.PathCompletions, `{"model":"tiny","prompt":"is it known?","max_tokens":2,"stream":true,"ignore_eos":true}`)
		return s.FirstToken == firsttoken.Prefill
	})
}

// TestFirstTokenLeft has clients leave after each number of bytes, while decode waits for the KV too: nothing is held.
func TestFirstTokenLeft(t *testing.T) {
	m := newMovers(t, 2, func(c *config.Config, engines map[string]*refengine.Config) {
		firstOfPrefill(c, engines)
		for name, e := range engines {
			e.Faults = []refengine.Fault{{Leg: refengine.ImportLeg, Nth: -1, Do: refengine.Late, Wait: 2 * time.Millisecond}}
			if name != "prefill-0" {
				e.DecodeCost = 200 * time.Microsecond
			}
		}
	})
	m.learnedSizes()
	got := map[dispatch.Outcome]int{}
	for n := range 150 {
		path, body := firstBody(rand.New(rand.NewPCG(uint64(n), 8)), "")
		got[m.leave(path, body, 1+n*7)]++
	}
	t.Log(got)
	if got[dispatch.ClientLeft] < 40 {
		t.Errorf("outcomes: %v", got)
	}
	m.WaitIdle()
	m.freed(0)
}

// leave asks and leaves after so many bytes of the answer. It returns the outcome of the request.
func (m *movers) leave(path, body string, bytes int) dispatch.Outcome {
	m.t.Helper()
	c := m.Dial(m.t)
	defer c.Close()
	before := m.summaries()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: pdrouter\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	_, _ = io.ReadFull(c, make([]byte, bytes))
	_ = c.Close()
	return m.Summary(before + 1).Outcome
}

// TestFirstTokenFails has decode refuse, die at every token, and get the KV too late, at random. A stream is cut, or goes
// on from another engine, where the policy says so. No token comes twice, none is lost, nothing is held.
func TestFirstTokenFails(t *testing.T) {
	for _, after := range []string{"cut", "continue_always"} {
		t.Run(after, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 9))
			requests := 70
			m := newMoversBy(t, planned(t, "default: {prefill: prefix, decode: least_load, after_failure: "+after+"}"), 3, func(c *config.Config, engines map[string]*refengine.Config) {
				firstOfPrefill(c, engines)
				c.Migration.Mode = config.MigrationDisabled
				c.Timeouts.Transfer = 100 * time.Millisecond
				c.Limits.RetryFloor, c.Limits.Failures, c.Health.Failures, c.Health.PanicPercent = new(1<<20), 1<<20, 1<<20, 1
				for name, e := range engines {
					if name == "prefill-0" {
						continue
					}
					for nth := range requests {
						f := refengine.Fault{Leg: refengine.ImportLeg, Nth: nth}
						switch rng.IntN(8) {
						case 0:
							f.Do = refengine.Refuse
						case 1, 2, 3:
							f.Do, f.After = refengine.Cut, rng.IntN(20)
						case 4:
							if nth%8 != 0 {
								continue
							}
							f.Do, f.Wait = refengine.Late, 200*time.Millisecond
						default:
							continue
						}
						e.Faults = append(e.Faults, f)
					}
				}
			})
			m.learnedSizes()
			got := map[string]int{}
			for n := range requests {
				path, body := firstBody(rand.New(rand.NewPCG(uint64(n), 10)), "")
				want := m.aloneSays(path, body)
				r, s := m.ask(path, body)
				have := streamOf(t, r.Body)
				got[fmt.Sprint(s.FirstToken, " ", s.Outcome)]++
				have.cached, want.cached = 0, 0
				switch {
				case s.Outcome == dispatch.Completed && s.Continued > 0:
					got["continued"]++
					fallthrough
				case s.Outcome == dispatch.Completed:
					if have != want || r.Err != nil {
						t.Fatalf("%v: %s\ngot  %+v, %v\nwant %+v\n%s", s.FirstToken, body, have, r.Err, want, r.Body)
					}
				case s.Outcome == dispatch.FailedAfter:
					if !strings.HasPrefix(want.text, have.text) || have.whole || !have.failed || r.Err == nil || after != "cut" && s.NotContinued == "" {
						t.Fatalf("%v, not continued %q: %s\ngot  %+v, %v\nwant %+v", s.FirstToken, s.NotContinued, body, have, r.Err, want)
					}
				default:
					t.Fatalf("%v %v: %s", s.FirstToken, s.Outcome, r.Body)
				}
			}
			t.Log(got)
			if after == "cut" && got["prefill failed_after"] < 8 || after != "cut" && got["continued"] < 8 {
				t.Errorf("too few: %v", got)
			}
			m.WaitIdle()
			m.freed(0)
		})
	}
}

// TestFirstTokenPrefillDies has the prefill engine die under the requests of several clients, at random. What they have is one engine's answer, the
// beginning of it that is visibly cut, or an error.
func TestFirstTokenPrefillDies(t *testing.T) {
	m := newMovers(t, 2, func(c *config.Config, engines map[string]*refengine.Config) {
		firstOfPrefill(c, engines)
		c.Migration.Mode = config.MigrationDisabled
		c.Timeouts.Health = 10 * time.Millisecond
		c.Limits.RetryFloor, c.Limits.Failures, c.Health.Failures, c.Health.PanicPercent = new(1<<20), 1<<20, 1<<20, 1
		engines["prefill-0"].PrefillCost = 20 * time.Microsecond
	})
	got := map[string]int{}
	deaths := 8
	if testing.Short() {
		deaths = 4
	}
	for death := range deaths {
		m.learnedSizes()
		var clients sync.WaitGroup
		for client := range 4 {
			path, body := firstBody(rand.New(rand.NewPCG(uint64(death*4+client), 11)), "")
			want := m.aloneSays(path, body)
			clients.Go(func() {
				r := m.Post(path, body)
				have := streamOf(t, r.Body)
				have.cached, want.cached = 0, 0
				switch {
				case r.Status == 200 && r.Err == nil:
					if have != want {
						t.Errorf("%s\ngot  %+v\nwant %+v\n%s", body, have, want, r.Body)
					}
				case r.Status == 200:
					if !strings.HasPrefix(want.text, have.text) || have.whole || !have.failed {
						t.Errorf("%s\ngot  %+v, %v\nwant %+v", body, have, r.Err, want)
					}
				case r.Status < 500:
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
			})
		}
		p := m.engines["prefill-0"]
		time.Sleep(rand.N(3 * time.Millisecond))
		_ = p.Kill()
		clients.Wait()
		m.WaitIdle()
		m.engines["prefill-0"] = refenginetest.RunAt(t, p.Addr, m.made["prefill-0"])
	}
	m.Mu.Lock()
	for _, s := range m.Summaries {
		got[fmt.Sprint(s.FirstToken, " ", s.Outcome)]++
	}
	m.Mu.Unlock()
	t.Log(got)
	m.freed(0)
}
