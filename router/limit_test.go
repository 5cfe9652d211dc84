package router_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/internal/limits"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/edge"
)

// counted limits every caller alike, by the real limiter, and notes how many tokens each request was said to use.
type counted struct {
	l      *limits.Limiter
	limits limits.Limits

	mu             sync.Mutex
	expected, used []int
}

func newCounted(l limits.Limits) *counted {
	return &counted{l: limits.New(nil, "", slog.New(slog.DiscardHandler)), limits: l}
}

func (c *counted) Acquire(who auth.Principal, expected int) (edge.Lease, edge.Allowance) {
	mine, lookups := c.limits, limits.Lease{}
	if expected == edge.ExpectedLookup { // as the command's limiter: lookups have a limit of concurrency of their own
		var no *limits.Refusal
		if lookups, no = c.l.Admit(time.Now(), "\x00lookups\x00"+who.Subject, limits.Limits{Concurrent: mine.Concurrent}, 0); no != nil {
			return nil, edge.Allowance{Over: no.Limit.String(), Max: no.Max, RetryAfter: no.After}
		}
		mine.Concurrent = 0
	}
	e, no := c.l.Admit(time.Now(), who.Subject, mine, max(expected, 0))
	if no != nil {
		lookups.Done(time.Now(), 0)
		return nil, edge.Allowance{Requests: quota(no.Requests), Tokens: quota(no.Tokens), Over: no.Limit.String(), Max: no.Max, RetryAfter: no.After}
	}
	if expected == edge.ExpectedLookup {
		e.Done(time.Now(), 0)
		e, expected = lookups, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = append(c.expected, expected)
	return &countedLease{c: c, e: e}, edge.Allowance{Requests: quota(e.Requests), Tokens: quota(e.Tokens), Concurrent: mine.Concurrent}
}

func quota(r limits.Room) edge.Quota {
	return edge.Quota{Limit: r.Limit, Left: r.Left, Reset: r.Full}
}

type countedLease struct {
	c *counted
	e limits.Lease
}

func (l *countedLease) Done(tokens int) {
	l.e.Done(time.Now(), tokens)
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	l.c.used = append(l.c.used, tokens)
}

// ended waits until so many requests have ended, and returns what they have used.
func (c *counted) ended(t *testing.T, n int) (used []int) {
	t.Helper()
	routertest.Eventually(t, fmt.Sprintf("%d requests have ended", n), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		used = slices.Clone(c.used)
		return len(used) >= n
	})
	return used
}

const good = "Bearer good"

// TestFault63OverLimit sends more than a tenant may: 429 with when to come back, one line in the log and one in the
// metrics, and no request to an engine.
func TestFault63OverLimit(t *testing.T) {
	for _, row := range []struct {
		name             string
		limits           limits.Limits
		admitted         int
		reason, message  string
		header, headerIs string
	}{
		{"requests", limits.Limits{Requests: 3}, 3, "over_limit_requests", "at most 3 per minute", "X-Ratelimit-Remaining-Requests", "0"},
		{"tokens", limits.Limits{Tokens: 25}, 1, "over_limit_tokens", "at most 25 per minute", "X-Ratelimit-Limit-Tokens", "25"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
			var log lockedBuffer
			refused := make(chan string, 10)
			g := routertest.Start(t, s.Config, router.Parts{Limiter: newCounted(row.limits), Clients: routertest.Clients{}, Log: slog.New(slog.NewTextHandler(&log, nil)),
				Refused: func(status int, why string) { refused <- strconv.Itoa(status) + " " + why }})
			for i := range row.admitted {
				if r := g.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", good); r.Status != 200 || r.Header.Get("X-Ratelimit-Limit-"+strings.ToUpper(row.name[:1])+row.name[1:]) == "" {
					t.Fatalf("request %d: status %d, header %v", i, r.Status, r.Header)
				}
				g.WaitIdle()
			}
			r := g.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", good)
			ms, err := strconv.Atoi(r.Header.Get("Retry-After-Ms"))
			seconds, err2 := strconv.Atoi(r.Header.Get("Retry-After"))
			if r.Status != 429 || err != nil || err2 != nil || ms < 1 || ms > 60_000 || seconds < 1 || seconds != (ms+999)/1000 {
				t.Errorf("status %d, header %v; want 429 with when to come back", r.Status, r.Header)
			}
			e := routertest.ErrorOf(t, r.Body)
			if r.Header.Get("X-Pdrouter-Reason") != row.reason || e.Type != "RateLimitError" || e.Code != 429.0 || !strings.Contains(e.Message, row.message) {
				t.Errorf("got %s and %v", r.Body, r.Header)
			}
			if r.Header.Get("X-Should-Retry") == "false" || r.Header.Get("X-Request-Id") == "" || r.Header.Get(row.header) != row.headerIs {
				t.Errorf("header %v", r.Header)
			}
			if n := s.Cluster.Count("", ""); n != row.admitted {
				t.Errorf("the engine got %d requests; want %d", n, row.admitted)
			}
			if got := <-refused; got != "429 "+row.reason || len(refused) != 0 {
				t.Errorf("counted %q and %d more", got, len(refused))
			}
			if text := log.String(); strings.Count(text, "msg=refused") != 1 || !strings.Contains(text, "remote=127.0.0.1:") ||
				!strings.Contains(text, "subject=someone tenant=team model=tiny status=429 reason="+row.reason) {
				t.Errorf("want one line, with who it was:\n%s", text)
			}
		})
	}
}

