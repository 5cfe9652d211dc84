package router_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// TestStreamOfHours has an engine say a token every 30 s for five hours, over every connector: all of it arrives, no deadline cuts it,
// and whatever stands in between sees a byte at least every 15 s, which are comments.
func TestStreamOfHours(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane, connector.NameSGLang} {
		t.Run(connectorName, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) { streamOfHours(t, n, connectorName) })
		})
	}
}

func streamOfHours(t *testing.T, n *routertest.Network, connectorName string) {
	const every, count = 30 * time.Second, 5*60*2 + 1
	s, parts := routertest.NewPoolIn(t, n, connectorName, 1, 1)
	s.Config.Timeouts.Health = time.Hour
	g := routertest.StartIn(t, n, s.Config, parts)
	if connectorName != connector.NameNone && connectorName != connector.NameSGLang {
		g.WaitWarm()
	}
	s.Decode[0].SetHabit(func(h *routertest.Habit) { h.Tokens, h.Parrot = count, false })
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoLateToken, N: int(every.Milliseconds())}}})
	req, err := http.NewRequest(http.MethodPost, g.URL+routertest.PathCompletions, strings.NewReader(strings.Replace(routertest.StreamBody, `"max_tokens":16`, `"max_tokens":9999`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := routertest.Reply{Status: resp.StatusCode, Header: resp.Header}
	begun, last, silent := time.Now(), time.Now(), time.Duration(0)
	var body strings.Builder
	for buf := make([]byte, 4<<10); r.Err == nil; {
		var m int
		m, r.Err = resp.Body.Read(buf)
		body.Write(buf[:m])
		silent, last = max(silent, time.Since(last)), time.Now()
	}
	if r.Body = body.String(); errors.Is(r.Err, io.EOF) {
		r.Err = nil
	}
	if got, whole := routertest.Text(t, r); got != routertest.Tokens(count) || !whole {
		t.Errorf("%d bytes of %d, whole %v, %v: …%s", len(got), len(routertest.Tokens(count)), whole, r.Err, r.Body[max(0, len(r.Body)-300):])
	}
	if took := time.Since(begun); took != (count-1)*every {
		t.Errorf("it took %v; want five hours", took)
	}
	if limit := *g.Router.Timeouts().KeepAlive; silent > limit || limit >= every {
		t.Errorf("it was silent for %v; want at most %v", silent, limit)
	}
	if n := strings.Count(r.Body, router.KeepAliveEvent); n < count-1 || n > 5*count {
		t.Errorf("%d comments", n)
	}
	if sum := g.Summary(1); sum.Outcome != dispatch.Completed || sum.Attempts != 1 || connectorName != connector.NameNone && sum.Prefill == "" {
		t.Errorf("summary %+v", sum)
	}
}

// TestStreamSilenceIsBounded has an engine say nothing behind its first tokens: the stream lives for as long as two events may be
// apart, to the millisecond, and then ends with an error event and a cut.
func TestStreamSilenceIsBounded(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoLateToken, N: int(time.Hour.Milliseconds())}}})
		g := routertest.StartIn(t, n, s.Config, parts)
		begun := time.Now()
		r := g.Post(routertest.PathCompletions, routertest.StreamBody)
		if took := time.Since(begun); took != g.Router.Timeouts().StreamIdle {
			t.Errorf("it took %v; want %v", took, g.Router.Timeouts().StreamIdle)
		}
		if r.Err == nil || strings.Contains(r.Body, "[DONE]") || strings.Count(r.Body, `{"error"`) != 1 || !strings.Contains(r.Body, router.KeepAliveEvent) {
			t.Errorf("end %v, body %q", r.Err, r.Body)
		}
	})
}