// TestFault63Concurrent has as many requests under way as a tenant may: one more is refused, and the end of any of them,
// whatever it is, makes room for one.
func TestFault63Concurrent(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Nth: 1, Do: routertest.DoHang}, {Nth: 2, Do: routertest.DoError}, {Nth: 3, Do: routertest.DoReject}, {Nth: 4, Do: routertest.DoSlow, N: 100}, {Nth: 5, Do: routertest.DoBreak, N: 1},
		{Nth: 7, Do: routertest.DoReset}}}) // the last: a reset of a kept connection is asked again
	l := newCounted(limits.Limits{Concurrent: 1})
	s.Config.Limits.Attempts = 1
	g := routertest.Start(t, s.Config, router.Parts{Limiter: l})
	for i := range 7 {
		body := routertest.PlainBody
		if i >= 3 {
			body = routertest.StreamBody
		}
		over := func() bool { return s.Cluster.Count("", "") > i }
		if i == 0 || i == 3 {
			leave(t, g, body, func() bool {
				if !over() {
					return false
				}
				r := g.Post(routertest.PathCompletions, routertest.PlainBody)
				if r.Status != 429 || r.Header.Get("X-Pdrouter-Reason") != "over_limit_concurrent" || r.Header.Get("Retry-After-Ms") != "1000" {
					t.Errorf("beside one under way: status %d, header %v", r.Status, r.Header)
				}
				return true
			})
		} else if r := g.Post(routertest.PathCompletions, body); r.Status == 429 {
			t.Errorf("request %d: the one before it still counts", i)
		}
		l.ended(t, i+1)
	}
	if used := l.ended(t, 7); len(used) != 7 {
		t.Errorf("seven requests have ended %d times", len(used))
	}
}

// TestTokensAreCharged looks at what each kind of end charges. The prompt is estimated at 3 tokens; the engine counts 7.
func TestTokensAreCharged(t *testing.T) {
	for _, row := range []struct {
		name, connector, body string
		fault                 routertest.Fault
		leaves                bool
		want                  int
	}{
		{"whole", connector.NameNone, routertest.PlainBody, routertest.Fault{}, false, 10},
		{"whole, split", connector.NamePull, routertest.PlainBody, routertest.Fault{}, false, 10},
		{"stream with usage", connector.NameNone, routertest.StreamBody, routertest.Fault{}, false, 10},
		{"stream, cut", connector.NameNone, routertest.StreamBody, routertest.Fault{Do: routertest.DoBreak, N: 2}, false, 3 + 2},
		{"stream, split, cut", connector.NamePull, routertest.StreamBody, routertest.Fault{Leg: "decode", Do: routertest.DoBreak, N: 2}, false, 7 + 2},
		{"rejected", connector.NameNone, routertest.PlainBody, routertest.Fault{Do: routertest.DoReject}, false, 0},
		{"no engine", connector.NameNone, routertest.PlainBody, routertest.Fault{Do: routertest.DoRefuse}, false, 0},
		{"left", connector.NameNone, routertest.PlainBody, routertest.Fault{Do: routertest.DoHang}, true, 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 1, nil)
			l := newCounted(limits.Limits{Tokens: 1 << 30})
			g := routertest.Start(t, s.Config, router.Parts{Limiter: l})
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {row.fault}})
			if row.leaves {
				leave(t, g, row.body, func() bool { return s.Cluster.Count("", "") > 0 })
			} else {
				g.Post(routertest.PathCompletions, row.body)
			}
			if used := l.ended(t, 1); len(used) != 1 || used[0] != row.want {
				t.Errorf("charged %v; want %d", used, row.want)
			}
			if l.expected[0] != 3+16 {
				t.Errorf("expected %d tokens; want 3 of the prompt and 16", l.expected[0])
			}
		})
	}
}

// TestStreamWithoutUsage counts the events of a stream in which the engine tells nothing, and leaves its bytes alone.
func TestStreamWithoutUsage(t *testing.T) {
	const answer = "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n: still here\n\ndata: {\"choices\":[{\"index\":0,\"text\":\"b\"}]}\n\ndata: [DONE]\n\n"
	sent := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			b, _ := io.ReadAll(r.Body)
			sent <- string(b)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, answer)
	}))
	defer srv.Close()
	l := newCounted(limits.Limits{Tokens: 1000})
	g := routertest.Start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "e", URL: srv.URL}}}}}, router.Parts{Limiter: l})
	r := g.Post(routertest.PathCompletions, routertest.StreamBody)
	if r.Body != answer || r.Header.Get("X-Ratelimit-Remaining-Tokens") != "981" {
		t.Errorf("got %q, header %v", r.Body, r.Header)
	}
	if got := <-sent; got != routertest.StreamBody {
		t.Errorf("the engine was asked %q", got)
	}
	if used := l.ended(t, 1); used[0] != 3+2 {
		t.Errorf("charged %v; want 3 for the prompt and 2 events", used)
	}
}

// fakeRefusal is an authenticator that refuses everybody in one way.
type fakeRefusal struct{ err error }

func (f fakeRefusal) Authenticate(string) (auth.Principal, error) { return auth.Principal{}, f.err }

// TestFault30To37Answers compares what a client sees of each refusal: the same body within a status, a challenge, one
// line in the log, and nothing of what the client sent.
func TestFault30To37Answers(t *testing.T) {
	for _, row := range []struct {
		code              auth.Code
		status            int
		reason, challenge string
		kind              string
	}{
		{auth.NoCredentials, 401, "unauthorized", `Bearer realm="pdrouter"`, "AuthenticationError"},
		{auth.InvalidToken, 401, "unauthorized", `Bearer realm="pdrouter", error="invalid_token"`, "AuthenticationError"},
		{auth.InsufficientScope, 403, "forbidden", `Bearer realm="pdrouter", error="insufficient_scope"`, "PermissionDeniedError"},
		{auth.JWKSStale, 503, "jwks_stale", "", "ServiceUnavailableError"},
	} {
		t.Run(string(row.code), func(t *testing.T) {
			s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
			var log lockedBuffer
			g := routertest.Start(t, s.Config, router.Parts{Clients: fakeRefusal{&auth.Error{Code: row.code}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
			for n, at := range []struct {
				line string
				send func() routertest.Reply
			}{
				{"method=POST path=" + routertest.PathChat, func() routertest.Reply {
					return g.Post(routertest.PathChat, `{"model":"tiny"}`, "Authorization", "Bearer s3cret")
				}},
				{"method=GET path=" + routertest.PathModels, func() routertest.Reply {
					return g.Get(routertest.PathModels+"?token=s3cret", "Authorization", "Bearer s3cret")
				}},
				{"method=POST path=" + routertest.PathCompletions, func() routertest.Reply {
					return g.Post(routertest.PathCompletions, "no JSON at all", "Authorization", "Bearer s3cret")
				}},
			} {
				r := at.send()
				e := routertest.ErrorOf(t, r.Body)
				if r.Status != row.status || e.Type != row.kind || e.Code != float64(row.status) || r.Header.Get("X-Pdrouter-Reason") != row.reason {
					t.Errorf("status %d, %s, header %v", r.Status, r.Body, r.Header)
				}
				if row.challenge != "" && r.Header.Get("Www-Authenticate") != row.challenge {
					t.Errorf("www-authenticate %q; want %q", r.Header.Get("Www-Authenticate"), row.challenge)
				}
				if again := row.status == 503; (r.Header.Get("Retry-After-Ms") != "") != again || (r.Header.Get("X-Should-Retry") == "") != again {
					t.Errorf("header %v", r.Header)
				}
				text := log.String()
				if strings.Count(text, `level=WARN msg=refused`) != n+1 || !strings.Contains(text, at.line+" remote=127.0.0.1:") || strings.Contains(text, "s3cret") ||
					!strings.Contains(text, "request_id="+r.Header.Get("X-Request-Id")) || !strings.Contains(text, "reason="+row.reason) {
					t.Errorf("want line %d, with who and why:\n%s", n+1, text)
				}
			}
		})
	}
}

// anyToken takes every token for its subject's name.
type anyToken struct{}

func (anyToken) Authenticate(authorization string) (auth.Principal, error) {
	return auth.Principal{Subject: strings.TrimPrefix(authorization, "Bearer "), Tenant: "team", Models: []string{"other"}}, nil
}

// TestFault30SeveralAuthorizations: which of two headers counts is not for the gateway to choose.
func TestFault30SeveralAuthorizations(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{Clients: anyToken{}})
	for _, head := range [][]string{{"Authorization: Bearer a", "Authorization: Bearer a"}, {"Authorization: Bearer a", "authorization: Bearer b"}, {"Authorization:", "Authorization: Bearer a"}} {
		json, n := "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(routertest.PlainBody))
		for _, request := range []string{
			routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, append([]string{"Host: a", json, n, "Connection: close"}, head...)...),
			strings.Replace(routertest.RawPost(routertest.PathModels, "", append([]string{"Host: a", "Connection: close"}, head...)...), "POST", "GET", 1),
		} {
			if status, rest, _ := routertest.RawRequest(t, g.Addr, request); !strings.Contains(status, " 401 ") || !strings.Contains(rest, "invalid_token") {
				t.Errorf("%v: %s %s; want 401", head, status, rest)
			}
		}
	}
	if n := s.Cluster.Count("", ""); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
}

// TestFault17ModelNotPermitted: the line of a request for a model that its sender may not use names the sender.
func TestFault17ModelNotPermitted(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	var log lockedBuffer
	g := routertest.Start(t, s.Config, router.Parts{Clients: anyToken{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	r := g.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", "Bearer alice")
	if e := routertest.ErrorOf(t, r.Body); r.Status != 403 || e.Type != "PermissionDeniedError" {
		t.Errorf("status %d, %s", r.Status, r.Body)
	}
	if text := log.String(); strings.Count(text, "msg=refused") != 1 || !strings.Contains(text, "level=WARN msg=refused") ||
		!strings.Contains(text, "subject=alice tenant=team model=tiny status=403 reason=forbidden") {
		t.Errorf("the log says %s", text)
	}
}

// TestUnknownModelIsLogged: the line of a request for a model that there is not names it, why it is refused, and the sender.
func TestUnknownModelIsLogged(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	var log lockedBuffer
	g := routertest.Start(t, s.Config, router.Parts{Clients: anyToken{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	long := strings.Repeat("x", 1000)
	for _, model := range []string{"other", long} {
		if r := g.Post(routertest.PathCompletions, `{"model":"`+model+`","prompt":"a"}`, "Authorization", "Bearer alice"); r.Status != 404 {
			t.Errorf("status %d: %s", r.Status, r.Body)
		}
	}
	if text := log.String(); !strings.Contains(text, `subject=alice tenant=team model=other status=404 reason=unknown_model err="no such model"`) ||
		strings.Contains(text, long) || !strings.Contains(text, "model="+long[:200]) {
		t.Errorf("the log says %s", text)
	}
}
